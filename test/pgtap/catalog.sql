-- What the extension consists of, and how its parts are declared.
BEGIN;
SELECT no_plan();
CREATE EXTENSION outbox;

CREATE TEMP VIEW member AS
SELECT d.classid, d.objid, pg_describe_object(d.classid, d.objid, 0) AS description
FROM pg_depend d JOIN pg_extension e ON e.oid = d.refobjid AND d.refclassid = 'pg_extension'::regclass
WHERE e.extname = 'outbox' AND d.deptype = 'e';
CREATE TEMP VIEW ours AS
SELECT p.oid::regprocedure::text AS signature, p.* FROM pg_proc p WHERE p.pronamespace = 'outbox'::regnamespace;

-- ---- one namespace

SELECT cmp_ok((SELECT count(*) FROM member), '>', 30::bigint, 'the extension has members');
SELECT is_empty(
  $$SELECT description FROM member m JOIN pg_class c ON m.classid = 'pg_class'::regclass AND c.oid = m.objid AND c.relnamespace <> 'outbox'::regnamespace
    UNION ALL
    SELECT description FROM member m JOIN pg_proc p ON m.classid = 'pg_proc'::regclass AND p.oid = m.objid AND p.pronamespace <> 'outbox'::regnamespace$$,
  'every relation and function stands in the schema outbox');
SELECT is_empty(
  $$SELECT c.oid::regclass FROM pg_class c WHERE c.relnamespace = 'outbox'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'm', 'S', 'f')
    AND NOT EXISTS (SELECT FROM member m WHERE m.classid = 'pg_class'::regclass AND m.objid = c.oid)$$,
  'before the first message every relation in the schema is a member');
SELECT is_empty(
  $$SELECT signature FROM ours o WHERE NOT EXISTS (SELECT FROM member m WHERE m.classid = 'pg_proc'::regclass AND m.objid = o.oid)$$,
  'every function in the schema is a member');
SELECT set_eq(
  $$SELECT c.relname::text FROM pg_class c WHERE c.relnamespace = 'outbox'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'm', 'f') AND c.relname NOT LIKE '\_%'$$,
  ARRAY['messages', 'lanes', 'workers', 'segments', 'dead_letters'], 'users meet these views and no table');
SELECT set_eq(
  $$SELECT DISTINCT proname::text FROM ours WHERE proname NOT LIKE '\_%'$$,
  ARRAY['enqueue', 'get_message', 'version', 'pause', 'resume', 'wait_published', 'drain', 'roll', 'set_lanes', 'adopt', 'resend', 'replay', 'reset_counters', 'set_archive_function',
        'grant_producer', 'grant_operator', 'revoke_producer', 'revoke_operator'], 'users meet these functions');

-- ---- comments

SELECT is_empty(
  $$SELECT description FROM member WHERE coalesce(obj_description(objid, classid::regclass::name), '') = '' AND classid <> 'pg_type'::regclass$$,
  'every member has a comment');
SELECT is_empty(
  $$SELECT c.relname || '.' || a.attname FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
    WHERE c.relnamespace = 'outbox'::regnamespace AND c.relkind = 'v' AND c.relname NOT LIKE '\_%' AND col_description(c.oid, a.attnum) IS NULL$$,
  'every column of a public view has a comment');
SELECT is_empty(
  $$SELECT t.tgname FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
    WHERE c.relnamespace = 'outbox'::regnamespace AND NOT t.tgisinternal AND obj_description(t.oid, 'pg_trigger') IS NULL$$,
  'every trigger has a comment');
SELECT isnt(obj_description(oid, 'pg_extension'), NULL, 'the extension has a comment') FROM pg_extension WHERE extname = 'outbox';

-- ---- functions

SELECT is((SELECT count(*) FROM ours WHERE proname = 'enqueue'), 5::bigint, 'enqueue has five variants');
SELECT set_eq(
  $$SELECT signature FROM ours WHERE proname = 'enqueue'$$,
  ARRAY['outbox.enqueue(text,text,text,jsonb,timestamp with time zone,text)', 'outbox.enqueue(text,json,text,jsonb,timestamp with time zone,text)',
        'outbox.enqueue(text,jsonb,text,jsonb,timestamp with time zone,text)', 'outbox.enqueue(text,bytea,text,jsonb,timestamp with time zone,text)',
        'outbox.enqueue(text,bytea,bytea,jsonb,timestamp with time zone,text)'], 'enqueue takes text, json, jsonb and bytea, and a bytea key with bytea');
SELECT is_empty(
  $$SELECT signature FROM ours WHERE proname = 'enqueue'
    AND (provolatile <> 'v' OR proparallel <> 'u' OR proisstrict OR prosecdef OR proretset OR prorettype <> 'uuid'::regtype)$$,
  'enqueue is volatile, parallel unsafe, called with nulls, with the rights of the caller, and returns one uuid');
