-- outbox.replay(): arguments and errors. Nothing is published here, so there is nothing to replay.
\set SHOW_CONTEXT never
CREATE EXTENSION outbox;
SELECT outbox.replay('orders', NULL, NULL);
SELECT outbox.replay(NULL, NULL, NULL);
\echo :SQLSTATE
SELECT outbox.replay('orders', NULL, NULL, 'no/topic');
\echo :SQLSTATE
SELECT outbox.replay('orders', NULL, NULL, '');
\echo :SQLSTATE
SELECT outbox.replay('orders', now(), now() - interval '1 day');
SELECT outbox.replay(topic => 'orders', since => '-infinity', until => 'infinity', target_topic => 'again');
-- A pending message is not published yet.
SELECT outbox.enqueue('orders', 'payload') IS NOT NULL AS enqueued;
SELECT outbox.replay('orders', NULL, NULL);
SELECT count(*) FROM outbox.messages;
-- The earliest time there is, with a closed segment.
SELECT outbox.roll() IS NOT NULL AS rolled;
SELECT outbox.replay('orders', '4714-11-24 00:00:00+00 BC', NULL);
BEGIN TRANSACTION READ ONLY;
SELECT outbox.replay('orders', NULL, NULL);
\echo :SQLSTATE
ROLLBACK;
-- The header is not to be had otherwise.
SELECT outbox.enqueue('orders', 'payload', headers => '{"outbox-replayed": "2026-01-01T00:00:00.000000Z"}');
\echo :SQLSTATE
SET outbox.allow_data_loss = on;
DROP EXTENSION outbox;
