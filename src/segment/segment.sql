-- CREATE EXTENSION puts the target schema, usually public, first: an operator that somebody made there must not be what this
-- script means, now or in a view for ever.
SET LOCAL search_path = pg_catalog, pg_temp;
-- A partitioned table is refused where this names the database's own tablespace.
SET LOCAL default_tablespace = '';

DO $$
BEGIN
  IF EXISTS (SELECT FROM pg_catalog.pg_namespace WHERE nspname = 'outbox') THEN
    RAISE EXCEPTION USING
      ERRCODE = 'duplicate_schema',
      MESSAGE = 'schema "outbox" already exists',
      DETAIL = 'The extension creates its own schema "outbox" and does not share it.',
      HINT = 'Rename or drop the existing schema, then run CREATE EXTENSION outbox again.';
  END IF;
END
$$;

CREATE SCHEMA outbox;
COMMENT ON SCHEMA outbox IS 'transactional outbox: messages are enqueued in the caller''s transaction and published to Kafka';

-- CACHE 1: ids are drawn in the order of the calls, so of two writers that hold one lock the later has the larger id.
CREATE SEQUENCE outbox._message_id AS bigint CACHE 1 NO CYCLE;
COMMENT ON SEQUENCE outbox._message_id IS 'ids of messages';

CREATE TABLE outbox._identity (
  generation        integer     PRIMARY KEY,
  system_identifier bigint      NOT NULL,
  database          oid         NOT NULL,
  extension         oid         NOT NULL,
  timeline          integer     NOT NULL,
  place             text        NOT NULL,
  since             timestamptz NOT NULL
);
COMMENT ON TABLE outbox._identity IS 'under which identity (cluster, database, extension, place) each generation of segments was published';

CREATE TABLE outbox._segment (
  segment    integer     PRIMARY KEY,
  generation integer     NOT NULL,
  state      text        NOT NULL CHECK (state IN ('open', 'rolled', 'drained')),
  lanes      integer     NOT NULL CHECK (lanes > 0),
  opened_at  timestamptz NOT NULL,
  rolled_at  timestamptz,
  drained_at timestamptz
);
CREATE UNIQUE INDEX _segment_open ON outbox._segment (state) WHERE state = 'open';
COMMENT ON TABLE outbox._segment IS 'segments of the message log; at most one is open';

CREATE TABLE outbox._message (
  id          bigint      NOT NULL,
  xid         xid8        NOT NULL,
  enqueued_at timestamptz NOT NULL,
  message_id  uuid        NOT NULL,
  segment     integer     NOT NULL,
  lane        integer     NOT NULL,
  topic       text        COLLATE "C" NOT NULL,
  key         bytea,
  payload     bytea,
  headers     jsonb
) PARTITION BY LIST (segment);
COMMENT ON TABLE outbox._message IS 'the message log: append-only, one partition a segment, made at run time';

CREATE TABLE outbox._progress (
  segment     integer     NOT NULL,
  lane        integer     NOT NULL,
  seq         bigint      NOT NULL,
  first_id    bigint,
  last_id     bigint,
  messages    integer     NOT NULL,
  sent_id     bigint,
  appended_at timestamptz NOT NULL,
  completed   pg_snapshot NOT NULL,
  window_end  pg_snapshot,
  receipts    bytea       -- packed by us: to compress it once more costs the worker more than it saves
) PARTITION BY LIST (segment);
ALTER TABLE outbox._progress ALTER receipts SET STORAGE EXTERNAL;
COMMENT ON TABLE outbox._progress IS 'the progress log: the newest row of a lane is its cursor; each row carries receipts (Kafka partition and offset of each message)';

CREATE TABLE outbox._lane (
  lane   integer PRIMARY KEY CHECK (lane >= 0),
  server text
);
COMMENT ON TABLE outbox._lane IS 'lanes; the rows are locked to claim a lane and never updated. server NULL: the default server';

CREATE FUNCTION outbox._this_identity(
  OUT system_identifier bigint, OUT database oid, OUT extension oid, OUT timeline integer, OUT place text)
LANGUAGE c STABLE STRICT AS 'MODULE_PATHNAME', 'outbox_this_identity';
COMMENT ON FUNCTION outbox._this_identity() IS 'the identity under which this database would publish now';

