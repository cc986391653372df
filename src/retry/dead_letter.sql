-- A dead letter keeps its row when it is resent: the row then tells under which id the message went on.
-- A copy that outbox.replay() made fails for itself: it takes nothing from the message, nor from another replay's copy.
CREATE TABLE outbox._dead_letter (
  message_id      uuid        NOT NULL,
  replayed        text        COLLATE "C" NOT NULL DEFAULT '',
  id              bigint      NOT NULL,
  lane            integer     NOT NULL,
  topic           text        COLLATE "C" NOT NULL,
  key             bytea,
  payload         bytea,
  headers         jsonb,
  enqueued_at     timestamptz NOT NULL,
  reason          text        NOT NULL,
  error_code      integer     NOT NULL,
  attempts        integer     NOT NULL,
  first_failed_at timestamptz NOT NULL,
  last_failed_at  timestamptz NOT NULL,
  resent_at       timestamptz,
  PRIMARY KEY (message_id, replayed)
);
COMMENT ON TABLE outbox._dead_letter IS 'messages that Kafka refused for good; resent_at tells those that an operator sent again; replayed is the header outbox-replayed of a replayed copy, else empty';

CREATE TRIGGER ignore_replicated BEFORE INSERT OR UPDATE OR DELETE ON outbox._dead_letter
FOR EACH ROW EXECUTE FUNCTION outbox._ignore_replicated();
ALTER TABLE outbox._dead_letter ENABLE ALWAYS TRIGGER ignore_replicated;
COMMENT ON TRIGGER ignore_replicated ON outbox._dead_letter IS 'leaves out what a subscription brings from another server';

-- A dead letter that is deleted looks published.
CREATE TRIGGER guard_change BEFORE DELETE ON outbox._dead_letter
FOR EACH ROW EXECUTE FUNCTION outbox._guard_change();
CREATE TRIGGER guard_truncate BEFORE TRUNCATE ON outbox._dead_letter
FOR EACH STATEMENT EXECUTE FUNCTION outbox._guard_change();
ALTER TABLE outbox._dead_letter ENABLE ALWAYS TRIGGER guard_change;
ALTER TABLE outbox._dead_letter ENABLE ALWAYS TRIGGER guard_truncate;
COMMENT ON TRIGGER guard_change ON outbox._dead_letter IS 'refuses DELETE';
COMMENT ON TRIGGER guard_truncate ON outbox._dead_letter IS 'refuses TRUNCATE';

CREATE FUNCTION outbox._text(value bytea) RETURNS text
LANGUAGE c STABLE STRICT PARALLEL SAFE AS 'MODULE_PATHNAME', 'outbox_text';
COMMENT ON FUNCTION outbox._text(bytea) IS 'bytes as text where they are UTF-8 that the database encoding can show, else NULL';

CREATE VIEW outbox.dead_letters AS
SELECT d.message_id, d.topic, outbox._text(d.key) AS key, outbox._text(d.payload) AS payload,
       d.key AS key_bytes, d.payload AS payload_bytes, d.headers, d.enqueued_at,
       d.reason, d.error_code, d.attempts, d.first_failed_at, d.last_failed_at
FROM outbox._dead_letter d
WHERE d.resent_at IS NULL;
COMMENT ON VIEW outbox.dead_letters IS 'messages that Kafka refused for good, until outbox.resend() brings them back';
COMMENT ON COLUMN outbox.dead_letters.key IS 'key as text, NULL where it is not text; the bytes are in key_bytes';
COMMENT ON COLUMN outbox.dead_letters.payload IS 'payload as text, NULL where it is not text; the bytes are in payload_bytes';
COMMENT ON COLUMN outbox.dead_letters.message_id IS 'id of the message, as outbox.enqueue() returned it';
COMMENT ON COLUMN outbox.dead_letters.topic IS 'Kafka topic it was enqueued for';
COMMENT ON COLUMN outbox.dead_letters.key_bytes IS 'key byte for byte';
COMMENT ON COLUMN outbox.dead_letters.payload_bytes IS 'payload byte for byte; NULL is a tombstone';
COMMENT ON COLUMN outbox.dead_letters.headers IS 'headers as enqueued';
COMMENT ON COLUMN outbox.dead_letters.enqueued_at IS 'when it was enqueued; the timestamp of the record';
COMMENT ON COLUMN outbox.dead_letters.attempts IS 'how often it was given up';
COMMENT ON COLUMN outbox.dead_letters.first_failed_at IS 'when it was given up first';
COMMENT ON COLUMN outbox.dead_letters.last_failed_at IS 'when it was given up last';
COMMENT ON COLUMN outbox.dead_letters.reason IS 'why Kafka refused it, in words';
COMMENT ON COLUMN outbox.dead_letters.error_code IS 'Kafka''s error code; negative: librdkafka''s own';

CREATE FUNCTION outbox.resend(message_id uuid, corrections jsonb DEFAULT NULL) RETURNS void
LANGUAGE c VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS 'MODULE_PATHNAME', 'outbox_resend';
COMMENT ON FUNCTION outbox.resend(uuid, jsonb) IS 'sends a dead letter again, behind the present messages of its key, with the same message_id; of several with this id (replayed copies) the oldest; corrections are not supported yet (0A000)';
