"""Accidents of operation: said once and with a hint, tried again with pauses, no harm to others, mended when repaired."""

import re
import signal
import time

import psycopg
import pytest
from harness import Cluster, install_outbox, processes, wait_until

LEVELS = "WARNING|ERROR|FATAL|PANIC"


def publishes(cluster, database, topic, timeout="10 s"):
    message_id = cluster.value("SELECT outbox.enqueue(%s, 'x')", [topic], dbname=database)
    return cluster.value("SELECT outbox.wait_published(%s, %s::interval)", [message_id, timeout], dbname=database)


def worker(cluster, database):
    return cluster.sql("SELECT state, reason FROM outbox.workers", dbname=database)[0]


def wait_state(cluster, database, *states, timeout=20):
    """Returns the reason."""
    wait_until(lambda: worker(cluster, database)[0] in states, timeout, lambda: f"{states}: {worker(cluster, database)}")
    return worker(cluster, database)[1]


def new_worker(cluster, database):
    """It looks at once; an older one would within half a minute."""
    (old,) = cluster.worker_pids(database)
    cluster.sql("SELECT pg_terminate_backend(%s)", [old])
    return cluster.wait_worker(database, other_than=[old])


def lines_within(cluster, text, seconds, since):
    """The lines of our processes with this text that the log gets in so many seconds."""
    end = time.monotonic() + seconds
    wait_until(lambda: time.monotonic() > end, seconds + 1)
    return [line for line in cluster.log[since:].splitlines() if "] outbox " in line and text in line]


@pytest.fixture
def topic(embedded):
    return embedded.create_topic("t")


@pytest.fixture(scope="module")
def server():
    with Cluster() as cluster:
        yield cluster


@pytest.fixture
def two(server, embedded, topic):
    """The databases `broken` and `other`; both have published."""
    for name in ("broken", "other"):
        server.createdb(name)
        install_outbox(server, embedded, name)
        assert publishes(server, name, topic)
    yield server
    for name in ("broken", "other"):
        server.dropdb(name)


# ---- versions


@pytest.mark.parametrize("version", ["0.0", "9.9"])
def test_sql_of_another_version_is_said_once_and_served_when_it_fits_again(two, topic, version):
    (fits,) = two.sql("SELECT extversion FROM pg_extension WHERE extname = 'outbox'", dbname="broken")[0]
    since = len(two.log)
    two.sql("UPDATE pg_extension SET extversion = %s WHERE extname = 'outbox'", [version], dbname="broken")
    pid = new_worker(two, "broken")
    reason = wait_state(two, "broken", "incompatible")
    assert version in reason
    assert "ALTER EXTENSION outbox UPDATE" in reason
    waiting = two.value("SELECT outbox.enqueue(%s, 'x')", [topic], dbname="broken")
    assert publishes(two, "other", topic)
    (line,) = lines_within(two, "needs SQL version", 3, since)  # a time can look like a version
    assert "WARNING" in line
    assert two.worker_pids("broken") == [pid], "it waits and does not start again and again"
    two.sql("UPDATE pg_extension SET extversion = %s WHERE extname = 'outbox'", [fits], dbname="broken")
    new_worker(two, "broken")
    assert two.value("SELECT outbox.wait_published(%s, '10 s')", [waiting], dbname="broken")


# ---- a half dropped extension

PARTS = ["_identity", "_segment", "_lane", "_message", "_message_id", "_progress", "_dead_letter", "_pause"]


def rename(cluster, name, to):
    """As a DROP would have it, were it not for what depends on it."""
    kind = "SEQUENCE" if "_message_id" in (name, to) else "TABLE"
    cluster.psql(f"SET outbox.allow_data_loss = on; ALTER {kind} outbox.{name} RENAME TO {to}", dbname="broken")


@pytest.mark.parametrize("part", PARTS)
def test_a_missing_part_of_the_extension_is_named_once_until_it_is_restored_or_given_up(two, embedded, topic, part):
    waiting = two.value("SELECT outbox.enqueue(%s, 'x')", [topic], dbname="broken")
    since = len(two.log)
    rename(two, part, "gone")
    pid = new_worker(two, "broken")
    reason = wait_state(two, "broken", "incompatible")
    assert f"outbox.{part} is missing" in reason
    assert "DROP EXTENSION" in reason
    assert publishes(two, "other", topic)
    # the one before may have noticed as well
    (line,) = [line for line in lines_within(two, part, 1, since) if f"[{pid}]" in line]
    assert "WARNING" in line
    assert two.worker_pids("broken") == [pid], "it waits and does not start again and again"
    rename(two, "gone", part)
    new_worker(two, "broken")
    assert two.value("SELECT outbox.wait_published(%s, '10 s')", [waiting], dbname="broken")

    rename(two, part, "gone")
    with two.connect("broken") as c:
        c.execute("SET outbox.allow_data_loss = on")
        c.execute("DROP EXTENSION outbox CASCADE")
    install_outbox(two, embedded, "broken")
    assert publishes(two, "broken", topic)


def test_without_the_message_log_a_drop_needs_the_consent_to_lose_messages(two):
    rename(two, "_message", "gone")
    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="message log is not there"):
        two.sql("DROP EXTENSION outbox CASCADE", dbname="broken")


