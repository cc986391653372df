-- What outbox.enqueue() refuses at once: message, detail, hint and SQLSTATE.
\set SHOW_CONTEXT never
CREATE EXTENSION outbox;

-- Topic names: Kafka's rule.
SELECT outbox.enqueue(NULL, 'payload');
\echo :SQLSTATE
SELECT outbox.enqueue('', 'payload');
\echo :SQLSTATE
SELECT outbox.enqueue('.', 'payload');
\echo :SQLSTATE
SELECT outbox.enqueue('..', 'payload');
\echo :SQLSTATE
SELECT outbox.enqueue('new orders', 'payload');
\echo :SQLSTATE
SELECT outbox.enqueue('orders/new', '{}'::jsonb);
\echo :SQLSTATE
SELECT outbox.enqueue('größe', '\x00'::bytea);
\echo :SQLSTATE
SELECT outbox.enqueue(E'orders\n', '\x00'::bytea, '\x00'::bytea);
\echo :SQLSTATE
SELECT outbox.enqueue(repeat('x', 250), 'payload');
\echo :SQLSTATE
-- The longest legal one, every legal character, and three dots.
SELECT outbox.enqueue(repeat('x', 249), 'payload') IS NOT NULL AS ok;
SELECT outbox.enqueue('abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-', 'payload') IS NOT NULL AS ok;
SELECT outbox.enqueue('...', 'payload') IS NOT NULL AS ok;

-- Size: key, payload and headers together, one million bytes by default.
SHOW outbox.max_message_bytes;
SELECT outbox.enqueue('orders', repeat('x', 1000000)) IS NOT NULL AS ok;
SELECT outbox.enqueue('orders', repeat('x', 1000001));
\echo :SQLSTATE
SELECT outbox.enqueue('orders', repeat('x', 999990), repeat('k', 10)) IS NOT NULL AS ok;
SELECT outbox.enqueue('orders', repeat('x', 999990), repeat('k', 11));
\echo :SQLSTATE
SELECT outbox.enqueue('orders', decode(repeat('00', 999990), 'hex'), decode(repeat('00', 11), 'hex'));
\echo :SQLSTATE
SELECT outbox.enqueue('orders', repeat('x', 999982), 'key', '{"name": "val"}') IS NOT NULL AS ok;
SELECT outbox.enqueue('orders', repeat('x', 999982), 'key', '{"name": "value"}');
\echo :SQLSTATE
SELECT outbox.enqueue('orders', repeat('x', 999974), 'key', '{"name": ["v", "v"]}');
\echo :SQLSTATE
-- Bytes are counted, not characters, and not the compressed size.
SELECT outbox.enqueue('orders', repeat('ü', 500001));
\echo :SQLSTATE
CREATE TABLE documents AS SELECT repeat('x', 1000001) AS body;
SELECT outbox.enqueue('orders', body) FROM documents;
\echo :SQLSTATE
DROP TABLE documents;

-- Arguments whose time has not come.
SELECT outbox.enqueue('orders', 'payload', publish_at => '2100-01-01');
\echo :SQLSTATE
SELECT outbox.enqueue('orders', 'payload', dedup_key => 'once');
\echo :SQLSTATE
SELECT outbox.enqueue('orders', '\x00'::bytea, '\x00'::bytea, NULL, '2100-01-01');
\echo :SQLSTATE

-- Read-only transactions.
BEGIN READ ONLY;
SELECT outbox.enqueue('orders', 'payload');
\echo :SQLSTATE
ROLLBACK;
BEGIN READ ONLY;
INSERT INTO outbox.messages (topic, payload) VALUES ('orders', 'payload');
\echo :SQLSTATE
ROLLBACK;

-- Nothing of what was refused is there.
SELECT count(*) FROM outbox.messages;
SET outbox.allow_data_loss = on;
DROP EXTENSION outbox;
