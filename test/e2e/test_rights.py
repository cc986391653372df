"""Who may do what: a producer only enqueues, hostile objects and settings change nothing, secrets are readable nowhere."""

import base64
import contextlib

import psycopg
import pytest
from harness import Cluster, install_outbox, wait_until
from psycopg import sql as pgsql

Denied = psycopg.errors.InsufficientPrivilege


@pytest.fixture(scope="module")
def server():
    """Its log is read, so only this file writes to it."""
    with Cluster() as cluster:
        yield cluster


@pytest.fixture
def make_role(server, db, unique):
    """make_role("producer") is a role with grant_producer; names are unique in the server."""
    made = []

    def make(kind):
        role = f"{kind}_{unique}"[:60]
        server.sql(pgsql.SQL("CREATE ROLE {} LOGIN").format(pgsql.Identifier(role)))
        made.append(role)
        if kind in ("producer", "operator"):
            server.sql(f"SELECT outbox.grant_{kind}(%s::text::regrole)", [role], dbname=db)
        elif kind == "monitor":
            server.sql(pgsql.SQL("GRANT pg_monitor TO {}").format(pgsql.Identifier(role)))
        return role

    yield make
    for role in made:
        server.sql(pgsql.SQL("DROP OWNED BY {} CASCADE").format(pgsql.Identifier(role)), dbname=db)
        server.sql(pgsql.SQL("DROP ROLE {}").format(pgsql.Identifier(role)))


@pytest.fixture
def db(server, unique):
    yield server.createdb(unique)
    server.dropdb(unique)


def run(server, db, role, statement, params=None, setup=()):
    with server.connect(db, user=role, autocommit=True) as c:
        for line in setup:
            c.execute(line)
        cursor = c.execute(statement, params)
        return cursor.fetchall() if cursor.description else None


def attempt(connection, statement):
    """None, or the error; nothing stays."""
    try:
        with connection.transaction(force_rollback=True):
            connection.execute(statement)
    except psycopg.Error as e:
        return e


# ---- the producer


def test_a_producer_enqueues_in_every_way_and_does_nothing_else(server, db, kafka, unique, make_role):
    topic = kafka.create_topic(unique, partitions=1)
    install_outbox(server, kafka, db)
    producer = make_role("producer")
    with server.connect(db, user=producer) as c:
        for arguments in ("'a'", "'\"a\"'::json", "'\"a\"'::jsonb", "'a'::bytea", "'a'::bytea, 'k'::bytea"):
            c.execute(f"SELECT outbox.enqueue('{topic}', {arguments})")
        c.execute("INSERT INTO outbox.messages (topic, payload) VALUES (%s, 'a') RETURNING message_id", [topic])
    with server.connect(db, user="postgres") as c:
        c.execute("SELECT outbox.enqueue(%s, 'secret payload')", [topic])
        c.execute("SELECT outbox.enqueue('missing', 'dead letter')")
    kafka.consume(topic, until=7)
    for error in everything_forbidden(server, db, producer):
        raise AssertionError(error)


