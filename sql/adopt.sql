-- outbox.adopt() in a database that needs no adoption.
\set SHOW_CONTEXT never
CREATE EXTENSION outbox;
SELECT outbox.enqueue('orders', 'mine') IS NOT NULL AS ok;
SELECT outbox.adopt();
SELECT outbox.adopt();
SELECT segment, state FROM outbox.segments;
SELECT payload, lane, state FROM outbox.messages;
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT outbox.adopt();
\echo :SQLSTATE
ROLLBACK;
SET outbox.allow_data_loss = on;
DROP EXTENSION outbox;
-- Before the first message there is nothing to adopt either.
CREATE EXTENSION outbox;
SELECT outbox.adopt();
SELECT count(*) FROM outbox.segments;
DROP EXTENSION outbox;