def test_a_segment_without_its_progress_table_is_said_once_however_often_it_is_tried(two, topic):
    since = len(two.log)
    rename(two, "_progress_1", "gone")
    waiting = two.value("SELECT outbox.enqueue(%s, 'x')", [topic], dbname="broken")
    assert "outbox.roll()" in wait_state(two, "broken", "backing_off")
    (line,) = lines_within(two, "lost its table", 4, since)
    assert publishes(two, "other", topic)
    rename(two, "gone", "_progress_1")
    new_worker(two, "broken")
    assert two.value("SELECT outbox.wait_published(%s, '10 s')", [waiting], dbname="broken")


# ---- a schema of this name


def test_somebody_elses_schema_of_our_name_is_left_alone_and_said_once(two, embedded, topic):
    two.createdb("foreign_schema")
    two.psql(
        "CREATE SCHEMA outbox; CREATE TABLE outbox._segment (x int); CREATE TABLE outbox._message (x int);"
        "CREATE TABLE outbox.messages (topic text); CREATE FUNCTION outbox.enqueue(text) RETURNS int LANGUAGE sql AS 'SELECT 1'",
        dbname="foreign_schema",
    )
    with pytest.raises(psycopg.errors.DuplicateSchema):
        two.sql("CREATE EXTENSION outbox", dbname="foreign_schema")
    before = len(two.log)
    two.restart()  # now the launcher looks into every database
    since = len(two.log)
    for name in ("broken", "other"):
        assert publishes(two, name, topic)
    assert two.psql("INSERT INTO outbox.messages VALUES ('x'); SELECT outbox.enqueue('x');", dbname="foreign_schema") == "1\n"
    two.psql("ALTER TABLE outbox._segment ADD y int; DROP TABLE outbox._message;", dbname="foreign_schema")
    hint = "Rename or drop the schema before CREATE EXTENSION"
    wait_until(lambda: hint in two.log[before:], 20, "a probe looks into it")
    wait_until(lambda: two.backends("outbox probe") == [], 10, "probes end")
    assert two.worker_pids("foreign_schema") == []
    two.psql("DROP SCHEMA outbox CASCADE", dbname="foreign_schema")
    ours = 'has a schema "outbox" without the extension'
    assert two.log[before:].count(ours) == 1
    assert [line for line in two.log[since:].splitlines() if re.search(LEVELS, line) and ours not in line] == []
    install_outbox(two, embedded, "foreign_schema")
    assert publishes(two, "foreign_schema", topic)
    two.dropdb("foreign_schema")


def test_tables_whose_extension_was_taken_from_the_catalog_are_left_alone(two, topic):
    """As a schema of our name that nobody owns up to."""
    since = len(two.log)
    two.sql("DELETE FROM pg_extension WHERE extname = 'outbox'", dbname="broken")
    (pid,) = two.worker_pids("broken")
    two.sql("SELECT pg_terminate_backend(%s)", [pid])
    wait_until(lambda: two.worker_pids("broken") not in ([pid],), 20, "the worker has gone")
    wait_until(lambda: two.worker_pids("broken") == [], 20, "no other stays")
    # its end, and that there is a schema without extension, with detail and hint
    assert len(lines_within(two, "", 2, since)) <= 5, "and none comes again and again"
    with pytest.raises(psycopg.errors.UndefinedObject, match="not installed"):
        two.sql("SELECT outbox.enqueue(%s, 'x')", [topic], dbname="broken")
    assert publishes(two, "other", topic)


# ---- processes


def probes(cluster):
    found = []
    for pid in processes.processes_in(cluster.data):
        try:
            with open(f"/proc/{pid}/cmdline") as file:
                found += [pid] if "outbox probe" in file.read() else []
        except OSError:
            pass
    return found


def test_a_database_whose_probe_was_terminated_is_served_all_the_same(cluster, embedded, topic):
    install_outbox(cluster, embedded)
    assert publishes(cluster, "postgres", topic)
    cluster.configure(post_auth_delay=2)  # it takes its time
    cluster.restart()
    (pid,) = wait_until(lambda: probes(cluster), 20, "a probe", interval=0.005)
    processes.send(pid, signal.SIGTERM)
    cluster.configure(post_auth_delay=0)
    cluster.reload()
    cluster.wait_worker(timeout=20)
    assert publishes(cluster, "postgres", topic)


def test_an_exhausted_max_worker_processes_is_said_once(make_cluster, embedded, topic):
    # the launcher of logical replication, ours and one worker
    cluster = make_cluster({"max_worker_processes": 3})
    for name in ("one", "two"):
        cluster.createdb(name)
        install_outbox(cluster, embedded, name)
    wait_until(lambda: "max_worker_processes" in cluster.log, 20, "a warning")
    said = lines_within(cluster, "could not start a background worker", 7, 0)  # tried each 5 s
    assert len(said) == 1
    assert "HINT:  Raise max_worker_processes" in cluster.log
    (served,) = [name for name in ("one", "two") if cluster.worker_pids(name)]
    assert publishes(cluster, served, topic)


def test_without_a_place_for_the_launcher_enqueue_works_and_workers_says_what_is_missing(make_cluster, embedded, topic):
    cluster = make_cluster({"max_worker_processes": 0})
    install_outbox(cluster, embedded)
    waiting = cluster.value("SELECT outbox.enqueue(%s, 'x')", [topic])
    state, reason = worker(cluster, "postgres")
    assert state == "not_running"
    assert "max_worker_processes" in reason
    assert cluster.log.count("max_worker_processes") < 5
    cluster.configure(max_worker_processes=8)
    cluster.restart()
    cluster.wait_worker()
    assert cluster.value("SELECT outbox.wait_published(%s, '10 s')", [waiting])
