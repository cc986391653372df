"""One worker for each database that has the extension: when it comes, goes, steps aside, and what outbox.workers says."""

import contextlib

import psycopg
import pytest
from harness import Cluster, install_outbox, wait_until


@pytest.fixture(scope="module")
def server():
    """For tests that only make and drop databases."""
    with Cluster() as cluster:
        yield cluster


def workers(cluster, database):
    return cluster.sql("SELECT state, reason, pid FROM outbox.workers WHERE process = 'outbox worker'", dbname=database)


def wait_state(cluster, database, *states, timeout=20):
    """Returns the reason."""
    wait_until(lambda: workers(cluster, database)[0][0] in states, timeout, lambda: f"{states}: {workers(cluster, database)}")
    return workers(cluster, database)[0][1]


def enqueue(cluster, database, topic, payload="x"):
    return cluster.value("SELECT outbox.enqueue(%s, %s::text)", [topic, payload], dbname=database)


def publishes(cluster, database, topic, timeout="10 s"):
    message_id = enqueue(cluster, database, topic)
    return cluster.value("SELECT outbox.wait_published(%s, %s::interval)", [message_id, timeout], dbname=database)


def no_worker(cluster, database):
    wait_until(lambda: cluster.worker_pids(database) == [], 10, "the worker has gone")


@pytest.fixture
def with_outbox(server, embedded, unique):
    """A database of `server` with a running worker, and a topic of the same name."""
    server.createdb(unique)
    embedded.create_topic(unique)
    install_outbox(server, embedded, unique)
    server.wait_worker(unique)
    yield unique
    for name in (unique, unique + "_2"):
        server.sql(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")


# ---- with the extension


def test_a_worker_comes_with_create_extension_and_goes_with_drop_extension(server, embedded, unique):
    server.createdb(unique)
    embedded.create_topic(unique)
    with server.connect(unique) as c:
        c.execute("CREATE EXTENSION outbox")
        c.rollback()
    assert server.worker_pids(unique) == []
    for _ in range(3):
        install_outbox(server, embedded, unique)
        server.wait_worker(unique, timeout=5)
        assert publishes(server, unique, unique)
        with server.connect(unique) as c:
            c.execute("DROP EXTENSION outbox CASCADE")
            c.rollback()
        assert publishes(server, unique, unique), "a DROP rolled back is none"
        server.sql("DROP EXTENSION outbox CASCADE", dbname=unique)
        no_worker(server, unique)
    tables = server.sql("SELECT relname FROM pg_class WHERE relname LIKE '\\_message%%' OR relname LIKE '\\_progress%%'", dbname=unique)
    assert tables == [], "the segments went with it"
    server.dropdb(unique)


def test_create_extension_and_enqueue_in_one_transaction_publish(server, embedded, unique):
    server.createdb(unique)
    embedded.create_topic(unique)
    with server.connect(unique) as c:
        c.execute("CREATE EXTENSION outbox")
        c.execute(f"CREATE SERVER kafka FOREIGN DATA WRAPPER outbox_kafka OPTIONS (\"bootstrap.servers\" '{embedded.bootstrap}')")
        message_id = c.execute("SELECT outbox.enqueue(%s, 'first')", [unique]).fetchone()[0]
    assert [r.id for r in embedded.consume(unique, until=1)] == [str(message_id)]
    server.dropdb(unique)


def test_each_process_is_named_by_its_role(server, with_outbox):
    assert len(server.backends("outbox launcher")) == 1
    assert len(server.backends("outbox worker", with_outbox)) == 1
    ((state, _, pid),) = workers(server, with_outbox)
    assert (state, [pid]) == ("idle", server.worker_pids(with_outbox))
    wait_until(lambda: server.backends("outbox probe") == [], 10, "probes end")


def test_drop_extension_is_refused_with_the_number_of_unpublished_messages(server, with_outbox, embedded):
    assert publishes(server, with_outbox, with_outbox)
    server.sql("SELECT outbox.pause()", dbname=with_outbox)
    for _ in range(3):
        enqueue(server, with_outbox, with_outbox)
    for statement in ("DROP EXTENSION outbox CASCADE", "DROP SCHEMA outbox CASCADE", "drop extension if exists outbox cascade"):
        with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="3 messages"):
            server.sql(statement, dbname=with_outbox)
    server.sql("SELECT outbox.resume()", dbname=with_outbox)
    assert len(embedded.consume(with_outbox, until=4)) == 4, "the refused DROPs left everything in order"
    server.sql("SELECT outbox.drain()", dbname=with_outbox)
    server.sql("SELECT outbox.pause()", dbname=with_outbox)
    enqueue(server, with_outbox, with_outbox)
    with server.connect(with_outbox) as c:
        c.execute("SET outbox.allow_data_loss = on")
        c.execute("DROP EXTENSION outbox CASCADE")
    no_worker(server, with_outbox)


