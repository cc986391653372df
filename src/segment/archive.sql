CREATE TABLE outbox._archive_function (
  registered    boolean     PRIMARY KEY DEFAULT true CHECK (registered),
  function      text        NOT NULL,
  role          name        NOT NULL,
  owner         name        NOT NULL,
  registered_at timestamptz NOT NULL
);
COMMENT ON TABLE outbox._archive_function IS 'one row: the function that takes segments, the role that it runs as, and who owned the function when it was registered; by name, so that a dump can carry it';

CREATE TRIGGER announce AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON outbox._archive_function
FOR EACH STATEMENT EXECUTE FUNCTION outbox._announce();
ALTER TABLE outbox._archive_function ENABLE ALWAYS TRIGGER announce;
COMMENT ON TRIGGER announce ON outbox._archive_function IS 'tells maintenance about changes';
CREATE TRIGGER ignore_replicated BEFORE INSERT OR UPDATE OR DELETE ON outbox._archive_function
FOR EACH ROW EXECUTE FUNCTION outbox._ignore_replicated();
ALTER TABLE outbox._archive_function ENABLE ALWAYS TRIGGER ignore_replicated;
COMMENT ON TRIGGER ignore_replicated ON outbox._archive_function IS 'leaves out what a subscription brings from another server';

CREATE FUNCTION outbox.set_archive_function(function regprocedure) RETURNS void
LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'outbox_set_archive_function';
COMMENT ON FUNCTION outbox.set_archive_function(regprocedure) IS 'the function that is called with the table of each segment in which everything is published, where outbox.archive_mode is function; it runs as the role that calls this one. NULL: none';

CREATE FUNCTION outbox._is_past(later pg_snapshot, earlier pg_snapshot) RETURNS boolean
LANGUAGE sql IMMUTABLE STRICT SET search_path = pg_catalog, pg_temp AS $$
  SELECT pg_snapshot_xmax($1) >= pg_snapshot_xmax($2)
         AND NOT EXISTS (SELECT FROM pg_snapshot_xip($1) x WHERE pg_visible_in_snapshot(x, $2))
$$;
COMMENT ON FUNCTION outbox._is_past(pg_snapshot, pg_snapshot) IS 'whether every transaction that is finished in the second snapshot is finished in the first';

CREATE FUNCTION outbox._bytes(relation regclass) RETURNS bigint
LANGUAGE c VOLATILE STRICT AS 'MODULE_PATHNAME', 'outbox_bytes';
COMMENT ON FUNCTION outbox._bytes(regclass) IS 'size of a table with indexes and TOAST; NULL, instead of waiting, while somebody has locked it';

