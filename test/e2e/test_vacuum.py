"""What vacuum does to the message log while messages wait in it: places are reused, tables rewritten; every message arrives once."""

import pytest
from harness import RealKafka, install_outbox, size, wait_until
from harness.load import assert_nothing_is_left, drain

# The worker holds up to 100,000 messages in memory; what is behind them it knows by their place in the table only.
READ_AHEAD = 100_000
COUNT = size(200_000, 1_000_000)
FEW = 1000
ROLLED_BACK = 20_000


@pytest.fixture(scope="module")
def kafka():
    """One that these tests may pause."""
    with RealKafka() as kafka:
        yield kafka


@pytest.fixture
def topic(kafka, unique):
    return kafka.create_topic(unique, partitions=3)


@pytest.fixture
def setup(cluster, kafka, topic):
    """A connection; a first message is published. Table `sent`: what was enqueued, by id."""
    install_outbox(cluster, kafka, options={"batch.num.messages": 500})  # slow enough to be met halfway
    connection = cluster.connect(autocommit=True)
    connection.execute("CREATE TABLE sent (id uuid, payload text)")
    enqueue(connection, topic, "first", 1)
    drain(cluster)
    connection.execute("SELECT outbox.reset_counters()")
    return connection


def enqueue(connection, topic, name, count):
    """Each payload says which message it belongs to."""
    connection.execute(
        "INSERT INTO sent SELECT outbox.enqueue(%s, payload, payload), payload"
        " FROM (SELECT %s || ' ' || n AS payload FROM generate_series(1, %s) n) s",
        [topic, name, count],
    )


def enqueue_and_roll_back(connection, topic, name, count):
    """In a savepoint: the index keeps the rows under the id of the transaction, which commits."""
    connection.execute("SAVEPOINT s")
    enqueue(connection, topic, name, count)
    connection.execute("ROLLBACK TO s")


def check(cluster, kafka, topic):
    """The topic has each committed message once, with its own payload and key."""
    found = sorted((r.id, r.value.decode(), r.key.decode()) for r in kafka.read_all(topic))
    expected = sorted(cluster.sql("SELECT id::text, payload, payload FROM sent"))
    assert len(found) == len(expected)
    assert found == expected
    assert_nothing_is_left(cluster)


def blocks(connection, name):
    """The first and the last block of the table that hold messages of this name."""
    return connection.execute(
        "SELECT min((ctid::text::point)[0])::int, max((ctid::text::point)[0])::int FROM outbox._message_1"
        " WHERE convert_from(payload, 'UTF8') LIKE %s",
        [name + " %"],
    ).fetchone()


# ---- an aborted transaction


@pytest.mark.parametrize("paused", [False, True], ids=["publishing", "paused"])
def test_places_of_an_aborted_transaction_are_reused_and_only_committed_messages_arrive(cluster, setup, kafka, topic, paused):
    c = setup
    if paused:  # the worker has listed what waits before its places change
        c.execute("SELECT outbox.pause()")
        wait_until(lambda: c.execute("SELECT state FROM outbox.workers").fetchone()[0] == "paused", 10, "paused")
    with c.transaction():
        enqueue(c, topic, "before", 1000)
        enqueue_and_roll_back(c, topic, "savepoint", 1000)
        enqueue(c, topic, "behind the savepoint", 1000)
    wait_until(lambda: c.execute("SELECT pending FROM outbox.lanes").fetchone()[0] == (2000 if paused else 0), 20)
    c.execute("BEGIN")
    enqueue(c, topic, "aborted", 100_000)
    assert blocks(c, "aborted")[1] > 1000
    c.execute("ROLLBACK")
    c.execute("VACUUM outbox._message_1")
    enqueue(c, topic, "after", 2000)
    first, _ = blocks(c, "after")
    assert first <= blocks(c, "behind the savepoint")[1], "places of the savepoint are used again"
    if paused:
        c.execute("SELECT outbox.resume()")
    drain(cluster)
    check(cluster, kafka, topic)


# ---- in the middle of a window


def stop_in_the_middle(cluster, kafka, connection):
    """The broker hangs; the worker has a part of the window acknowledged, and a part not even read."""
    counters = "SELECT published, pending FROM outbox.lanes"
    wait_until(lambda: connection.execute(counters).fetchone()[0] > 1000, 30, "the window is on its way", interval=0.001)
    kafka.pause()
    reports = []

    def silent():
        reports.append(connection.execute(counters).fetchone())
        return reports[-20:] == [reports[-1]] * 20

    wait_until(silent, 10, "no more reports come")
    published, pending = reports[-1]
    assert published + READ_AHEAD < COUNT, f"{published} were sent already"
    assert pending > READ_AHEAD
    return published


def used_again(connection):
    query = (
        "SELECT count(*) FROM outbox._message_1 WHERE convert_from(payload, 'UTF8') LIKE 'after %%'"
        " AND (ctid::text::point)[0] > %s AND (ctid::text::point)[0] < %s"
    )
    return connection.execute(query, [blocks(connection, "kept")[1], blocks(connection, "behind")[0]]).fetchone()[0] > FEW


def change_places(connection, topic, statement):
    """Returns whether the table was rewritten."""
    file = "SELECT pg_relation_filenode('outbox._message_1')"
    before = connection.execute(file).fetchone()
    connection.execute(statement)
    # these take the places of all that is rolled back, if the table keeps them
    enqueue(connection, topic, "after", ROLLED_BACK + FEW)
    return connection.execute(file).fetchone() != before


@pytest.mark.parametrize(
    "statement",
    ["VACUUM outbox._message_1", "VACUUM FULL outbox._message_1", "CLUSTER outbox._message_1 USING _message_1_window"],
    ids=["vacuum", "vacuum_full", "cluster"],
)
def test_a_segment_vacuumed_in_the_middle_of_its_window_loses_and_repeats_nothing(cluster, setup, kafka, topic, statement):
    c = setup
    with c.transaction():
        enqueue_and_roll_back(c, topic, "rolled back at first", FEW)  # a rewrite moves all that is behind
        enqueue(c, topic, "kept", COUNT - ROLLED_BACK)
        enqueue_and_roll_back(c, topic, "rolled back at last", ROLLED_BACK)
        enqueue(c, topic, "behind", ROLLED_BACK)
    try:
        published = stop_in_the_middle(cluster, kafka, c)
        rewritten = change_places(c, topic, statement)
        assert rewritten == (not statement.startswith("VACUUM outbox"))
        assert rewritten or used_again(c), "new messages stand where the list has rolled-back ones"
        assert c.execute("SELECT published FROM outbox.lanes").fetchone()[0] == published, "still in the middle"
    finally:
        kafka.resume()
    drain(cluster, seconds=size(60, 300))
    print(f"{statement} when {published} of {COUNT} were acknowledged")
    check(cluster, kafka, topic)
