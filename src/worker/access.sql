-- Whoever drops the extension, its schema or its owner's objects is told how many messages would be lost. As an event
-- trigger it also holds in sessions that have not loaded the library.
CREATE FUNCTION outbox._guard_drop() RETURNS event_trigger
LANGUAGE c AS 'MODULE_PATHNAME', 'outbox_guard_drop';
COMMENT ON FUNCTION outbox._guard_drop() IS 'refuses to drop the extension while messages are unpublished';

CREATE EVENT TRIGGER outbox_guard_drop ON ddl_command_start
  WHEN TAG IN ('DROP EXTENSION', 'DROP SCHEMA', 'DROP OWNED')
  EXECUTE FUNCTION outbox._guard_drop();
ALTER EVENT TRIGGER outbox_guard_drop ENABLE ALWAYS;  -- also with session_replication_role = replica
COMMENT ON EVENT TRIGGER outbox_guard_drop IS 'refuses to drop the extension outbox while messages are unpublished';

CREATE FUNCTION outbox._unpublished() RETURNS bigint
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
  SELECT (SELECT count(*) FROM outbox._message m WHERE outbox._message_state(m.segment, m.lane, m.xid, m.id) = 'pending')
       + (SELECT count(*) FROM outbox._dead_letter d WHERE d.resent_at IS NULL)
$$;
COMMENT ON FUNCTION outbox._unpublished() IS 'messages that are pending or dead';

CREATE FUNCTION outbox._producer_rights() RETURNS text[]
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT ARRAY[
    'USAGE ON SCHEMA outbox',
    'EXECUTE ON FUNCTION outbox.enqueue(text, text, text, jsonb, timestamptz, text)',
    'EXECUTE ON FUNCTION outbox.enqueue(text, json, text, jsonb, timestamptz, text)',
    'EXECUTE ON FUNCTION outbox.enqueue(text, jsonb, text, jsonb, timestamptz, text)',
    'EXECUTE ON FUNCTION outbox.enqueue(text, bytea, text, jsonb, timestamptz, text)',
    'EXECUTE ON FUNCTION outbox.enqueue(text, bytea, bytea, jsonb, timestamptz, text)',
    'INSERT ON TABLE outbox.messages',
    'SELECT (message_id) ON TABLE outbox.messages']
$$;
COMMENT ON FUNCTION outbox._producer_rights() IS 'what outbox.grant_producer() grants';

CREATE FUNCTION outbox._monitor_rights() RETURNS text[]
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT ARRAY[
    'USAGE ON SCHEMA outbox',
    'SELECT ON TABLE outbox.lanes', 'SELECT ON TABLE outbox.workers', 'SELECT ON TABLE outbox.segments',
    'EXECUTE ON FUNCTION outbox._default_server()', 'EXECUTE ON FUNCTION outbox._lane_counters()',
    'EXECUTE ON FUNCTION outbox._workers()', 'EXECUTE ON FUNCTION outbox._segment_waits()', 'EXECUTE ON FUNCTION outbox._bytes(regclass)', 'EXECUTE ON FUNCTION outbox.version()']
$$;
COMMENT ON FUNCTION outbox._monitor_rights() IS 'what pg_monitor may read';

CREATE FUNCTION outbox._operator_rights() RETURNS text[]
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT outbox._monitor_rights() || ARRAY[
    'SELECT ON TABLE outbox.messages', 'SELECT ON TABLE outbox.dead_letters', 'SELECT ON TABLE outbox._located_message',
    'EXECUTE ON FUNCTION outbox._text(bytea)',
    'EXECUTE ON FUNCTION outbox._message_state(integer, integer, xid8, bigint)',
    'EXECUTE ON FUNCTION outbox._kafka_partition(integer, integer, xid8, bigint)',
    'EXECUTE ON FUNCTION outbox._kafka_offset(integer, integer, xid8, bigint)',
    'EXECUTE ON FUNCTION outbox._find_id(uuid)',
    'EXECUTE ON FUNCTION outbox.get_message(uuid)',
    'EXECUTE ON FUNCTION outbox.wait_published(uuid, interval)',
    'EXECUTE ON FUNCTION outbox.drain(interval)',
    'EXECUTE ON FUNCTION outbox.pause()', 'EXECUTE ON FUNCTION outbox.resume()',
    'EXECUTE ON FUNCTION outbox.roll()', 'EXECUTE ON FUNCTION outbox.set_lanes(integer, name)',
    'EXECUTE ON FUNCTION outbox.set_archive_function(regprocedure)',
    'EXECUTE ON FUNCTION outbox.adopt()',
    'EXECUTE ON FUNCTION outbox.resend(uuid, jsonb)',
    'EXECUTE ON FUNCTION outbox.replay(text, timestamptz, timestamptz, text)',
    'EXECUTE ON FUNCTION outbox.reset_counters()']
$$;
COMMENT ON FUNCTION outbox._operator_rights() IS 'what outbox.grant_operator() grants';

CREATE FUNCTION outbox._change_rights(rights text[], role regrole, give boolean) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  what text;
BEGIN
  FOREACH what IN ARRAY rights LOOP
    EXECUTE format(CASE WHEN give THEN 'GRANT %s TO %s' ELSE 'REVOKE %s FROM %s' END, what, role);
  END LOOP;