# ---- databases


def test_drop_rename_and_template_use_of_a_database_just_work(server, with_outbox):
    for _ in range(3):
        server.wait_worker(with_outbox)
        server.sql(f"CREATE DATABASE {with_outbox}_2 TEMPLATE {with_outbox}")
        server.sql(f"DROP DATABASE {with_outbox}_2")
        server.sql(f"ALTER DATABASE {with_outbox} RENAME TO {with_outbox}_2")
        assert publishes(server, with_outbox + "_2", with_outbox)
        server.sql(f"ALTER DATABASE {with_outbox}_2 RENAME TO {with_outbox}")
        assert publishes(server, with_outbox, with_outbox)
    server.sql(f"DROP DATABASE {with_outbox}")
    wait_until(lambda: server.backends("outbox worker", with_outbox) == [])


def test_a_web_frameworks_test_suite_drops_and_creates_its_database_again_and_again(server, embedded, unique):
    embedded.create_topic(unique)
    for n in range(6):
        server.sql(f"DROP DATABASE IF EXISTS {unique}")
        server.createdb(unique)
        install_outbox(server, embedded, unique)
        if n % 2:
            assert publishes(server, unique, unique)
        else:
            enqueue(server, unique, unique)
    server.sql(f"DROP DATABASE {unique}")


@pytest.mark.parametrize("statement", [
    "ALTER DATABASE {0} RENAME TO postgres",
    "CREATE DATABASE postgres TEMPLATE {0}",
    "CREATE DATABASE {0}_2 TEMPLATE {0} LC_COLLATE 'no_such_locale'",
    "ALTER DATABASE {0} SET TABLESPACE no_such_tablespace",
])
def test_the_worker_comes_back_after_a_statement_that_fails(statement, server, with_outbox):
    server.wait_worker(with_outbox)
    with pytest.raises(psycopg.Error):
        server.sql(statement.format(with_outbox))
    assert publishes(server, with_outbox, with_outbox)


@pytest.mark.parametrize("statement", [
    "DROP DATABASE {0}", "CREATE DATABASE {0}_2 TEMPLATE {0}",  # PostgreSQL waits 5 s before it gives up
])
def test_the_worker_comes_back_when_another_session_keeps_the_database_busy(statement, server, with_outbox):
    with server.connect(with_outbox) as c:
        c.execute("SELECT 1")
        with pytest.raises(psycopg.errors.ObjectInUse):
            server.sql(statement.format(with_outbox))
        server.wait_worker(with_outbox, timeout=10)
    assert publishes(server, with_outbox, with_outbox)


def test_somebody_without_the_right_to_drop_does_not_send_the_worker_away(server, with_outbox):
    (pid,) = server.worker_pids(with_outbox)
    server.sql("CREATE ROLE visitor LOGIN")
    for statement in (f"DROP DATABASE {with_outbox}", f"ALTER DATABASE {with_outbox} RENAME TO {with_outbox}_2",
                      f"CREATE DATABASE x TEMPLATE {with_outbox}"):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            server.sql(statement, user="visitor")
    assert server.worker_pids(with_outbox) == [pid]
    server.sql("DROP ROLE visitor")


