"""What holds maintenance up holds up nobody else: rolls, enqueue and publishing go on, drops wait and say for whom."""

import contextlib
import re
import subprocess
import time

import pytest
from harness import install_outbox, size, wait_until
from harness.background import LockWaits
from harness.cluster import bindir
from harness.load import Load, assert_nothing_is_left, check, drain
from harness.processes import server_user
from harness.segments import (
    BUSY,
    configure,
    describe,
    states,
    tables,
    transaction,
    wait_only_open,
    wait_opened,
    wait_states,
    waits_for,
)

# What is committed is published within so much, on a machine that does something else as well.
SOON_S = 5


def enqueue(connection, topic, value, key="k"):
    return str(connection.execute("SELECT outbox.enqueue(%s, %s, %s)", [topic, value, key]).fetchone()[0])


def check_with_other(kafka, topic, load, others):
    with kafka.reader(topic) as reader:
        records = reader.read_all()
        check(load, [r for r in records if r.key != b"other"])
        assert [r.value.decode() for r in records if r.key == b"other"] == others
        reader.assert_nothing_more()


def wait_named(cluster, segment, who, timeout=20):
    """Until the segment waits for this pid or gid."""
    word = rf"\b{re.escape(str(who))}\b"
    wait_until(
        lambda: re.search(word, waits_for(cluster).get(segment, "")),
        timeout,
        lambda: f"segment {segment} waits for {who}:\n{describe(cluster)}",
    )


# ---- those who hold something


@contextlib.contextmanager
def parent_reader(cluster):
    with transaction(cluster, "SELECT count(*) FROM outbox._message") as session:
        yield session.info.backend_pid


@contextlib.contextmanager
def progress_reader(cluster):
    with transaction(cluster, "SELECT count(*) FROM outbox._progress") as session:
        yield session.info.backend_pid


@contextlib.contextmanager
def view_reader(cluster):
    """An operator who has looked, and whose client has opened a transaction for that."""
    with transaction(cluster, "SELECT count(*) FROM outbox.messages") as session:
        yield session.info.backend_pid


@contextlib.contextmanager
def cursor(cluster):
    """In the middle of a result: the tables are not only locked, they are in use (a DROP would be refused, not wait)."""
    statements = ["DECLARE c CURSOR FOR SELECT * FROM outbox._message", "FETCH 1 FROM c"]
    with transaction(cluster, *statements) as session:
        yield session.info.backend_pid


@contextlib.contextmanager
def pg_dump(cluster):
    """Stands still, since nobody reads what it writes; in the end it has to succeed."""
    cluster.sql("CREATE TABLE public.bulk AS SELECT repeat(md5(i::text), 100) AS text FROM generate_series(1, 2000) i")
    command = [bindir(cluster.pg_config) / "pg_dump", "-d", "postgres"]
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env=cluster.environment(), **server_user()
    ) as dump:
        sleeping = (
            "SELECT a.pid FROM pg_stat_activity a JOIN pg_locks l ON l.pid = a.pid AND l.relation = 'outbox._message_1'::regclass"
            " WHERE application_name = 'pg_dump' AND query LIKE 'COPY %' AND wait_event = 'ClientWrite'"
        )
        pid = wait_until(lambda: cluster.value(sleeping), 30, "pg_dump holds its locks and stands still")
        yield pid
        output = dump.stdout.read()
    assert dump.returncode == 0
    assert b"PostgreSQL database dump complete" in output


@contextlib.contextmanager
def prepared_reader(cluster):
    """Its locks outlive its session."""
    gid = "orphaned reader"
    with transaction(cluster, "SELECT count(*) FROM outbox._message") as session:
        session.execute(f"PREPARE TRANSACTION '{gid}'")
    try:
        yield gid
    finally:
        cluster.sql(f"ROLLBACK PREPARED '{gid}'")


EACH_OF_ITS_KIND = [parent_reader, pg_dump, prepared_reader]
HOLDERS = size(EACH_OF_ITS_KIND, [*EACH_OF_ITS_KIND, progress_reader, view_reader, cursor])


# ---- they hold up drops, nothing else


def of_sessions(waits):
    """Without the worker's: a lane's newest progress may stand in a segment that is just being dropped, for milliseconds."""
    return {what: times for what, times in waits.items() if what[1] != "outbox worker"}


def assert_goes_on(cluster, load, segments):
    """So many segments are opened meanwhile, and what was committed is published soon."""
    newest = max(states(cluster))
    wait_opened(cluster, newest + segments, timeout=10 + 3 * segments)
    load.wait_for_more(20)
    started = time.monotonic()
    drain(cluster)
    assert time.monotonic() - started < SOON_S


def age(cluster, segment):
    """Seconds since it was drained."""
    query = "SELECT extract(epoch FROM clock_timestamp() - drained_at)::float8 FROM outbox.segments WHERE segment = %s"
    return cluster.value(query, [segment]) or 0


