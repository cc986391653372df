-- Foreign servers and user mappings: their options are checked when they are set.
\set SHOW_CONTEXT never
CREATE EXTENSION outbox;
CREATE FUNCTION eventually(condition text) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
  reached boolean;
  give_up timestamptz := clock_timestamp() + interval '30 s';
BEGIN
  LOOP
    EXECUTE 'SELECT coalesce((' || condition || '), false)' INTO reached;
    EXIT WHEN reached OR clock_timestamp() > give_up;
    PERFORM pg_sleep(0.02);
  END LOOP;
  RETURN reached;
END
$$;
-- What librdkafka itself says differs between its versions.
CREATE FUNCTION refused(statement text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
  code text;
  message text;
  hint text;
BEGIN
  EXECUTE statement;
  RETURN 'accepted';
EXCEPTION WHEN OTHERS THEN
  GET STACKED DIAGNOSTICS code = RETURNED_SQLSTATE, message = MESSAGE_TEXT, hint = PG_EXCEPTION_HINT;
  RETURN code || ': ' || regexp_replace(message, '(librdkafka [^:]*": ).*$', '\1…') || coalesce(E'\nHINT: ' || nullif(hint, ''), '');
END
$$;
CREATE FUNCTION refused_option(option text, value text) RETURNS text LANGUAGE sql AS $$
  SELECT refused(format('CREATE SERVER kafka FOREIGN DATA WRAPPER outbox_kafka OPTIONS (%I %L)', option, value))
$$;
\pset format unaligned
\pset tuples_only on

-- Wrong values.
SELECT refused_option('linger.ms', 'soon');
SELECT refused_option('compression.type', 'best');
SELECT refused_option('security.protocol', 'SAFE');

-- Secrets do not belong in a server.
SELECT refused_option('sasl.password', 'do-not-show');
SELECT refused_option('ssl.key.password', 'do-not-show');
SELECT refused_option('ssl.key.pem', 'do-not-show');
SELECT refused_option('ssl.keystore.password', 'do-not-show');
SELECT refused_option('sasl.oauthbearer.config', 'do-not-show');
SELECT refused_option('sasl.oauthbearer.client.secret', 'do-not-show');

-- Options that would break a guarantee.
SELECT refused_option('acks', '1');
SELECT refused_option('request.required.acks', '0');
SELECT refused_option('enable.idempotence', 'false');
SELECT refused_option('partitioner', 'random');
SELECT refused_option('message.timeout.ms', '1000');
SELECT refused_option('delivery.timeout.ms', '1000');
SELECT refused_option('retries', '0');
SELECT refused_option('max.in.flight', '6');
SELECT refused_option('message.max.bytes', '5000000');
SELECT refused_option('transactional.id', 'mine');
SELECT refused_option('test.mock.num.brokers', '3');
SELECT refused_option('delivery.report.only.error', 'true');
SELECT refused_option('queue.buffering.max.messages', '0');
SELECT refused_option('group.id', 'mine');

-- What reads files or runs code needs a superuser.
CREATE ROLE regress_outbox_owner;
GRANT USAGE ON FOREIGN DATA WRAPPER outbox_kafka TO regress_outbox_owner;
SET ROLE regress_outbox_owner;
SELECT refused_option('plugin.library.paths', 'x');
SELECT refused_option('ssl.ca.location', '/etc/passwd');
SELECT refused_option('ssl.key.location', '/etc/passwd');
SELECT refused_option('ssl.keystore.location', '/etc/passwd');
SELECT refused_option('sasl.kerberos.kinit.cmd', 'id');
SELECT refused_option('sasl.mechanism', 'GSSAPI');
RESET ROLE;
SELECT refused_option('ssl.ca.location', '/etc/ssl/certs');
DROP SERVER kafka;

-- The wrapper itself has no options.
SELECT refused('ALTER FOREIGN DATA WRAPPER outbox_kafka OPTIONS (ADD "linger.ms" ''5'')');

-- Good ones.
CREATE SERVER kafka FOREIGN DATA WRAPPER outbox_kafka OPTIONS ("linger.ms" '5', "compression.type" 'lz4', "max.in.flight" '5', "security.protocol" 'sasl_ssl', "sasl.mechanism" 'PLAIN');
SELECT refused('ALTER SERVER kafka OPTIONS (SET "linger.ms" ''later'')');
SELECT refused('ALTER SERVER kafka OPTIONS (ADD "sasl.password" ''do-not-show'')');
ALTER SERVER kafka OPTIONS (DROP "security.protocol", DROP "sasl.mechanism");
\echo :SQLSTATE

-- A user mapping holds what belongs to a user.
CREATE USER MAPPING FOR CURRENT_USER SERVER kafka OPTIONS ("sasl.username" 'alice', "sasl.password" 'secret');
CREATE USER MAPPING FOR PUBLIC SERVER kafka OPTIONS ("sasl.username" 'alice', "sasl.password" 'secret', "ssl.key.password" 'secret');
\echo :SQLSTATE
SELECT refused('ALTER USER MAPPING FOR PUBLIC SERVER kafka OPTIONS (ADD "linger.ms" ''5'')');
SELECT refused('ALTER USER MAPPING FOR PUBLIC SERVER kafka OPTIONS (ADD "bootstrap.servers" ''127.0.0.1:9'')');
SELECT refused('ALTER USER MAPPING FOR PUBLIC SERVER kafka OPTIONS (ADD "acks" ''1'')');
DROP USER MAPPING FOR PUBLIC SERVER kafka;
DROP USER MAPPING FOR CURRENT_USER SERVER kafka;

-- A name that this librdkafka does not know is a warning, so that a dump restores; but nothing is published. (The text
-- names librdkafka's version.)
\set VERBOSITY sqlstate
ALTER SERVER kafka OPTIONS (ADD "bootstrap.servers" '127.0.0.1:9');
ALTER SERVER kafka OPTIONS (ADD "option.of.a.later.version" 'x');
\set VERBOSITY default
SELECT outbox.enqueue('orders', 'payload') IS NOT NULL;
SELECT eventually($$SELECT state = 'unconfigured' AND reason LIKE '%option.of.a.later.version%' FROM outbox.workers WHERE process = 'outbox worker'$$);

-- The worker names what is missing: a server, its address, an owner it trusts.
DROP SERVER kafka;
SELECT eventually($$SELECT state = 'unconfigured' AND reason LIKE 'there is no foreign server "kafka"%' FROM outbox.workers WHERE process = 'outbox worker'$$);
CREATE SERVER kafka FOREIGN DATA WRAPPER outbox_kafka;
SELECT eventually($$SELECT state = 'unconfigured' AND reason LIKE '%"bootstrap.servers"%' FROM outbox.workers WHERE process = 'outbox worker'$$);
DROP SERVER kafka;
SET ROLE regress_outbox_owner;
CREATE SERVER kafka FOREIGN DATA WRAPPER outbox_kafka OPTIONS ("bootstrap.servers" '127.0.0.1:9');
RESET ROLE;
SELECT eventually($$SELECT state = 'unconfigured' AND reason LIKE '%"regress_outbox_owner"%' FROM outbox.workers WHERE process = 'outbox worker'$$);
ALTER SERVER kafka OWNER TO CURRENT_USER;
-- Nobody listens there.
SELECT eventually($$SELECT state = 'backing_off' AND reason <> '' FROM outbox.workers WHERE process = 'outbox worker'$$);
SELECT state FROM outbox.messages;
SELECT * FROM outbox.dead_letters;

-- What the catalogs never hold is refused as well.
SELECT outbox._kafka_options('{a}', 'pg_foreign_server'::regclass);
SELECT outbox._kafka_options('{NULL}', 'pg_foreign_server'::regclass);

SET outbox.allow_data_loss = on;
SET client_min_messages = warning;
DROP EXTENSION outbox CASCADE;
DROP FUNCTION eventually, refused_option, refused;
DROP ROLE regress_outbox_owner;
