-- Who may do what.
BEGIN;
SELECT no_plan();
-- Rights that an administrator gives by default must not open what we make.
CREATE ROLE tap_default;
ALTER DEFAULT PRIVILEGES GRANT ALL ON TABLES TO tap_default;
ALTER DEFAULT PRIVILEGES GRANT ALL ON SEQUENCES TO tap_default;
ALTER DEFAULT PRIVILEGES GRANT ALL ON FUNCTIONS TO tap_default;
ALTER DEFAULT PRIVILEGES GRANT ALL ON SCHEMAS TO tap_default;
CREATE EXTENSION outbox;
ALTER DEFAULT PRIVILEGES REVOKE ALL ON TABLES FROM tap_default;
ALTER DEFAULT PRIVILEGES REVOKE ALL ON SEQUENCES FROM tap_default;
ALTER DEFAULT PRIVILEGES REVOKE ALL ON FUNCTIONS FROM tap_default;
ALTER DEFAULT PRIVILEGES REVOKE ALL ON SCHEMAS FROM tap_default;
CREATE SERVER kafka FOREIGN DATA WRAPPER outbox_kafka OPTIONS ("bootstrap.servers" '127.0.0.1:9');
CREATE USER MAPPING FOR PUBLIC SERVER kafka OPTIONS ("sasl.username" 'alice', "sasl.password" 'do-not-show');
SELECT outbox.enqueue('orders', 'the payload', 'key') AS id \gset
INSERT INTO outbox._dead_letter (message_id, id, lane, topic, payload, enqueued_at, reason, error_code, attempts, first_failed_at, last_failed_at)
VALUES ('01890000-0000-7000-8000-000000000000', 0, 0, 'orders', 'the payload', now(), 'refused', 10, 1, now(), now());

CREATE ROLE tap_nobody;
CREATE ROLE tap_producer;
CREATE ROLE tap_operator;
CREATE ROLE tap_both;
CREATE ROLE tap_monitor IN ROLE pg_monitor;
SELECT outbox.grant_producer('tap_producer'), outbox.grant_producer('tap_both') \g /dev/null
SELECT outbox.grant_operator('tap_operator'), outbox.grant_operator('tap_both') \g /dev/null

-- Everything a role may do in the schema: its right, and on what.
CREATE FUNCTION pg_temp.rights_of(role name) RETURNS SETOF text LANGUAGE sql AS $$
  SELECT p || ' on schema' FROM unnest(ARRAY['USAGE', 'CREATE']) p WHERE has_schema_privilege(role, 'outbox', p)
  UNION ALL
  SELECT p || ' on ' || c.relname FROM pg_class c, unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE', 'TRUNCATE', 'REFERENCES', 'TRIGGER']) p
  WHERE c.relnamespace = 'outbox'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'm', 'f') AND has_table_privilege(role, c.oid, p)
  UNION ALL
  SELECT p || ' on ' || c.relname || '.' || a.attname
  FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped, unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'REFERENCES']) p
  WHERE c.relnamespace = 'outbox'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'm', 'f')
    AND NOT has_table_privilege(role, c.oid, p) AND has_column_privilege(role, c.oid, a.attnum, p)
  UNION ALL
  SELECT p || ' on ' || c.relname FROM pg_class c, unnest(ARRAY['SELECT', 'USAGE', 'UPDATE']) p
  WHERE c.relnamespace = 'outbox'::regnamespace AND c.relkind = 'S' AND has_sequence_privilege(role, c.oid, p)
  UNION ALL
  SELECT 'EXECUTE on ' || f.proname FROM pg_proc f WHERE f.pronamespace = 'outbox'::regnamespace AND has_function_privilege(role, f.oid, 'EXECUTE')
  UNION ALL
  SELECT 'USAGE on ' || fdwname FROM pg_foreign_data_wrapper WHERE fdwname = 'outbox_kafka' AND has_foreign_data_wrapper_privilege(role, oid, 'USAGE')
  UNION ALL
  SELECT 'USAGE on server' FROM pg_foreign_server WHERE srvname = 'kafka' AND has_server_privilege(role, oid, 'USAGE')
$$;

-- ---- nobody

SELECT is_empty($$SELECT pg_temp.rights_of('tap_default')$$, 'default privileges give no right');
SELECT is_empty($$SELECT pg_temp.rights_of('tap_nobody')$$, 'PUBLIC has no right at all');
SELECT is_empty(
  $$SELECT oid::regprocedure FROM pg_proc WHERE pronamespace = 'outbox'::regnamespace AND (proacl IS NULL OR EXISTS (SELECT FROM aclexplode(proacl) WHERE grantee = 0))$$,
  'no function is granted to PUBLIC');