def test_templates_are_left_alone(cluster, embedded):
    embedded.create_topic("t")
    install_outbox(cluster, embedded, "template1")
    cluster.createdb("child", template="template1")
    cluster.restart()
    cluster.wait_worker("child")
    assert publishes(cluster, "child", "t")
    assert cluster.worker_pids("template1") == []
    cluster.createdb("another", template="template1")
    cluster.wait_worker("another")


def test_every_database_gets_its_worker_again_after_restart_and_crash(cluster, embedded):
    databases = ["postgres", cluster.createdb("one"), cluster.createdb("two")]
    cluster.createdb("without")
    for name in databases:
        embedded.create_topic(name)
        install_outbox(cluster, embedded, name)
    for again in (cluster.restart, lambda: (cluster.crash(), cluster.start()), lambda: kill_a_backend(cluster)):
        again()
        for name in databases:
            cluster.wait_worker(name, timeout=15)
            assert publishes(cluster, name, name)
        assert cluster.backends("outbox worker", "without") == []
        assert len(cluster.backends("outbox worker")) == len(databases)


def kill_a_backend(cluster):
    backend = cluster.connect(autocommit=True)
    restarts = cluster.log.count("reinitializing")
    cluster.kill9(backend.info.backend_pid)
    wait_until(lambda: cluster.log.count("reinitializing") > restarts)
    cluster.wait_ready()


# ---- what is missing


def test_without_the_library_loaded_enqueue_works_and_workers_says_what_is_missing(make_cluster, embedded):
    cluster = make_cluster({"shared_preload_libraries": ""})
    embedded.create_topic("t", partitions=1)
    install_outbox(cluster, embedded)
    sent = [enqueue(cluster, "postgres", "t", f"{n}") for n in range(3)]
    ((state, reason, pid),) = workers(cluster, "postgres")
    assert (state, pid) == ("not_running", None) and "shared_preload_libraries" in reason
    for call in (f"wait_published('{sent[0]}', '1 s')", "drain('1 s')"):
        with pytest.raises(psycopg.Error, match="shared_preload_libraries|worker"):
            cluster.sql(f"SELECT outbox.{call}")
    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="3 messages"):
        cluster.sql("DROP EXTENSION outbox CASCADE")
    assert cluster.sql("SELECT lane, pending, worker_pid FROM outbox.lanes") == [(0, None, None)]
    cluster.configure(shared_preload_libraries="outbox")
    cluster.restart()
    assert [r.id for r in embedded.consume("t", until=3)] == [str(i) for i in sent]


def test_databases_beyond_max_databases_are_told_so_and_served_when_one_goes(make_cluster, embedded):
    cluster = make_cluster({"outbox.max_databases": 1})
    embedded.create_topic("t")
    for name in ("one", "two"):
        cluster.createdb(name)
        install_outbox(cluster, embedded, name)
    assert publishes(cluster, "one", "t")
    waiting = enqueue(cluster, "two", "t")
    ((state, reason, _),) = workers(cluster, "two")
    assert state == "not_running" and "outbox.max_databases" in reason
    assert "outbox.max_databases" in cluster.log
    cluster.dropdb("one", force=False)
    wait_until(lambda: str(waiting) in {r.id for r in embedded.read_all("t")}, 45, "the waiting database is served", interval=0.5)


def test_an_exhausted_max_worker_processes_is_said(make_cluster, embedded):
    # the launcher of logical replication, ours and one worker
    cluster = make_cluster({"max_worker_processes": 3})
    embedded.create_topic("t")
    for name in ("one", "two"):
        cluster.createdb(name)
        install_outbox(cluster, embedded, name)
    states = {name: workers(cluster, name)[0] for name in ("one", "two")}
    wait_until(lambda: any("max_worker_processes" in (workers(cluster, name)[0][1] or "") for name in states), 20)
    served = [name for name in states if cluster.worker_pids(name)]
    assert len(served) == 1
    (other,) = {"one", "two"} - set(served)
    waiting = enqueue(cluster, other, "t")
    cluster.dropdb(served[0], force=False)
    wait_until(lambda: str(waiting) in {r.id for r in embedded.read_all("t")}, 30, interval=0.5)


