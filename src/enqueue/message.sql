CREATE FUNCTION outbox.enqueue(topic text, payload text, key text DEFAULT NULL, headers jsonb DEFAULT NULL,
                               publish_at timestamptz DEFAULT NULL, dedup_key text DEFAULT NULL) RETURNS uuid
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'outbox_enqueue_text';
CREATE FUNCTION outbox.enqueue(topic text, payload json, key text DEFAULT NULL, headers jsonb DEFAULT NULL,
                               publish_at timestamptz DEFAULT NULL, dedup_key text DEFAULT NULL) RETURNS uuid
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'outbox_enqueue_text';
CREATE FUNCTION outbox.enqueue(topic text, payload jsonb, key text DEFAULT NULL, headers jsonb DEFAULT NULL,
                               publish_at timestamptz DEFAULT NULL, dedup_key text DEFAULT NULL) RETURNS uuid
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'outbox_enqueue_jsonb';
CREATE FUNCTION outbox.enqueue(topic text, payload bytea, key text DEFAULT NULL, headers jsonb DEFAULT NULL,
                               publish_at timestamptz DEFAULT NULL, dedup_key text DEFAULT NULL) RETURNS uuid
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'outbox_enqueue_bytea';
-- The key has no default here: with one, enqueue(topic, bytea) would fit two functions.
CREATE FUNCTION outbox.enqueue(topic text, payload bytea, key bytea, headers jsonb DEFAULT NULL,
                               publish_at timestamptz DEFAULT NULL, dedup_key text DEFAULT NULL) RETURNS uuid
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'outbox_enqueue_bytea_key';

COMMENT ON FUNCTION outbox.enqueue(text, text, text, jsonb, timestamptz, text) IS
  'enqueues a message for a Kafka topic in the current transaction and returns its id; text is published as UTF-8, a NULL payload is a tombstone';
COMMENT ON FUNCTION outbox.enqueue(text, json, text, jsonb, timestamptz, text) IS
  'enqueues a message for a Kafka topic in the current transaction and returns its id; json is published as written';
COMMENT ON FUNCTION outbox.enqueue(text, jsonb, text, jsonb, timestamptz, text) IS
  'enqueues a message for a Kafka topic in the current transaction and returns its id; jsonb is published in PostgreSQL''s normalised form';
COMMENT ON FUNCTION outbox.enqueue(text, bytea, text, jsonb, timestamptz, text) IS
  'enqueues a message for a Kafka topic in the current transaction and returns its id; bytea is published byte for byte';
COMMENT ON FUNCTION outbox.enqueue(text, bytea, bytea, jsonb, timestamptz, text) IS
  'enqueues a message for a Kafka topic in the current transaction and returns its id; payload and key are published byte for byte';

CREATE FUNCTION outbox._message_state(segment integer, lane integer, xid xid8, id bigint) RETURNS text
LANGUAGE c STABLE STRICT AS 'MODULE_PATHNAME', 'outbox_message_state';
COMMENT ON FUNCTION outbox._message_state(integer, integer, xid8, bigint) IS
  'pending or published; NULL for a row that outbox.adopt() has copied to a newer segment';

CREATE FUNCTION outbox._kafka_partition(segment integer, lane integer, xid xid8, id bigint) RETURNS integer
LANGUAGE c STABLE STRICT AS 'MODULE_PATHNAME', 'outbox_kafka_partition';
COMMENT ON FUNCTION outbox._kafka_partition(integer, integer, xid8, bigint) IS 'the Kafka partition a message was published to, from its receipt';
CREATE FUNCTION outbox._kafka_offset(segment integer, lane integer, xid xid8, id bigint) RETURNS bigint
LANGUAGE c STABLE STRICT AS 'MODULE_PATHNAME', 'outbox_kafka_offset';
COMMENT ON FUNCTION outbox._kafka_offset(integer, integer, xid8, bigint) IS 'the Kafka offset a message was published at, from its receipt; NULL if Kafka did not tell';

