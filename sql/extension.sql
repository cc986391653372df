-- CREATE EXTENSION and DROP EXTENSION: what stands in the way, and what is left.
\set SHOW_CONTEXT never
CREATE SCHEMA outbox;
CREATE EXTENSION outbox;
\echo :SQLSTATE
DROP SCHEMA outbox;

CREATE ROLE regress_outbox_nobody;
SET ROLE regress_outbox_nobody;
CREATE EXTENSION outbox;
\echo :SQLSTATE
RESET ROLE;

-- Rolled back, it leaves nothing.
BEGIN;
CREATE EXTENSION outbox;
SELECT outbox.enqueue('orders', 'lost with the extension') IS NOT NULL AS enqueued;
ROLLBACK;
SELECT count(*) FROM pg_namespace WHERE nspname = 'outbox';

-- Until the first message nothing is written.
CREATE EXTENSION outbox;
SELECT (SELECT count(*) FROM outbox.segments) AS segments, (SELECT count(*) FROM outbox.lanes) AS lanes,
       (SELECT count(*) FROM outbox.messages) AS messages, (SELECT count(*) FROM outbox.dead_letters) AS dead_letters,
       (SELECT count(*) FROM pg_inherits WHERE inhparent = 'outbox._message'::regclass) AS partitions;

-- Without unpublished messages it can be dropped, also when some were rolled back.
BEGIN;
SELECT outbox.enqueue('orders', 'rolled back') IS NOT NULL AS enqueued;
ROLLBACK;
DROP EXTENSION outbox;
SELECT count(*) FROM pg_namespace WHERE nspname = 'outbox';
SELECT count(*) FROM pg_event_trigger WHERE evtname LIKE 'outbox%';
SELECT outbox.enqueue('orders', 'no extension');
\echo :SQLSTATE

-- Created and used in one transaction, in a session that has seen the extension dropped.
BEGIN;
CREATE EXTENSION outbox;
SELECT outbox.enqueue('orders', 'first') IS NOT NULL AS enqueued;
COMMIT;
SELECT payload, state FROM outbox.messages;

-- With unpublished messages it is kept, whatever would drop it.
SELECT outbox.enqueue('orders', 'second ' || n) IS NOT NULL AS enqueued FROM generate_series(1, 2) n;
DROP EXTENSION outbox;
\echo :SQLSTATE
DROP EXTENSION IF EXISTS outbox CASCADE;
\echo :SQLSTATE
DROP SCHEMA outbox CASCADE;
\echo :SQLSTATE
DROP OWNED BY CURRENT_USER;
\echo :SQLSTATE
SELECT payload, state FROM outbox.messages ORDER BY payload;

-- Through what it depends on, too: the schema it was created in, and the extension it requires.
SELECT extnamespace::regnamespace AS home FROM pg_extension WHERE extname = 'outbox' \gset
BEGIN;
DROP SCHEMA :home CASCADE;
\echo :SQLSTATE
ROLLBACK;
BEGIN;
DROP EXTENSION plpgsql CASCADE;
\echo :SQLSTATE
ROLLBACK;
SELECT count(*) FROM outbox.messages;

-- Other objects can be dropped.
CREATE SCHEMA regress_outbox_other;
DROP SCHEMA regress_outbox_other;
DROP OWNED BY regress_outbox_nobody;

-- Who has no right to drop it learns that, and no number.
SET ROLE regress_outbox_nobody;
DROP EXTENSION outbox;
\echo :SQLSTATE
SET outbox.allow_data_loss = on;
\echo :SQLSTATE
RESET ROLE;

-- Messages that this transaction enqueued count as well.
BEGIN;
SELECT outbox.enqueue('orders', 'in this transaction') IS NOT NULL AS enqueued;
DROP EXTENSION outbox;
\echo :SQLSTATE
ROLLBACK;

-- Unless data loss is allowed.
SET outbox.allow_data_loss = on;
DROP EXTENSION outbox;
RESET outbox.allow_data_loss;
SELECT count(*) FROM pg_namespace WHERE nspname = 'outbox';
SELECT count(*) FROM pg_class WHERE relname LIKE '\_message%' OR relname LIKE '\_progress%';

-- The same session goes on with the next extension.
CREATE EXTENSION outbox;
SELECT outbox.enqueue('orders', 'new life') IS NOT NULL AS enqueued;
SELECT payload, state FROM outbox.messages;
DROP EXTENSION outbox;

-- A drop that is rolled back changes nothing.
BEGIN;
SET LOCAL outbox.allow_data_loss = on;
DROP EXTENSION outbox;
ROLLBACK;
SELECT outbox.enqueue('orders', 'still alive') IS NOT NULL AS enqueued;
SELECT payload, state FROM outbox.messages ORDER BY payload;
SET outbox.allow_data_loss = on;
DROP EXTENSION outbox;

-- The first segment goes with the savepoint that made it, and is made again.
BEGIN;
CREATE EXTENSION outbox;
SAVEPOINT a;
SELECT outbox.enqueue('orders', 'rolled back') IS NOT NULL AS enqueued;
ROLLBACK TO a;
SELECT outbox.enqueue('orders', 'kept') IS NOT NULL AS enqueued;
COMMIT;
SELECT payload, state FROM outbox.messages;
SELECT segment, state FROM outbox.segments;
DROP EXTENSION outbox;
DROP ROLE regress_outbox_nobody;
