"""Retention takes what is drained and old, and nothing else: not what a late transaction has written, not what Kafka has not got."""

import pytest
from harness import install_outbox, seeded, size, wait_until
from harness.load import Load, assert_nothing_is_left, check, drain
from harness.segments import (
    BUSY,
    Watch,
    configure,
    describe,
    roll,
    states,
    tables,
    wait_dropped,
    wait_only_open,
    wait_opened,
    waits_for,
)


def enqueue(connection, topic, value, key="k"):
    return str(connection.execute("SELECT outbox.enqueue(%s, %s, %s)", [topic, value, key]).fetchone()[0])


def values(records):
    return [r.value.decode() for r in sorted(records, key=lambda r: r.offset)]


# ---- a transaction that commits late


class Late:
    """A transaction that enqueues and is not ended yet; `name` is what the operator is told to look for."""

    def __init__(self, cluster, topic, unique, kind):
        self.cluster, self.topic, self.gid = cluster, topic, f"late {unique}"
        self.kind = kind
        self.connection = cluster.connect()
        if kind == "old snapshot":
            self.connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            self.connection.execute("SELECT count(*) FROM pg_class")
        if kind == "savepoint":
            self.connection.execute("SAVEPOINT s")
        enqueue(self.connection, topic, "late 1")
        self.name = str(self.connection.info.backend_pid)
        if kind == "prepared":
            self.connection.execute(f"PREPARE TRANSACTION '{self.gid}'")
            self.connection.close()
            self.name = self.gid

    def commit(self):
        """Returns what it has written."""
        if self.kind == "prepared":
            self.cluster.sql(f"COMMIT PREPARED '{self.gid}'")
            return ["late 1"]
        if self.kind == "savepoint":
            self.connection.execute("RELEASE s")
        enqueue(self.connection, self.topic, "late 2")  # in the newest segment
        self.connection.commit()
        self.connection.close()
        return ["late 1", "late 2"]


@pytest.mark.parametrize("kind", ["plain", "prepared", *size([], ["savepoint", "old snapshot"])])
def test_what_a_transaction_wrote_three_rolls_before_and_commits_after_retention_is_delivered(cluster, kafka, unique, kind):
    topic = kafka.create_topic(unique, partitions=1)
    install_outbox(cluster, kafka)
    configure(cluster, retention="1s")
    with cluster.connect(autocommit=True) as now:
        enqueue(now, topic, "first")
        (segment,) = tables(cluster)
        late = Late(cluster, topic, unique, kind)
        for i in range(3):
            roll(cluster)
            enqueue(now, topic, f"roll {i}")
        # retention is over for what was rolled after it and drained
        wait_dropped(cluster, segment + 1, segment + 2)
        assert states(cluster) == {segment: "rolled", segment + 3: "open"}
        wait_until(lambda: late.name in waits_for(cluster).get(segment, ""), 10, lambda: f"{late.name}: {describe(cluster)}")
        drain(cluster)
        assert segment in tables(cluster)
        its = late.commit()
    drain(cluster)
    assert values(kafka.read_all(topic)) == ["first", "roll 0", "roll 1", "roll 2", *its]
    wait_only_open(cluster)
    assert_nothing_is_left(cluster)


# ---- a broker that is away


def missing(cluster, load):
    """How many messages that the load committed are in the log no more."""
    return cluster.value(
        "SELECT count(*) FROM event e WHERE key = ANY (%s) AND NOT EXISTS"
        " (SELECT FROM outbox._message m WHERE m.message_id = e.message_id)",
        [load.keys],
    )


@pytest.mark.parametrize("how", ["down and the server restarted", "paused", *size([], ["down"])])
def test_no_segment_with_unpublished_messages_goes_while_kafka_is_away_for_longer_than_retention(cluster, own_kafka, how):
    topic = own_kafka.create_topic("t", partitions=3)
    install_outbox(cluster, own_kafka)
    cluster.sql("SELECT outbox.enqueue(%s, 'first', 'other')", [topic])
    drain(cluster)
    if how == "paused":
        cluster.sql("SELECT outbox.pause()")
    else:
        own_kafka.stop()
    configure(cluster, **BUSY)
    with Watch(cluster) as watch, Load(cluster, topic) as load:
        load.wait_for_more(10)
        begun = max(states(cluster))
        load.run_for(size(1, 60))
        # long after it was closed, and after others were
        wait_opened(cluster, begun + 5, timeout=60)
    if "restarted" in how:
        cluster.restart(seeded("outage").choice(["fast", "immediate"]))
        cluster.sql("SELECT outbox.enqueue(%s, 'restarted', 'other')", [topic])
        wait_opened(cluster, max(states(cluster)) + 1)
    assert missing(cluster, load) == 0
    found = states(cluster)
    assert set(range(begun, max(found) + 1)) <= found.keys()
    assert set(found.values()) - {"open"} == {"rolled"}, found
    assert all("drained" not in its for segment, its in watch.seen.items() if segment >= begun), watch.seen
    if how == "paused":
        cluster.sql("SELECT outbox.resume()")
    else:
        own_kafka.start()
    drain(cluster, seconds=60)
    with own_kafka.reader(topic) as reader:
        check(load, [r for r in reader.read_all() if r.key != b"other"])
        reader.assert_nothing_more()
    wait_only_open(cluster, timeout=60)
    assert_nothing_is_left(cluster)
