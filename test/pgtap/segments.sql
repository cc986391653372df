-- What the first message and outbox.roll() make at run time.
BEGIN;
SELECT no_plan();
CREATE EXTENSION outbox;
-- Rights that the administrator gives to everybody by default must not open the log.
CREATE ROLE tap_reader;
ALTER DEFAULT PRIVILEGES GRANT SELECT ON TABLES TO PUBLIC;
ALTER DEFAULT PRIVILEGES GRANT SELECT ON TABLES TO tap_reader;
CREATE ROLE tap_producer;
SELECT outbox.grant_producer('tap_producer');

SET ROLE tap_producer;
SET search_path = pg_catalog;
SELECT outbox.enqueue('orders', 'first') IS NOT NULL \g /dev/null
RESET ROLE;
RESET search_path;
SELECT outbox.roll() \g /dev/null
SELECT outbox.enqueue('orders', 'second') IS NOT NULL \g /dev/null

CREATE TEMP VIEW leaf AS
SELECT c.*, inhparent FROM pg_inherits JOIN pg_class c ON c.oid = inhrelid
WHERE inhparent IN ('outbox._message'::regclass, 'outbox._progress'::regclass);

SELECT set_eq('SELECT relname::text FROM leaf', ARRAY['_message_1', '_message_2', '_progress_1', '_progress_2'], 'each segment has two tables');
SELECT is_empty(
  $$SELECT relname FROM leaf JOIN pg_depend ON classid = 'pg_class'::regclass AND objid = leaf.oid AND deptype = 'e'$$,
  'they are no members of the extension');
SELECT is_empty($$SELECT relname FROM leaf WHERE relowner <> (SELECT extowner FROM pg_extension WHERE extname = 'outbox')$$,
  'they belong to the owner of the extension, whoever enqueued first');
SELECT is_empty($$SELECT relname FROM leaf WHERE relnamespace <> 'outbox'::regnamespace OR relpersistence <> 'p'$$, 'they stand in the schema and are logged');
SELECT is_empty($$SELECT relname FROM leaf WHERE NOT reloptions @> ARRAY['vacuum_truncate=off']$$, 'vacuum does not truncate them');
SELECT is_empty($$SELECT relname FROM leaf WHERE NOT reloptions @> ARRAY['autovacuum_vacuum_insert_threshold=-1']$$, 'inserts do not start a vacuum');
SELECT bag_eq(
  $$SELECT relname::text, pg_get_expr(relpartbound, leaf.oid) FROM leaf$$,
  $$VALUES ('_message_1', 'FOR VALUES IN (1)'), ('_message_2', 'FOR VALUES IN (2)'), ('_progress_1', 'FOR VALUES IN (1)'), ('_progress_2', 'FOR VALUES IN (2)')$$,
  'each holds its segment');

CREATE TEMP VIEW index AS
SELECT leaf.relname AS leaf, am.amname AS method, indisunique,
       (SELECT string_agg(attname, ',' ORDER BY k.n) FROM unnest(indkey::int2[]) WITH ORDINALITY k (attnum, n)
        JOIN pg_attribute a ON a.attrelid = indrelid AND a.attnum = k.attnum) AS columns
FROM leaf JOIN pg_index ON indrelid = leaf.oid JOIN pg_class i ON i.oid = indexrelid JOIN pg_am am ON am.oid = i.relam;
SELECT bag_eq($$SELECT leaf::text, method::text, columns::text, indisunique FROM index WHERE leaf LIKE '\_message%'$$,
  $$VALUES ('_message_1', 'btree', 'lane,xid,id', false), ('_message_1', 'brin', 'id', false),
           ('_message_2', 'btree', 'lane,xid,id', false), ('_message_2', 'brin', 'id', false)$$,
  'messages have a btree (lane, xid, id) and a BRIN (id), and nothing else that costs');
SELECT is_empty($$SELECT relname FROM leaf WHERE relname LIKE '\_progress%' AND NOT EXISTS
                  (SELECT FROM index WHERE index.leaf = relname AND method = 'btree' AND columns LIKE 'lane,%')$$,
  'progress is found from its lane');
SELECT is_empty($$SELECT conname FROM pg_constraint WHERE conrelid IN (SELECT oid FROM leaf) AND contype IN ('f', 'p', 'u', 'x')$$, 'no constraint is checked by an insert');
SELECT set_eq($$SELECT leaf.relname::text, tgname::text, tgenabled::text FROM pg_trigger JOIN leaf ON leaf.oid = tgrelid$$,
  $$SELECT leaf.relname::text, name, 'A' FROM leaf, unnest(ARRAY['guard_change', 'guard_truncate']) name$$,
  'every segment is guarded, and has no other trigger');

SELECT is_empty(
  $$SELECT relname, privilege_type, grantee::regrole FROM leaf, aclexplode(relacl) WHERE grantee <> relowner$$,
  'nobody but the owner has rights on a segment, whatever the default privileges say');
SELECT is_empty(
  $$SELECT c.oid::regclass, r FROM pg_class c, unnest(ARRAY['tap_producer', 'tap_reader']) r
    WHERE c.relnamespace = 'outbox'::regnamespace AND c.relname ~ '^_(message|progress)_\d+$' AND has_table_privilege(r, c.oid, 'SELECT')$$,
  'default privileges do not let a producer read the log');

SELECT bag_eq('SELECT segment, state, lanes FROM outbox.segments', $$VALUES (1, 'rolled', 1), (2, 'open', 1)$$, 'the second segment is open');
SELECT bag_eq('SELECT segment, message_table::text FROM outbox.segments', $$VALUES (1, 'outbox._message_1'), (2, 'outbox._message_2')$$,
  'the view names the tables');
SELECT results_eq('SELECT lane FROM outbox._lane', ARRAY[0], 'there is one lane by default');
SELECT is((SELECT count(*) FROM outbox._identity), 1::bigint, 'there is one identity');
SELECT bag_eq('SELECT tableoid::regclass::text AS leaf, convert_from(payload, ''UTF8''), lane FROM outbox._message',
  $$VALUES ('outbox._message_1', 'first', 0), ('outbox._message_2', 'second', 0)$$, 'each message is in the segment that was open');
SELECT is_empty($$SELECT id FROM outbox._message WHERE xid <> pg_current_xact_id()$$, 'a message carries its top-level transaction');

SET outbox.allow_data_loss = on;
DROP VIEW index, leaf;
DROP EXTENSION outbox;
SELECT is_empty($$SELECT oid::regclass FROM pg_class WHERE relname ~ '^_(message|progress)(_\d+)?$'$$, 'the segments go with the extension');
SELECT * FROM finish();
ROLLBACK;