CREATE FUNCTION outbox._announce() RETURNS trigger
LANGUAGE c AS 'MODULE_PATHNAME', 'outbox_announce';
COMMENT ON FUNCTION outbox._announce() IS 'makes sessions forget which segment is open, and wakes the worker at commit';

-- A restore fills these tables with COPY, so the announcement cannot be left to our functions.
CREATE TRIGGER announce AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON outbox._identity
FOR EACH STATEMENT EXECUTE FUNCTION outbox._announce();
CREATE TRIGGER announce AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON outbox._segment
FOR EACH STATEMENT EXECUTE FUNCTION outbox._announce();
CREATE TRIGGER announce AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON outbox._lane
FOR EACH STATEMENT EXECUTE FUNCTION outbox._announce();
ALTER TABLE outbox._identity ENABLE ALWAYS TRIGGER announce;
ALTER TABLE outbox._segment ENABLE ALWAYS TRIGGER announce;
ALTER TABLE outbox._lane ENABLE ALWAYS TRIGGER announce;
COMMENT ON TRIGGER announce ON outbox._identity IS 'tells sessions and the worker about changes';
COMMENT ON TRIGGER announce ON outbox._segment IS 'tells sessions and the worker about changes';
COMMENT ON TRIGGER announce ON outbox._lane IS 'tells sessions and the worker about changes';

CREATE FUNCTION outbox._revoke_all(relation regclass) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  granted record;
BEGIN
  FOR granted IN
    SELECT DISTINCT a.grantee FROM pg_class c, aclexplode(c.relacl) a WHERE c.oid = $1 AND a.grantee <> c.relowner
  LOOP
    EXECUTE format('REVOKE ALL ON %s FROM %s', $1,
                   CASE granted.grantee WHEN 0 THEN 'PUBLIC' ELSE granted.grantee::regrole::text END);
  END LOOP;
END
$$;
COMMENT ON FUNCTION outbox._revoke_all(regclass) IS 'leaves a new relation to its owner alone, whatever the owner''s default privileges are';

-- Runs as the extension's owner, so that segments belong to the owner whoever enqueues first.
-- A roll waits for no one: ATTACH takes a lock that no enqueuer and no reader holds, and the rest gives up after a second.
CREATE FUNCTION outbox._open_segment(new_lanes integer DEFAULT NULL) RETURNS integer
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '1s'
SET default_tablespace = ''
SET row_security = off
SET client_min_messages = warning
AS $$
DECLARE
  new_segment integer;
  current_generation integer;
  lane_count integer;