-- With segment and id, so that one message can be looked for in one partition.
CREATE VIEW outbox._located_message AS
SELECT m.segment, m.id, m.message_id, m.topic, outbox._text(m.key) AS key, outbox._text(m.payload) AS payload,
       m.key AS key_bytes, m.payload AS payload_bytes, m.headers, m.enqueued_at, m.lane,
       CASE WHEN d.message_id IS NOT NULL AND d.resent_at IS NULL THEN 'dead'
            ELSE outbox._message_state(m.segment, m.lane, m.xid, m.id) END AS state,
       outbox._kafka_partition(m.segment, m.lane, m.xid, m.id) AS kafka_partition,
       outbox._kafka_offset(m.segment, m.lane, m.xid, m.id) AS kafka_offset,
       m.xid
FROM outbox._message m
LEFT JOIN outbox._dead_letter d ON d.message_id = m.message_id AND d.replayed = coalesce(m.headers ->> 'outbox-replayed', '')
WHERE (d.message_id IS NULL OR d.id = m.id)
  AND outbox._message_state(m.segment, m.lane, m.xid, m.id) IS NOT NULL;
COMMENT ON VIEW outbox._located_message IS 'messages with the place of their row';

CREATE VIEW outbox.messages AS
SELECT l.message_id, l.topic, l.key, l.payload, l.key_bytes, l.payload_bytes, l.headers, l.enqueued_at, l.lane, l.state,
       l.kafka_partition, l.kafka_offset
FROM outbox._located_message l;
COMMENT ON VIEW outbox.messages IS 'all messages that retention still has; INSERT INTO it enqueues (topic, key, payload, headers, or key_bytes, payload_bytes)';
COMMENT ON COLUMN outbox.messages.message_id IS 'UUIDv7, the same as in the record header "id"; a copy that outbox.replay() made has that of the message';
COMMENT ON COLUMN outbox.messages.key IS 'key as text, NULL where it is not text; the bytes are in key_bytes';
COMMENT ON COLUMN outbox.messages.payload IS 'payload as text, NULL where it is not text; the bytes are in payload_bytes';
COMMENT ON COLUMN outbox.messages.topic IS 'Kafka topic';
COMMENT ON COLUMN outbox.messages.key_bytes IS 'key byte for byte';
COMMENT ON COLUMN outbox.messages.payload_bytes IS 'payload byte for byte; NULL is a tombstone';
COMMENT ON COLUMN outbox.messages.headers IS 'headers: string, null, or an array of these for a repeated header';
COMMENT ON COLUMN outbox.messages.enqueued_at IS 'when outbox.enqueue() was called; the timestamp of the record';
COMMENT ON COLUMN outbox.messages.lane IS 'lane that publishes the message; -1: enqueued before outbox.adopt()';
COMMENT ON COLUMN outbox.messages.state IS 'pending, published or dead';
COMMENT ON COLUMN outbox.messages.kafka_partition IS 'partition of the record, once published';
COMMENT ON COLUMN outbox.messages.kafka_offset IS 'offset of the record, once published; NULL also if Kafka did not tell';

CREATE FUNCTION outbox._insert_message() RETURNS trigger
LANGUAGE c AS 'MODULE_PATHNAME', 'outbox_insert_message';
COMMENT ON FUNCTION outbox._insert_message() IS 'makes INSERT INTO outbox.messages an outbox.enqueue()';

CREATE TRIGGER enqueue INSTEAD OF INSERT ON outbox.messages
FOR EACH ROW EXECUTE FUNCTION outbox._insert_message();
-- With session_replication_role = replica an ordinary trigger would not fire, and the INSERT would be lost without a word.
-- ALTER TABLE … ENABLE ALWAYS TRIGGER does not take views.
UPDATE pg_trigger SET tgenabled = 'A' WHERE tgrelid = 'outbox.messages'::regclass AND tgname = 'enqueue';
COMMENT ON TRIGGER enqueue ON outbox.messages IS 'makes INSERT an outbox.enqueue()';

