-- INSERT INTO outbox.messages: enqueue for those who cannot call a function.
\set SHOW_CONTEXT never
CREATE EXTENSION outbox;
\pset null '(null)'

INSERT INTO outbox.messages (topic, key, payload, headers) VALUES ('a1', 'k', '{"b" : 1}', '{"h": "v"}') RETURNING message_id AS first_id \gset
SELECT topic, key, payload, headers, lane, state FROM outbox.messages WHERE message_id = :'first_id';
SELECT :'first_id' ~ '^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$' AS version_7;

-- Several rows, their ids in RETURNING, the same as in the log.
CREATE TABLE ids (n serial, id uuid);
WITH inserted AS (
  INSERT INTO outbox.messages (topic, payload) VALUES ('b1', 'x'), ('b2', NULL), ('b3', '') RETURNING message_id
)
INSERT INTO ids (id) SELECT message_id FROM inserted;
SELECT m.topic, m.key, m.payload, m.key_bytes, m.payload_bytes, m.headers
FROM ids JOIN outbox.messages m ON m.message_id = ids.id ORDER BY m.topic;

-- INSERT … SELECT, and COPY.
INSERT INTO outbox.messages (topic, key, payload) SELECT 'c', n::text, to_jsonb(n) FROM generate_series(1, 1000) n;
SELECT count(*), count(DISTINCT message_id) AS ids, count(DISTINCT key) AS keys FROM outbox.messages WHERE topic = 'c';
COPY outbox.messages (topic, key, payload) FROM stdin;
d1	k	copied
d2	\N	\N
\.
SELECT topic, key, payload FROM outbox.messages WHERE topic LIKE 'd%' ORDER BY topic;

-- Bytes.
INSERT INTO outbox.messages (topic, key_bytes, payload_bytes) VALUES ('e1', '\xff00', '\x00ff');
INSERT INTO outbox.messages (topic, key, payload_bytes) VALUES ('e2', 'k', '\x');
INSERT INTO outbox.messages (topic, key_bytes, payload) VALUES ('e3', '\x41', 'p');
SELECT topic, key, payload, key_bytes, payload_bytes FROM outbox.messages WHERE topic LIKE 'e%' ORDER BY topic;

-- Mappers that name every column send NULL for those they do not know.
INSERT INTO outbox.messages (message_id, topic, key, payload, key_bytes, payload_bytes, headers, enqueued_at, lane, state,
                             kafka_partition, kafka_offset)
VALUES (DEFAULT, 'f1', 'k', 'p', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL) RETURNING message_id IS NOT NULL AS ok;
INSERT INTO outbox.messages VALUES (NULL, 'f2', NULL, NULL, '\x42', '\x43') RETURNING message_id IS NOT NULL AS ok;
SELECT topic, key, payload, headers FROM outbox.messages WHERE topic LIKE 'f%' ORDER BY topic;

-- Part of the transaction.
BEGIN;
INSERT INTO outbox.messages (topic, payload) VALUES ('g1', 'kept');
SAVEPOINT a;
INSERT INTO outbox.messages (topic, payload) VALUES ('g2', 'rolled back');
ROLLBACK TO a;
COMMIT;
SELECT topic, payload FROM outbox.messages WHERE topic LIKE 'g%';

-- Refused: both forms of a value, our columns, and what enqueue refuses.
INSERT INTO outbox.messages (topic, key, key_bytes) VALUES ('orders', 'k', '\x6b');
\echo :SQLSTATE
INSERT INTO outbox.messages (topic, payload, payload_bytes) VALUES ('orders', 'p', '\x70');
\echo :SQLSTATE
INSERT INTO outbox.messages (topic, message_id) VALUES ('orders', '01890000-0000-7000-8000-000000000000');
\echo :SQLSTATE
INSERT INTO outbox.messages (topic, enqueued_at) VALUES ('orders', now());
\echo :SQLSTATE
INSERT INTO outbox.messages (topic, lane) VALUES ('orders', 0);
\echo :SQLSTATE
INSERT INTO outbox.messages (topic, state) VALUES ('orders', 'pending');
\echo :SQLSTATE
INSERT INTO outbox.messages (topic, kafka_partition) VALUES ('orders', 0);
\echo :SQLSTATE
INSERT INTO outbox.messages (topic, kafka_offset) VALUES ('orders', 0);
\echo :SQLSTATE
INSERT INTO outbox.messages (payload) VALUES ('p');
\echo :SQLSTATE
INSERT INTO outbox.messages (topic, payload) VALUES ('two words', 'p');
\echo :SQLSTATE
INSERT INTO outbox.messages (topic, payload) VALUES ('orders', repeat('x', 1000001));
\echo :SQLSTATE
INSERT INTO outbox.messages (topic, headers) VALUES ('orders', '{"id": "mine"}');
\echo :SQLSTATE
INSERT INTO outbox.messages (topic, headers) VALUES ('orders', '[]');
\echo :SQLSTATE

-- The log is append-only. (The server's words for it differ between versions.)
\set VERBOSITY sqlstate
UPDATE outbox.messages SET payload = 'other';
DELETE FROM outbox.messages;
\set VERBOSITY default

SELECT count(*) FROM outbox.messages WHERE topic = 'orders';
SET outbox.allow_data_loss = on;
DROP EXTENSION outbox;
DROP TABLE ids;