-- Of pg_locks, pg_stat_activity and the like only what some segment waits for is read.
CREATE FUNCTION outbox._segment_waits(OUT segment integer, OUT waits_for text) RETURNS SETOF record
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET row_security = off
AS $$
  WITH setting AS MATERIALIZED (
    SELECT current_setting('outbox.archive_mode', true) AS mode,
           current_setting('outbox.retention', true)::interval AS retention,
           (SELECT oid FROM pg_database WHERE datname = current_database()) AS database,
           (SELECT max(i.generation) FROM outbox._identity i) AS generation,
           EXISTS (SELECT FROM outbox._archive_function f) AS has_function
  ), step AS MATERIALIZED (
    SELECT l.segment, l.generation, l.layout, l.archive_failures, l.archive_error,
           to_regclass('outbox._message_' || l.segment) AS messages,
           to_regclass('outbox._progress_' || l.segment) AS progress,
           CASE WHEN l.state = 'rolled' AND l.quiet_at IS NULL THEN 'writers'
                WHEN l.state = 'rolled' THEN 'lanes'
                WHEN s.mode = 'function' AND l.taken_at IS NULL THEN 'function'
                WHEN s.mode = 'detach' AND l.kept_at IS NULL THEN 'snapshots'
                WHEN s.retention >= interval '0' AND clock_timestamp() >= l.drained_at + s.retention THEN 'locks'
                WHEN l.kept_at IS NULL THEN 'snapshots' END AS needs
    FROM outbox._log l, setting s
    WHERE l.state <> 'open' AND (l.state = 'drained' OR l.generation = s.generation)
  ), any_lock AS MATERIALIZED (
    SELECT l.locktype, l.database, l.relation, l.transactionid, l.virtualtransaction, l.mode, l.pid
    FROM pg_locks l
    WHERE EXISTS (SELECT FROM step WHERE needs IN ('writers', 'locks', 'snapshots')) AND l.granted AND l.locktype IN ('relation', 'transactionid')
  ), lock AS MATERIALIZED (
    -- a prepared transaction has no pid, but a lock on its own xid
    SELECT l.relation, l.mode, coalesce('pid ' || l.pid, format('prepared transaction "%s"', p.gid)) AS holder,
           coalesce(a.backend_type, '') = 'outbox archive' AS is_archive
    FROM setting s, any_lock l
    LEFT JOIN any_lock x ON l.pid IS NULL AND x.pid IS NULL AND x.locktype = 'transactionid' AND x.virtualtransaction = l.virtualtransaction
    LEFT JOIN pg_prepared_xacts p ON p.transaction = x.transactionid
    LEFT JOIN pg_stat_activity a ON a.pid = l.pid
    WHERE l.locktype = 'relation' AND l.database = s.database AND coalesce(a.backend_type, '') <> 'outbox maintenance'
  ), own_table AS MATERIALIZED (
    SELECT s.segment, s.needs, c.oid AS relation, c.reltoastrelid AS toast
    FROM step s JOIN pg_class c ON c.oid = ANY (ARRAY[s.messages::oid, s.progress::oid])
    WHERE s.needs = 'locks' OR s.needs = 'snapshots' AND c.oid = s.messages
  ), part AS MATERIALIZED (
    -- what the step locks: for a drop all there is, to be archived the messages and the index that goes
    SELECT t.segment, t.relation FROM own_table t
    UNION ALL
    SELECT t.segment, t.toast FROM own_table t WHERE t.needs = 'locks'
    UNION ALL
    SELECT t.segment, i.indexrelid
    FROM own_table t
    JOIN pg_index i ON i.indrelid = ANY (ARRAY[t.relation, t.toast])
    JOIN pg_attribute a ON a.attrelid = i.indexrelid AND a.attnum = 1
    WHERE t.needs = 'locks' OR i.indrelid = t.relation AND a.attname = 'lane'
    UNION ALL
    SELECT s.segment, p.relation
    FROM step s CROSS JOIN (VALUES ('outbox._message'::regclass), ('outbox._progress')) p (relation)
    WHERE s.needs = 'locks'
  ), said AS MATERIALIZED (
    -- what only maintenance knows
    SELECT w.reason FROM outbox._workers() w
    WHERE w.process = 'outbox maintenance' AND w.pid <> pg_backend_pid() AND EXISTS (SELECT FROM step)
  ), no_process AS MATERIALIZED (
    SELECT d.reason FROM said d WHERE starts_with(d.reason, 'the archive process cannot start')
  ), held AS MATERIALIZED (
    SELECT greatest(age(a.backend_xid), age(a.backend_xmin)) AS age, 'pid ' || a.pid AS holder
    FROM pg_stat_activity a, setting s
    WHERE EXISTS (SELECT FROM step WHERE needs = 'snapshots') AND a.datid = s.database AND a.pid <> pg_backend_pid()
      AND coalesce(a.backend_xid, a.backend_xmin) IS NOT NULL
    UNION ALL
    SELECT age(p.transaction), format('prepared transaction "%s"', p.gid)
    FROM pg_prepared_xacts p
    WHERE EXISTS (SELECT FROM step WHERE needs = 'snapshots') AND p.database = current_database()
    UNION ALL
    SELECT age(r.xmin), format('replication slot "%s"', r.slot_name)
    FROM pg_replication_slots r
    WHERE EXISTS (SELECT FROM step WHERE needs = 'snapshots') AND r.xmin IS NOT NULL
  ), cursor AS MATERIALIZED (
    SELECT c.generation, c.layout, c.lane, c.completed FROM outbox._cursors() c WHERE EXISTS (SELECT FROM step WHERE needs = 'lanes')
  )
  SELECT s.segment,
         CASE s.needs
         WHEN 'writers' THEN
           (SELECT 'writers: ' || string_agg(DISTINCT k.holder, ', ') FROM lock k
            WHERE k.relation = s.messages AND k.mode NOT IN ('AccessShareLock', 'RowShareLock', 'ShareLock'))
         WHEN 'lanes' THEN
           (SELECT 'not published: lane ' || string_agg(n::text, ', ' ORDER BY n) || ', see outbox.lanes and outbox.workers'
            FROM outbox._layout y
            CROSS JOIN unnest(y.lanes) n
            CROSS JOIN outbox._segment_event q
            LEFT JOIN cursor c ON c.generation = s.generation AND c.layout = s.layout AND c.lane = n
            WHERE y.layout = s.layout AND q.segment = s.segment AND q.event = 'quiet'
              AND (c.lane IS NULL OR NOT outbox._is_past(c.completed, q.moment)))
         WHEN 'function' THEN
           CASE WHEN NOT (SELECT has_function FROM setting) THEN 'an archive function: SELECT outbox.set_archive_function(…)'
                ELSE coalesce('the archive function, which has failed ' || nullif(s.archive_failures, 0)
                                || CASE s.archive_failures WHEN 1 THEN ' time: ' ELSE ' times: ' END || s.archive_error,
                              (SELECT reason FROM no_process)) END
         WHEN 'locks' THEN
           coalesce(
             (SELECT substr(d.reason, strpos(d.reason, 'cannot be dropped'))
              FROM said d WHERE starts_with(d.reason, format('segment %s cannot be dropped: ', s.segment))),
             (SELECT 'locks: ' || string_agg(DISTINCT k.holder, ', ')
              FROM lock k JOIN part p ON p.relation = k.relation WHERE p.segment = s.segment))
         WHEN 'snapshots' THEN
           coalesce(
             (SELECT 'snapshots: ' || string_agg(DISTINCT h.holder, ', ')
              FROM held h JOIN outbox._segment_event d ON d.segment = s.segment AND d.event = 'drained'
              WHERE h.age > age(d.xmin)),
             (SELECT reason FROM no_process),
             (SELECT 'locks: ' || string_agg(DISTINCT k.holder, ', ')
              FROM lock k JOIN part p ON p.relation = k.relation WHERE p.segment = s.segment AND NOT k.is_archive))
         END
  FROM step s