CREATE FUNCTION outbox._refuse_change() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  RAISE EXCEPTION USING
    ERRCODE = 'object_not_in_prerequisite_state',
    MESSAGE = 'messages are never changed',
    DETAIL = format('%s is not possible on outbox.messages: each message is sent as it was enqueued.', TG_OP),
    HINT = 'See outbox.dead_letters and outbox.resend().';
END
$$;
COMMENT ON FUNCTION outbox._refuse_change() IS 'refuses UPDATE and DELETE on outbox.messages';

CREATE TRIGGER refuse_change INSTEAD OF UPDATE OR DELETE ON outbox.messages
FOR EACH ROW EXECUTE FUNCTION outbox._refuse_change();
COMMENT ON TRIGGER refuse_change ON outbox.messages IS 'messages are never changed';

-- The planner is left one way to read a segment, the BRIN index: without statistics it might choose another.
CREATE FUNCTION outbox._find_id(message_id uuid, OUT found_segment integer, OUT found_id bigint, OUT found_lane integer,
                                OUT found_xid xid8)
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_indexscan = off SET enable_indexonlyscan = off
SET max_parallel_workers_per_gather = 0 SET jit = off
SET row_security = off
AS $$
DECLARE
  hex text := replace($1::text, '-', '');
  enqueued timestamptz := to_timestamp(('x0000' || substr(hex, 1, 12))::bit(64)::bigint / 1000.0);
  low_bits bigint := ('x00000000' || substr(hex, 25, 8))::bit(64)::bigint;
  newest_id bigint;
  ids bigint[];
  candidate record;
BEGIN
  SELECT s.last_value INTO newest_id FROM outbox._message_id s;
  SELECT ARRAY[d.id] INTO ids FROM outbox._dead_letter d WHERE d.message_id = $1 AND d.replayed = '';
  IF ids IS NULL THEN
    ids := ARRAY(SELECT low_bits + (n << 32) FROM generate_series(newest_id >> 32, 0, -1) n);
  END IF;
  -- A segment that was open at the time in the id is asked first; a clock that was set back does not hide a message.
  FOR candidate IN
    SELECT s.segment
    FROM outbox._log s
    ORDER BY (enqueued BETWEEN s.opened_at - interval '1 minute' AND coalesce(s.rolled_at, 'infinity') + interval '1 minute') DESC,
             s.segment DESC
  LOOP
    BEGIN
      EXECUTE format('SELECT m.id, m.lane, m.xid FROM outbox._message_%s m WHERE m.id = ANY ($1) AND m.message_id = $2',
                     candidate.segment)
      INTO found_id, found_lane, found_xid USING ids, $1;
    EXCEPTION WHEN undefined_table THEN
      CONTINUE;  -- it was dropped just now
    END;
    IF found_id IS NOT NULL THEN
      found_segment := candidate.segment;
      RETURN;
    END IF;
  END LOOP;
END
$$;
COMMENT ON FUNCTION outbox._find_id(uuid) IS 'where the row of a message is, not that of a replayed copy; the time and the low bits of the id are in the UUID';

CREATE FUNCTION outbox.get_message(message_id uuid) RETURNS SETOF outbox.messages
LANGUAGE plpgsql STABLE STRICT ROWS 1
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_indexscan = on SET enable_indexonlyscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET max_parallel_workers_per_gather = 0 SET jit = off
AS $$
DECLARE
  place record;
BEGIN
  SELECT * INTO place FROM outbox._find_id($1);
  IF place.found_id IS NULL THEN
    RETURN;
  END IF;
  -- Whole keys of the index that publishing uses: by the id alone the planner might walk all of it.
  RETURN QUERY EXECUTE format(
    'SELECT l.message_id, l.topic, l.key, l.payload, l.key_bytes, l.payload_bytes, l.headers, l.enqueued_at, l.lane, l.state,
            l.kafka_partition, l.kafka_offset
     FROM outbox._located_message l WHERE l.segment = %s AND l.lane = %s AND l.xid = %L::xid8 AND l.id = %s',
    place.found_segment, place.found_lane, place.found_xid, place.found_id);
END
$$;
COMMENT ON FUNCTION outbox.get_message(uuid) IS 'one message by its id, in milliseconds however long the log is; no row if there is none';
