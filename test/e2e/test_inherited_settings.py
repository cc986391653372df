"""What ALTER DATABASE, ALTER ROLE and postgresql.conf set for sessions does not touch the worker."""

import contextlib
import pathlib
import re

import pytest
from harness import install_outbox, wait_until

SETTINGS = {
    "default_transaction_isolation": "serializable",
    "default_transaction_read_only": "on",
    "default_transaction_deferrable": "on",
    "statement_timeout": "1ms",
    "lock_timeout": "1ms",
    "idle_in_transaction_session_timeout": "1ms",
    "idle_session_timeout": "1ms",
    "transaction_timeout": "1ms",  # PostgreSQL 17
    "row_security": "off",
    "search_path": "nowhere",
    "session_replication_role": "local",
    "synchronous_commit": "remote_apply",
    "default_tablespace": "pg_default",
    "temp_file_limit": "0",
    "transform_null_equals": "on",
    "array_nulls": "off",
    "standard_conforming_strings": "off",
    "quote_all_identifiers": "on",
    "bytea_output": "escape",
    "client_encoding": "LATIN1",
    "datestyle": "German, DMY",
    "intervalstyle": "sql_standard",
    "timezone": "Asia/Kathmandu",
    "enable_indexscan": "off",
    "enable_bitmapscan": "off",
    "exit_on_error": "on",
    "jit_above_cost": "0",
    "track_activities": "off",
    "log_min_error_statement": "debug5",
}
# A session that must work all the same has these.
SANE = {
    "default_transaction_isolation": "read committed",
    "default_transaction_read_only": "off",
    "default_transaction_deferrable": "off",
    "search_path": "public",
    "statement_timeout": "60s",
    "lock_timeout": "60s",
    "idle_in_transaction_session_timeout": "0",
    "idle_session_timeout": "0",
    "transaction_timeout": "0",
    "synchronous_commit": "on",
    "exit_on_error": "off",
    "client_encoding": "UTF8",
    "datestyle": "ISO",
}


def known(cluster, settings):
    names = {row[0].lower() for row in cluster.sql("SELECT name FROM pg_settings")}
    return {name: value for name, value in settings.items() if name in names}


def by_database(cluster, database, settings):
    for name, value in settings.items():
        cluster.sql(f"ALTER DATABASE {database} SET {name} = {value!r}")


def by_role(cluster, database, settings):
    for name, value in settings.items():
        cluster.sql(f"ALTER ROLE postgres IN DATABASE {database} SET {name} = {value!r}")


def by_database_to_another_role(cluster, database, settings):
    by_database(cluster, database, settings)
    cluster.sql("CREATE ROLE powerless")
    cluster.sql(f"ALTER DATABASE {database} SET role = 'powerless'")


def sane(cluster, database):
    settings = known(cluster, SANE)
    options = " ".join(f"-c {name}=" + value.replace(" ", "\\ ") for name, value in settings.items())
    connection = cluster.connect(database, autocommit=True, options=options)
    connection.execute("SET ROLE NONE")
    return connection


def new_worker(cluster, database):
    (old,) = cluster.worker_pids(database)
    cluster.sql("SELECT pg_terminate_backend(%s)", [old])
    return cluster.wait_worker(database, other_than=[old])


def complaints(cluster, pid):
    """What the worker wrote to the log beside its state."""
    return [
        line for line in cluster.log.splitlines()
        if f"[{pid}]" in line and re.search(r"(WARNING|ERROR|FATAL|PANIC|STATEMENT|QUERY):", line)
    ]  # fmt: skip


def assert_publishes(cluster, connection, topic, pid):
    """Batches, rolls and a pause."""
    enqueue = "SELECT outbox.enqueue(%s, 'x')"
    for _ in range(3):
        connection.execute(enqueue, [topic])
        drained = connection.execute("SELECT outbox.drain('20 s')").fetchone()[0]
        assert drained, connection.execute("TABLE outbox.workers").fetchall()
        connection.execute("SELECT outbox.roll()")
    connection.execute("SELECT outbox.pause()")
    message_id = connection.execute(enqueue, [topic]).fetchone()[0]
    connection.execute("SELECT outbox.resume()")
    assert connection.execute("SELECT outbox.wait_published(%s, '20 s')", [message_id]).fetchone()[0]
    state = "SELECT state, reason, pid FROM outbox.workers WHERE process = 'outbox worker'"
    wait_until(lambda: connection.execute(state).fetchall() == [("idle", None, pid)], 5, "an idle worker")
    assert complaints(cluster, pid) == []


def assert_looks_after_segments(connection):
    undrained = "SELECT state FROM outbox.segments WHERE state NOT IN ('drained', 'archived')"
    wait_until(lambda: connection.execute(undrained).fetchall() == [("open",)], 20, "the worker marks segments")


def install(connection, kafka):
    connection.execute("CREATE EXTENSION outbox")
    connection.execute(
        f"CREATE SERVER kafka FOREIGN DATA WRAPPER outbox_kafka OPTIONS (\"bootstrap.servers\" '{kafka.bootstrap}')"
    )


@pytest.mark.parametrize("give", [by_database, by_role, by_database_to_another_role])
def test_settings_inherited_from_database_and_role_do_not_touch_the_worker(cluster, embedded, give):
    topic = embedded.create_topic("t")
    database = cluster.createdb("strange")
    give(cluster, database, known(cluster, SETTINGS))
    with sane(cluster, database) as c, serializable_writer(cluster, database):
        install(c, embedded)
        assert_publishes(cluster, c, topic, cluster.wait_worker(database))
        assert_publishes(cluster, c, topic, new_worker(cluster, database))
        if give is by_database:  # takes a while
            assert_looks_after_segments(c)


@contextlib.contextmanager
def serializable_writer(cluster, database):
    """A serializable, read-only and deferrable transaction would wait for it."""
    with sane(cluster, database) as writer:
        writer.execute("BEGIN ISOLATION LEVEL SERIALIZABLE READ WRITE")
        writer.execute("SELECT pg_current_xact_id(), count(*) FROM pg_database")
        yield


def test_settings_of_the_whole_server_do_not_touch_launcher_and_worker(cluster, embedded):
    topic = embedded.create_topic("t")
    settings = known(cluster, SETTINGS)
    settings.pop("transaction_timeout", None)  # nobody could log in
    by_role(cluster, "postgres", known(cluster, SANE))  # there this test looks around
    cluster.configure(**settings)
    cluster.restart()
    with serializable_writer(cluster, "postgres"):
        database = cluster.createdb("strange")
        with sane(cluster, database) as c:
            install(c, embedded)
            assert_publishes(cluster, c, topic, cluster.wait_worker(database))
            # the same once more, while they run
            cluster.reload()
            assert_publishes(cluster, c, topic, cluster.wait_worker(database))
            assert_publishes(cluster, c, topic, new_worker(cluster, database))


def test_session_preload_libraries_are_not_loaded_into_the_worker(cluster, embedded):
    topic = embedded.create_topic("t")
    database = cluster.createdb("strange")
    with sane(cluster, database) as c:  # later ones would not get in
        install(c, embedded)
        cluster.wait_worker(database)
        for library in ("no_such_library", "auto_explain"):
            by_database(cluster, database, {"session_preload_libraries": library})
            pid = new_worker(cluster, database)
            assert_publishes(cluster, c, topic, pid)
            assert library not in pathlib.Path(f"/proc/{pid}/maps").read_text()