$$;
COMMENT ON FUNCTION outbox._segment_waits() IS 'what the next step of each segment waits for just now';

CREATE VIEW outbox.segments AS
SELECT s.segment,
       CASE WHEN s.generation < (SELECT max(i.generation) FROM outbox._identity i) THEN 'foreign'
            WHEN a.archived_at IS NOT NULL THEN 'archived' ELSE s.state END AS state,
       (SELECT sum(cardinality(l.lanes))::integer FROM outbox._layout l WHERE l.layout = s.layout) AS lanes,
       s.opened_at, s.rolled_at, s.drained_at, a.archived_at,
       to_regclass('outbox._message_' || s.segment) AS message_table,
       to_regclass('outbox._progress_' || s.segment) AS progress_table,
       outbox._bytes(to_regclass('outbox._message_' || s.segment)) AS message_bytes,
       outbox._bytes(to_regclass('outbox._progress_' || s.segment)) AS progress_bytes,
       w.waits_for
FROM outbox._log s
CROSS JOIN LATERAL (
  SELECT CASE current_setting('outbox.archive_mode', true) WHEN 'function' THEN s.taken_at ELSE s.kept_at END AS archived_at) a
LEFT JOIN outbox._segment_waits() w ON w.segment = s.segment;
COMMENT ON VIEW outbox.segments IS 'the segments of the message log: state open, rolled (closed to new messages), drained (everything in it is published), archived (and dealt with as outbox.archive_mode says) or foreign (adopted from another cluster or database)';
COMMENT ON COLUMN outbox.segments.segment IS 'number of the segment; a later one has a larger number';
COMMENT ON COLUMN outbox.segments.state IS 'open, rolled, drained, archived or foreign';
COMMENT ON COLUMN outbox.segments.opened_at IS 'when it became the segment for new messages';
COMMENT ON COLUMN outbox.segments.rolled_at IS 'when the next segment was opened; NULL while it is open';
COMMENT ON COLUMN outbox.segments.drained_at IS 'when it was seen that everything in it is published or a dead letter; outbox.retention counts from here';
COMMENT ON COLUMN outbox.segments.archived_at IS 'when it was frozen and lost the index that publishing needs, or when the archive function had taken it';
COMMENT ON COLUMN outbox.segments.message_table IS 'table with the segment''s messages';
COMMENT ON COLUMN outbox.segments.progress_table IS 'table with the progress and receipts written while the segment was open';
COMMENT ON COLUMN outbox.segments.lanes IS 'how many lanes the messages of this segment are spread over';
COMMENT ON COLUMN outbox.segments.message_bytes IS 'size of the segment''s messages with indexes and TOAST, in bytes; NULL while the table is locked';
COMMENT ON COLUMN outbox.segments.progress_bytes IS 'size of the segment''s progress log with indexes, in bytes; NULL while the table is locked';
COMMENT ON COLUMN outbox.segments.waits_for IS 'who or what holds up its next step just now: writers, lanes that have not published it, the archive function, snapshots (before it is frozen), locks (before it is archived or dropped), a process that cannot start, an error; with pid, or name of the prepared transaction';