@pytest.mark.parametrize("holder", HOLDERS, ids=lambda holder: holder.__name__)
def test_a_reader_of_all_segments_holds_up_drops_only_and_is_named(cluster, kafka, unique, holder):
    topic = kafka.create_topic(unique, partitions=3)
    install_outbox(cluster, kafka)
    with Load(cluster, topic, writers=4) as load:
        load.wait_for_more(10)
        drain(cluster)
        held = set(tables(cluster))
        with LockWaits(cluster) as waits:
            with holder(cluster) as who:
                configure(cluster, **BUSY)
                assert_goes_on(cluster, load, 3)
                first = min(held)
                wait_until(lambda: age(cluster, first) > 2, 30, lambda: f"past retention: {describe(cluster)}")
                wait_named(cluster, first, who)
                assert_goes_on(cluster, load, 1)
                assert held <= set(tables(cluster)), "what is read stays"
            wait_states(cluster, lambda s: not held & s.keys(), 30, "dropped when the reader has gone")
        # writers wait for each other's rows: that is what they are for
        assert of_sessions(waits.others_than("transactionid", "tuple", "extend")) == {}
    drain(cluster)
    with kafka.reader(topic) as reader:
        check(load, reader.read_all())
        reader.assert_nothing_more()
    wait_only_open(cluster)
    assert_nothing_is_left(cluster)


@pytest.mark.parametrize("isolation", ["REPEATABLE READ", *size([], ["SERIALIZABLE"])])
def test_an_old_snapshot_without_locks_holds_up_neither_rolls_nor_publishing_nor_drops(cluster, kafka, unique, isolation):
    topic = kafka.create_topic(unique, partitions=3)
    install_outbox(cluster, kafka)
    with Load(cluster, topic, writers=4) as load:
        load.wait_for_more(10)
        (first,) = tables(cluster)
        with transaction(cluster, "SELECT count(*) FROM event", isolation=isolation) as session:
            # long enough that the first is not dropped before it was looked at
            configure(cluster, segment_max_age="1s", retention="1d")
            wait_states(cluster, lambda s: s[first] == "drained", 30, "drained, and not archived")
            # its rows cannot be frozen yet
            wait_named(cluster, first, session.info.backend_pid)
            configure(cluster, **BUSY)
            assert_goes_on(cluster, load, 3)
            wait_states(cluster, lambda s: first not in s, 20, "dropped in spite of it")
            # it still sees what it saw, and can enqueue
            session.execute("SELECT count(*) FROM outbox.messages")
            enqueue(session, topic, "old snapshot", "other")
            session.commit()
    drain(cluster)
    check_with_other(kafka, topic, load, ["old snapshot"])
    wait_only_open(cluster)


# ---- an orphaned prepared transaction


def prepare(cluster, topic, gid):
    with cluster.connect() as session:
        enqueue(session, topic, "prepared", "other")
        session.execute(f"PREPARE TRANSACTION '{gid}'")


def test_an_orphaned_prepared_transaction_holds_up_its_own_segment_only_and_is_named(cluster, kafka, unique):
    topic = kafka.create_topic(unique, partitions=3)
    install_outbox(cluster, kafka)
    gid = f"orphan of {unique}"
    with Load(cluster, topic, writers=4) as load:
        load.wait_for_more(10)
        (held,) = tables(cluster)
        prepare(cluster, topic, gid)
        with LockWaits(cluster) as waits:
            configure(cluster, **BUSY)
            assert_goes_on(cluster, load, 4)
            wait_states(cluster, lambda s: held + 1 not in s, 30, "others are dropped")
            wait_named(cluster, held, gid)
        assert of_sessions(waits.others_than("transactionid", "tuple", "extend")) == {}
    cluster.restart()  # the server forgets its sessions, not what is prepared
    wait_named(cluster, held, gid)
    assert held in tables(cluster)
    cluster.sql(f"COMMIT PREPARED '{gid}'")
    drain(cluster)
    check_with_other(kafka, topic, load, ["prepared"])
    wait_only_open(cluster)
    assert_nothing_is_left(cluster)


def test_a_set_lanes_behind_an_orphaned_prepared_transaction_waits_and_says_for_whom(cluster, kafka, unique):
    topic = kafka.create_topic(unique, partitions=3)
    install_outbox(cluster, kafka)
    gid = f"orphan of {unique}"
    with Load(cluster, topic, writers=4) as load:
        load.wait_for_more(10)
        (held,) = tables(cluster)
        prepare(cluster, topic, gid)
        drain(cluster)
        configure(cluster, **BUSY)
        cluster.sql("SELECT outbox.set_lanes(3)")
        load.wait_for_more(20)
        wait_named(cluster, held, gid)
        # rolls and enqueue do not care; what is behind the change is not published, and drain() does not say it is
        wait_opened(cluster, held + 4)
        load.wait_for_more(20)
    before = len(kafka.read_all(topic))
    assert not cluster.value("SELECT outbox.drain('2 s')")
    assert len(kafka.read_all(topic)) == before
    pending = len(load.events()) - before
    assert pending > 0
    counted = "SELECT sum(pending) FROM outbox.lanes"
    lanes = "SELECT lane, pending, worker_pid FROM outbox.lanes"
    wait_until(lambda: cluster.value(counted) == pending, 10, lambda: f"{pending} pending: {cluster.sql(lanes)}")
    cluster.sql(f"COMMIT PREPARED '{gid}'")
    drain(cluster)
    check_with_other(kafka, topic, load, ["prepared"])
    wait_only_open(cluster)
    assert_nothing_is_left(cluster)
