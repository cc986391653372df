"""What Kafka refuses: only that becomes a dead letter, its neighbours arrive once and in order, other topics do not wait."""

import re

import psycopg
import pytest
from harness import RealKafka, install_outbox, wait_until

TOO_LARGE, UNKNOWN_TOPIC, FORBIDDEN, INVALID_TIMESTAMP, INVALID_RECORD = 10, 3, 29, 32, 87
SMALL_LIMIT = {"max.message.bytes": 2000}
TOO_MUCH = "x" * 5000

COLUMNS = (
    "message_id topic key payload key_bytes payload_bytes headers enqueued_at reason error_code attempts"
    " first_failed_at last_failed_at"
).split()


def enqueue(connection, topic, payload, key=None, headers=None):
    return connection.execute("SELECT outbox.enqueue(%s, %s::text, %s, %s::jsonb)", [topic, payload, key, headers]).fetchone()[0]


def enqueue_one(cluster, database, topic, payload, key=None, headers=None):
    with cluster.connect(database) as c:
        return enqueue(c, topic, payload, key, headers)


def enqueue_twenty(connection, topic, large=()):
    """20 messages of one key, 10,000 bytes together; those in `large` are larger than SMALL_LIMIT alone."""
    return [enqueue(connection, topic, TOO_MUCH if n in large else f"{n:02}" + "x" * 500, "k") for n in range(20)]


def dead_letters(cluster, database):
    with cluster.connect(database, autocommit=True, row_factory=psycopg.rows.dict_row) as c:
        return c.execute("SELECT * FROM outbox.dead_letters ORDER BY enqueued_at").fetchall()


def wait_dead(cluster, database, *message_ids, timeout=30):
    """Wait until exactly these messages are dead; returns their rows."""
    wanted = set(message_ids)
    wait_until(
        lambda: {d["message_id"] for d in dead_letters(cluster, database)} == wanted,
        timeout,
        lambda: f"dead: {dead_letters(cluster, database)}",
    )
    return dead_letters(cluster, database)


def drain(cluster, database):
    assert cluster.value("SELECT outbox.drain('30 s')", dbname=database)


def resend(cluster, database, message_id):
    cluster.sql("SELECT outbox.resend(%s)", [message_id], dbname=database)


def ids(records):
    return [r.id for r in records]


def without(message_ids, *positions):
    return [str(i) for n, i in enumerate(message_ids) if n not in positions]


# ---- sizes


def test_small_messages_whose_sum_exceeds_the_limit_all_arrive(shared_cluster, database, kafka, unique):
    topic = kafka.create_topic(unique, partitions=1, config=SMALL_LIMIT)
    install_outbox(shared_cluster, kafka, database)
    with shared_cluster.connect(database) as c:
        sent = enqueue_twenty(c, topic)
    with kafka.reader(topic) as reader:
        assert ids(reader.read(until=20)) == without(sent)
        drain(shared_cluster, database)
        reader.assert_nothing_more()
    assert dead_letters(shared_cluster, database) == []


def test_only_the_message_too_large_for_its_topic_is_dead(shared_cluster, database, kafka, unique):
    topic = kafka.create_topic(unique, partitions=1, config=SMALL_LIMIT)
    install_outbox(shared_cluster, kafka, database)
    with shared_cluster.connect(database) as c:
        sent = enqueue_twenty(c, topic, large=[9])
    with kafka.reader(topic) as reader:
        assert ids(reader.read(until=19)) == without(sent, 9)
        drain(shared_cluster, database)
        reader.assert_nothing_more()
    (dead,) = wait_dead(shared_cluster, database, sent[9])
    assert dead["error_code"] == TOO_LARGE
    assert "max.message.bytes" in dead["reason"]
    assert str(SMALL_LIMIT["max.message.bytes"]) in dead["reason"], "the limit was read from the broker"