def everything_forbidden(server, db, role):
    """Tries to read and change every relation and to call the functions of the extension; yields what went through."""
    relations = server.sql(
        "SELECT c.oid::regclass::text, c.relkind::text FROM pg_class c WHERE relnamespace = 'outbox'::regnamespace"
        " AND relkind IN ('r', 'p', 'v', 'S')", dbname=db)
    functions = server.sql(
        "SELECT p.oid::regprocedure::text, has_function_privilege(%s, p.oid, 'EXECUTE') FROM pg_proc p"
        " WHERE pronamespace = 'outbox'::regnamespace AND proname <> 'enqueue'", [role], dbname=db)
    assert len(relations) > 15 and len(functions) > 30
    with server.connect(db, user=role, autocommit=True) as c:
        for name, kind in relations:
            statements = [f"SELECT * FROM {name}"]
            if kind == "S":
                statements += [f"SELECT nextval('{name}')", f"SELECT setval('{name}', 1)"]
            else:
                statements += [f"SELECT count(*) FROM {name}", f"SELECT x FROM {name} x"]
            if kind in "rp":
                statements += [f"INSERT INTO {name} DEFAULT VALUES", f"DELETE FROM {name}", f"TRUNCATE {name}", f"LOCK TABLE {name}"]
            for statement in statements:
                # a column that may be read lets count(*) through, without any payload
                if name == "outbox.messages" and "count" in statement:
                    continue
                if not isinstance(error := attempt(c, statement), Denied):
                    yield f"{statement}: {error}"
        # asked, not called: PostgreSQL does not check the rights of a strict function that it calls with NULL
        yield from (f"may call {signature}" for signature, allowed in functions if allowed)
        calls = ("pause()", "resume()", "roll()", "drain()", "adopt()", "reset_counters()", "version()", "_open_segment()",
                 "get_message(gen_random_uuid())", "resend(gen_random_uuid())", "wait_published(gen_random_uuid())",
                 f"grant_operator('{role}')", f"grant_producer('{role}')")
        for statement in (
            *(f"SELECT outbox.{call}" for call in calls),
            "SELECT payload FROM outbox.messages",
            "INSERT INTO outbox.messages (topic, payload) VALUES ('t', 'x') RETURNING payload",
            "CREATE TABLE outbox.mine (x int)",
            "CREATE SERVER mine FOREIGN DATA WRAPPER outbox_kafka",
            "ALTER SERVER kafka OPTIONS (SET \"bootstrap.servers\" '127.0.0.1:1')",
            "CREATE USER MAPPING FOR PUBLIC SERVER kafka OPTIONS (\"sasl.username\" 'x')",
            "DROP EXTENSION outbox",
            "ALTER EXTENSION outbox UPDATE",
            "SET outbox.allow_data_loss = on",
            "SET outbox.enabled = off",
        ):
            if not isinstance(error := attempt(c, statement), (Denied, psycopg.errors.CantChangeRuntimeParam)):
                yield f"{statement}: {error}"


def test_somebody_without_rights_can_do_nothing_and_a_revoked_producer_neither(server, db, kafka, unique, make_role):
    install_outbox(server, kafka, db)
    server.sql("SELECT outbox.enqueue('missing', 'x')", dbname=db)
    nobody, producer = make_role("nobody"), make_role("producer")
    server.sql("SELECT outbox.revoke_producer(%s::text::regrole)", [producer], dbname=db)
    for role in (nobody, producer):
        assert list(everything_forbidden(server, db, role)) == []
        for statement in ("SELECT outbox.enqueue('t', 'x')", "INSERT INTO outbox.messages (topic) VALUES ('t')",
                          "SELECT message_id FROM outbox.messages"):
            with pytest.raises(Denied):
                run(server, db, role, statement)


def test_operators_read_payloads_and_pg_monitor_does_not(server, db, kafka, unique, make_role):
    topic = kafka.create_topic(unique)
    install_outbox(server, kafka, db)
    message_id = server.value("SELECT outbox.enqueue(%s, 'payload')", [topic], dbname=db)
    server.sql("SELECT outbox.drain()", dbname=db)
    operator, monitor = make_role("operator"), make_role("monitor")
    for role in (operator, monitor):
        for view in ("lanes", "workers", "segments"):
            assert run(server, db, role, f"SELECT * FROM outbox.{view}")
    assert run(server, db, operator, "SELECT payload FROM outbox.get_message(%s)", [message_id]) == [("payload",)]
    assert run(server, db, operator, "SELECT payload, state, kafka_offset FROM outbox.messages") == [("payload", "published", 0)]
    for call in ("pause()", "resume()", "roll()", "drain()", f"wait_published('{message_id}')", "adopt()", "reset_counters()"):
        run(server, db, operator, f"SELECT outbox.{call}")
    for view in ("messages", "dead_letters", "_message", "_message_1", "_dead_letter"):
        with pytest.raises(Denied):
            run(server, db, monitor, f"SELECT * FROM outbox.{view}")


