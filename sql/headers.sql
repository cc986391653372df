-- Headers: an object of strings, nulls and arrays of these.
\set SHOW_CONTEXT never
CREATE EXTENSION outbox;
SELECT outbox.enqueue('a1', 'p', headers => '{}') IS NOT NULL AS ok;
SELECT outbox.enqueue('a2', 'p', headers => '{"trace": "abc"}') IS NOT NULL AS ok;
SELECT outbox.enqueue('a3', 'p', headers => '{"empty": "", "none": null}') IS NOT NULL AS ok;
SELECT outbox.enqueue('a4', 'p', headers => '{"repeated": ["b", "a", null, ""]}') IS NOT NULL AS ok;
SELECT outbox.enqueue('a5', 'p', headers => '{"no": []}') IS NOT NULL AS ok;
SELECT outbox.enqueue('a6', 'p', headers => '{"größe": "ü"}') IS NOT NULL AS ok;
-- close to reserved names, and not reserved
SELECT outbox.enqueue('a7', 'p', headers => '{"outbox": "v", "id2": "v", "my-outbox-id": "v", "idempotency": "v"}') IS NOT NULL AS ok;
SELECT outbox.enqueue('a8', '\x00'::bytea, '\x00'::bytea, '{"h": "v"}') IS NOT NULL AS ok;
SELECT topic, headers FROM outbox.messages ORDER BY topic COLLATE "C";

-- Not an object.
SELECT outbox.enqueue('orders', 'p', headers => '["trace", "abc"]');
\echo :SQLSTATE
SELECT outbox.enqueue('orders', 'p', headers => '"trace"');
\echo :SQLSTATE
SELECT outbox.enqueue('orders', 'p', headers => 'null');
\echo :SQLSTATE

-- Values that are neither string nor null.
SELECT outbox.enqueue('orders', 'p', headers => '{"version": 1}');
\echo :SQLSTATE
SELECT outbox.enqueue('orders', 'p', headers => '{"flag": true}');
\echo :SQLSTATE
SELECT outbox.enqueue('orders', 'p', headers => '{"nested": {"a": "b"}}');
\echo :SQLSTATE
SELECT outbox.enqueue('orders', 'p', headers => '{"list": ["a", 1]}');
\echo :SQLSTATE
SELECT outbox.enqueue('orders', 'p', headers => '{"list": ["a", ["b"]]}');
\echo :SQLSTATE
SELECT outbox.enqueue('orders', 'p', headers => '{"list": ["a", {"b": "c"}]}');
\echo :SQLSTATE
SELECT outbox.enqueue('orders', 'p', headers => '{"good": "a", "list": [false]}');
\echo :SQLSTATE

-- Names of ours.
SELECT outbox.enqueue('orders', 'p', headers => '{"id": "mine"}');
\echo :SQLSTATE
SELECT outbox.enqueue('orders', 'p', headers => '{"id": null}');
\echo :SQLSTATE
SELECT outbox.enqueue('orders', 'p', headers => '{"outbox-attempt": "1"}');
\echo :SQLSTATE
SELECT outbox.enqueue('orders', 'p', headers => '{"outbox-": "1"}');
\echo :SQLSTATE

SELECT count(*) FROM outbox.messages WHERE topic = 'orders';
SET outbox.allow_data_loss = on;
DROP EXTENSION outbox;