def test_a_limit_lowered_a_moment_ago_kills_only_what_is_too_large(shared_cluster, database, kafka, unique):
    topic = kafka.create_topic(unique, partitions=1)
    install_outbox(shared_cluster, kafka, database)
    first = enqueue_one(shared_cluster, database, topic, "the worker knows the old limit")
    with kafka.reader(topic) as reader:
        reader.read(until=1)
        kafka.alter_topic(topic, SMALL_LIMIT)
        with shared_cluster.connect(database) as c:
            sent = enqueue_twenty(c, topic, large=[3, 15])
        records = reader.read(until=19)
        drain(shared_cluster, database)
        reader.assert_nothing_more()
    assert ids(records) == [str(first), *without(sent, 3, 15)]
    rows = wait_dead(shared_cluster, database, sent[3], sent[15])
    assert [r["error_code"] for r in rows] == [TOO_LARGE, TOO_LARGE]


def test_a_raised_limit_lets_a_resent_message_through(shared_cluster, database, kafka, unique):
    topic = kafka.create_topic(unique, partitions=1, config=SMALL_LIMIT)
    install_outbox(shared_cluster, kafka, database)
    message_id = enqueue_one(shared_cluster, database, topic, TOO_MUCH, "k")
    wait_dead(shared_cluster, database, message_id)
    kafka.alter_topic(topic, {"max.message.bytes": 10_000})

    def resent_until_published():
        # the limits are read again on a refusal: the second time at the latest it goes through
        if dead_letters(shared_cluster, database):
            resend(shared_cluster, database, message_id)
        drain(shared_cluster, database)
        return dead_letters(shared_cluster, database) == []

    wait_until(resent_until_published, 15, "the resent message is published")
    (record,) = kafka.read_all(topic)
    assert record.id == str(message_id)


# ---- what a dead letter tells, and how it comes back


def test_a_dead_letter_tells_everything_and_comes_back_with_the_same_id(shared_cluster, database, kafka, unique):
    headers = '{"a": ["1", null], "b": "2"}'
    install_outbox(shared_cluster, kafka, database)
    before = shared_cluster.value("SELECT clock_timestamp()")
    message_id = enqueue_one(shared_cluster, database, unique, "päyload", "kéy", headers)
    (dead,) = wait_dead(shared_cluster, database, message_id)
    assert list(dead) == COLUMNS
    assert (dead["topic"], dead["key"], dead["payload"]) == (unique, "kéy", "päyload")
    assert (dead["key_bytes"], dead["payload_bytes"]) == ("kéy".encode(), "päyload".encode())
    assert dead["headers"] == {"a": ["1", None], "b": "2"}
    assert (dead["error_code"], dead["attempts"]) == (UNKNOWN_TOPIC, 1)
    assert "unknown" in dead["reason"] and unique in dead["reason"]
    assert before <= dead["enqueued_at"] <= dead["first_failed_at"] <= dead["last_failed_at"]
    assert dead["last_failed_at"] <= shared_cluster.value("SELECT clock_timestamp()")
    assert state(shared_cluster, database, message_id) == ("dead", None, None)
    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState):
        shared_cluster.sql("SELECT outbox.wait_published(%s, '1 s')", [message_id], dbname=database)

    topic = kafka.create_topic(unique, partitions=1)
    enqueue_one(shared_cluster, database, topic, "a later message of the key", "kéy")
    resend(shared_cluster, database, message_id)
    with kafka.reader(topic) as reader:
        later, record = reader.read(until=2)
        drain(shared_cluster, database)
        reader.assert_nothing_more()
    assert (later.value, record.id) == (b"a later message of the key", str(message_id))
    assert (record.key, record.value) == ("kéy".encode(), "päyload".encode())
    assert [h for h in record.headers if h[0] != "id"] == [("a", b"1"), ("a", None), ("b", b"2")]
    assert record.timestamp == int(dead["enqueued_at"].timestamp() * 1000), "the time of the enqueue"
    assert dead_letters(shared_cluster, database) == []
    assert state(shared_cluster, database, message_id) == ("published", record.partition, record.offset)


def state(cluster, database, message_id):
    query = "SELECT state, kafka_partition, kafka_offset FROM outbox.get_message(%s)"
    (row,) = cluster.sql(query, [message_id], dbname=database)
    return row