def test_default_privileges_do_not_open_the_payloads_of_new_segments(server, db, kafka, unique, make_role):
    install_outbox(server, kafka, db)
    producer = make_role("producer")
    server.sql(f"ALTER DEFAULT PRIVILEGES GRANT SELECT, INSERT ON TABLES TO PUBLIC, {producer}", dbname=db)
    server.sql("SELECT outbox.enqueue('missing', 'payload')", dbname=db)
    server.sql("SELECT outbox.roll()", dbname=db)
    for table in ("_message_1", "_message_2", "_progress_1"):
        with pytest.raises(Denied):
            run(server, db, producer, f"SELECT * FROM outbox.{table}")


# ---- hostile objects


def evil(schema, role):
    """Functions and operators that stand in front of PostgreSQL's own; each tells who called it."""
    # a sequence: what it counted stays, also if the statement fails
    yield f"CREATE SEQUENCE {schema}.victims"
    yield f"GRANT USAGE ON {schema}.victims TO PUBLIC"
    yield (
        f"CREATE FUNCTION {schema}.note() RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog AS $$ BEGIN"
        f" IF current_user <> '{role}' THEN"
        f" PERFORM nextval('{schema}.victims'); RAISE LOG 'the trap caught % in %', current_user, current_query();"
        " END IF; END $$"
    )
    yield f"GRANT USAGE ON SCHEMA {schema} TO PUBLIC"
    for operator, left, right, result in [
        (op, t, t, "boolean") for op in ("=", "<=", ">=", "<", ">", "<>")
        for t in ("int8", "int4", "text", "uuid", "xid8", "bytea", "name", "oid", "timestamptz")
    ] + [("||", "text[]", "text[]", "text[]"), ("||", "text", "text", "text"), ("||", "text", "int4", "text"),
         ("+", "int8", "int8", "int8"), ("-", "timestamptz", "timestamptz", "interval"), (">>", "int8", "int4", "int8")]:
        name = f"{schema}.f{abs(hash((operator, left, right)))}"
        value = "pg_catalog.int4eq(1, 1)" if result == "boolean" else f"NULL::{result}"
        yield (f"CREATE FUNCTION {name}({left}, {right}) RETURNS {result} LANGUAGE plpgsql AS"
               f" $$ BEGIN PERFORM {schema}.note(); RETURN {value}; END $$")
        yield f"CREATE OPERATOR {schema}.{operator} (LEFTARG = {left}, RIGHTARG = {right}, FUNCTION = {name})"
    for signature, result in [
        ("now()", "timestamptz"), ("clock_timestamp()", "timestamptz"), ("pg_current_xact_id()", "xid8"),
        ("to_regclass(text)", "regclass"), ("pg_total_relation_size(regclass)", "int8"), ("current_setting(text)", "text"),
        ("format(text, text)", "text"), ("format(text, int4)", "text"), ("generate_series(int4, int4)", "int4"),
        ("substr(text, int4, int4)", "text"), ("replace(text, text, text)", "text"), ("to_timestamp(float8)", "timestamptz"),
        ("pg_visible_in_snapshot(xid8, pg_snapshot)", "boolean"), ("nextval(regclass)", "int8"),
    ]:
        yield (f"CREATE FUNCTION {schema}.{signature} RETURNS {result} LANGUAGE plpgsql AS"
               f" $$ BEGIN PERFORM {schema}.note(); RETURN NULL; END $$")


SHADOWS = [
    "CREATE TEMP TABLE " + name + " (id bigint, message_id uuid, segment int, lane int, state text, topic text, payload text)"
    for name in ("messages", "_message", "_message_1", "_segment", "_lane", "_progress", "_identity", "_pause", "_dead_letter",
                 "pg_class", "pg_namespace", "pg_extension", "pg_foreign_server")
]


@pytest.fixture
def hostile(server, db, kafka, unique, make_role):
    """A producer that owns its database, with a schema of traps in front of every search_path there, and an operator."""
    install_outbox(server, kafka, db)
    producer, operator = make_role("producer"), make_role("operator")
    server.sql(f"ALTER DATABASE {db} OWNER TO {producer}")
    with server.connect(db, user=producer, autocommit=True) as c:
        c.execute(f"CREATE SCHEMA evil AUTHORIZATION {producer}")
        for statement in evil("evil", producer):
            c.execute(statement)
        c.execute(f"ALTER DATABASE {db} SET search_path = evil, pg_catalog, public")
    yield producer, operator
    server.sql(f"ALTER DATABASE {db} OWNER TO postgres")


