"""A transaction may commit late, however late: it holds nobody up and is not lost."""

import contextlib
import time

import pytest
from harness import install_outbox, wait_until
from harness.load import assert_nothing_is_left, drain


def enqueue(connection, topic, value, key="k"):
    return str(connection.execute("SELECT outbox.enqueue(%s, %s, %s)", [topic, value, key]).fetchone()[0])


def commit(cluster, topic, values, dbname="postgres"):
    """Each value in a transaction of its own."""
    with cluster.connect(dbname, autocommit=True) as c:
        for value in values:
            enqueue(c, topic, value)


def values(records):
    return [r.value.decode() for r in sorted(records, key=lambda r: r.offset)]


def pending(cluster, dbname="postgres"):
    return cluster.value("SELECT sum(pending) FROM outbox.lanes", dbname=dbname)


@pytest.fixture
def topic(kafka, unique):
    return kafka.create_topic(unique, partitions=1)


@pytest.fixture
def reader(kafka, topic):
    with kafka.reader(topic) as reader:
        yield reader


@pytest.fixture
def here(shared_cluster, database, kafka):
    """connect() to a database of the shared cluster that has the extension."""
    install_outbox(shared_cluster, kafka, database)
    return lambda **kwargs: shared_cluster.connect(database, **kwargs)


def test_a_low_id_that_commits_last_arrives_last_and_holds_nobody_up(shared_cluster, database, here, topic, reader):
    others = [f"other {i}" for i in range(50)]
    with here() as low:
        enqueue(low, topic, "low")
        commit(shared_cluster, topic, others, database)
        assert values(reader.read(until=50)) == others
        drain(shared_cluster, database)
        reader.assert_nothing_more()
    assert values(reader.read(until=51)) == [*others, "low"]
    drain(shared_cluster, database)
    reader.assert_nothing_more()


def test_transactions_that_commit_in_the_reverse_order_of_their_ids_arrive_in_commit_order(
    shared_cluster, database, here, topic, reader
):
    sessions = [here() for _ in range(10)]
    for i, session in enumerate(sessions):
        enqueue(session, topic, str(i))
    for i in reversed(range(10)):
        sessions[i].commit()
        assert values(reader.read(until=10 - i))[-1] == str(i)
    drain(shared_cluster, database)
    reader.assert_nothing_more()
    assert_nothing_is_left(shared_cluster, database)


def test_a_commit_of_many_windows_ago_is_not_forgotten(shared_cluster, database, here, topic, reader):
    # xids of before and after the late ones finish in between, so the late ones stay in every snapshot's list
    late = [here() for _ in range(3)]
    for i, session in enumerate(late):
        enqueue(session, topic, f"late {i}")
    with here(autocommit=True) as c:
        for i in range(200):
            message_id = enqueue(c, topic, str(i))
            if i % 10 == 0:
                assert c.execute("SELECT outbox.wait_published(%s, '10 s')", [message_id]).fetchone()[0]
    reader.read(until=200)
    late[1].rollback()
    late[2].commit()
    late[0].commit()
    found = values(reader.read(until=202))
    assert (found[:200], sorted(found[200:])) == ([str(i) for i in range(200)], ["late 0", "late 2"])
    drain(shared_cluster, database)
    reader.assert_nothing_more()


def test_a_write_transaction_open_in_another_database_holds_up_nobody(shared_cluster, database, here, topic, reader, unique):
    other = shared_cluster.createdb(f"{unique}_other")
    try:
        with shared_cluster.connect(other) as open_elsewhere, here() as late:
            open_elsewhere.execute("CREATE TABLE t AS SELECT pg_current_xact_id()")
            enqueue(late, topic, "late")
            commit(shared_cluster, topic, [str(i) for i in range(20)], database)
            assert values(reader.read(until=20)) == [str(i) for i in range(20)]
            drain(shared_cluster, database)
            late.commit()
            assert values(reader.read(until=21, timeout=5))[-1] == "late"
            assert_nothing_is_left(shared_cluster, database)
            assert open_elsewhere.info.transaction_status.name == "INTRANS"
    finally:
        shared_cluster.dropdb(other)


def test_subtransactions_beyond_what_a_snapshot_holds_are_published_as_a_whole(
    shared_cluster, database, here, topic, reader
):
    # more than PGPROC_MAX_CACHED_SUBXIDS (64): snapshots overflow while it is open
    with here() as c:
        c.execute("BEGIN")
        for i in range(150):
            with contextlib.suppress(ZeroDivisionError), c.transaction():
                enqueue(c, topic, f"sub {i}")
                if i % 3 == 0:
                    raise ZeroDivisionError
            if i == 100:
                commit(shared_cluster, topic, ["other 1", "other 2"], database)
                assert values(reader.read(until=2)) == ["other 1", "other 2"]
        drain(shared_cluster, database)
        reader.assert_nothing_more()
    expected = [f"sub {i}" for i in range(150) if i % 3]
    assert values(reader.read(until=2 + len(expected)))[2:] == expected
    drain(shared_cluster, database)
    reader.assert_nothing_more()


