-- The views: their columns, and what they show while no Kafka server is configured.
CREATE EXTENSION outbox;
CREATE FUNCTION eventually(condition text) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
  reached boolean;
  give_up timestamptz := clock_timestamp() + interval '30 s';
BEGIN
  LOOP
    EXECUTE 'SELECT coalesce((' || condition || '), false)' INTO reached;
    EXIT WHEN reached OR clock_timestamp() > give_up;
    PERFORM pg_sleep(0.02);
  END LOOP;
  RETURN reached;
END
$$;
SELECT relname AS view, attname AS column, format_type(atttypid, atttypmod) AS type
FROM pg_class c JOIN pg_attribute a ON attrelid = c.oid AND attnum > 0 AND NOT attisdropped
WHERE relnamespace = 'outbox'::regnamespace AND relkind = 'v' AND relname NOT LIKE '\_%'
ORDER BY relname, attnum;

-- One worker, which says what it misses, and maintenance, which misses nothing.
SELECT eventually($$SELECT state = 'unconfigured' FROM outbox.workers WHERE process = 'outbox worker'$$);
SELECT eventually($$SELECT state = 'idle' FROM outbox.workers WHERE process = 'outbox maintenance'$$);
SELECT process, worker, state, reason, pid IS NOT NULL AS has_pid, since IS NOT NULL AS has_since, cardinality(lanes) AS lanes FROM outbox.workers;
-- Others see it too.
SELECT backend_type, count(*) FROM pg_stat_activity WHERE datname = current_database() AND backend_type IN ('outbox worker', 'outbox maintenance')
GROUP BY backend_type ORDER BY backend_type;

-- A lane is there from the first message on.
BEGIN;
SELECT outbox.enqueue('orders', 'one') IS NOT NULL AS ok;
SELECT outbox.enqueue('orders', 'two', 'key') IS NOT NULL AS ok;
SAVEPOINT a;
SELECT outbox.enqueue('orders', 'not this one') IS NOT NULL AS ok;
ROLLBACK TO a;
COMMIT;
-- never 0 while something is pending
SELECT count(*) FROM outbox.lanes WHERE pending = 0;
SELECT eventually($$SELECT pending = 2 AND oldest_pending_age IS NOT NULL FROM outbox.lanes$$);
SELECT lane, server, pending, oldest_pending_age BETWEEN '0 s' AND '1 minute' AS age_is_right, published, bytes, failures,
       counted_since IS NOT NULL AS has_counted_since, last_published_at
FROM outbox.lanes;
-- What is rolled back is not counted.
BEGIN;
SELECT outbox.enqueue('orders', 'rolled back') IS NOT NULL AS ok;
ROLLBACK;
SELECT outbox.enqueue('orders', 'three') IS NOT NULL AS ok;
SELECT eventually($$SELECT pending = 3 FROM outbox.lanes$$);

SELECT segment, state, lanes, opened_at IS NOT NULL AS has_opened_at, rolled_at, drained_at, message_bytes > 0 AS has_messages,
       progress_bytes > 0 AS has_progress
FROM outbox.segments;
SELECT topic, payload, lane, state, kafka_partition, kafka_offset FROM outbox.messages ORDER BY payload COLLATE "C";
SELECT * FROM outbox.dead_letters;

-- Payload and key as text where they are text.
SELECT outbox.enqueue('bytes', '\x00'::bytea, '\xff'::bytea) IS NOT NULL AS ok;
SELECT outbox.enqueue('bytes', '\xc3a9'::bytea, '\xc3'::bytea) IS NOT NULL AS ok;
SELECT key IS NULL AS no_text_key, payload, key_bytes, payload_bytes FROM outbox.messages WHERE topic = 'bytes' ORDER BY payload_bytes;

SELECT outbox.reset_counters();
SELECT lane, published, bytes, failures FROM outbox.lanes;
SELECT eventually($$SELECT pending = 5 FROM outbox.lanes$$);

SET outbox.allow_data_loss = on;
DROP EXTENSION outbox;
-- The processes go with the extension.
SELECT eventually($$SELECT count(*) = 0 FROM pg_stat_activity
                    WHERE datname = current_database() AND backend_type LIKE 'outbox %'$$);
DROP FUNCTION eventually;