def victims(server, db):
    """What ran a trap as somebody else than its maker."""
    caught = server.value("SELECT is_called FROM evil.victims", dbname=db)
    return [line for line in server.log.splitlines() if db in line and "the trap caught" in line] if caught else []


def test_the_traps_of_these_tests_work(server, db, hostile):
    assert victims(server, db) == []
    server.sql("SELECT 1::int8 <= 2::int8 WHERE now() IS NULL", dbname=db)
    before = len(victims(server, db))
    assert before > 0
    server.sql("SELECT 1::int8 <= 2::int8, '{a}'::text[] || '{b}'::text[]", dbname=db)
    assert len(victims(server, db)) > before


def test_hostile_operators_and_shadow_tables_catch_neither_worker_nor_operator(server, db, hostile, kafka, unique):
    producer, operator = hostile
    topic = kafka.create_topic(unique, partitions=1)
    small = kafka.create_topic(unique + "_small", config={"max.message.bytes": 2000})
    # the worker meets the hostile search_path of the database from its start
    (old,) = server.worker_pids(db)
    server.sql("SELECT pg_catalog.pg_terminate_backend(%s)", [old])
    server.wait_worker(db, other_than=[old])
    with server.connect(db, user=producer, autocommit=True) as c:
        for statement in SHADOWS:
            c.execute(statement)
        c.execute("SET search_path = pg_temp, evil, pg_catalog")
        message_id = c.execute("SELECT outbox.enqueue(%s, 'x', 'k', '{\"a\": \"1\"}')", [topic]).fetchone()[0]
        c.execute("INSERT INTO outbox.messages (topic, payload) VALUES (%s, 'y')", [topic])
        dead = c.execute("SELECT outbox.enqueue(%s, pg_catalog.repeat('z', 5000))", [small]).fetchone()[0]
    assert [r.value for r in kafka.consume(topic, until=2)] == [b"x", b"y"]
    dead_letters = "SELECT pg_catalog.count(*) FROM outbox.dead_letters"
    wait_until(lambda: server.value(dead_letters, dbname=db) == 1)
    calls = [
        "SELECT outbox.pause()", "SELECT outbox.resume()", "SELECT outbox.roll()", "SELECT outbox.drain('10 s')",
        f"SELECT outbox.wait_published('{message_id}')", f"SELECT * FROM outbox.get_message('{message_id}')",
        "SELECT * FROM outbox.messages", "SELECT * FROM outbox.lanes", "SELECT * FROM outbox.workers",
        "SELECT * FROM outbox.segments", "SELECT * FROM outbox.dead_letters", f"SELECT outbox.resend('{dead}')",
        "SELECT outbox.adopt()", "SELECT outbox.reset_counters()", "SELECT * FROM outbox.version()",
    ]
    for role in (operator, "postgres"):
        with server.connect(db, user=role, autocommit=True) as c:
            for statement in SHADOWS:
                c.execute(statement)
            c.execute("SET search_path = pg_temp, evil, pg_catalog")
            for call in calls:
                with contextlib.suppress(psycopg.errors.Error):  # the message is no dead letter the second time
                    c.execute(call)
        assert victims(server, db) == [], role


def test_granting_rights_runs_no_hostile_operator(server, db, hostile):
    server.sql("CREATE ROLE somebody_new")
    with server.connect(db, autocommit=True) as c:
        # also without pg_catalog behind: an exact match in public beats the polymorphic || of PostgreSQL
        for path in ("evil, pg_catalog", "evil"):
            c.execute(f"SET search_path = {path}")
            for change in ("grant_producer", "grant_operator", "revoke_operator", "revoke_producer"):
                c.execute(f"SELECT outbox.{change}('somebody_new'::pg_catalog.regrole)")
    server.sql("DROP ROLE somebody_new")
    assert victims(server, db) == []