# ---- configuration


def server_options(options):
    return ", ".join(f"\"{name}\" '{value}'" for name, value in options.items())


def create_server(cluster, database, **options):
    cluster.sql(f"CREATE SERVER kafka FOREIGN DATA WRAPPER outbox_kafka OPTIONS ({server_options(options)})", dbname=database)


def test_a_foreign_server_created_changed_or_dropped_is_picked_up_at_once(server, embedded, make_embedded, unique):
    other = make_embedded()
    for broker in (embedded, other):
        broker.create_topic(unique, partitions=1)
    server.createdb(unique)
    server.sql("CREATE EXTENSION outbox", dbname=unique)
    first = enqueue(server, unique, unique)
    assert "CREATE SERVER" in wait_state(server, unique, "unconfigured")
    create_server(server, unique, **{"bootstrap.servers": embedded.bootstrap})
    assert [r.id for r in embedded.consume(unique, until=1, timeout=5)] == [str(first)]

    server.sql(f"ALTER SERVER kafka OPTIONS (SET \"bootstrap.servers\" '{other.bootstrap}')", dbname=unique)
    second = enqueue(server, unique, unique)
    assert [r.id for r in other.consume(unique, until=1, timeout=10)] == [str(second)]

    server.sql("DROP SERVER kafka", dbname=unique)
    third = enqueue(server, unique, unique)
    wait_state(server, unique, "unconfigured", timeout=5)
    create_server(server, unique, **{"bootstrap.servers": "127.0.0.1:1"})
    wait_state(server, unique, "backing_off", timeout=15)
    server.sql(f"ALTER SERVER kafka OPTIONS (SET \"bootstrap.servers\" '{embedded.bootstrap}')", dbname=unique)
    assert [r.id for r in embedded.consume(unique, until=2, timeout=5)][1:] == [str(third)], "the back-off ended early"
    server.dropdb(unique)


def test_a_renamed_server_or_wrapper_owner_counts_at_once(server, with_outbox):
    server.sql("ALTER SERVER kafka RENAME TO other", dbname=with_outbox)
    assert "kafka" in wait_state(server, with_outbox, "unconfigured")
    server.sql("ALTER SERVER other RENAME TO kafka", dbname=with_outbox)
    assert publishes(server, with_outbox, with_outbox)
    server.sql("CREATE ROLE stranger", dbname=with_outbox)
    server.sql("GRANT USAGE ON FOREIGN DATA WRAPPER outbox_kafka TO stranger", dbname=with_outbox)
    server.sql("ALTER SERVER kafka OWNER TO stranger", dbname=with_outbox)
    assert "stranger" in wait_state(server, with_outbox, "unconfigured")
    server.sql("REASSIGN OWNED BY stranger TO postgres", dbname=with_outbox)
    assert publishes(server, with_outbox, with_outbox)
    server.sql("DROP OWNED BY stranger", dbname=with_outbox)
    server.sql("DROP ROLE stranger", dbname=with_outbox)


def test_a_property_that_this_librdkafka_does_not_know_leaves_the_worker_unconfigured(server, with_outbox):
    notices = []
    with server.connect(with_outbox, autocommit=True) as c:
        c.add_notice_handler(lambda notice: notices.append(notice.severity))
        c.execute("ALTER SERVER kafka OPTIONS (ADD \"no.such.property\" '1')")
    assert notices == ["WARNING"]
    assert "no.such.property" in wait_state(server, with_outbox, "unconfigured")
    message_id = enqueue(server, with_outbox, with_outbox)
    server.sql("ALTER SERVER kafka OPTIONS (DROP \"no.such.property\")", dbname=with_outbox)
    assert server.value("SELECT outbox.wait_published(%s, '10 s')", [message_id], dbname=with_outbox)


