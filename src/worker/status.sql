CREATE FUNCTION outbox._kafka_options(options text[], catalog oid) RETURNS void
LANGUAGE c STABLE STRICT AS 'MODULE_PATHNAME', 'outbox_kafka_options';
COMMENT ON FUNCTION outbox._kafka_options(text[], oid) IS 'checks options of a Kafka server or user mapping with librdkafka';

CREATE FOREIGN DATA WRAPPER outbox_kafka VALIDATOR outbox._kafka_options;
COMMENT ON FOREIGN DATA WRAPPER outbox_kafka IS 'Kafka clusters: options of a server are librdkafka''s own property names; secrets go into the user mapping of the server''s owner';

CREATE FUNCTION outbox.version(OUT outbox text, OUT postgresql text, OUT librdkafka text)
LANGUAGE c STABLE STRICT AS 'MODULE_PATHNAME', 'outbox_version';
COMMENT ON FUNCTION outbox.version() IS 'versions of this library, of the server and of librdkafka';

CREATE FUNCTION outbox._default_server() RETURNS text
LANGUAGE c STABLE STRICT AS 'MODULE_PATHNAME', 'outbox_default_server';
COMMENT ON FUNCTION outbox._default_server() IS 'the setting outbox.server';

CREATE FUNCTION outbox._lane_counters(
  OUT lane integer, OUT pending bigint, OUT oldest_pending_at timestamptz, OUT published bigint, OUT bytes bigint,
  OUT failures bigint, OUT counted_since timestamptz, OUT last_published_at timestamptz, OUT last_error text,
  OUT last_error_since timestamptz, OUT worker_pid integer)
RETURNS SETOF record
LANGUAGE c VOLATILE STRICT AS 'MODULE_PATHNAME', 'outbox_lane_counters';
COMMENT ON FUNCTION outbox._lane_counters() IS 'shared counters of this database''s lanes';

CREATE VIEW outbox.lanes AS
SELECT l.lane, coalesce(nullif(l.server, ''), outbox._default_server()) AS server,
       c.pending, clock_timestamp() - c.oldest_pending_at AS oldest_pending_age,
       c.published, c.bytes, c.failures, c.counted_since, c.last_published_at, c.last_error, c.last_error_since, c.worker_pid
FROM (SELECT DISTINCT u.server, unnest(u.lanes) AS lane
      FROM outbox._layout u
      WHERE u.layout = (SELECT max(newest.layout) FROM outbox._layout newest)
         OR u.layout IN (SELECT g.layout FROM outbox._log g WHERE g.state <> 'drained')) l
LEFT JOIN outbox._lane_counters() c ON c.lane = l.lane;
COMMENT ON VIEW outbox.lanes IS 'a row a lane; read from shared memory';
COMMENT ON COLUMN outbox.lanes.lane IS 'number of the lane';
COMMENT ON COLUMN outbox.lanes.server IS 'foreign server the lane publishes to';
COMMENT ON COLUMN outbox.lanes.last_published_at IS 'when progress with acknowledged messages was last written';
COMMENT ON COLUMN outbox.lanes.last_error_since IS 'since when last_error is the newest failure';
COMMENT ON COLUMN outbox.lanes.worker_pid IS 'process that has claimed the lane';
COMMENT ON COLUMN outbox.lanes.pending IS 'committed messages that Kafka has not acknowledged; NULL until counted after a start, or without a worker';
COMMENT ON COLUMN outbox.lanes.oldest_pending_age IS 'age of the oldest pending message; NULL if none is pending or the first one is just being committed';
COMMENT ON COLUMN outbox.lanes.published IS 'messages acknowledged since counted_since';
COMMENT ON COLUMN outbox.lanes.bytes IS 'bytes of key and payload acknowledged since counted_since';
COMMENT ON COLUMN outbox.lanes.failures IS 'messages that became dead letters since counted_since';
COMMENT ON COLUMN outbox.lanes.counted_since IS 'when the counters started: the start of the server, or outbox.reset_counters()';
COMMENT ON COLUMN outbox.lanes.last_error IS 'the newest failure, kept until the next one or outbox.reset_counters(); outbox.workers tells whether it still holds';

CREATE FUNCTION outbox.reset_counters() RETURNS void
LANGUAGE c VOLATILE STRICT AS 'MODULE_PATHNAME', 'outbox_reset_counters';
COMMENT ON FUNCTION outbox.reset_counters() IS 'sets the counters published, bytes and failures of outbox.lanes to zero';

CREATE FUNCTION outbox._workers(
  OUT process text, OUT worker integer, OUT pid integer, OUT state text, OUT reason text, OUT since timestamptz, OUT lanes integer[])
RETURNS SETOF record
LANGUAGE c VOLATILE STRICT AS 'MODULE_PATHNAME', 'outbox_workers';
COMMENT ON FUNCTION outbox._workers() IS 'what this database''s processes do, from shared memory';

CREATE VIEW outbox.workers AS
SELECT w.process, w.worker, w.pid, w.state, w.reason, w.since, w.lanes FROM outbox._workers() w;
COMMENT ON VIEW outbox.workers IS 'the processes of this database: what they do and why; those that publish come first';
COMMENT ON COLUMN outbox.workers.process IS '"outbox worker" publishes; "outbox maintenance" looks after the segments of the log; "outbox archive" is there while segments are archived';
COMMENT ON COLUMN outbox.workers.worker IS 'number of a process that publishes, within this database; NULL for the others';
COMMENT ON COLUMN outbox.workers.pid IS 'process id; NULL if none is running';
COMMENT ON COLUMN outbox.workers.since IS 'since when it is in this state';
COMMENT ON COLUMN outbox.workers.lanes IS 'lanes it has claimed; NULL for processes that publish none';
COMMENT ON COLUMN outbox.workers.state IS 'running, idle, backing_off, paused, unconfigured, awaiting_adoption, incompatible or not_running';
COMMENT ON COLUMN outbox.workers.reason IS 'why it is in this state, and what to do, in words';

CREATE TABLE outbox._pause (
  paused    boolean     PRIMARY KEY DEFAULT true CHECK (paused),
  paused_at timestamptz NOT NULL,
  paused_by text        NOT NULL
);
COMMENT ON TABLE outbox._pause IS 'one row while publishing is paused';

CREATE TRIGGER announce AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON outbox._pause
FOR EACH STATEMENT EXECUTE FUNCTION outbox._announce();
ALTER TABLE outbox._pause ENABLE ALWAYS TRIGGER announce;
COMMENT ON TRIGGER announce ON outbox._pause IS 'tells the worker about changes';
CREATE TRIGGER ignore_replicated BEFORE INSERT OR UPDATE OR DELETE ON outbox._pause
FOR EACH ROW EXECUTE FUNCTION outbox._ignore_replicated();
ALTER TABLE outbox._pause ENABLE ALWAYS TRIGGER ignore_replicated;
COMMENT ON TRIGGER ignore_replicated ON outbox._pause IS 'leaves out what a subscription brings from another server';

CREATE FUNCTION outbox.pause() RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
  INSERT INTO outbox._pause (paused_at, paused_by) VALUES (clock_timestamp(), session_user) ON CONFLICT DO NOTHING;
$$;
COMMENT ON FUNCTION outbox.pause() IS 'stops publishing in this database, also over restarts, until outbox.resume(); enqueue goes on';

CREATE FUNCTION outbox.resume() RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
  DELETE FROM outbox._pause;
$$;
COMMENT ON FUNCTION outbox.resume() IS 'ends outbox.pause()';