SET ROLE tap_nobody;
SELECT throws_ok($$SELECT outbox.enqueue('orders', 'p')$$, '42501', NULL, 'a role without rights cannot enqueue');
SELECT throws_ok($$INSERT INTO outbox.messages (topic) VALUES ('orders')$$, '42501', NULL, 'nor insert');
SELECT throws_ok($$SELECT * FROM outbox.lanes$$, '42501', NULL, 'nor read lanes');
SELECT throws_ok($$SELECT outbox.grant_producer('tap_nobody')$$, '42501', NULL, 'nor help itself');
RESET ROLE;

-- ---- producers

SELECT bag_eq($$SELECT pg_temp.rights_of('tap_producer')$$,
  ARRAY['USAGE on schema', 'INSERT on messages', 'SELECT on messages.message_id', 'EXECUTE on enqueue', 'EXECUTE on enqueue', 'EXECUTE on enqueue',
        'EXECUTE on enqueue', 'EXECUTE on enqueue'], 'a producer can enqueue, insert into messages, read message_id, and nothing else');
SET ROLE tap_producer;
SELECT lives_ok($$SELECT outbox.enqueue('orders', 'p')$$, 'a producer enqueues text');
SELECT lives_ok($$SELECT outbox.enqueue('orders', '{}'::json)$$, 'json');
SELECT lives_ok($$SELECT outbox.enqueue('orders', '{}'::jsonb)$$, 'jsonb');
SELECT lives_ok($$SELECT outbox.enqueue('orders', '\x00'::bytea)$$, 'bytea');
SELECT lives_ok($$SELECT outbox.enqueue('orders', '\x00'::bytea, '\x00'::bytea)$$, 'bytea with a bytea key');
SELECT lives_ok($$INSERT INTO outbox.messages (topic, payload) VALUES ('orders', 'p') RETURNING message_id$$, 'a producer inserts and gets the id');
SELECT throws_ok($$INSERT INTO outbox.messages (topic, payload) VALUES ('orders', 'p') RETURNING payload$$, '42501', NULL, 'a producer does not read payloads by RETURNING');
SELECT throws_ok($$SELECT payload FROM outbox.messages$$, '42501', NULL, 'a producer does not read payloads');
SELECT throws_ok($$SELECT count(*) FROM outbox._message$$, '42501', NULL, 'a producer does not read the log');
SELECT throws_ok($$SELECT count(*) FROM outbox._message_1$$, '42501', NULL, 'a producer does not read a segment');
SELECT throws_ok($$SELECT nextval('outbox._message_id')$$, '42501', NULL, 'a producer does not draw ids');
SELECT throws_ok($$SELECT * FROM outbox.get_message('01890000-0000-7000-8000-000000000000')$$, '42501', NULL, 'a producer does not look messages up');
SELECT throws_ok($$SELECT * FROM outbox.workers$$, '42501', NULL, 'a producer does not read errors of workers');
SELECT throws_ok($$SELECT outbox.pause()$$, '42501', NULL, 'a producer does not pause');
SELECT throws_ok($$SELECT outbox.roll()$$, '42501', NULL, 'a producer does not roll');
SELECT throws_ok($$CREATE TABLE outbox.mine (a integer)$$, '42501', NULL, 'a producer creates nothing in the schema');
SELECT throws_ok($$SET outbox.allow_data_loss = on$$, '42501', NULL, 'a producer does not allow data loss');
-- Objects of the producer's own under our names are not used.
CREATE TEMP TABLE _segment (segment integer, generation integer, state text, lanes integer, opened_at timestamptz, rolled_at timestamptz, drained_at timestamptz);
CREATE TEMP TABLE _message (id bigint, payload bytea);
CREATE TEMP TABLE _message_1 (id bigint, payload bytea);
CREATE TEMP SEQUENCE _message_id;
SET search_path = pg_temp, public;
SELECT outbox.enqueue('shadow', 'with a hostile search_path') \g /dev/null
SET search_path = '';
SELECT outbox.enqueue('shadow', 'with an empty search_path') \g /dev/null
INSERT INTO outbox.messages (topic, payload) VALUES ('shadow', 'inserted');
RESET search_path;
RESET ROLE;
SELECT is((SELECT count(*) FROM outbox.messages WHERE topic = 'shadow'), 3::bigint, 'shadow objects and a hostile search_path do not lead messages astray');
SELECT is((SELECT count(*) FROM pg_temp._message_1), 0::bigint, 'no message is in the shadow');
DROP TABLE pg_temp._segment, pg_temp._message, pg_temp._message_1;
DROP SEQUENCE pg_temp._message_id;

