-- outbox.get_message(): one message by its id.
CREATE EXTENSION outbox;
\pset null '(null)'
SELECT * FROM outbox.get_message('01890000-0000-7000-8000-000000000000');
SELECT outbox.enqueue('orders', '{"a" : 1}', 'k', '{"h": "v"}') AS a \gset
SELECT topic, key, payload, key_bytes, payload_bytes, headers, lane, state, kafka_partition, kafka_offset FROM outbox.get_message(:'a');
SELECT message_id = :'a' AS same_id, enqueued_at BETWEEN now() - interval '1 minute' AND now() AS just_now FROM outbox.get_message(:'a');
-- the same row as in the view
SELECT count(*) FROM (SELECT * FROM outbox.get_message(:'a') INTERSECT SELECT * FROM outbox.messages) same;

-- No such message.
SELECT count(*) FROM outbox.get_message('00000000-0000-0000-0000-000000000000');
SELECT count(*) FROM outbox.get_message('ffffffff-ffff-ffff-ffff-ffffffffffff');
SELECT count(*) FROM outbox.get_message('8d9f7f5e-0d8e-4b57-a8a5-f4a7e3a1c0de');
SELECT count(*) FROM outbox.get_message(NULL);
BEGIN;
SELECT outbox.enqueue('orders', 'rolled back') AS gone \gset
-- one's own, before the commit
SELECT payload, state FROM outbox.get_message(:'gone');
ROLLBACK;
SELECT count(*) FROM outbox.get_message(:'gone');

-- Among many, and in every segment.
SELECT count(outbox.enqueue('orders', n::text)) FROM generate_series(1, 5000) n;
SELECT outbox.enqueue('orders', 'last of the first segment') AS b \gset
SELECT outbox.roll() > 0 AS rolled;
SELECT outbox.enqueue('orders', 'first of the second segment') AS c \gset
SELECT count(outbox.enqueue('orders', n::text)) FROM generate_series(1, 5000) n;
SELECT payload FROM outbox.get_message(:'a');
SELECT payload FROM outbox.get_message(:'b');
SELECT payload FROM outbox.get_message(:'c');
SELECT bool_and(found.payload = m.payload) AS found_all
FROM (SELECT message_id, payload FROM outbox.messages WHERE payload ~ '^\d*77$') m
LEFT JOIN LATERAL outbox.get_message(m.message_id) found ON true;

SET outbox.allow_data_loss = on;
DROP EXTENSION outbox;
