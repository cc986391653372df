"""The harness itself, without the extension: servers start and stop, brokers take records, readers see them byte for byte."""

import pytest
from confluent_kafka import Producer
from harness import Reader, wait_until

WITHOUT_OUTBOX = {"shared_preload_libraries": ""}

RECORDS = [
    (b"k", b"one", [("a", b"1"), ("a", b"2"), ("b", None), ("c", b"")]),
    (b"", b"", []),
    (None, None, [("t", bytes(range(256)))]),
]


def produce(bootstrap, topic, records=RECORDS, timeout=30, **config):
    """Returns the errors of the delivery reports; None if some are still missing after the timeout."""
    errors = []
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0, "reconnect.backoff.max.ms": 200, **config})
    for key, value, headers in records:
        producer.produce(topic, value, key, headers=headers, on_delivery=lambda e, _: errors.append(e))
    return None if producer.flush(timeout) else [e for e in errors if e]


@pytest.fixture(params=["embedded", "kafka"])
def broker(request):
    return request.getfixturevalue(request.param)


def test_a_reader_gets_keys_values_and_headers_byte_for_byte(broker, unique):
    broker.create_topic(unique, partitions=1)
    assert produce(broker.bootstrap, unique) == []
    with broker.reader(unique) as reader:
        records = reader.read(until=3)
        assert [(r.key, r.value, r.headers) for r in records] == RECORDS
        assert [(r.partition, r.offset) for r in records] == [(0, 0), (0, 1), (0, 2)]
        assert records[0].timestamp > 1_600_000_000_000
        reader.assert_nothing_more()


def test_a_reader_notices_a_record_too_many(broker, unique):
    broker.create_topic(unique, partitions=2)
    produce(broker.bootstrap, unique)
    with broker.reader(unique) as reader:
        reader.read(until=3)
        produce(broker.bootstrap, unique, RECORDS[:1])
        with pytest.raises(AssertionError, match="1 records more"):
            reader.assert_nothing_more()
    assert len(broker.read_all(unique)) == 4


def test_a_reader_says_how_much_is_missing(broker, unique):
    broker.create_topic(unique)
    produce(broker.bootstrap, unique)
    with pytest.raises(AssertionError, match="3 records, until 4"):
        broker.consume(unique, until=4, timeout=1)


def test_the_embedded_kafka_fails_on_command(embedded):
    embedded.create_topic("t", partitions=4)
    embedded.inject("Produce", "MSG_SIZE_TOO_LARGE", 1)
    (error,) = produce(embedded.bootstrap, "t", RECORDS[:1])
    assert error.name() == "MSG_SIZE_TOO_LARGE"
    with pytest.raises(ValueError, match="not the name of an error"):
        embedded.inject("Produce", "NO_SUCH_ERROR")


def test_the_embedded_kafka_is_silent_while_it_is_down(embedded):
    embedded.create_topic("t")
    embedded.down()
    assert produce(embedded.bootstrap, "t", timeout=1) is None
    embedded.up()
    assert produce(embedded.bootstrap, "t") == []


def test_the_embedded_kafka_can_take_a_leader_away(embedded):
    embedded.create_topic("t", partitions=1)
    embedded.set_leader("t", 0, None)
    assert produce(embedded.bootstrap, "t", timeout=1) is None
    embedded.set_leader("t", 0, 1)
    assert produce(embedded.bootstrap, "t") == []


def test_a_real_broker_keeps_its_records_over_kill_and_pause(own_kafka):
    own_kafka.create_topic("t", partitions=1, config={"max.message.bytes": 2000})
    assert produce(own_kafka.bootstrap, "t", acks="all") == []
    own_kafka.kill()
    assert not own_kafka.running
    own_kafka.start()
    own_kafka.pause()
    assert produce(own_kafka.bootstrap, "t", timeout=1) is None
    own_kafka.resume()
    (error,) = produce(own_kafka.bootstrap, "t", [(None, b"x" * 3000, [])])
    assert error.name() == "MSG_SIZE_TOO_LARGE"
    own_kafka.alter_topic("t", {"max.message.bytes": 4000})
    wait_until(lambda: produce(own_kafka.bootstrap, "t", [(None, b"x" * 3000, [])]) == [], 10, "the larger limit")
    assert [r.value for r in own_kafka.read_all("t")][:3] == [value for _, value, _ in RECORDS]


def test_rights_count_on_the_secure_listener(make_real_kafka):
    kafka = make_real_kafka(secure=True)
    kafka.create_topic("t")
    alice = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "alice",
        "sasl.password": "alice-secret",
        "ssl.ca.location": str(kafka.ca),
    }
    errors = produce(kafka.secure_bootstrap, "t", **alice)
    assert {e.name() for e in errors} == {"TOPIC_AUTHORIZATION_FAILED"}
    kafka.grant("alice", "Write", "Describe", topic="t")
    wait_until(lambda: produce(kafka.secure_bootstrap, "t", **alice) == [], 10, "alice may write")
    kafka.revoke("alice", "Write", topic="t")
    wait_until(lambda: produce(kafka.secure_bootstrap, "t", **alice), 10, "alice may not write any more")
    with Reader(kafka.bootstrap, "t") as reader:
        assert len(reader.read_all()) >= 3


def test_a_cluster_survives_every_way_to_stop_it(make_cluster):
    cluster = make_cluster(WITHOUT_OUTBOX)
    cluster.sql("CREATE TABLE t AS SELECT 1 AS x")
    for stop in (cluster.stop, cluster.crash, cluster.kill9):
        stop()
        assert not cluster.running
        cluster.start()
        assert cluster.value("SELECT x FROM t") == 1
    backend = cluster.connect(autocommit=True)
    cluster.kill9(backend.info.backend_pid)
    wait_until(lambda: "all server processes terminated; reinitializing" in cluster.log)
    cluster.wait_ready()
    cluster.configure(work_mem="9MB")
    cluster.restart()
    assert cluster.value("SHOW work_mem") == "9MB"


def test_copies_standbys_and_dumps_hold_the_same_rows(make_cluster, closing):
    primary = make_cluster(WITHOUT_OUTBOX)
    primary.createdb("latin", encoding="LATIN1")
    primary.sql("CREATE TABLE t AS SELECT 'ü'::text AS x", dbname="latin")

    primary.createdb("restored")
    primary.restore(primary.dump(dbname="latin"), "restored")
    assert primary.value("SELECT x FROM t", dbname="restored") == "ü"

    standby = closing(primary.standby())
    assert standby.value("SELECT pg_is_in_recovery()")
    standby.promote()
    standby.sql("INSERT INTO t VALUES ('after')", dbname="latin")

    primary.stop()
    copy = closing(primary.copy())
    assert copy.sql("SELECT x FROM t", dbname="latin") == [("ü",)]
    assert copy.port != primary.port


def test_a_cluster_leaves_no_process_and_no_file(make_cluster):
    cluster = make_cluster(WITHOUT_OUTBOX)
    assert [b["backend_type"] for b in cluster.backends("checkpointer")] == ["checkpointer"]
    cluster.close()
    assert not cluster.running
    assert not cluster.folder.exists()