def test_the_first_enqueue_without_a_worker_runs_no_hostile_function(make_cluster, unique):
    """Then the producer's own session makes the first segment, as the owner of the extension."""
    server = make_cluster({"shared_preload_libraries": ""})
    server.sql("CREATE ROLE producer LOGIN")
    server.sql("GRANT CREATE ON DATABASE postgres TO producer")
    server.sql("CREATE EXTENSION outbox")
    server.sql("SELECT outbox.grant_producer('producer')")
    with server.connect(user="producer", autocommit=True) as c:
        c.execute("CREATE SCHEMA evil")
        for statement in evil("evil", "producer"):
            c.execute(statement)
        for statement in SHADOWS:
            c.execute(statement)
        for setting in ("search_path = pg_temp, evil, pg_catalog", "default_tablespace = pg_global",
                        "default_transaction_isolation = serializable", "row_security = off", "lock_timeout = '1ms'"):
            c.execute(f"SET {setting}")
        c.execute("SELECT outbox.enqueue('t', 'x')")
    assert victims(server, "postgres") == []
    assert server.sql("SELECT tableowner::text, tablespace FROM pg_tables WHERE schemaname = 'outbox' AND tablename = '_message_1'") == [("postgres", None)]
    assert server.value("SELECT count(*) FROM outbox.messages") == 1
    with server.connect(user="producer") as c, pytest.raises(Denied):
        c.execute("SELECT * FROM outbox._message_1")


# ---- foreign servers


def test_another_users_server_of_the_same_name_gets_nothing(server, db, kafka, embedded, unique, make_role):
    topic = kafka.create_topic(unique)
    embedded.create_topic(topic)
    server.sql("CREATE EXTENSION outbox", dbname=db)
    producer = make_role("producer")
    server.sql(f"GRANT USAGE ON FOREIGN DATA WRAPPER outbox_kafka TO {producer}", dbname=db)
    create = f"CREATE SERVER kafka FOREIGN DATA WRAPPER outbox_kafka OPTIONS (\"bootstrap.servers\" '{embedded.bootstrap}')"
    run(server, db, producer, create)
    run(server, db, producer, "SELECT outbox.enqueue(%s, 'x')", [topic])
    state = "SELECT state, reason FROM outbox.workers"
    wait_until(lambda: server.sql(state, dbname=db)[0][0] == "unconfigured", 20, "unconfigured")
    assert producer in server.sql(state, dbname=db)[0][1]
    with pytest.raises(Denied):
        run(server, db, producer, "ALTER SERVER kafka OWNER TO postgres")
    with embedded.reader(topic) as reader:
        reader.assert_nothing_more(1)
    server.sql("DROP SERVER kafka CASCADE", dbname=db)
    install_outbox(server, kafka, db)
    assert [r.value for r in kafka.consume(topic, until=1)] == [b"x"]


def test_a_mapping_of_somebody_else_is_not_used(server, db, kafka, unique, make_role):
    """With credentials for a mechanism that the broker does not know nothing would be published."""
    topic = kafka.create_topic(unique)
    install_outbox(server, kafka, db)
    producer = make_role("producer")
    server.sql(f"GRANT USAGE ON FOREIGN SERVER kafka TO {producer}", dbname=db)
    run(server, db, producer, f"CREATE USER MAPPING FOR {producer} SERVER kafka OPTIONS (\"ssl.certificate.pem\" 'x')")
    for who in ("PUBLIC", "postgres"):
        with pytest.raises(Denied):
            run(server, db, producer, f"CREATE USER MAPPING FOR {who} SERVER kafka OPTIONS (\"sasl.username\" 'x')")
    server.sql("SELECT outbox.enqueue(%s, 'x')", [topic], dbname=db)
    kafka.consume(topic, until=1)


@pytest.mark.parametrize("option", ["ssl.ca.location", "plugin.library.paths", "ssl.key.location", "sasl.kerberos.kinit.cmd"])
def test_options_that_read_files_or_run_code_need_a_superuser(option, server, db, unique, make_role):
    server.sql("CREATE EXTENSION outbox", dbname=db)
    owner = make_role("producer")
    server.sql(f"GRANT USAGE ON FOREIGN DATA WRAPPER outbox_kafka TO {owner}", dbname=db)
    run(server, db, owner, "CREATE SERVER mine FOREIGN DATA WRAPPER outbox_kafka OPTIONS (\"bootstrap.servers\" 'a:1')")
    with pytest.raises(psycopg.Error, match="superuser"):
        run(server, db, owner, f"ALTER SERVER mine OPTIONS (ADD \"{option}\" '/etc/passwd')")


