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

-- Which lanes the messages of a segment are spread over. A change of the number makes a new layout and a roll.
CREATE TABLE outbox._layout (
  layout integer   NOT NULL,
  server text      COLLATE "C" NOT NULL,
  lanes  integer[] NOT NULL CHECK (cardinality(lanes) > 0),
  PRIMARY KEY (layout, server)
);
COMMENT ON TABLE outbox._layout IS 'layouts: the lanes of each Kafka server; server is empty for the default one';

-- Nothing is updated here: as long as an old snapshot is held anywhere, each update would leave a row version behind.
CREATE TABLE outbox._segment (
  segment    integer     PRIMARY KEY,
  generation integer     NOT NULL,
  layout     integer     NOT NULL,
  opened_at  timestamptz NOT NULL
);
COMMENT ON TABLE outbox._segment IS 'segments of the message log; outbox._segment_event tells what became of them';

CREATE TABLE outbox._segment_event (
  segment integer     NOT NULL,
  event   text        COLLATE "C" NOT NULL
          CHECK (event IN ('rolled', 'quiet', 'drained', 'archived', 'archive_failed', 'dropped', 'detached')),
  at      timestamptz NOT NULL,
  moment  pg_snapshot,
  note    text
);
CREATE UNIQUE INDEX _segment_event_once ON outbox._segment_event (segment, event) WHERE event NOT IN ('archived', 'archive_failed');
COMMENT ON TABLE outbox._segment_event IS 'what became of segments: rolled (closed to new messages), quiet (moment: a snapshot in which all its writers had ended), drained (everything in it is published), archived, dropped or detached';

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
  lane integer PRIMARY KEY CHECK (lane >= 0)
);
COMMENT ON TABLE outbox._lane IS 'lanes; the rows are locked to claim a lane and never updated';

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
-- Of the other events neither sessions nor workers need to hear.
CREATE TRIGGER announce AFTER INSERT ON outbox._segment_event
FOR EACH ROW WHEN (NEW.event IN ('rolled', 'drained', 'dropped', 'detached')) EXECUTE FUNCTION outbox._announce();
CREATE TRIGGER announce_change AFTER UPDATE OR DELETE OR TRUNCATE ON outbox._segment_event
FOR EACH STATEMENT EXECUTE FUNCTION outbox._announce();
CREATE TRIGGER announce AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON outbox._layout
FOR EACH STATEMENT EXECUTE FUNCTION outbox._announce();
CREATE TRIGGER announce AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON outbox._lane
FOR EACH STATEMENT EXECUTE FUNCTION outbox._announce();
ALTER TABLE outbox._identity ENABLE ALWAYS TRIGGER announce;
ALTER TABLE outbox._segment ENABLE ALWAYS TRIGGER announce;
ALTER TABLE outbox._segment_event ENABLE ALWAYS TRIGGER announce;
ALTER TABLE outbox._segment_event ENABLE ALWAYS TRIGGER announce_change;
ALTER TABLE outbox._layout ENABLE ALWAYS TRIGGER announce;
ALTER TABLE outbox._lane ENABLE ALWAYS TRIGGER announce;
COMMENT ON TRIGGER announce ON outbox._identity IS 'tells sessions and the worker about changes';
COMMENT ON TRIGGER announce ON outbox._segment IS 'tells sessions and the worker about changes';
COMMENT ON TRIGGER announce ON outbox._segment_event IS 'tells sessions and the worker about changes';
COMMENT ON TRIGGER announce_change ON outbox._segment_event IS 'tells sessions and the worker about changes';
COMMENT ON TRIGGER announce ON outbox._layout IS 'tells sessions and the worker about changes';
COMMENT ON TRIGGER announce ON outbox._lane IS 'tells sessions and the worker about changes';

CREATE FUNCTION outbox._guard_change() RETURNS trigger
LANGUAGE c AS 'MODULE_PATHNAME', 'outbox_guard_change';
COMMENT ON FUNCTION outbox._guard_change() IS 'refuses UPDATE, DELETE and TRUNCATE by others than the extension, and leaves out what a subscription brings';

DO $$
DECLARE
  guarded text;
