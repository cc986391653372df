"""What ends a producer, a partition without leader, topics that change under load, full queues: nothing lost, in order."""

import collections
import json

import pytest
from confluent_kafka.admin import NewPartitions
from harness import RealKafka, install_outbox, seeded, size, wait_until
from harness.load import Load, assert_nothing_is_left, check, drain

PUBLISHED = "SELECT published FROM outbox.lanes"
# the others that end a producer are in the unit tests
FATAL = ["OUT_OF_ORDER_SEQUENCE_NUMBER", "UNKNOWN_PRODUCER_ID"]


def assert_nothing_failed(cluster, database):
    assert_nothing_is_left(cluster, database)
    assert cluster.sql("SELECT failures FROM outbox.lanes", dbname=database) == [(0,)]


def wait_until_it_publishes(cluster, database, timeout):
    before = cluster.value(PUBLISHED, dbname=database)
    wait_until(lambda: cluster.value(PUBLISHED, dbname=database) > before + 20, timeout, "it publishes")


def assert_receipts_name(records, cluster, database):
    """Partition and offset of each message are those of a record with its id: it was marked with its own report."""
    found = "SELECT message_id::text, kafka_partition, kafka_offset FROM outbox.messages WHERE state = 'published'"
    there = {(r.id, r.partition, r.offset) for r in records}
    for receipt in cluster.sql(found, dbname=database):
        assert receipt in there, f"{receipt} is not on the topic"


def test_a_fatal_error_of_the_producer_under_load_loses_nothing_and_keeps_the_order(
    shared_cluster, database, embedded, unique
):
    embedded.create_topic(unique, partitions=3)
    # the embedded Kafka, other than a real one, takes what comes behind a batch that it has refused: one request at a time
    install_outbox(shared_cluster, embedded, database, options={"max.in.flight": 1})
    rng = seeded("fatal errors")
    with Load(shared_cluster, unique, database) as load:
        for error in FATAL * size(2, 4):
            load.wait_for_more(rng.randrange(20, 60))
            embedded.inject("Produce", error, 1)
            wait_until_it_publishes(shared_cluster, database, 60)  # behind each error the next producer starts later
    drain(shared_cluster, database)
    records = embedded.read_all(unique)
    check(load, records)
    assert_receipts_name(records, shared_cluster, database)
    assert_nothing_failed(shared_cluster, database)
    assert "Fatal error: Broker: Broker received an out of order sequence number" in shared_cluster.log


def test_a_partition_without_leader_waits_and_the_others_go_on(shared_cluster, database, embedded, unique):
    embedded.create_topic(unique, partitions=3)
    install_outbox(shared_cluster, embedded, database)
    with Load(shared_cluster, unique, database) as load:
        load.wait_for_more(50)
        embedded.set_leader(unique, 0, None)
        load.wait_for_more(20)
        before = shared_cluster.value(PUBLISHED, dbname=database)
        load.run_for(size(7, 30))
        assert shared_cluster.value(PUBLISHED, dbname=database) > before + 20, "the other partitions go on"
        assert shared_cluster.value("SELECT pending > 20 FROM outbox.lanes", dbname=database)
        embedded.set_leader(unique, 0, 1)
    drain(shared_cluster, database)
    check(load, embedded.read_all(unique))
    assert_nothing_failed(shared_cluster, database)


def test_a_topic_without_any_leader_is_said_and_waited_for(shared_cluster, database, embedded, unique):
    embedded.create_topic(unique, partitions=2)
    install_outbox(shared_cluster, embedded, database)
    state = "SELECT state, reason FROM outbox.workers"
    with Load(shared_cluster, unique, database) as load:
        load.wait_for_more(50)
        for partition in (0, 1):
            embedded.set_leader(unique, partition, None)
        wait_until(lambda: shared_cluster.sql(state, dbname=database)[0][0] == "backing_off", 20, "it says so")
        assert "acknowledged nothing" in shared_cluster.sql(state, dbname=database)[0][1]
        load.run_for(size(1, 25))
        for partition in (0, 1):
            embedded.set_leader(unique, partition, 1)
    drain(shared_cluster, database)
    check(load, embedded.read_all(unique))
    assert_nothing_failed(shared_cluster, database)