def test_nested_savepoints_keep_what_their_outermost_commits(shared_cluster, database, here, topic, reader):
    with here() as c:
        enqueue(c, topic, "top 1")
        c.execute("SAVEPOINT a")
        enqueue(c, topic, "a 1")
        c.execute("SAVEPOINT b")
        enqueue(c, topic, "b rolled back")
        c.execute("ROLLBACK TO b")
        enqueue(c, topic, "b again")
        c.execute("RELEASE b")
        c.execute("SAVEPOINT c")
        enqueue(c, topic, "c rolled back with d")
        c.execute("SAVEPOINT d")
        enqueue(c, topic, "d rolled back")
        c.execute("RELEASE d")
        c.execute("ROLLBACK TO c")
        c.execute("RELEASE a")
        enqueue(c, topic, "top 2")
    drain(shared_cluster, database)
    assert values(reader.read_all()) == ["top 1", "a 1", "b again", "top 2"]
    assert_nothing_is_left(shared_cluster, database)


def test_pending_is_exact_while_nothing_is_published(shared_cluster, database, here, topic, reader):
    with here(autocommit=True) as c:
        commit(shared_cluster, topic, ["first"], database)
        drain(shared_cluster, database)
        assert_nothing_is_left(shared_cluster, database)
        c.execute("SELECT outbox.pause()")
        wait_until(lambda: c.execute("SELECT state FROM outbox.workers").fetchone()[0] == "paused", 10, "paused")
        with here() as writer:
            for i in range(1, 40):
                enqueue(writer, topic, str(i))
                with contextlib.suppress(ZeroDivisionError), writer.transaction():
                    enqueue(writer, topic, "rolled back")
                    raise ZeroDivisionError
                writer.commit()
                # at most 1 s too many, never one too few
                assert c.execute("SELECT pending FROM outbox.lanes").fetchone()[0] >= i
                enqueue(writer, topic, "rolled back")
                writer.rollback()
        wait_until(lambda: pending(shared_cluster, database) == 39, 2, lambda: f"39 pending: {pending(shared_cluster, database)}")
        c.execute("SELECT outbox.resume()")
    drain(shared_cluster, database)
    assert values(reader.read_all()) == ["first", *map(str, range(1, 40))]
    assert_nothing_is_left(shared_cluster, database)


def test_pending_is_never_0_while_a_commit_is_unpublished(shared_cluster, database, here, topic, reader):
    with here(autocommit=True) as c:
        zeros = 0
        for i in range(300):
            enqueue(c, topic, str(i))
            zeros += (waiting := c.execute("SELECT pending FROM outbox.lanes").fetchone()[0]) == 0
            # 0 may only be said when Kafka has acknowledged all: then it has the record
            if waiting == 0:
                assert sum(reader.end_offsets().values()) == i + 1


@pytest.mark.parametrize("stop_mode", ["fast", "immediate"])
def test_a_prepared_transaction_outlives_a_restart(cluster, kafka, topic, reader, stop_mode):
    install_outbox(cluster, kafka)
    commit(cluster, topic, ["before"])
    for name in ("kept", "dropped"):
        with cluster.connect() as c:
            enqueue(c, topic, f"{name} 1")
            with c.transaction():
                enqueue(c, topic, f"{name} 2")
            c.execute(f"PREPARE TRANSACTION '{name}'")
    commit(cluster, topic, ["between"])
    assert values(reader.read(until=2)) == ["before", "between"]
    drain(cluster)
    cluster.restart(stop_mode)
    commit(cluster, topic, ["after"])
    drain(cluster)
    # after a crash what was just sent may come again
    expected = reader.read_all()
    assert list(dict.fromkeys(values(expected))) == ["before", "between", "after"]
    assert stop_mode == "immediate" or len(expected) == 3
    cluster.sql("ROLLBACK PREPARED 'dropped'")
    commit(cluster, topic, ["last"])
    reader.read(until=lambda records: values(records)[-1] == "last")
    drain(cluster)
    sent = len(reader.records)

    started = time.monotonic()
    cluster.sql("COMMIT PREPARED 'kept'")
    reader.read(until=sent + 2, timeout=5)
    took = time.monotonic() - started
    assert values(reader.records)[sent:] == ["kept 1", "kept 2"]
    assert took < 1, f"{took} s after COMMIT PREPARED"
    drain(cluster)
    reader.assert_nothing_more()
    assert_nothing_is_left(cluster)


def test_a_committed_prepared_transaction_is_pending_at_the_latest_once_it_was_read(
    shared_cluster, database, here, topic, reader
):
    commit(shared_cluster, topic, ["first"], database)
    drain(shared_cluster, database)
    with here(autocommit=True) as c:
        c.execute("BEGIN")
        message_id = enqueue(c, topic, "prepared")
        c.execute(f"PREPARE TRANSACTION '{database}'")
        drain(shared_cluster, database)
        reader.read(until=1)
        reader.assert_nothing_more()
        c.execute(f"COMMIT PREPARED '{database}'")
        assert c.execute("SELECT outbox.wait_published(%s, '5 s')", [message_id]).fetchone()[0]
    assert values(reader.read(until=2)) == ["first", "prepared"]
    assert_nothing_is_left(shared_cluster, database)
