"""Segments come and go every second under load, or are there by hundreds: writers do not notice, nothing is lost."""

import contextlib
import re

import pytest
from harness import install_outbox, seeded, size, wait_until
from harness.background import InBackground
from harness.load import Load, assert_nothing_is_left, check, drain
from harness.segments import BUSY, configure, roll, states, tables, wait_dropped, wait_only_open

SECONDS = size(30, 300)
SEGMENTS = 400
SESSIONS = 100


def assert_no_trouble(cluster):
    """Neither a client nor a process of ours met an error, and nobody a deadlock."""
    assert cluster.value("SELECT sum(deadlocks) FROM pg_stat_database") == 0
    troubles = [line for line in cluster.log.splitlines() if re.search(r"(ERROR|FATAL|PANIC|WARNING): |deadlock", line)]
    assert troubles == []


def test_a_roll_every_second_under_16_writers_and_one_that_sleeps_loses_nothing_and_disturbs_nobody(cluster, kafka, unique):
    topic = kafka.create_topic(unique, partitions=3)
    install_outbox(cluster, kafka)
    configure(cluster, **BUSY)
    load = Load(cluster, topic, writers=16, keys=40, pause_s=0.8, prepared=0.2)
    with load.asleep():
        (asleep_in,) = tables(cluster)
        with load:
            load.run_for(SECONDS)
        last = max(tables(cluster))
        there = set(tables(cluster))
        assert asleep_in in there, "its writer is not through"
        assert set(range(asleep_in + 1, last - SECONDS // 3)).isdisjoint(there), f"old segments are dropped: {there}"
    drain(cluster)
    with kafka.reader(topic) as reader:
        check(load, reader.read_all())
        reader.assert_nothing_more()
    wait_dropped(cluster, asleep_in)
    assert_nothing_is_left(cluster)
    assert_no_trouble(cluster)
    # the load was what it should be
    long = sum(seconds > 2 for seconds in load.seconds)
    print(f"{last} segments in {SECONDS} s, {load.counts}, {long} transactions of more than 2 s, {max(load.seconds):.1f} s")
    assert last - asleep_in > SECONDS * 0.8, "a roll every second"
    assert load.counts["committed"] > SECONDS * 5
    assert load.counts["committed in two phases"] > SECONDS / 2
    assert load.counts["savepoints rolled back"] > SECONDS / 2
    assert long > SECONDS / 5


# ---- hundreds of segments


@pytest.fixture
def crowded(make_cluster):
    """Room for the sessions of the test and no more; locks and two-phase transactions as PostgreSQL has them by default."""
    cluster = make_cluster(
        {"max_connections": SESSIONS + 30, "max_prepared_transactions": None, "max_worker_processes": 8}
    )
    assert cluster.value("SHOW max_locks_per_transaction") == "64"
    return cluster


@contextlib.contextmanager
def clients(cluster, topic):
    """SESSIONS sessions that enqueue all the time; few of them at a moment, since the cores are few."""
    script = cluster.folder / "script"
    script.write_text(f"""
BEGIN;
SELECT outbox.enqueue('{topic}', 'first', :client_id::text);
SELECT outbox.enqueue('{topic}', 'second', :client_id::text);
COMMIT;
""")
    transactions = []

    def run(_connection):
        done = cluster.run("pgbench", "-n", "-c", SESSIONS, "-j", 2, "-T", 2, "-R", 200, "-f", script)
        assert "number of failed transactions: 0" in done.stdout, done.stdout
        assert "aborted" not in done.stderr, done.stderr
        transactions.append(int(re.search(r"transactions actually processed: (\d+)", done.stdout)[1]))

    with InBackground(cluster, run, 0):
        wait_until(lambda: len(cluster.backends("client backend", "postgres")) > SESSIONS, 30, "all sessions are there")
        yield transactions


def views(cluster):
    query = "SELECT format('outbox.%I', viewname) FROM pg_views WHERE schemaname = 'outbox' AND viewname !~ '^_'"
    return [name for (name,) in cluster.sql(query)]


def test_400_segments_fit_into_the_default_lock_table_beside_100_sessions_and_readers_of_all_views(crowded, kafka, unique):
    cluster = crowded
    topic = kafka.create_topic(unique, partitions=3)
    install_outbox(cluster, kafka)
    cluster.sql("SELECT outbox.enqueue(%s, 'opens the first segment')", [topic])
    with clients(cluster, topic) as transactions, cluster.connect(autocommit=True) as roller:
        for _ in range(SEGMENTS - 1):
            roller.execute("SELECT outbox.roll()")
    assert len(states(cluster)) == SEGMENTS
    names = views(cluster)
    assert {"outbox.messages", "outbox.segments", "outbox.lanes", "outbox.workers", "outbox.dead_letters"} <= set(names)
    with contextlib.ExitStack() as stack:
        sessions = [stack.enter_context(cluster.connect()) for _ in range(SESSIONS)]
        readers = [stack.enter_context(cluster.connect()) for _ in names]
        for session in sessions:
            session.execute("SELECT outbox.enqueue(%s, 'open')", [topic])
        for name, reader in zip(names, readers):
            reader.execute(f"SELECT count(*) FROM {name} v WHERE v IS NOT NULL")
        assert roll(cluster) == SEGMENTS + 1
        for session in sessions:
            session.execute("SELECT outbox.enqueue(%s, 'open')", [topic])
        locks = cluster.value("SELECT count(*) FROM pg_locks WHERE NOT fastpath AND locktype = 'relation'")
        for session in sessions:
            session.commit()
        drain(cluster)
        # drops need strong locks, many of them: one segment after the other
        configure(cluster, retention="0s")
        for reader in readers:
            reader.rollback()
    wait_only_open(cluster, timeout=120)
    assert len(tables(cluster)) == 1
    expected = 1 + 2 * sum(transactions) + 2 * SESSIONS
    ids = [r.id for r in kafka.read_all(topic)]
    print(f"{sum(transactions)} transactions of {SESSIONS} sessions; {locks} locks with {SEGMENTS} segments: {names}")
    assert len(ids) == len(set(ids)) == expected
    assert_nothing_is_left(cluster)
    assert_no_trouble(cluster)