def test_a_message_is_dead_again_if_it_fails_again_and_survives_a_crash(make_cluster, kafka, unique):
    cluster = make_cluster()
    topic = kafka.create_topic(unique, partitions=1, config=SMALL_LIMIT)
    install_outbox(cluster, kafka)
    message_id = enqueue_one(cluster, "postgres", topic, TOO_MUCH)
    wait_dead(cluster, "postgres", message_id)
    resend(cluster, "postgres", message_id)
    wait_until(lambda: dead_letters(cluster, "postgres") != [], 30, "it is dead again")
    cluster.sql("CHECKPOINT")
    cluster.crash()
    cluster.start()
    (dead,) = wait_dead(cluster, "postgres", message_id)
    assert (dead["error_code"], dead["attempts"]) == (TOO_LARGE, 2)
    assert dead["first_failed_at"] < dead["last_failed_at"]
    assert state(cluster, "postgres", message_id) == ("dead", None, None)
    kafka.alter_topic(topic, {})
    resend(cluster, "postgres", message_id)
    drain(cluster, "postgres")
    wait_until(lambda: dead_letters(cluster, "postgres") == [], 30)
    assert ids(kafka.read_all(unique)) == [str(message_id)]


def test_only_dead_letters_can_be_resent_and_not_yet_with_corrections(shared_cluster, database, kafka, unique):
    topic = kafka.create_topic(unique, partitions=1)
    install_outbox(shared_cluster, kafka, database)
    published = enqueue_one(shared_cluster, database, topic, "x")
    drain(shared_cluster, database)
    with pytest.raises(psycopg.Error):
        resend(shared_cluster, database, published)
    small = kafka.create_topic(unique + "_small", partitions=1, config=SMALL_LIMIT)
    dead = enqueue_one(shared_cluster, database, small, TOO_MUCH)
    wait_dead(shared_cluster, database, dead)
    with pytest.raises(psycopg.errors.FeatureNotSupported):
        shared_cluster.sql("SELECT outbox.resend(%s, '{\"topic\": \"other\"}')", [dead], dbname=database)
    with shared_cluster.connect(database) as c:
        c.execute("SELECT outbox.resend(%s)", [dead])
        c.rollback()
    assert [d["message_id"] for d in dead_letters(shared_cluster, database)] == [dead], "a resend rolled back is none"
    assert len(kafka.read_all(topic)) == 1


# ---- topics


def test_messages_of_an_unknown_topic_do_not_hold_up_other_topics(shared_cluster, database, kafka, unique):
    topic = kafka.create_topic(unique, partitions=1)
    install_outbox(shared_cluster, kafka, database)
    with shared_cluster.connect(database) as c:
        lost = [enqueue(c, unique + "_missing", "x", "k") for _ in range(3)]
        sent = [enqueue(c, topic, "x", "k") for _ in range(3)]
    with kafka.reader(topic) as reader:
        assert ids(reader.read(until=3)) == without(sent)
        assert dead_letters(shared_cluster, database) == [], "the others did not wait for the verdict"
        wait_dead(shared_cluster, database, *lost)
        drain(shared_cluster, database)
        reader.assert_nothing_more()


def test_a_topic_works_soon_after_it_was_created(shared_cluster, database, kafka, unique):
    install_outbox(shared_cluster, kafka, database)
    lost = enqueue_one(shared_cluster, database, unique, "too early")
    wait_dead(shared_cluster, database, lost)
    kafka.create_topic(unique, partitions=1)
    sent = enqueue_one(shared_cluster, database, unique, "in time")
    assert shared_cluster.value("SELECT outbox.wait_published(%s, '10 s')", [sent], dbname=database)
    assert ids(kafka.read_all(unique)) == [str(sent)]