def test_values_that_are_wrong_or_break_a_guarantee_are_refused(server, with_outbox):
    for option, value in {"linger.ms": "soon", "acks": "0", "enable.idempotence": "false", "message.timeout.ms": "1000",
                          "partitioner": "random", "group.id": "g", "transactional.id": "t", "test.mock.num.brokers": "3"}.items():
        with pytest.raises(psycopg.Error, match=option):
            server.sql(f"ALTER SERVER kafka OPTIONS (ADD \"{option}\" '{value}')", dbname=with_outbox)
    assert publishes(server, with_outbox, with_outbox)


def test_a_value_that_is_right_alone_and_wrong_together_leaves_the_worker_with_a_reason(server, with_outbox):
    """librdkafka judges some properties only when the producer is made."""
    server.sql("ALTER SERVER kafka OPTIONS (ADD \"security.protocol\" 'SASL_PLAINTEXT', ADD \"sasl.mechanism\" 'PLAIN')", dbname=with_outbox)
    enqueue(server, with_outbox, with_outbox)
    assert "sasl" in wait_state(server, with_outbox, "unconfigured", "backing_off").lower()
    server.sql("ALTER SERVER kafka OPTIONS (DROP \"security.protocol\", DROP \"sasl.mechanism\")", dbname=with_outbox)
    assert publishes(server, with_outbox, with_outbox)


def test_another_server_name_is_used_after_a_reload(cluster, embedded):
    embedded.create_topic("t")
    install_outbox(cluster, embedded, server="elsewhere")
    message_id = enqueue(cluster, "postgres", "t")
    wait_state(cluster, "postgres", "unconfigured")
    cluster.configure(**{"outbox.server": "elsewhere"})
    cluster.reload()
    assert cluster.value("SELECT outbox.wait_published(%s, '10 s')", [message_id])
    assert cluster.value("SELECT server FROM outbox.lanes") == "elsewhere"


# ---- pause


def test_enabled_off_and_on_count_at_reload(cluster, embedded):
    embedded.create_topic("t")
    install_outbox(cluster, embedded)
    assert publishes(cluster, "postgres", "t")
    for setting in ("off", "on"):
        cluster.configure(**{"outbox.enabled": setting})
        cluster.reload()
        if setting == "off":
            assert "outbox.enabled" in wait_state(cluster, "postgres", "paused")
            message_id = enqueue(cluster, "postgres", "t")
            assert not cluster.value("SELECT outbox.wait_published(%s, '1 s')", [message_id])
    assert cluster.value("SELECT outbox.wait_published(%s, '10 s')", [message_id])


def test_a_pause_lasts_over_restart_and_crash_until_resume(cluster, embedded):
    embedded.create_topic("t", partitions=1)
    install_outbox(cluster, embedded)
    assert publishes(cluster, "postgres", "t")
    with cluster.connect() as c:
        c.execute("SELECT outbox.pause()")
        c.rollback()
    assert publishes(cluster, "postgres", "t"), "a pause rolled back is none"
    cluster.sql("SELECT outbox.pause()")
    cluster.sql("SELECT outbox.pause()")
    waiting = []
    for again in (contextlib.nullcontext, cluster.restart, lambda: (cluster.crash(), cluster.start())):
        again()
        assert "resume" in wait_state(cluster, "postgres", "paused")
        waiting.append(enqueue(cluster, "postgres", "t"))
    with embedded.reader("t") as reader:
        reader.read(until=2)
        reader.assert_nothing_more(1)
        with cluster.connect() as c:
            waiting.append(c.execute("SELECT outbox.enqueue('t', 'with the resume')").fetchone()[0])
            c.execute("SELECT outbox.resume()")
        # well before the next round of upkeep
        assert [r.id for r in reader.read(until=2 + len(waiting), timeout=3)][2:] == [str(i) for i in waiting]