END
$$;
COMMENT ON FUNCTION outbox._change_rights(text[], regrole, boolean) IS 'grants or revokes rights one by one';

CREATE FUNCTION outbox._has_direct_grant(function regprocedure, role regrole) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT EXISTS (SELECT FROM pg_proc p, aclexplode(p.proacl) a
                 WHERE p.oid = $1 AND a.grantee = $2 AND a.privilege_type = 'EXECUTE')
$$;
COMMENT ON FUNCTION outbox._has_direct_grant(regprocedure, regrole) IS 'whether a right was granted to the role itself';

-- A role can be producer and operator at once, and a REVOKE on a table takes the rights on its columns along. So what the
-- other grants need is granted again.
CREATE FUNCTION outbox._revoke(rights text[], role regrole) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  producer boolean := $1 <> outbox._producer_rights()
    AND outbox._has_direct_grant('outbox.enqueue(text, text, text, jsonb, timestamptz, text)', $2);
  operator boolean := $1 <> outbox._operator_rights() AND outbox._has_direct_grant('outbox.pause()', $2);
BEGIN
  PERFORM outbox._change_rights($1, $2, false);
  IF producer THEN
    PERFORM outbox._change_rights(outbox._producer_rights(), $2, true);
  END IF;
  IF operator THEN
    PERFORM outbox._change_rights(outbox._operator_rights(), $2, true);
  END IF;
  IF $2 = 'pg_monitor'::regrole THEN
    PERFORM outbox._change_rights(outbox._monitor_rights(), $2, true);
  END IF;
END
$$;
COMMENT ON FUNCTION outbox._revoke(text[], regrole) IS 'revokes rights, except those that the role has through another grant';

CREATE FUNCTION outbox.grant_producer(role regrole) RETURNS void
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS 'SELECT outbox._change_rights(outbox._producer_rights(), $1, true)';
COMMENT ON FUNCTION outbox.grant_producer(regrole) IS 'lets a role enqueue messages, and nothing else; of outbox.messages it can see what INSERT … RETURNING message_id returns';
CREATE FUNCTION outbox.revoke_producer(role regrole) RETURNS void
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS 'SELECT outbox._revoke(outbox._producer_rights(), $1)';
COMMENT ON FUNCTION outbox.revoke_producer(regrole) IS 'takes back what outbox.grant_producer() granted';
CREATE FUNCTION outbox.grant_operator(role regrole) RETURNS void
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS 'SELECT outbox._change_rights(outbox._operator_rights(), $1, true)';
COMMENT ON FUNCTION outbox.grant_operator(regrole) IS 'lets a role read messages, errors and dead letters, and pause, resume, roll, set lanes, drain, adopt, resend and replay';
CREATE FUNCTION outbox.revoke_operator(role regrole) RETURNS void
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS 'SELECT outbox._revoke(outbox._operator_rights(), $1)';
COMMENT ON FUNCTION outbox.revoke_operator(regrole) IS 'takes back what outbox.grant_operator() granted';

-- Not only PUBLIC: default privileges of the owner may have given rights to anybody.
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA outbox FROM PUBLIC;
DO $$
DECLARE
  granted record;
BEGIN
  PERFORM outbox._revoke_all(c.oid) FROM pg_catalog.pg_class c
  WHERE c.relnamespace = 'outbox'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'S');
  FOR granted IN
    SELECT DISTINCT a.grantee::regrole AS role FROM pg_catalog.pg_namespace n, pg_catalog.aclexplode(n.nspacl) a
    WHERE n.oid = 'outbox'::regnamespace AND a.grantee <> n.nspowner
  LOOP
    EXECUTE format('REVOKE ALL ON SCHEMA outbox FROM %s', CASE granted.role WHEN 0::regrole THEN 'PUBLIC' ELSE granted.role::text END);
  END LOOP;
  FOR granted IN
    SELECT DISTINCT p.oid::regprocedure AS function, a.grantee::regrole AS role
    FROM pg_catalog.pg_proc p, pg_catalog.aclexplode(p.proacl) a
    WHERE p.pronamespace = 'outbox'::regnamespace AND a.grantee NOT IN (0, p.proowner)
  LOOP
    EXECUTE format('REVOKE ALL ON FUNCTION %s FROM %s', granted.function, granted.role);
  END LOOP;
END
$$;
SELECT outbox._change_rights(outbox._monitor_rights(), 'pg_monitor'::regrole, true);

-- What a dump must carry. The segments themselves are ordinary tables, not members of the extension.
SELECT pg_catalog.pg_extension_config_dump('outbox._identity', '');
SELECT pg_catalog.pg_extension_config_dump('outbox._layout', '');
SELECT pg_catalog.pg_extension_config_dump('outbox._segment', '');
SELECT pg_catalog.pg_extension_config_dump('outbox._segment_event', '');
SELECT pg_catalog.pg_extension_config_dump('outbox._archive_function', '');
SELECT pg_catalog.pg_extension_config_dump('outbox._lane', '');
SELECT pg_catalog.pg_extension_config_dump('outbox._dead_letter', '');
SELECT pg_catalog.pg_extension_config_dump('outbox._pause', '');
SELECT pg_catalog.pg_extension_config_dump('outbox._message_id', '');