SELECT is_empty(
  $$SELECT signature, proargnames FROM ours WHERE proname = 'enqueue' AND proargnames <> ARRAY['topic', 'payload', 'key', 'headers', 'publish_at', 'dedup_key']$$,
  'the arguments of enqueue have their names');
SELECT is_empty(
  $$SELECT signature, pronargdefaults FROM ours WHERE proname = 'enqueue' AND pronargdefaults <> CASE WHEN signature LIKE '%(text,bytea,bytea,%' THEN 3 ELSE 4 END$$,
  'key and what follows have defaults, but not a key of type bytea');
SELECT is_empty(
  $$SELECT signature FROM ours WHERE proname ~ '^(pause|resume|wait_published|drain|roll|adopt|resend|replay|reset_counters|grant_|revoke_)' AND (provolatile <> 'v' OR proparallel <> 'u')$$,
  'what changes or awaits something is volatile and parallel unsafe');
SELECT is_empty(
  $$SELECT signature FROM ours WHERE prosecdef AND NOT coalesce(proconfig @> ARRAY['search_path=pg_catalog, pg_temp'], false)$$,
  'every SECURITY DEFINER function sets search_path to pg_catalog, pg_temp');
SELECT is_empty(
  $$SELECT signature FROM ours JOIN pg_language l ON l.oid = prolang
    WHERE lanname IN ('sql', 'plpgsql') AND prosrc ~* '(from|join|into|update|table) +"?(_[a-z]+|messages|lanes|workers|segments|dead_letters)\M(?! *\.)'$$,
  'SQL functions qualify the names of relations');
SELECT function_returns('outbox', 'wait_published', ARRAY['uuid', 'interval'], 'boolean', 'wait_published tells whether it was published');
SELECT function_returns('outbox', 'drain', ARRAY['interval'], 'boolean', 'drain tells whether everything was published');
SELECT has_function('outbox', 'resend', ARRAY['uuid', 'jsonb'], 'resend takes corrections');
SELECT function_returns('outbox', 'replay', ARRAY['text', 'timestamp with time zone', 'timestamp with time zone', 'text'], 'bigint',
  'replay tells how many messages it has copied');
SELECT has_function('outbox', 'get_message', ARRAY['uuid'], 'get_message takes an id');
SELECT has_function('outbox', 'adopt', ARRAY[]::name[], 'adopt has no required argument');

-- ---- tables

SELECT set_eq(
  $$SELECT config::regclass::text FROM pg_extension, unnest(extconfig) config WHERE extname = 'outbox'$$,
  $$SELECT c.oid::regclass::text FROM pg_class c WHERE c.relnamespace = 'outbox'::regnamespace AND c.relkind IN ('r', 'S')$$,
  'every table with rows of its own and every sequence is in a dump');
SELECT is_empty(
  $$SELECT condition FROM pg_extension, unnest(extcondition) condition WHERE extname = 'outbox' AND condition <> ''$$, 'a dump has all their rows');
SELECT is_empty($$SELECT inhrelid::regclass FROM pg_inherits WHERE inhparent IN ('outbox._message'::regclass, 'outbox._progress'::regclass)$$,
  'the script makes no segment');
SELECT is_empty($$SELECT * FROM outbox._segment$$, 'the script makes no row of a segment');
SELECT is_empty($$SELECT * FROM outbox._lane$$, 'the script makes no lane');
SELECT is_empty($$SELECT * FROM outbox._identity$$, 'the script makes no identity');
SELECT is((SELECT partstrat::text || ' ' || pg_get_partkeydef(partrelid) FROM pg_partitioned_table WHERE partrelid = 'outbox._message'::regclass),
  'l LIST (segment)', 'the message log has a partition a segment');
SELECT is((SELECT partstrat::text || ' ' || pg_get_partkeydef(partrelid) FROM pg_partitioned_table WHERE partrelid = 'outbox._progress'::regclass),
  'l LIST (segment)', 'the progress log has a partition a segment');
SELECT is_empty($$SELECT indexrelid::regclass FROM pg_index WHERE indrelid IN ('outbox._message'::regclass, 'outbox._progress'::regclass)$$,
  'the parents have no index');
SELECT columns_are('outbox', '_message',
  ARRAY['id', 'xid', 'enqueued_at', 'message_id', 'segment', 'lane', 'topic', 'key', 'payload', 'headers'], 'the columns of a message');
SELECT col_type_is('outbox', '_message', name, type, name || ' is ' || type)
FROM (VALUES ('id', 'bigint'), ('xid', 'xid8'), ('enqueued_at', 'timestamp with time zone'), ('message_id', 'uuid'), ('segment', 'integer'),
             ('lane', 'integer'), ('topic', 'text'), ('key', 'bytea'), ('payload', 'bytea'), ('headers', 'jsonb')) v (name, type);