def test_a_topic_deleted_in_use_is_a_dead_letter_and_others_go_on(shared_cluster, database, kafka, unique):
    topic = kafka.create_topic(unique, partitions=1)
    doomed = kafka.create_topic(unique + "_doomed", partitions=1)
    install_outbox(shared_cluster, kafka, database)
    for name in (topic, doomed):
        enqueue_one(shared_cluster, database, name, "before")
    drain(shared_cluster, database)
    kafka.delete_topic(doomed)
    with shared_cluster.connect(database) as c:
        lost = [enqueue(c, doomed, "x") for _ in range(3)]
        sent = enqueue(c, topic, "after")
    with kafka.reader(topic) as reader:
        assert ids(reader.read(until=2))[1] == str(sent)
    rows = wait_dead(shared_cluster, database, *lost, timeout=60)
    assert {r["error_code"] for r in rows} <= {UNKNOWN_TOPIC, -188}


def test_a_broker_that_creates_topics_gets_the_messages(shared_cluster, database, make_real_kafka, unique):
    kafka = make_real_kafka(properties={"auto.create.topics.enable": "true"})
    install_outbox(shared_cluster, kafka, database)
    with shared_cluster.connect(database) as c:
        sent = [enqueue(c, unique, "x", "k") for _ in range(5)]
    assert ids(kafka.consume(unique, until=5)) == without(sent)
    drain(shared_cluster, database)
    assert dead_letters(shared_cluster, database) == []


# ---- time stamps and compaction


def test_a_message_older_than_its_topic_allows_is_dead_and_its_neighbours_are_not(shared_cluster, database, kafka, unique):
    topic = kafka.create_topic(unique, partitions=1, config={"message.timestamp.before.max.ms": 5000})
    install_outbox(shared_cluster, kafka, database)
    first = enqueue_one(shared_cluster, database, topic, "so that the next ones do not wait for the first connection")
    drain(shared_cluster, database)
    shared_cluster.sql("SELECT outbox.pause()", dbname=database)
    old = enqueue_one(shared_cluster, database, topic, "old", "k")
    age = "SELECT clock_timestamp() - enqueued_at > interval '5.1 s' FROM outbox.get_message(%s)"
    wait_until(lambda: shared_cluster.value(age, [old], dbname=database), interval=0.2)
    with shared_cluster.connect(database) as c:
        young = enqueue(c, topic, "young", "k")
        c.execute("SELECT outbox.resume()")
    assert ids(kafka.consume(topic, until=2)) == [str(first), str(young)]
    (dead,) = wait_dead(shared_cluster, database, old)
    assert dead["error_code"] == INVALID_TIMESTAMP
    assert "message.timestamp.before.max.ms" in dead["reason"]


def test_a_message_without_key_for_a_compacted_topic_is_dead_alone(shared_cluster, database, kafka, unique):
    topic = kafka.create_topic(unique, partitions=1, config={"cleanup.policy": "compact"})
    install_outbox(shared_cluster, kafka, database)
    with shared_cluster.connect(database) as c:
        sent = [enqueue(c, topic, "x", None if n == 2 else "k") for n in range(5)]
    with kafka.reader(topic) as reader:
        assert ids(reader.read(until=4)) == without(sent, 2)
        (dead,) = wait_dead(shared_cluster, database, sent[2])
        reader.assert_nothing_more()
    assert dead["error_code"] == INVALID_RECORD


# ---- rights


@pytest.fixture(scope="module")
def secure_kafka():
    with RealKafka(secure=True) as kafka:
        yield kafka


def install_as_alice(cluster, kafka, database):
    options = {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "ssl.ca.location": kafka.ca}
    secrets = {"sasl.username": "alice", "sasl.password": "alice-secret"}
    install_outbox(cluster, kafka.secure_bootstrap, database, options=options, user_mapping=secrets)


