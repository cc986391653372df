"""Segments are rolled under load: enqueuers do not notice, nothing is lost, and what was rolled is drained."""

import pytest
from harness import install_outbox, seeded, size, wait_until
from harness.load import Load, assert_nothing_is_left, check, drain


def enqueue(connection, topic, value, key="k"):
    return str(connection.execute("SELECT outbox.enqueue(%s, %s, %s)", [topic, value, key]).fetchone()[0])


def roll(cluster, dbname="postgres"):
    return cluster.value("SELECT outbox.roll()", dbname=dbname)


def states(cluster, dbname="postgres"):
    return dict(cluster.sql("SELECT segment, state FROM outbox.segments ORDER BY segment", dbname=dbname))


def wait_drained(cluster, dbname="postgres", but_open=1):
    """All segments are drained but the open one."""

    def undrained():
        return {segment: state for segment, state in states(cluster, dbname).items() if state != "drained"}

    wait_until(
        lambda: sorted(undrained().values()) == ["open"] * but_open, 30, lambda: f"drained: {undrained()}"
    )


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


@pytest.mark.parametrize("isolation", ["REPEATABLE READ", "SERIALIZABLE"])
def test_a_transaction_older_than_three_rolls_is_delivered(shared_cluster, database, kafka, unique, isolation):
    topic = kafka.create_topic(unique, partitions=1)
    install_outbox(shared_cluster, kafka, database)
    with shared_cluster.connect(database, autocommit=True) as now, shared_cluster.connect(database) as old:
        enqueue(now, topic, "first")
        old.execute(f"SET TRANSACTION ISOLATION LEVEL {isolation}")
        seen = old.execute("SELECT count(*) FROM outbox.segments").fetchone()
        for i in range(3):
            roll(shared_cluster, database)
            enqueue(now, topic, f"roll {i}")
        drain(shared_cluster, database)
        wait_drained(shared_cluster, database)
        enqueue(old, topic, "old")
        assert old.execute("SELECT count(*) FROM outbox.segments").fetchone() == seen  # an old snapshot indeed
        enqueue(now, topic, "while old is open")
        drain(shared_cluster, database)
        old.commit()
    drain(shared_cluster, database)
    expected = ["first", "roll 0", "roll 1", "roll 2", "while old is open", "old"]
    assert values(kafka.read_all(topic)) == expected
    wait_drained(shared_cluster, database)


def test_a_transaction_that_enqueued_before_three_rolls_and_commits_after_them_is_delivered(
    shared_cluster, database, kafka, unique
):
    topic = kafka.create_topic(unique, partitions=1)
    install_outbox(shared_cluster, kafka, database)
    with shared_cluster.connect(database, autocommit=True) as now, shared_cluster.connect(database) as late:
        enqueue(now, topic, "first")
        enqueue(late, topic, "late 1")
        with shared_cluster.connect(database) as prepared:
            enqueue(prepared, topic, "prepared")
            prepared.execute(f"PREPARE TRANSACTION '{unique}'")
        (first_segment,) = states(shared_cluster, database)
        for i in range(3):
            roll(shared_cluster, database)
            enqueue(now, topic, f"roll {i}")
        drain(shared_cluster, database)
        enqueue(late, topic, "late 2")
        # the segments without writers are drained around it, and each writer alone holds the first one back
        wait_until(lambda: list(states(shared_cluster, database).values()) == ["rolled", "drained", "drained", "open"], 30)
        late.commit()
        now.execute(f"COMMIT PREPARED '{unique}'")
    drain(shared_cluster, database)
    sent = values(kafka.read_all(topic))
    assert sent == ["first", "roll 0", "roll 1", "roll 2", "late 1", "late 2", "prepared"]
    wait_until(lambda: states(shared_cluster, database)[first_segment] == "drained", 30, "the first segment is drained")


def test_a_segment_with_only_a_prepared_writer_is_not_drained_before_it_ends(shared_cluster, database, kafka, unique):
    topic = kafka.create_topic(unique, partitions=1)
    install_outbox(shared_cluster, kafka, database)
    with shared_cluster.connect(database) as prepared:
        enqueue(prepared, topic, "prepared")
        prepared.execute(f"PREPARE TRANSACTION '{unique}'")
    for _ in range(3):
        roll(shared_cluster, database)
    # rolled later and drained earlier: so the worker has judged the first one too
    wait_until(lambda: list(states(shared_cluster, database).values())[1:3] == ["drained"] * 2, 30, "two are drained")
    assert states(shared_cluster, database)[1] == "rolled"
    shared_cluster.sql(f"COMMIT PREPARED '{unique}'", dbname=database)
    drain(shared_cluster, database)
    assert values(kafka.read_all(topic)) == ["prepared"]
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
    assert set(sent) == expected and len(sent) == len(expected)
    wait_drained(shared_cluster, database)


def test_rolls_in_competition_are_done_or_refused_with_55p03(shared_cluster, database, kafka, unique):
    install_outbox(shared_cluster, kafka, database)
    roll(shared_cluster, database)
    with shared_cluster.connect(database) as rolling:
        rolling.execute("SELECT outbox.roll()")
        refused = shared_cluster.psql(
            "DO $$ BEGIN PERFORM outbox.roll(); EXCEPTION WHEN lock_not_available THEN RAISE NOTICE 'refused'; END $$;"
            "SELECT 'done'", dbname=database,
        )  # fmt: skip
        assert refused.strip() == "done"
    roll(shared_cluster, database)
    wait_drained(shared_cluster, database)
    assert sorted(states(shared_cluster, database)) == [1, 2, 3]