SELECT is_empty(
  $$SELECT attname FROM pg_attribute WHERE attrelid = 'outbox._message'::regclass AND attnum > 0
    AND attnotnull <> (attname NOT IN ('key', 'payload', 'headers'))$$, 'only key, payload and headers may be null');
SELECT is((SELECT seqcache FROM pg_sequence WHERE seqrelid = 'outbox._message_id'::regclass), 1::bigint, 'the sequence of ids caches nothing');
SELECT is((SELECT NOT seqcycle AND seqtypid = 'bigint'::regtype FROM pg_sequence WHERE seqrelid = 'outbox._message_id'::regclass), true,
  'the sequence of ids is a bigint and does not start over');
SELECT isnt_empty(
  $$SELECT FROM pg_index WHERE indrelid = 'outbox._segment_event'::regclass AND indisunique$$, 'a segment is rolled, drained and dropped once');
SELECT has_trigger('outbox', 'messages', 'enqueue', 'INSERT INTO outbox.messages has a trigger');

-- A session that waits to drop a segment holds up whoever touches the parent.
SELECT is_empty(
  $$SELECT DISTINCT r.ev_class::regclass, d.refobjid::regclass FROM pg_rewrite r
    JOIN pg_depend d ON d.classid = 'pg_rewrite'::regclass AND d.objid = r.oid AND d.refclassid = 'pg_class'::regclass
    WHERE r.ev_class IN ('outbox.lanes'::regclass, 'outbox.workers'::regclass, 'outbox.segments'::regclass)
      AND d.refobjid IN ('outbox._message'::regclass, 'outbox._progress'::regclass)$$, 'lanes, workers and segments do not touch the logs');

-- ---- settings

SELECT set_eq($$SELECT name FROM pg_settings WHERE name LIKE 'outbox.%'$$,
  ARRAY['outbox.enabled', 'outbox.server', 'outbox.max_message_bytes', 'outbox.max_databases', 'outbox.max_workers_per_database', 'outbox.max_lanes',
        'outbox.allow_data_loss', 'outbox.backlog_limit', 'outbox.backlog_limit_action', 'outbox.workers_per_database', 'outbox.segment_max_age',
        'outbox.segment_max_size', 'outbox.retention', 'outbox.archive_mode'], 'these are the settings');
SELECT is_empty($$SELECT name FROM pg_settings WHERE name LIKE 'outbox.%' AND coalesce(short_desc, '') = ''$$, 'every setting has a description');
SELECT is((SELECT vartype || ' ' || context || ' ' || coalesce(unit, '-') || ' ' || boot_val FROM pg_settings WHERE name = 'outbox.' || s), declared, s)
FROM (VALUES ('enabled', 'bool sighup - on'), ('server', 'string sighup - kafka'), ('max_message_bytes', 'integer sighup B 1000000'),
             ('allow_data_loss', 'bool superuser - off'), ('backlog_limit', 'integer sighup - 0'), ('backlog_limit_action', 'enum sighup - warn'),
             ('workers_per_database', 'integer sighup - 1'), ('segment_max_age', 'integer sighup s 86400'),
             ('segment_max_size', 'integer sighup kB 1048576'), ('retention', 'integer sighup s 604800'), ('archive_mode', 'enum sighup - keep')) v (s, declared);
SELECT is((SELECT vartype || ' ' || context FROM pg_settings WHERE name = 'outbox.' || s), 'integer postmaster', s)
FROM unnest(ARRAY['max_databases', 'max_workers_per_database', 'max_lanes']) s;
SELECT is_empty(
  $$SELECT name, min_val, max_val FROM pg_settings WHERE name LIKE 'outbox.%' AND vartype = 'integer'
    AND (min_val::bigint < CASE name WHEN 'outbox.backlog_limit' THEN 0 WHEN 'outbox.retention' THEN -1 ELSE 1 END OR max_val::bigint >= 2147483647)$$,
  'every number has bounds');

-- ---- the rest

SELECT is((SELECT v.oid::regproc::text FROM pg_foreign_data_wrapper f JOIN pg_proc v ON v.oid = f.fdwvalidator WHERE fdwname = 'outbox_kafka'),
  'outbox._kafka_options', 'the foreign data wrapper checks options');
SELECT is((SELECT fdwhandler FROM pg_foreign_data_wrapper WHERE fdwname = 'outbox_kafka'), 0::oid, 'the foreign data wrapper has no tables');
SELECT is((SELECT count(*) FROM pg_foreign_server s JOIN pg_foreign_data_wrapper f ON f.oid = s.srvfdw WHERE fdwname = 'outbox_kafka'), 0::bigint,
  'the extension brings no server');

SELECT * FROM finish();
ROLLBACK;