BEGIN
  LOCK TABLE outbox._segment IN SHARE ROW EXCLUSIVE MODE;

  SELECT max(i.generation) INTO current_generation FROM outbox._identity i;
  IF current_generation IS NULL THEN
    current_generation := 0;
    INSERT INTO outbox._identity
    SELECT 0, t.system_identifier, t.database, t.extension, t.timeline, t.place, clock_timestamp()
    FROM outbox._this_identity() t;
  END IF;

  SELECT s.lanes INTO lane_count FROM outbox._segment s ORDER BY s.segment DESC LIMIT 1;
  lane_count := coalesce(new_lanes, lane_count, 1);
  IF lane_count > current_setting('outbox.max_lanes', true)::integer THEN
    RAISE EXCEPTION USING
      ERRCODE = 'invalid_parameter_value',
      MESSAGE = format('%s lanes are more than this server allows', lane_count),
      DETAIL = format('outbox.max_lanes is %s.', current_setting('outbox.max_lanes')),
      HINT = 'Raise outbox.max_lanes and restart the server.';
  END IF;
  -- A schema-only dump brings the tables of segments but not their rows here.
  SELECT max(n) + 1 INTO new_segment
  FROM (SELECT 0 AS n
        UNION ALL SELECT s.segment FROM outbox._segment s
        UNION ALL SELECT substring(c.relname FROM '[0-9]+$')::integer FROM pg_class c
        WHERE c.relnamespace = 'outbox'::regnamespace AND c.relname ~ '^_(message|progress)_[0-9]{1,9}$') used;

  EXECUTE format(
    'CREATE TABLE outbox._message_%1$s (LIKE outbox._message INCLUDING STORAGE) USING heap
       WITH (vacuum_truncate = off, autovacuum_vacuum_insert_threshold = -1);
     CREATE INDEX _message_%1$s_window ON outbox._message_%1$s USING btree (lane, xid, id);
     CREATE INDEX _message_%1$s_id ON outbox._message_%1$s USING brin (id) WITH (pages_per_range = 32);
     ALTER TABLE outbox._message ATTACH PARTITION outbox._message_%1$s FOR VALUES IN (%1$s);
     CREATE TABLE outbox._progress_%1$s (LIKE outbox._progress INCLUDING STORAGE) USING heap
       WITH (vacuum_truncate = off, autovacuum_vacuum_insert_threshold = -1);
     CREATE UNIQUE INDEX _progress_%1$s_lane ON outbox._progress_%1$s USING btree (lane, seq);
     CREATE INDEX _progress_%1$s_id ON outbox._progress_%1$s USING brin (first_id, last_id) WITH (pages_per_range = 8);
     ALTER TABLE outbox._progress ATTACH PARTITION outbox._progress_%1$s FOR VALUES IN (%1$s);', new_segment);
  PERFORM outbox._revoke_all(format('outbox._message_%s', new_segment)::regclass);
  PERFORM outbox._revoke_all(format('outbox._progress_%s', new_segment)::regclass);

  UPDATE outbox._segment s SET state = 'rolled', rolled_at = clock_timestamp() WHERE s.state = 'open';
  INSERT INTO outbox._segment (segment, generation, state, lanes, opened_at)
  VALUES (new_segment, current_generation, 'open', lane_count, clock_timestamp());
  INSERT INTO outbox._lane (lane)
  SELECT n FROM generate_series(0, lane_count - 1) n
  ON CONFLICT (lane) DO NOTHING;

  RETURN new_segment;
END
$$;
COMMENT ON FUNCTION outbox._open_segment(integer) IS 'opens the next segment and rolls the one that is open';

CREATE FUNCTION outbox.roll() RETURNS integer
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS 'SELECT outbox._open_segment()';
COMMENT ON FUNCTION outbox.roll() IS 'closes the open segment, opens the next one and returns its number; nobody waits for it. Error 55P03 if another session is rolling';

CREATE FUNCTION outbox._lane_of(topic text, key bytea, id bigint, lanes integer) RETURNS integer
LANGUAGE c IMMUTABLE AS 'MODULE_PATHNAME', 'outbox_lane_of';
COMMENT ON FUNCTION outbox._lane_of(text, bytea, bigint, integer) IS 'the lane of a message: a hash of topic and key; by id without a key';

CREATE FUNCTION outbox._cursors(
  OUT generation integer, OUT lane integer, OUT seq bigint, OUT completed pg_snapshot, OUT window_end pg_snapshot, OUT sent_id bigint)
RETURNS SETOF record
LANGUAGE c STABLE STRICT AS 'MODULE_PATHNAME', 'outbox_cursors';
COMMENT ON FUNCTION outbox._cursors() IS 'the newest progress of each lane in each generation of segments';

CREATE FUNCTION outbox.adopt() RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '10s'
SET row_security = off
AS $$
DECLARE
  old_generation integer;
  old_segments integer[];
  new_segment integer;
  lane_count integer;
  segment_number integer;
  copied bigint;
BEGIN
  IF current_setting('transaction_isolation') <> 'read committed' THEN
    RAISE EXCEPTION USING
      ERRCODE = 'invalid_transaction_state',
      MESSAGE = 'outbox.adopt() needs a READ COMMITTED transaction',
      DETAIL = format('The isolation level is "%s"; its snapshot may be older than messages that must be kept.',
                      current_setting('transaction_isolation')),
      HINT = 'Run outbox.adopt() in a transaction of its own at READ COMMITTED.';
  END IF;
  LOCK TABLE outbox._segment IN SHARE ROW EXCLUSIVE MODE;

  SELECT max(i.generation) INTO old_generation FROM outbox._identity i;
  IF outbox._is_adopted() THEN
    RETURN 0;
  END IF;
  old_generation := coalesce(old_generation, 0);
  SELECT array_agg(s.segment ORDER BY s.segment) INTO old_segments
  FROM outbox._segment s
  WHERE s.generation = old_generation AND to_regclass('outbox._message_' || s.segment) IS NOT NULL;

  -- Waits for the transactions that still write to the old segments: what they commit must be copied.
  FOREACH segment_number IN ARRAY coalesce(old_segments, '{}') LOOP
    EXECUTE format('LOCK TABLE outbox._message_%s IN SHARE MODE', segment_number);
  END LOOP;

  INSERT INTO outbox._identity
  SELECT old_generation + 1, t.system_identifier, t.database, t.extension, t.timeline, t.place, clock_timestamp()
  FROM outbox._this_identity() t;
  new_segment := outbox._open_segment();
  SELECT s.lanes INTO lane_count FROM outbox._segment s WHERE s.segment = new_segment;

  EXECUTE format(
    'INSERT INTO outbox._message_%s (id, xid, enqueued_at, message_id, segment, lane, topic, key, payload, headers)
     SELECT m.id, pg_current_xact_id(), m.enqueued_at, m.message_id, $1, outbox._lane_of(m.topic, m.key, m.id, $2),
            m.topic, m.key, m.payload, m.headers
     FROM outbox._message m
     LEFT JOIN outbox._cursors() c ON c.generation = $3 AND c.lane = m.lane
     WHERE m.segment = ANY ($4)
       AND NOT (m.lane >= 0 AND c.lane IS NOT NULL
                AND (pg_visible_in_snapshot(m.xid, c.completed)
                     OR c.window_end IS NOT NULL AND m.id <= c.sent_id AND pg_visible_in_snapshot(m.xid, c.window_end)))
     ORDER BY m.id', new_segment)
  USING new_segment, lane_count, old_generation, old_segments;
  GET DIAGNOSTICS copied = ROW_COUNT;

  UPDATE outbox._segment s
  SET state = 'drained', drained_at = clock_timestamp()
  WHERE s.generation = old_generation;
  RETURN copied;
END
$$;
COMMENT ON FUNCTION outbox.adopt() IS 'after a restore, a copy or a clone: from now on this database publishes; copies what is unpublished into a new segment and returns how many messages. Waits (10 s at most) for writers that are still open; enqueue waits while it copies';

CREATE FUNCTION outbox._is_adopted() RETURNS boolean
LANGUAGE c STABLE STRICT AS 'MODULE_PATHNAME', 'outbox_is_adopted';
COMMENT ON FUNCTION outbox._is_adopted() IS 'whether this database publishes under its own identity';

CREATE VIEW outbox.segments AS
SELECT s.segment,
       CASE WHEN s.generation < (SELECT max(i.generation) FROM outbox._identity i) THEN 'foreign' ELSE s.state END AS state,
       s.lanes, s.opened_at, s.rolled_at, s.drained_at,
       to_regclass('outbox._message_' || s.segment) AS message_table,
       to_regclass('outbox._progress_' || s.segment) AS progress_table,
       pg_total_relation_size(to_regclass('outbox._message_' || s.segment)) AS message_bytes,
       pg_total_relation_size(to_regclass('outbox._progress_' || s.segment)) AS progress_bytes
FROM outbox._segment s;
COMMENT ON VIEW outbox.segments IS 'the segments of the message log: state open, rolled (closed to new messages), drained (everything in it is published) or foreign (adopted from another cluster or database)';
COMMENT ON COLUMN outbox.segments.segment IS 'number of the segment; a later one has a larger number';
COMMENT ON COLUMN outbox.segments.state IS 'open, rolled, drained or foreign';
COMMENT ON COLUMN outbox.segments.opened_at IS 'when it became the segment for new messages';
COMMENT ON COLUMN outbox.segments.rolled_at IS 'when the next segment was opened; NULL while it is open';
COMMENT ON COLUMN outbox.segments.drained_at IS 'when the worker saw that everything in it is published or a dead letter';
COMMENT ON COLUMN outbox.segments.message_table IS 'table with the segment''s messages';
COMMENT ON COLUMN outbox.segments.progress_table IS 'table with the progress and receipts written while the segment was open';
COMMENT ON COLUMN outbox.segments.lanes IS 'how many lanes the messages of this segment are spread over';
COMMENT ON COLUMN outbox.segments.message_bytes IS 'size of the segment''s messages with indexes and TOAST, in bytes';
COMMENT ON COLUMN outbox.segments.progress_bytes IS 'size of the segment''s progress log with indexes, in bytes';