-- ---- monitoring

SELECT bag_eq($$SELECT r FROM pg_temp.rights_of('tap_monitor') r WHERE r NOT LIKE 'EXECUTE on \_%'$$,
  ARRAY['USAGE on schema', 'SELECT on lanes', 'SELECT on workers', 'SELECT on segments', 'EXECUTE on version'], 'pg_monitor reads lanes, workers, segments and the version');
SET ROLE tap_monitor;
SELECT lives_ok($$SELECT * FROM outbox.lanes$$, 'pg_monitor reads lanes');
SELECT lives_ok($$SELECT * FROM outbox.workers$$, 'pg_monitor reads workers');
SELECT isnt_empty($$SELECT * FROM outbox.segments WHERE message_bytes > 0$$, 'pg_monitor reads segments and their sizes');
SELECT lives_ok($$SELECT * FROM outbox.version()$$, 'pg_monitor reads the version');
SELECT throws_ok($$SELECT * FROM outbox.messages$$, '42501', NULL, 'pg_monitor does not read messages');
SELECT throws_ok($$SELECT * FROM outbox.dead_letters$$, '42501', NULL, 'pg_monitor does not read dead letters');
SELECT throws_ok($$SELECT outbox.enqueue('orders', 'p')$$, '42501', NULL, 'pg_monitor does not enqueue');
SELECT throws_ok($$SELECT outbox.reset_counters()$$, '42501', NULL, 'pg_monitor changes nothing');
RESET ROLE;

-- ---- operators

SELECT bag_eq($$SELECT r FROM pg_temp.rights_of('tap_operator') r WHERE r NOT LIKE '% on \_%'$$,
  ARRAY['USAGE on schema', 'SELECT on lanes', 'SELECT on workers', 'SELECT on segments', 'SELECT on messages', 'SELECT on dead_letters', 'EXECUTE on version',
        'EXECUTE on get_message', 'EXECUTE on wait_published', 'EXECUTE on drain', 'EXECUTE on pause', 'EXECUTE on resume', 'EXECUTE on roll', 'EXECUTE on set_lanes', 'EXECUTE on set_archive_function', 'EXECUTE on adopt',
        'EXECUTE on resend', 'EXECUTE on replay', 'EXECUTE on reset_counters'], 'an operator sees and mends, but does not enqueue or grant');
SELECT is_empty($$SELECT r FROM pg_temp.rights_of('tap_operator') r WHERE r ~ '^(INSERT|UPDATE|DELETE|TRUNCATE|CREATE|REFERENCES|TRIGGER|USAGE on (server|outbox_kafka))'$$,
  'an operator writes to no table');
SET ROLE tap_operator;
SELECT results_eq($$SELECT payload, key FROM outbox.messages WHERE key = 'key'$$, $$VALUES ('the payload', 'key')$$, 'an operator reads payloads');
SELECT results_eq($$SELECT payload, reason FROM outbox.dead_letters$$, $$VALUES ('the payload', 'refused')$$, 'an operator reads dead letters');
SELECT results_eq(format($$SELECT payload FROM outbox.get_message(%L)$$, :'id'), ARRAY['the payload'], 'an operator looks a message up');
SELECT lives_ok($$SELECT * FROM outbox.lanes$$, 'an operator reads lanes');
SELECT lives_ok($$SELECT * FROM outbox.workers$$, 'an operator reads workers');
SELECT lives_ok($$SELECT * FROM outbox.segments$$, 'an operator reads segments');
SELECT lives_ok($$SELECT outbox.pause()$$, 'an operator pauses');
SELECT lives_ok($$SELECT outbox.resume()$$, 'an operator resumes');
SELECT lives_ok($$SELECT outbox.roll()$$, 'an operator rolls');
SELECT lives_ok($$SELECT outbox.adopt()$$, 'an operator adopts');
SELECT lives_ok($$SELECT outbox.reset_counters()$$, 'an operator resets counters');
SELECT lives_ok($$SELECT outbox.replay('orders', NULL, NULL)$$, 'an operator replays');
SELECT lives_ok($$SELECT outbox.resend('01890000-0000-7000-8000-000000000000')$$, 'an operator resends');
SELECT is_empty($$SELECT * FROM outbox.dead_letters$$, 'what was resent is no dead letter any more');
SELECT results_eq($$SELECT payload, state FROM outbox.get_message('01890000-0000-7000-8000-000000000000')$$, $$VALUES ('the payload', 'pending')$$,
  'it is pending under its old id');