def test_without_the_right_to_read_limits_a_topic_is_not_forbidden(shared_cluster, database, secure_kafka, unique):
    topic = secure_kafka.create_topic(unique, partitions=1, config=SMALL_LIMIT | {"cleanup.policy": "compact"})
    secure_kafka.grant("alice", "Write", "Describe", topic=topic)
    install_as_alice(shared_cluster, secure_kafka, database)
    with shared_cluster.connect(database) as c:
        sent = enqueue_twenty(c, topic, large=[4])
        sent.append(enqueue(c, topic, "without key, on a compacted topic"))
        sent.append(enqueue(c, topic, "last", "k"))
    with secure_kafka.reader(topic) as reader:
        assert ids(reader.read(until=20)) == without(sent, 4, 20)
        drain(shared_cluster, database)
        reader.assert_nothing_more()
    rows = wait_dead(shared_cluster, database, sent[4], sent[20])
    assert [r["error_code"] for r in rows] == [TOO_LARGE, INVALID_RECORD]
    assert all(re.search("refused this message alone", r["reason"]) for r in rows), "the broker said so, not we"


def test_a_forbidden_topic_is_dead_until_it_is_granted_and_again_when_revoked(shared_cluster, database, secure_kafka, unique):
    allowed = secure_kafka.create_topic(unique, partitions=1)
    forbidden = secure_kafka.create_topic(unique + "_forbidden", partitions=1)
    secure_kafka.grant("alice", "Write", "Describe", topic=allowed)
    install_as_alice(shared_cluster, secure_kafka, database)
    with shared_cluster.connect(database) as c:
        lost = enqueue(c, forbidden, "x", "k")
        sent = enqueue(c, allowed, "x", "k")
    assert ids(secure_kafka.consume(allowed, until=1)) == [str(sent)]
    assert dead_letters(shared_cluster, database) == [], "the others did not wait for the verdict"
    (dead,) = wait_dead(shared_cluster, database, lost)
    assert dead["error_code"] == FORBIDDEN and "forbidden" in dead["reason"]

    secure_kafka.grant("alice", "Write", "Describe", topic=forbidden)
    resend(shared_cluster, database, lost)
    assert ids(secure_kafka.consume(forbidden, until=1)) == [str(lost)]

    secure_kafka.revoke("alice", "Write", topic=forbidden)
    with shared_cluster.connect(database) as c:
        lost = [enqueue(c, forbidden, "y", "k") for _ in range(3)]
        sent = enqueue(c, allowed, "y", "k")
    assert ids(secure_kafka.consume(allowed, until=2))[1] == str(sent)
    rows = wait_dead(shared_cluster, database, *lost)
    assert {r["error_code"] for r in rows} == {FORBIDDEN}
    assert len(secure_kafka.read_all(forbidden)) == 1


# ---- injected

ONE_BATCH = {"linger.ms": 200}  # otherwise the first message may be a batch of its own


def test_a_batch_refused_once_arrives_message_by_message(shared_cluster, database, embedded, unique):
    embedded.create_topic(unique, partitions=1)
    install_outbox(shared_cluster, embedded, database, options=ONE_BATCH)
    embedded.inject("Produce", "MSG_SIZE_TOO_LARGE", 1)
    with shared_cluster.connect(database) as c:
        sent = enqueue_twenty(c, unique)
    with embedded.reader(unique) as reader:
        assert ids(reader.read(until=20)) == without(sent)
        drain(shared_cluster, database)
        reader.assert_nothing_more()
    assert dead_letters(shared_cluster, database) == []


@pytest.mark.parametrize("error, code", [("INVALID_RECORD", 87), ("MSG_SIZE_TOO_LARGE", 10), ("POLICY_VIOLATION", 44)])
def test_a_message_refused_alone_is_dead_with_the_reason_of_the_broker(error, code, shared_cluster, database, embedded, unique):
    embedded.create_topic(unique, partitions=1)
    install_outbox(shared_cluster, embedded, database, options=ONE_BATCH)
    embedded.inject("Produce", error, 2)  # the batch, then its first message
    with shared_cluster.connect(database) as c:
        sent = enqueue_twenty(c, unique)
    with embedded.reader(unique) as reader:
        assert ids(reader.read(until=19)) == without(sent, 0)
        reader.assert_nothing_more()
    (dead,) = wait_dead(shared_cluster, database, sent[0])
    assert dead["error_code"] == code
    (lane,) = shared_cluster.sql("SELECT published, failures, last_error FROM outbox.lanes", dbname=database)
    assert lane[:2] == (19, 1)
