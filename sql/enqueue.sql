-- outbox.enqueue(): what can be called, and what is stored.
CREATE EXTENSION outbox;
-- Topics are numbered where the order of the output matters.
CREATE FUNCTION show(topics text)
RETURNS TABLE (topic text, key text, payload text, key_bytes bytea, payload_bytes bytea, headers jsonb)
LANGUAGE sql AS $$
  SELECT m.topic, m.key, m.payload, m.key_bytes, m.payload_bytes, m.headers FROM outbox.messages m
  WHERE m.topic LIKE topics ORDER BY m.topic COLLATE "C"
$$;
\pset null '(null)'

-- The five variants. json keeps its text, jsonb is normalised, bytea is kept byte for byte.
SELECT outbox.enqueue('a1', 'grüße'::text, 'k') IS NOT NULL AS ok;
SELECT outbox.enqueue('a2', '{"b" : 1,  "a":1.0, "a":2}'::json, 'k') IS NOT NULL AS ok;
SELECT outbox.enqueue('a3', '{"b" : 1,  "a":1.0, "a":2}'::jsonb, 'k') IS NOT NULL AS ok;
SELECT outbox.enqueue('a4', '\x00ff'::bytea, 'k'::text) IS NOT NULL AS ok;
SELECT outbox.enqueue('a5', '\x00ff'::bytea, '\xff00'::bytea) IS NOT NULL AS ok;
SELECT * FROM show('a%');

-- Without key and headers, with NULL, and with empty ones.
SELECT outbox.enqueue('b01', 'no key') IS NOT NULL AS ok;
SELECT outbox.enqueue('b02', 'null key', NULL) IS NOT NULL AS ok;
SELECT outbox.enqueue('b03', 'empty key', '') IS NOT NULL AS ok;
SELECT outbox.enqueue('b04', NULL, 'tombstone') IS NOT NULL AS ok;
SELECT outbox.enqueue('b05', '', 'empty payload') IS NOT NULL AS ok;
SELECT outbox.enqueue('b06', 'null'::json) IS NOT NULL AS ok;
SELECT outbox.enqueue('b07', 'null'::jsonb) IS NOT NULL AS ok;
SELECT outbox.enqueue('b08', NULL::jsonb) IS NOT NULL AS ok;
SELECT outbox.enqueue('b09', NULL::json) IS NOT NULL AS ok;
SELECT outbox.enqueue('b10', NULL::bytea) IS NOT NULL AS ok;
SELECT outbox.enqueue('b11', ''::bytea, ''::bytea) IS NOT NULL AS ok;
SELECT outbox.enqueue('b12', NULL::bytea, NULL::bytea) IS NOT NULL AS ok;
SELECT outbox.enqueue('b13', '{}'::jsonb, 'k', NULL, NULL, NULL) IS NOT NULL AS ok;
SELECT * FROM show('b%');

-- Bare literals are text, whatever they look like; so is the key beside a bytea.
SELECT outbox.enqueue('c1', '{"b" : 1}') IS NOT NULL AS ok;
SELECT outbox.enqueue('c2', '\x41', '\x42') IS NOT NULL AS ok;
SELECT outbox.enqueue('c3', '\x41'::bytea, '\x42') IS NOT NULL AS ok;
SELECT * FROM show('c%');

-- Named arguments in any order; parameters of a prepared statement.
SELECT outbox.enqueue(payload => 'p', topic => 'd1') IS NOT NULL AS ok;
SELECT outbox.enqueue(headers => '{"h": "v"}', key => 'k', payload => '{"a":1}'::jsonb, topic => 'd2') IS NOT NULL AS ok;
SELECT outbox.enqueue('d3', payload => '\x01'::bytea, key => '\x02'::bytea, headers => '{"h": "v"}') IS NOT NULL AS ok;
SELECT outbox.enqueue('d4', 'p', headers => '{"h": "v"}') IS NOT NULL AS ok;
PREPARE send(text, jsonb, text) AS SELECT outbox.enqueue($1, $2, $3) IS NOT NULL AS ok;
EXECUTE send('d5', '[1, 2]', 'k');
EXECUTE send('d6', '[1, 2]', NULL);
DEALLOCATE send;
SELECT * FROM show('d%');

-- Types that are not among the variants need a cast.
SELECT outbox.enqueue('orders', 42);
\echo :SQLSTATE