SELECT throws_ok($$SELECT outbox.resend('01890000-0000-7000-8000-000000000000')$$, 'P0002', NULL, 'and cannot be resent twice');
SELECT throws_ok($$SELECT outbox.wait_published('01890000-0000-7000-8000-00000000ffff', '0')$$, 'P0002', NULL, 'an operator may wait');
SELECT throws_ok($$SELECT outbox.enqueue('orders', 'p')$$, '42501', NULL, 'an operator does not enqueue');
SELECT throws_ok($$SELECT count(*) FROM outbox._message$$, '42501', NULL, 'an operator does not read private tables');
SELECT throws_ok($$DELETE FROM outbox._dead_letter$$, '42501', NULL, 'an operator does not delete dead letters');
SELECT throws_ok($$SELECT outbox.grant_operator('tap_nobody')$$, '42501', NULL, 'an operator does not grant');
SELECT throws_ok($$DROP EXTENSION outbox$$, '42501', NULL, 'an operator does not drop');

-- ---- secrets

SELECT is_empty($$SELECT umoptions FROM pg_user_mappings WHERE umoptions::text LIKE '%do-not-show%'$$, 'an operator does not see secrets');
RESET ROLE;
SET ROLE tap_producer;
SELECT is_empty($$SELECT umoptions FROM pg_user_mappings WHERE umoptions::text LIKE '%do-not-show%'$$, 'a producer does not see secrets');
RESET ROLE;
SELECT isnt_empty($$SELECT umoptions FROM pg_user_mappings WHERE umoptions::text LIKE '%do-not-show%'$$, 'there is one');
SELECT is_empty(
  $$SELECT p.oid::regprocedure FROM pg_proc p WHERE p.pronamespace = 'outbox'::regnamespace AND p.prosrc ILIKE '%pg_user_mapping%'$$, 'no SQL function reads user mappings');
SELECT is_empty($$SELECT w FROM outbox.workers w WHERE w::text LIKE '%do-not-show%'$$, 'workers show no secret');

-- ---- taking back

SELECT bag_eq($$SELECT pg_temp.rights_of('tap_both')$$,
  $$SELECT pg_temp.rights_of('tap_operator') UNION ALL
    SELECT r FROM pg_temp.rights_of('tap_producer') r WHERE r NOT IN ('USAGE on schema', 'SELECT on messages.message_id')$$, 'producer and operator: the rights of both');
SELECT outbox.revoke_producer('tap_both') \g /dev/null
SELECT bag_eq($$SELECT pg_temp.rights_of('tap_both')$$, $$SELECT pg_temp.rights_of('tap_operator')$$, 'revoke_producer leaves an operator an operator');
SELECT outbox.grant_producer('tap_both') \g /dev/null
SELECT outbox.revoke_operator('tap_both') \g /dev/null
SELECT bag_eq($$SELECT pg_temp.rights_of('tap_both')$$, $$SELECT pg_temp.rights_of('tap_producer')$$, 'revoke_operator leaves a producer a producer');
SELECT outbox.revoke_producer('tap_both') \g /dev/null
SELECT is_empty($$SELECT pg_temp.rights_of('tap_both')$$, 'after both nothing is left');
SELECT outbox.revoke_producer('tap_producer'), outbox.revoke_operator('tap_operator') \g /dev/null
SELECT is_empty($$SELECT pg_temp.rights_of('tap_producer')$$, 'revoke_producer takes everything back');
SELECT is_empty($$SELECT pg_temp.rights_of('tap_operator')$$, 'revoke_operator takes everything back');
SELECT lives_ok($$SELECT outbox.revoke_operator('tap_nobody')$$, 'revoking from a role without rights is no error');
SELECT outbox.grant_operator('tap_monitor'), outbox.revoke_operator('tap_monitor') \g /dev/null
SELECT isnt_empty($$SELECT pg_temp.rights_of('tap_monitor')$$, 'a member of pg_monitor goes on monitoring after revoke_operator');
-- What a role has through another one is not its own.
CREATE ROLE tap_group;
CREATE ROLE tap_member IN ROLE tap_group;
SELECT outbox.grant_operator('tap_group'), outbox.grant_producer('tap_member') \g /dev/null
SELECT outbox.revoke_producer('tap_member'), outbox.revoke_operator('tap_group') \g /dev/null
SELECT is_empty($$SELECT pg_temp.rights_of('tap_member')$$, 'revoke_producer takes everything back from a member of operators, too');
CREATE ROLE "tap Weird ""name";
SELECT lives_ok($$SELECT outbox.grant_producer('"tap Weird ""name"')$$, 'role names are quoted');
SELECT * FROM finish();
ROLLBACK;
