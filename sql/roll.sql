-- outbox.roll(): new messages go to the next segment.
\set SHOW_CONTEXT never
CREATE EXTENSION outbox;
CREATE VIEW places AS
SELECT m.payload, substring(tableoid::regclass::text FROM '\d+$')::integer AS segment FROM outbox._message m;
CREATE FUNCTION payload_of(message bytea) RETURNS text LANGUAGE sql AS $$SELECT convert_from(message, 'UTF8')$$;

-- The first segment is made by a roll or by the first message, whichever comes first.
SELECT outbox.roll();
SELECT segment, state, lanes, opened_at IS NOT NULL AS opened, rolled_at IS NOT NULL AS rolled, drained_at IS NOT NULL AS drained
FROM outbox.segments ORDER BY segment;
SELECT outbox.enqueue('orders', 'a') IS NOT NULL AS ok;
SELECT outbox.roll();
SELECT outbox.enqueue('orders', 'b') IS NOT NULL AS ok;
SELECT segment, state, lanes, opened_at IS NOT NULL AS opened, rolled_at IS NOT NULL AS rolled, drained_at IS NOT NULL AS drained
FROM outbox.segments ORDER BY segment;

-- Within one transaction, before and after; rolled back, the old segment is open again.
BEGIN;
SELECT outbox.enqueue('orders', 'c') IS NOT NULL AS ok;
SELECT outbox.roll();
SELECT outbox.enqueue('orders', 'd') IS NOT NULL AS ok;
COMMIT;
BEGIN;
SELECT outbox.roll();
SELECT outbox.enqueue('orders', 'lost') IS NOT NULL AS ok;
ROLLBACK;
SELECT outbox.enqueue('orders', 'e') IS NOT NULL AS ok;
BEGIN;
SAVEPOINT a;
SELECT outbox.roll();
SELECT outbox.enqueue('orders', 'lost') IS NOT NULL AS ok;
ROLLBACK TO a;
SELECT outbox.enqueue('orders', 'f') IS NOT NULL AS ok;
COMMIT;
SELECT payload_of(payload) AS payload, segment FROM places ORDER BY payload;
SELECT segment, state FROM outbox.segments ORDER BY segment;
-- Both segments are read.
SELECT payload, lane, state FROM outbox.messages ORDER BY payload COLLATE "C";

-- An old snapshot does not choose an old segment.
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT count(*) FROM outbox.segments;
SELECT outbox.roll();
SELECT outbox.enqueue('orders', 'g') IS NOT NULL AS ok;
COMMIT;
SELECT payload_of(payload) AS payload, segment FROM places WHERE payload = 'g';

BEGIN READ ONLY;
SELECT outbox.roll();
\echo :SQLSTATE
ROLLBACK;

SET outbox.allow_data_loss = on;
SET client_min_messages = warning;
DROP EXTENSION outbox CASCADE;
DROP FUNCTION payload_of;