-- The id: UUIDv7 of 36 lower-case characters, whose time is the clock's and rises.
CREATE TABLE ids (n integer, id uuid);
BEGIN;
INSERT INTO ids (n, id) SELECT n, outbox.enqueue('e', 'message ' || n, 'k') FROM generate_series(1, 500) n;
COMMIT;
INSERT INTO ids (n, id) SELECT 501, outbox.enqueue('e', 'message 501', 'k');
CREATE VIEW times AS
SELECT n, id, ('x0000' || substr(replace(id::text, '-', ''), 1, 12))::bit(64)::bigint AS ms FROM ids;
SELECT count(DISTINCT id) AS ids,
       bool_and(id::text ~ '^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$') AS version_7
FROM ids;
SELECT bool_and(ms >= previous) AS time_rises FROM (SELECT ms, lag(ms, 1, 0::bigint) OVER (ORDER BY n) AS previous FROM times) t;
SELECT count(*) AS messages, bool_and(t.ms = floor(extract(epoch FROM m.enqueued_at) * 1000)) AS same_time
FROM times t JOIN outbox.messages m ON m.message_id = t.id;
-- enqueued_at is the time of the call, not of the transaction
BEGIN;
SELECT pg_sleep(0.01);
SELECT date_trunc('milliseconds', clock_timestamp()) AS before \gset
SELECT outbox.enqueue('e', 'late') AS late_id \gset
SELECT enqueued_at >= :'before' AS not_before_the_call, enqueued_at > now() AS after_the_start
FROM outbox.messages WHERE message_id = :'late_id';
COMMIT;

-- Set-based, from a table.
CREATE TABLE orders (id integer PRIMARY KEY, item text);
INSERT INTO orders SELECT n, 'item ' || n FROM generate_series(1, 1000) n;
SELECT count(outbox.enqueue('f', to_jsonb(o), o.id::text)) FROM orders o;
SELECT count(*), count(DISTINCT key), bool_and(payload = to_jsonb(o)::text) AS payloads_match
FROM outbox.messages m JOIN orders o ON o.id::text = m.key WHERE topic = 'f';

-- Commit keeps, rollback drops; the same for savepoints and PL/pgSQL blocks.
BEGIN;
SELECT outbox.enqueue('g1', 'before the savepoint') IS NOT NULL AS ok;
SAVEPOINT a;
SELECT outbox.enqueue('g2', 'rolled back') IS NOT NULL AS ok;
ROLLBACK TO a;
SELECT outbox.enqueue('g3', 'after the rollback') IS NOT NULL AS ok;
SAVEPOINT b;
SELECT outbox.enqueue('g4', 'in a released savepoint') IS NOT NULL AS ok;
RELEASE b;
DO $$
BEGIN
  PERFORM outbox.enqueue('g5', 'in a block that fails');
  RAISE division_by_zero;
EXCEPTION WHEN division_by_zero THEN
  PERFORM outbox.enqueue('g6', 'in its handler');
END
$$;
COMMIT;
BEGIN;
SELECT outbox.enqueue('g7', 'rolled back') IS NOT NULL AS ok;
ROLLBACK;
SELECT topic, payload FROM show('g%');

-- The usual places: a trigger, RETURNING, a CTE.
CREATE FUNCTION tell() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM outbox.enqueue('h-' || lower(TG_OP), to_jsonb(NEW), NEW.id::text);
  RETURN NULL;
END
$$;
CREATE TRIGGER tell AFTER INSERT OR UPDATE ON orders FOR EACH ROW EXECUTE FUNCTION tell();
INSERT INTO orders VALUES (1001, 'new');
UPDATE orders SET item = 'changed' WHERE id = 1001;
UPDATE orders SET item = 'returned' WHERE id = 1 RETURNING outbox.enqueue('h-returning', item, id::text) IS NOT NULL AS ok;
WITH changed AS (DELETE FROM orders WHERE id = 2 RETURNING id)
SELECT outbox.enqueue('h-with', NULL, id::text) IS NOT NULL AS ok FROM changed;
SELECT topic, key, payload FROM show('h%') ORDER BY topic COLLATE "C", payload COLLATE "C";

-- Every isolation level.
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT outbox.enqueue('i1', 'repeatable read') IS NOT NULL AS ok;
COMMIT;
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT outbox.enqueue('i2', 'serializable') IS NOT NULL AS ok;
COMMIT;
SELECT topic, payload FROM show('i%');

-- A large payload, compressed by the table it comes from.
CREATE TABLE documents AS SELECT repeat('large ', 100000) AS body;
SELECT outbox.enqueue('j', body) IS NOT NULL AS ok FROM documents;
SELECT octet_length(payload_bytes), payload = body AS same FROM show('j'), documents;

SELECT DISTINCT lane, state, kafka_partition, kafka_offset FROM outbox.messages;
SET outbox.allow_data_loss = on;
DROP EXTENSION outbox;
DROP VIEW times;
DROP TABLE ids, orders, documents;
DROP FUNCTION tell, show;