BEGIN
  FOREACH guarded IN ARRAY ARRAY['_identity', '_layout', '_segment', '_segment_event', '_lane', '_message', '_progress'] LOOP
    EXECUTE format(
      'CREATE TRIGGER guard_change BEFORE INSERT OR UPDATE OR DELETE ON outbox.%1$s
         FOR EACH ROW EXECUTE FUNCTION outbox._guard_change();
       CREATE TRIGGER guard_truncate BEFORE TRUNCATE ON outbox.%1$s
         FOR EACH STATEMENT EXECUTE FUNCTION outbox._guard_change();
       ALTER TABLE outbox.%1$s ENABLE ALWAYS TRIGGER guard_change;
       ALTER TABLE outbox.%1$s ENABLE ALWAYS TRIGGER guard_truncate;
       COMMENT ON TRIGGER guard_change ON outbox.%1$s IS ''refuses UPDATE and DELETE, leaves out what a subscription brings'';
       COMMENT ON TRIGGER guard_truncate ON outbox.%1$s IS ''refuses TRUNCATE'';', guarded);
  END LOOP;
END
$$;
-- Its rows are deleted when a segment is gone, which a publication of all tables would refuse without this.
ALTER TABLE outbox._segment_event REPLICA IDENTITY FULL;

CREATE FUNCTION outbox._ignore_replicated() RETURNS trigger
LANGUAGE c AS 'MODULE_PATHNAME', 'outbox_ignore_replicated';
COMMENT ON FUNCTION outbox._ignore_replicated() IS 'leaves out what a subscription brings from another server: that one publishes itself';

-- An event 'archived' says with its note how: 'kept' in place (frozen, without the index of the window), or by which function.
CREATE VIEW outbox._log AS
SELECT s.segment, s.generation, s.layout,
       CASE WHEN e.drained_at IS NOT NULL THEN 'drained' WHEN e.rolled_at IS NOT NULL THEN 'rolled' ELSE 'open' END AS state,
       s.opened_at, e.rolled_at, e.quiet_at, e.drained_at, e.kept_at, e.taken_at,
       coalesce(e.archive_failures, 0) AS archive_failures, e.archive_failed_at, e.archive_error
FROM outbox._segment s
LEFT JOIN (
  SELECT e.segment, min(e.at) FILTER (WHERE e.event = 'rolled') AS rolled_at, min(e.at) FILTER (WHERE e.event = 'quiet') AS quiet_at,
         min(e.at) FILTER (WHERE e.event = 'drained') AS drained_at,
         min(e.at) FILTER (WHERE e.event = 'archived' AND e.note = 'kept') AS kept_at,
         min(e.at) FILTER (WHERE e.event = 'archived' AND e.note <> 'kept') AS taken_at,
         count(*) FILTER (WHERE e.event = 'archive_failed') AS archive_failures,
         max(e.at) FILTER (WHERE e.event = 'archive_failed') AS archive_failed_at,
         (array_agg(e.note ORDER BY e.at DESC) FILTER (WHERE e.event = 'archive_failed'))[1] AS archive_error,
         count(*) FILTER (WHERE e.event IN ('dropped', 'detached')) AS gone
  FROM outbox._segment_event e
  GROUP BY e.segment) e ON e.segment = s.segment
WHERE e.gone IS NULL OR e.gone = 0;
COMMENT ON VIEW outbox._log IS 'segments that the log still has, with what their events say';

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
CREATE FUNCTION outbox._open_segment() RETURNS integer
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
  current_layout integer;
BEGIN
  LOCK TABLE outbox._segment IN SHARE ROW EXCLUSIVE MODE;

  SELECT max(i.generation) INTO current_generation FROM outbox._identity i;
  IF current_generation IS NULL THEN
    current_generation := 0;
    INSERT INTO outbox._identity
    SELECT 0, t.system_identifier, t.database, t.extension, t.timeline, t.place, clock_timestamp()
    FROM outbox._this_identity() t;
  END IF;

  SELECT max(l.layout) INTO current_layout FROM outbox._layout l;
  IF current_layout IS NULL THEN
    current_layout := 0;
    INSERT INTO outbox._layout (layout, server, lanes) VALUES (0, '', '{0}');
  END IF;

  -- A schema-only dump brings the tables of segments but not their rows here.
  SELECT max(n) + 1 INTO new_segment
  FROM (SELECT 0 AS n
        UNION ALL SELECT s.segment FROM outbox._segment s
        UNION ALL SELECT e.segment FROM outbox._segment_event e
        UNION ALL SELECT substring(c.relname FROM '[0-9]+$')::integer FROM pg_class c
        WHERE c.relnamespace = 'outbox'::regnamespace AND c.relname ~ '^_(message|progress)_[0-9]{1,9}$') used;
  IF to_regclass('outbox._message_' || new_segment) IS NOT NULL THEN
    RAISE EXCEPTION USING
      ERRCODE = 'serialization_failure',
      MESSAGE = 'could not open a segment: another session has opened one since this transaction''s snapshot',
      DETAIL = format('The isolation level is "%s".', current_setting('transaction_isolation')),
      HINT = 'Repeat the transaction, or do it at READ COMMITTED.';
  END IF;

  EXECUTE format(
    'CREATE TABLE outbox._message_%1$s (LIKE outbox._message INCLUDING STORAGE INCLUDING CONSTRAINTS) USING heap
       WITH (vacuum_truncate = off, autovacuum_vacuum_insert_threshold = -1);
     CREATE INDEX _message_%1$s_window ON outbox._message_%1$s USING btree (lane, xid, id);
     CREATE INDEX _message_%1$s_id ON outbox._message_%1$s USING brin (id) WITH (pages_per_range = 32);
     ALTER TABLE outbox._message ATTACH PARTITION outbox._message_%1$s FOR VALUES IN (%1$s);
     CREATE TABLE outbox._progress_%1$s (LIKE outbox._progress INCLUDING STORAGE INCLUDING CONSTRAINTS) USING heap
       WITH (vacuum_truncate = off, autovacuum_vacuum_insert_threshold = -1);
     CREATE UNIQUE INDEX _progress_%1$s_lane ON outbox._progress_%1$s USING btree (lane, seq);
     CREATE INDEX _progress_%1$s_id ON outbox._progress_%1$s USING brin (first_id, last_id) WITH (pages_per_range = 8);
     ALTER TABLE outbox._progress ATTACH PARTITION outbox._progress_%1$s FOR VALUES IN (%1$s);', new_segment);
  -- The parents' triggers for rows come with ATTACH; of those for statements each table needs its own.
  EXECUTE format(
    'CREATE TRIGGER guard_truncate BEFORE TRUNCATE ON outbox._message_%1$s
       FOR EACH STATEMENT EXECUTE FUNCTION outbox._guard_change();
     CREATE TRIGGER guard_truncate BEFORE TRUNCATE ON outbox._progress_%1$s
       FOR EACH STATEMENT EXECUTE FUNCTION outbox._guard_change();
     ALTER TABLE outbox._message_%1$s ENABLE ALWAYS TRIGGER guard_truncate;
     ALTER TABLE outbox._progress_%1$s ENABLE ALWAYS TRIGGER guard_truncate;', new_segment);
  PERFORM outbox._revoke_all(format('outbox._message_%s', new_segment)::regclass);
  PERFORM outbox._revoke_all(format('outbox._progress_%s', new_segment)::regclass);

  INSERT INTO outbox._segment_event (segment, event, at)
  SELECT g.segment, 'rolled', clock_timestamp() FROM outbox._log g WHERE g.state = 'open';
  INSERT INTO outbox._segment (segment, generation, layout, opened_at)
  VALUES (new_segment, current_generation, current_layout, clock_timestamp());
  INSERT INTO outbox._lane (lane)
  SELECT DISTINCT n FROM outbox._layout l, unnest(l.lanes) n WHERE l.layout = current_layout
  ON CONFLICT (lane) DO NOTHING;

  RETURN new_segment;
END
$$;
COMMENT ON FUNCTION outbox._open_segment() IS 'opens the next segment and rolls the one that is open';

CREATE FUNCTION outbox.roll() RETURNS integer
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS 'SELECT outbox._open_segment()';
COMMENT ON FUNCTION outbox.roll() IS 'closes the open segment, opens the next one and returns its number; nobody waits for it. Error 55P03 if another session is rolling';

CREATE FUNCTION outbox.set_lanes(n integer, server name DEFAULT NULL) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '1s'
AS $$
DECLARE
  name_of_server text := CASE WHEN $2 = outbox._default_server() THEN '' ELSE coalesce($2, '') END;
  most integer := current_setting('outbox.max_lanes', true)::integer;
  current_layout integer;
  present integer[];
  chosen integer[];
  waits text;
BEGIN
  IF n IS NULL OR n < 1 OR n > most THEN
    RAISE EXCEPTION USING
      ERRCODE = 'invalid_parameter_value',
      MESSAGE = format('a Kafka server cannot have %s lanes', coalesce(n::text, 'NULL')),
      DETAIL = format('It has at least 1 lane; the lanes of a database are at most outbox.max_lanes, which is %s.', most),
      HINT = 'Choose another number, or raise outbox.max_lanes and restart the server.';
  END IF;
  IF name_of_server <> '' AND NOT EXISTS (
    SELECT FROM pg_foreign_server s JOIN pg_foreign_data_wrapper w ON w.oid = s.srvfdw
    WHERE s.srvname = $2 AND w.fdwname = 'outbox_kafka') THEN
    RAISE EXCEPTION USING
      ERRCODE = 'undefined_object',
      MESSAGE = format('there is no Kafka server "%s"', $2),
      DETAIL = 'Lanes belong to a foreign server of the foreign data wrapper outbox_kafka.',
      HINT = 'See pg_foreign_server; leave the argument out for the default server.';
  END IF;
  IF current_setting('transaction_isolation') <> 'read committed' THEN
    RAISE EXCEPTION USING
      ERRCODE = 'invalid_transaction_state',
      MESSAGE = 'outbox.set_lanes() needs a READ COMMITTED transaction',
      DETAIL = format('The isolation level is "%s"; its snapshot may not show what the lanes are now.', current_setting('transaction_isolation')),
      HINT = 'Run outbox.set_lanes() in a transaction of its own at READ COMMITTED.';
  END IF;
  LOCK TABLE outbox._segment IN SHARE ROW EXCLUSIVE MODE;

  SELECT max(l.layout) INTO current_layout FROM outbox._layout l;
  SELECT l.lanes INTO present FROM outbox._layout l WHERE l.layout = current_layout AND l.server = name_of_server;
  IF current_layout IS NULL THEN
    current_layout := 0;
    present := CASE WHEN name_of_server = '' THEN '{0}'::integer[] END;
    INSERT INTO outbox._layout (layout, server, lanes) VALUES (0, '', '{0}');
  END IF;
  IF cardinality(present) = n THEN
    RETURN;
  END IF;
  -- A lane number that another server uses in a segment that is not drained is not free.
  chosen := present[:n] || ARRAY(
    SELECT free.lane FROM generate_series(0, most - 1) AS free (lane)
    WHERE free.lane <> ALL (coalesce(present, '{}'))
      AND NOT EXISTS (
        SELECT FROM outbox._layout l
        WHERE free.lane = ANY (l.lanes) AND l.server <> name_of_server
          AND (l.layout = current_layout OR l.layout IN (SELECT g.layout FROM outbox._log g WHERE g.state <> 'drained')))
    ORDER BY free.lane
    LIMIT greatest(n - coalesce(cardinality(present), 0), 0));
  IF coalesce(cardinality(chosen), 0) < n THEN
    RAISE EXCEPTION USING
      ERRCODE = 'configuration_limit_exceeded',
      MESSAGE = format('there are not enough lanes for %s more', n - coalesce(cardinality(present), 0)),
      DETAIL = format('The lanes of all servers are at most outbox.max_lanes, which is %s.', most),
      HINT = 'Raise outbox.max_lanes and restart the server.';
  END IF;

  INSERT INTO outbox._layout (layout, server, lanes)
  SELECT current_layout + 1, name_of_server, chosen
  UNION ALL
  SELECT current_layout + 1, l.server, l.lanes FROM outbox._layout l WHERE l.layout = current_layout AND l.server <> name_of_server;
  IF EXISTS (SELECT FROM outbox._segment s) THEN
    PERFORM outbox._open_segment();
    SELECT string_agg(DISTINCT w.waits_for, '; ') INTO waits FROM outbox._segment_waits() w WHERE w.waits_for LIKE 'writers: %';
    IF waits IS NOT NULL THEN
      RAISE NOTICE USING
        MESSAGE = 'messages that are enqueued from now on wait until earlier transactions have ended',
        DETAIL = format('The segments before wait for %s.', waits),
        HINT = 'See waits_for in outbox.segments.';
    END IF;
  END IF;
END
$$;
COMMENT ON FUNCTION outbox.set_lanes(integer, name) IS 'spreads new messages of a Kafka server over n lanes; by key, so that order per key is kept. Rolls; what is enqueued from then on is published when all earlier segments are drained, outbox.segments tells what they wait for';

CREATE FUNCTION outbox._lane_of(topic text, key bytea, id bigint, lanes integer) RETURNS integer
LANGUAGE c IMMUTABLE AS 'MODULE_PATHNAME', 'outbox_lane_of';
COMMENT ON FUNCTION outbox._lane_of(text, bytea, bigint, integer) IS 'the place of a message among so many lanes: by a hash of topic and key; by id without a key';

CREATE FUNCTION outbox._cursors(
  OUT generation integer, OUT layout integer, OUT lane integer, OUT seq bigint, OUT completed pg_snapshot, OUT window_end pg_snapshot, OUT sent_id bigint)
RETURNS SETOF record
LANGUAGE c STABLE STRICT AS 'MODULE_PATHNAME', 'outbox_cursors';
COMMENT ON FUNCTION outbox._cursors() IS 'the newest progress of each lane in each generation and layout of segments';

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
  lane_numbers integer[];
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
  FROM outbox._log s
  WHERE s.generation = old_generation AND to_regclass('outbox._message_' || s.segment) IS NOT NULL;

  -- Waits for the transactions that still write to the old segments: what they commit must be copied.
  FOREACH segment_number IN ARRAY coalesce(old_segments, '{}') LOOP
    EXECUTE format('LOCK TABLE outbox._message_%s IN SHARE MODE', segment_number);
  END LOOP;

  INSERT INTO outbox._identity
  SELECT old_generation + 1, t.system_identifier, t.database, t.extension, t.timeline, t.place, clock_timestamp()
  FROM outbox._this_identity() t;
  new_segment := outbox._open_segment();
  SELECT l.lanes INTO lane_numbers
  FROM outbox._segment s JOIN outbox._layout l ON l.layout = s.layout AND l.server = ''
  WHERE s.segment = new_segment;

  EXECUTE format(
    'INSERT INTO outbox._message_%s (id, xid, enqueued_at, message_id, segment, lane, topic, key, payload, headers)
     SELECT m.id, pg_current_xact_id(), m.enqueued_at, m.message_id, $1,
            ($2::integer[])[outbox._lane_of(m.topic, m.key, m.id, cardinality($2)) + 1], m.topic, m.key, m.payload, m.headers
     FROM outbox._message m
     JOIN outbox._segment s ON s.segment = m.segment
     LEFT JOIN outbox._cursors() c ON c.generation = $3 AND c.layout = s.layout AND c.lane = m.lane
     WHERE m.segment = ANY ($4)
       AND NOT (m.lane >= 0 AND c.lane IS NOT NULL
                AND (pg_visible_in_snapshot(m.xid, c.completed)
                     OR c.window_end IS NOT NULL AND m.id <= c.sent_id AND pg_visible_in_snapshot(m.xid, c.window_end)))
     ORDER BY m.id', new_segment)
  USING new_segment, lane_numbers, old_generation, old_segments;
  GET DIAGNOSTICS copied = ROW_COUNT;

  INSERT INTO outbox._segment_event (segment, event, at)
  SELECT s.segment, 'drained', clock_timestamp() FROM outbox._log s
  WHERE s.generation = old_generation AND s.state <> 'drained';
  RETURN copied;
END
$$;
COMMENT ON FUNCTION outbox.adopt() IS 'after a restore, a copy or a clone: from now on this database publishes; copies what is unpublished into a new segment and returns how many messages. Waits (10 s at most) for writers that are still open; enqueue waits while it copies';

CREATE FUNCTION outbox._is_adopted() RETURNS boolean
LANGUAGE c STABLE STRICT AS 'MODULE_PATHNAME', 'outbox_is_adopted';
COMMENT ON FUNCTION outbox._is_adopted() IS 'whether this database publishes under its own identity';