# ---- secrets

SECRET = "Tr0ub4dor-and-3"


def places_of(secret, server, db, roles):
    """Where a role finds the secret or its usual encodings: catalogs, views, activity; and the server log."""
    encodings = [secret, base64.b64encode(f"\0alice\0{secret}".encode()).decode(), base64.b64encode(secret.encode()).decode()]
    sources = ["pg_foreign_server", "pg_user_mappings", "pg_stat_activity", "pg_settings", "outbox.workers", "outbox.lanes",
               "outbox.segments", "outbox.dead_letters", "outbox.messages", "pg_stats", "information_schema.user_mapping_options",
               "information_schema.foreign_server_options", "pg_user_mapping", "outbox.version()", "pg_stat_ssl"]
    for role in roles:
        with server.connect(db, user=role, autocommit=True) as c:
            for source in sources:
                with contextlib.suppress(Denied):
                    rows = c.execute(f"SELECT x::text FROM {source} x WHERE x::text NOT LIKE '%%SELECT x::text%%'").fetchall()
                    if any(e in row[0] for e in encodings for row in rows):
                        yield f"{role}: {source}"
    if any(e in server.log for e in encodings):
        yield "server log: " + "\n".join(line for line in server.log.splitlines() if any(e in line for e in encodings))[:500]


@pytest.mark.parametrize("option", ["sasl.password", "ssl.key.password", "ssl.key.pem", "sasl.oauthbearer.client.secret"])
def test_a_secret_as_server_option_is_refused_without_repeating_it(option, server, db, unique):
    secret = f"{SECRET}-{option}"
    server.sql("CREATE EXTENSION outbox", dbname=db)
    with pytest.raises(psycopg.Error) as refused:
        server.sql(f"CREATE SERVER kafka FOREIGN DATA WRAPPER outbox_kafka OPTIONS (\"{option}\" '{secret}')", dbname=db)
    diagnostics = refused.value.diag
    assert "USER MAPPING" in diagnostics.message_hint
    texts = [diagnostics.message_primary, diagnostics.message_detail, diagnostics.message_hint, diagnostics.context]
    assert not any(secret in (text or "") for text in texts)
    assert list(places_of(secret, server, db, ["postgres"])) == []


def test_a_password_that_is_wrong_or_right_is_readable_nowhere(server, db, make_real_kafka, unique, make_role):
    wrong = "wrong-5ecret-of-alice"
    kafka = make_real_kafka(secure=True)
    topic = kafka.create_topic(unique)
    kafka.grant("alice", "Write", "Describe", topic=topic)
    options = {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "ssl.ca.location": kafka.ca, "debug": "all"}
    secrets = {"sasl.username": "alice", "sasl.password": wrong}
    install_outbox(server, kafka.secure_bootstrap, db, options=options, user_mapping=secrets)
    roles = [make_role(kind) for kind in ("producer", "operator", "monitor", "nobody")]
    server.sql("SELECT outbox.enqueue(%s, 'x')", [topic], dbname=db)
    state = "SELECT state, reason FROM outbox.workers"
    wait_until(lambda: server.sql(state, dbname=db)[0][0] == "backing_off", 30, lambda: server.sql(state, dbname=db))
    assert "uthenti" in server.sql(state, dbname=db)[0][1], "the reason says what is wrong"
    assert list(places_of(wrong, server, db, roles)) == []

    server.sql("ALTER USER MAPPING FOR PUBLIC SERVER kafka OPTIONS (SET \"sasl.password\" 'alice-secret')", dbname=db)
    assert [r.value for r in kafka.consume(topic, until=1)] == [b"x"]
    assert list(places_of("alice-secret", server, db, roles)) == []
    assert list(places_of(wrong, server, db, roles)) == []
