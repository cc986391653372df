-- Text is published as UTF-8 whatever the encoding of the database.
\set SHOW_CONTEXT never
\set home :DBNAME
CREATE DATABASE regress_outbox_latin1 TEMPLATE template0 ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C';
CREATE DATABASE regress_outbox_ascii TEMPLATE template0 ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C';

\c regress_outbox_latin1
SET client_min_messages = warning;
CREATE EXTENSION outbox;
-- é, one byte here, two in UTF-8
SELECT outbox.enqueue('a1', chr(233), chr(233), jsonb_build_object(chr(233), chr(233))) IS NOT NULL AS ok;
SELECT outbox.enqueue('a2', to_json(chr(233)), chr(233)) IS NOT NULL AS ok;
SELECT outbox.enqueue('a3', to_jsonb(chr(233)), chr(233)) IS NOT NULL AS ok;
SELECT outbox.enqueue('a4', '\xe9'::bytea, '\xe9'::bytea) IS NOT NULL AS ok;
-- € in UTF-8: not in LATIN1
SELECT outbox.enqueue('a5', '\xe282ac'::bytea, chr(233)) IS NOT NULL AS ok;
INSERT INTO outbox.messages (topic, key, payload) VALUES ('a6', chr(233), chr(233));
SELECT topic, key_bytes, payload_bytes, key = chr(233) AS key_as_text, payload = chr(233) AS payload_as_text
FROM outbox.messages ORDER BY topic;
-- bytes of UTF-8 are counted: 500,001 characters of 2 bytes
SELECT outbox.enqueue('orders', repeat(chr(233), 500001));
\echo :SQLSTATE

\c regress_outbox_ascii
SET client_min_messages = warning;
CREATE EXTENSION outbox;
SELECT outbox.enqueue('a1', 'plain', 'plain', '{"h": "v"}') IS NOT NULL AS ok;
SELECT outbox.enqueue('a2', E'\303\251', E'\303\251', jsonb_build_object(E'\303\251', E'\303\251')) IS NOT NULL AS ok;
SELECT outbox.enqueue('a3', '\xe9'::bytea, '\xe9'::bytea) IS NOT NULL AS ok;
-- not UTF-8: only as bytea
SELECT outbox.enqueue('orders', E'\351');
\echo :SQLSTATE
SELECT outbox.enqueue('orders', 'payload', E'\351');
\echo :SQLSTATE
SELECT outbox.enqueue('orders', '"' || E'\351' || '"', 'key');
\echo :SQLSTATE
SELECT outbox.enqueue('orders', ('"' || E'\351' || '"')::json, 'key');
\echo :SQLSTATE
SELECT outbox.enqueue('orders', ('"' || E'\351' || '"')::jsonb, 'key');
\echo :SQLSTATE
SELECT outbox.enqueue('orders', 'payload', 'key', jsonb_build_object('name', E'\351'));
\echo :SQLSTATE
SELECT outbox.enqueue('orders', 'payload', 'key', jsonb_build_object(E'\351', 'value'));
\echo :SQLSTATE
INSERT INTO outbox.messages (topic, payload) VALUES ('orders', E'\351');
\echo :SQLSTATE
SELECT topic, key_bytes, payload_bytes, payload IS NOT NULL AS has_text FROM outbox.messages ORDER BY topic;

-- A database can be dropped although its worker is connected to it.
\c :home
DROP DATABASE regress_outbox_latin1;
DROP DATABASE regress_outbox_ascii;