def test_a_topic_deleted_and_created_again_under_load_goes_on_and_nothing_is_silently_gone(
    shared_cluster, database, kafka, unique
):
    topic = kafka.create_topic(unique, partitions=2)
    install_outbox(shared_cluster, kafka, database)
    with Load(shared_cluster, topic, database, name="before") as before:
        before.wait_for_more(50)
        kafka.delete_topic(topic)
        wait_until(lambda: topic not in kafka.admin.list_topics(timeout=5).topics, 10, "the topic is gone")
        before.wait_for_more(20)
    with Load(shared_cluster, topic, database, name="without") as without:
        without.wait_for_more(50)
        without.run_for(size(0, 10))  # in full size its messages are dead meanwhile
        kafka.create_topic(topic, partitions=2)
        without.wait_for_more(50)
    drain(shared_cluster, database)
    with Load(shared_cluster, topic, database, name="after") as after:
        after.wait_for_more(100)
    drain(shared_cluster, database)
    records = kafka.read_all(topic)
    check(after, [r for r in records if r.key.decode() in after.keys])
    # what was on its way when the topic went may have gone with it; all else is on the new one or dead, once
    on_topic = collections.Counter(r.id for r in records)
    dead = {i for (i,) in shared_cluster.sql("SELECT message_id::text FROM outbox.dead_letters", dbname=database)}
    assert without.events().keys() - dead == on_topic.keys() & without.events().keys()
    assert dead <= without.events().keys() | before.events().keys()
    assert not dead & on_topic.keys() and set(on_topic.values()) == {1}
    states = shared_cluster.sql("SELECT state, count(*) FROM outbox.messages GROUP BY 1", dbname=database)
    assert dict(states).keys() <= {"published", "dead"} and dict(states).get("dead", 0) == len(dead), states


def test_partitions_added_under_keyed_load_lose_nothing_and_keep_the_order_within_each(
    shared_cluster, database, kafka, unique
):
    topic = kafka.create_topic(unique, partitions=2)
    # otherwise a minute
    install_outbox(shared_cluster, kafka, database, options={"topic.metadata.refresh.interval.ms": 500})
    with Load(shared_cluster, topic, database) as load:
        load.wait_for_more(50)
        kafka.admin.create_partitions([NewPartitions(topic, 7)])[topic].result()
        with kafka.reader(topic) as reader:
            reader.read(lambda records: len({r.partition for r in records}) > 2, 30)
        load.wait_for_more(size(100, 2000), timeout=120)
    drain(shared_cluster, database)
    records = kafka.read_all(topic)
    events = load.events()
    assert sorted(r.id for r in records) == sorted(events), "each once"
    versions = collections.defaultdict(list)
    for record in sorted(records, key=lambda r: r.offset):
        versions[record.key, record.partition].append(json.loads(record.value)["version"])
    for where, found in versions.items():
        assert found == list(range(found[0], found[0] + len(found))), f"{where}: {found}"
    # a key changes its partition once, and all before the change are in the old one
    for key in {key for key, _ in versions}:
        parts = sorted(found for (k, _), found in versions.items() if k == key)
        assert len(parts) <= 2 and sum(parts, []) == list(range(1, sum(map(len, parts)) + 1)), f"{key}: {parts}"
    assert_nothing_failed(shared_cluster, database)


@pytest.fixture(scope="module")
def pausable_kafka():
    with RealKafka() as kafka:
        yield kafka


@pytest.mark.parametrize("options", [{"queue.buffering.max.messages": 10}, {"queue.buffering.max.kbytes": 1}])
def test_a_tiny_queue_is_only_back_pressure(options, shared_cluster, database, pausable_kafka, unique):
    topic = pausable_kafka.create_topic(unique, partitions=2)
    install_outbox(shared_cluster, pausable_kafka, database, options=options)
    large, rows = 200_000, size(60, 1000)  # together more than the least size of the queue in bytes, 4 MB
    with Load(shared_cluster, topic, database) as load:
        load.wait_for_more(50)
        pausable_kafka.pause()
        shared_cluster.sql(
            "SELECT outbox.enqueue(%s, lpad(n::text, %s, '0'), 'large') FROM generate_series(1, %s) n",
            [topic, large, rows],
            dbname=database,
        )
        load.wait_for_more(50)
        pausable_kafka.resume()
        load.wait_for_more(50)
    drain(shared_cluster, database)
    records = pausable_kafka.read_all(topic)
    check(load, [r for r in records if r.key != b"large"])
    numbers = [int(r.value[-10:]) for r in sorted(records, key=lambda r: r.offset) if r.key == b"large"]
    assert numbers == list(range(1, rows + 1))
    assert_nothing_failed(shared_cluster, database)
