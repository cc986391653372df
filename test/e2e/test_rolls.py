"""Segments are rolled under load: enqueuers do not notice, nothing is lost, and what was rolled is drained."""

import psycopg
import pytest
from harness import install_outbox, seeded, size, wait_until
from harness.load import Load, assert_nothing_is_left, check, drain


def enqueue(connection, topic, value, key="k"):
    return str(connection.execute("SELECT outbox.enqueue(%s, %s, %s)", [topic, value, key]).fetchone()[0])


def roll(cluster, dbname="postgres"):
    return cluster.value("SELECT outbox.roll()", dbname=dbname)


def states(cluster, dbname="postgres"):
    """What is archived is drained as well."""
    shown = cluster.sql("SELECT segment, state FROM outbox.segments ORDER BY segment", dbname=dbname)
    return {segment: "drained" if state == "archived" else state for segment, state in shown}


def wait_drained(cluster, dbname="postgres"):
    """All segments are drained but the open one."""

    def undrained():
        return {segment: state for segment, state in states(cluster, dbname).items() if state != "drained"}

    wait_until(lambda: list(undrained().values()) == ["open"], 30, lambda: f"drained: {undrained()}")


def values(records):
    return [r.value.decode() for r in sorted(records, key=lambda r: r.offset)]


def test_rolls_under_the_load_of_eight_writers_lose_nothing_and_disturb_nobody(cluster, kafka, unique):
    topic = kafka.create_topic(unique, partitions=3)
    install_outbox(cluster, kafka)
    rng = seeded("rolls")
    rolls = size(25, 250)
    with Load(cluster, topic, pause_s=0.03) as load:
        load.wait_for_more(10)
        for _ in range(rolls):
            load.run_for(rng.random() * 0.4)
            roll(cluster)
        load.wait_for_more(10)
    drain(cluster)
    with kafka.reader(topic) as reader:
        check(load, reader.read_all())
        reader.assert_nothing_more()
    assert len(states(cluster)) == rolls + 1
    wait_drained(cluster)
    assert_nothing_is_left(cluster)
    troubles = [line for line in cluster.log.splitlines() if "ERROR:" in line or "deadlock" in line or "FATAL:" in line]
    assert troubles == []


def test_transactions_with_snapshots_older_than_three_rolls_are_delivered(shared_cluster, database, kafka, unique):
    topic = kafka.create_topic(unique, partitions=1)
    install_outbox(shared_cluster, kafka, database)
    with shared_cluster.connect(database, autocommit=True) as now:
        enqueue(now, topic, "first")
        old = {}
        for isolation in ("REPEATABLE READ", "SERIALIZABLE"):
            old[isolation] = shared_cluster.connect(database)
            old[isolation].execute(f"SET TRANSACTION ISOLATION LEVEL {isolation}")
            assert old[isolation].execute("SELECT count(*) FROM outbox.segments").fetchone() == (1,)
        for i in range(3):
            roll(shared_cluster, database)
            enqueue(now, topic, f"roll {i}")
        wait_drained(shared_cluster, database)
        for isolation, session in old.items():
            enqueue(session, topic, isolation)
            assert session.execute("SELECT count(*) FROM outbox.segments").fetchone() == (1,)  # an old snapshot indeed
        enqueue(now, topic, "while both are open")
        drain(shared_cluster, database)
        for session in old.values():
            session.commit()
            drain(shared_cluster, database)
    expected = ["first", "roll 0", "roll 1", "roll 2", "while both are open", *old]
    assert values(kafka.read_all(topic)) == expected


def test_a_rolled_segment_is_drained_only_after_its_last_writer_and_what_that_wrote_is_delivered(
    shared_cluster, database, kafka, unique
):
    topic = kafka.create_topic(unique, partitions=1)
    install_outbox(shared_cluster, kafka, database)
    with shared_cluster.connect(database, autocommit=True) as now, shared_cluster.connect(database) as late:
        enqueue(now, topic, "first")
        enqueue(late, topic, "late 1")  # in segment 1
        roll(shared_cluster, database)
        with shared_cluster.connect(database) as prepared:
            enqueue(prepared, topic, "prepared")  # in segment 2
            prepared.execute(f"PREPARE TRANSACTION '{unique}'")
        try:
            for i in range(3):
                roll(shared_cluster, database)
                enqueue(now, topic, f"roll {i}")
            drain(shared_cluster, database)
            enqueue(late, topic, "late 2")  # in segment 5
            # what was rolled later is drained earlier, so the worker has judged the others and left them alone
            expected = ["rolled", "rolled", "drained", "drained", "open"]
            wait_until(lambda: list(states(shared_cluster, database).values()) == expected, 30, "two are drained")
            late.commit()
            drain(shared_cluster, database)
        finally:
            now.execute(f"COMMIT PREPARED '{unique}'")
    drain(shared_cluster, database)
    sent = values(kafka.read_all(topic))
    assert sent == ["first", "roll 0", "roll 1", "roll 2", "late 1", "late 2", "prepared"]
    wait_drained(shared_cluster, database)


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_a_roll_that_stays_open_holds_up_no_enqueuer(shared_cluster, database, kafka, unique, end):
    topic = kafka.create_topic(unique, partitions=1)
    install_outbox(shared_cluster, kafka, database)
    with shared_cluster.connect(database, autocommit=True) as now, shared_cluster.connect(database) as rolling:
        now.execute("SET statement_timeout = '5s'")
        enqueue(now, topic, "before")
        rolling.execute("SELECT outbox.roll()")
        enqueue(rolling, topic, "rolling")
        for i in range(3):
            enqueue(now, topic, f"meanwhile {i}")
        assert now.execute("SELECT outbox.drain('4 s')").fetchone()[0]
        assert values(kafka.read_all(topic)) == ["before", "meanwhile 0", "meanwhile 1", "meanwhile 2"]
        getattr(rolling, end)()
        enqueue(now, topic, "after")
        rolling.execute("ROLLBACK")
    drain(shared_cluster, database)
    expected = {"before", "meanwhile 0", "meanwhile 1", "meanwhile 2", "after"} | ({"rolling"} if end == "commit" else set())
    sent = values(kafka.read_all(topic))
    assert sorted(sent) == sorted(expected)


def test_a_roll_behind_an_unfinished_roll_is_refused_with_55p03(shared_cluster, database, kafka, unique):
    install_outbox(shared_cluster, kafka, database)
    roll(shared_cluster, database)
    with shared_cluster.connect(database) as rolling:
        rolling.execute("SELECT outbox.roll()")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            roll(shared_cluster, database)
    roll(shared_cluster, database)
    assert list(states(shared_cluster, database)) == [1, 2, 3]
