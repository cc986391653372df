"""outbox.replay(): what is published and still in the log is published again, in order, marked as such."""

import datetime
import pathlib
import re

import psycopg
import pytest
from harness import install_outbox, size, wait_until

HEADER = "outbox-replayed"


@pytest.fixture
def outbox(shared_cluster, database, kafka, unique):
    """(connection in autocommit, topic with one partition)"""
    topic = kafka.create_topic(unique, partitions=1)
    install_outbox(shared_cluster, kafka, database)
    with shared_cluster.connect(database, autocommit=True) as c:
        yield c, topic


def value(connection, query, params=None):
    row = connection.execute(query, params).fetchone()
    return row and row[0]


def drain(connection):
    assert value(connection, "SELECT outbox.drain('60 s')")


def enqueue(connection, topic, *payloads):
    return [value(connection, "SELECT outbox.enqueue(%s, %s, 'k', '{\"h\": \"1\"}')", [topic, p]) for p in payloads]


def replay(connection, topic, since=None, until=None, target=None):
    return value(connection, "SELECT outbox.replay(%s, %s, %s, %s)", [topic, since, until, target])


def test_what_is_published_is_published_again_in_order_with_its_id_and_a_header(outbox, kafka):
    c, topic = outbox
    other = kafka.create_topic(f"{topic}-other", partitions=1)
    ids = enqueue(c, topic, "a", "b")
    enqueue(c, other, "of another topic")
    c.execute("SELECT outbox.roll()")
    ids += [value(c, "SELECT outbox.enqueue(%s, NULL::text)", [topic])]
    c.execute("SELECT outbox.roll()")
    ids += enqueue(c, topic, "d" * 5000, "e")
    drain(c)
    before = datetime.datetime.now(datetime.UTC)
    c.execute("SELECT outbox.pause()")
    enqueue(c, topic, "not published yet")
    assert replay(c, topic) == 5
    c.execute("SELECT outbox.resume()")
    drain(c)
    records = kafka.consume(topic, until=11)
    first, last = records[:5], records[6:]
    assert [r.id for r in last] == [str(i) for i in ids] == [r.id for r in first]
    for old, new in zip(first, last, strict=True):
        assert (old.key, old.value, old.timestamp) == (new.key, new.value, new.timestamp)
        assert new.headers == [*old.headers, (HEADER, new.header(HEADER))]
    (at,) = {r.header(HEADER).decode() for r in last}
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", at)
    assert abs(datetime.datetime.fromisoformat(at) - before) < datetime.timedelta(seconds=60)
    # copies are not copied: the next call finds the five, and the one that was pending
    assert replay(c, topic) == 6
    drain(c)
    assert replay(c, other) == 1
    assert replay(c, "never used") == 0


def test_both_views_of_a_replayed_message_are_of_the_message_itself(outbox):
    c, topic = outbox
    (message,) = enqueue(c, topic, "x")
    drain(c)
    c.execute("SELECT outbox.pause()")
    assert replay(c, topic) == 1
    rows = "SELECT state, headers ? 'outbox-replayed' FROM outbox.messages WHERE message_id = %s ORDER BY 1"
    assert c.execute(rows, [message]).fetchall() == [("pending", True), ("published", False)]
    assert c.execute("SELECT state, headers FROM outbox.get_message(%s)", [message]).fetchall() == [("published", {"h": "1"})]
    assert value(c, "SELECT outbox.wait_published(%s, '0 s')", [message]) is True
    c.execute("SELECT outbox.resume()")
    drain(c)
    assert c.execute(rows, [message]).fetchall() == [("published", False), ("published", True)]
    offsets = c.execute("SELECT kafka_offset FROM outbox.messages WHERE message_id = %s ORDER BY 1", [message]).fetchall()
    assert offsets == [(0,), (1,)]


def test_since_is_included_until_is_not_and_the_target_topic_may_be_another(outbox, kafka):
    c, topic = outbox
    target = kafka.create_topic(f"{topic}-target", partitions=1)
    ids = enqueue(c, topic, *"abcde")
    drain(c)
    times = [value(c, "SELECT enqueued_at FROM outbox.get_message(%s)", [i]) for i in ids]
    assert replay(c, topic, times[1], times[3], target) == 2
    assert replay(c, topic, times[4], None, target) == 1
    assert replay(c, topic, None, times[1], target) == 1
    assert replay(c, topic, times[3], times[1], target) == 0
    assert replay(c, topic, "-infinity", "infinity", target) == 5
    drain(c)
    records = kafka.consume(target, until=9)
    assert [r.value for r in records] == [b"b", b"c", b"e", b"a", b"a", b"b", b"c", b"d", b"e"]
    assert value(c, "SELECT count(*) FROM outbox.messages WHERE topic = %s", [target]) == 9
    # what was replayed to a topic is no message of that topic
    assert replay(c, target) == 0


def test_a_segment_closed_before_since_is_left_out_and_no_other(outbox):
    c, topic = outbox
    enqueue(c, topic, "a")
    drain(c)
    c.execute("SELECT outbox.roll()")
    # as if it was closed an hour ago, though its message is younger
    c.execute("SET outbox.allow_data_loss = on")
    c.execute("UPDATE outbox._segment_event SET at = at - interval '1 hour' WHERE event = 'rolled'")
    assert replay(c, topic, datetime.datetime.now() - datetime.timedelta(minutes=61)) == 1
    assert replay(c, topic, datetime.datetime.now() - datetime.timedelta(minutes=58)) == 0
    # a segment opened after `until` may have older messages
    c.execute("UPDATE outbox._segment SET opened_at = opened_at + interval '1 hour'")
    assert replay(c, topic, None, datetime.datetime.now() + datetime.timedelta(minutes=30)) == 1


def test_a_dead_letter_is_replayed_once_it_was_resent_and_once_only(outbox, kafka, unique):
    c, topic = outbox
    kafka.alter_topic(topic, {"max.message.bytes": 1000})
    ids = enqueue(c, topic, "a", "x" * 2000, "y" * 2000)
    drain(c)
    assert value(c, "SELECT count(*) FROM outbox.dead_letters") == 2
    assert replay(c, topic) == 1
    kafka.alter_topic(topic, {"max.message.bytes": 100_000})
    c.execute("SELECT outbox.roll()")
    c.execute("SELECT outbox.roll()")

    def resent():
        c.execute("SELECT outbox.resend(%s)", [ids[1]])
        drain(c)
        return value(c, "SELECT state FROM outbox.get_message(%s)", [ids[1]]) == "published"

    wait_until(resent, message="the topic takes it")
    target = kafka.create_topic(f"{unique}-target", partitions=1)
    first = value(c, "SELECT enqueued_at FROM outbox.get_message(%s)", [ids[0]])
    assert replay(c, topic, first, first + datetime.timedelta(seconds=10), target) == 2
    drain(c)
    # the order is that of the log: the resent one stands where it was resent
    assert [r.id for r in kafka.consume(target, until=2)] == [str(ids[0]), str(ids[1])]


def test_a_copy_that_kafka_refuses_is_a_dead_letter_of_its_own(outbox, kafka, unique):
    c, topic = outbox
    (message,) = enqueue(c, topic, "x")
    drain(c)
    absent = f"{unique}-absent"
    assert [replay(c, topic, target=absent) for _ in range(2)] == [1, 1]
    drain(c)
    letters = c.execute("SELECT message_id, topic, headers ->> 'outbox-replayed' FROM outbox.dead_letters").fetchall()
    assert [(m, t) for m, t, _ in letters] == [(message, absent)] * 2
    assert len({at for *_, at in letters}) == 2
    # nothing of that is said of the message
    assert value(c, "SELECT state FROM outbox.get_message(%s)", [message]) == "published"
    assert value(c, "SELECT outbox.wait_published(%s, '0 s')", [message]) is True
    states = "SELECT topic, state FROM outbox.messages WHERE message_id = %s ORDER BY 1, 2"
    assert c.execute(states, [message]).fetchall() == [(topic, "published"), (absent, "dead"), (absent, "dead")]
    assert replay(c, topic, target=topic) == 1
    # refused once more, as itself
    c.execute("SELECT outbox.resend(message_id) FROM outbox.dead_letters")
    assert value(c, "SELECT count(*) FROM outbox.dead_letters") == 0
    drain(c)
    assert c.execute("SELECT attempts FROM outbox.dead_letters").fetchall() == [(2,), (2,)]
    assert c.execute(states, [message]).fetchall() == [(topic, "published")] * 2 + [(absent, "dead")] * 2

    kafka.create_topic(absent, partitions=1)
    c.execute("SELECT outbox.resend(message_id) FROM outbox.dead_letters")

    def gone():
        drain(c)
        if letters := c.execute("SELECT message_id FROM outbox.dead_letters").fetchall():
            for (letter,) in letters:
                c.execute("SELECT outbox.resend(%s)", [letter])
            return False
        return True

    wait_until(gone, message="the new topic takes them")
    records = kafka.consume(absent, until=2)
    assert {(r.id, r.header(HEADER).decode()) for r in records} == {(str(message), at) for *_, at in letters}
    with pytest.raises(psycopg.errors.NoDataFound):
        c.execute("SELECT outbox.resend(%s)", [message])


def test_a_dead_letter_and_its_resent_message_survive_a_refused_copy(outbox, kafka, unique):
    """The row of the dead letter tells which of the message's rows is published; a copy must not take its place."""
    c, topic = outbox
    absent = f"{unique}-absent"
    message = value(c, "SELECT outbox.enqueue(%s, 'x')", [absent])
    drain(c)
    kafka.create_topic(absent, partitions=1)

    def resent():
        c.execute("SELECT outbox.resend(%s)", [message])
        drain(c)
        return value(c, "SELECT state FROM outbox.get_message(%s)", [message]) == "published"

    wait_until(resent, message="the new topic takes it")
    assert replay(c, absent, target=f"{unique}-another") == 1
    drain(c)
    assert value(c, "SELECT count(*) FROM outbox.dead_letters") == 1
    assert value(c, "SELECT state FROM outbox.get_message(%s)", [message]) == "published"
    assert c.execute("SELECT state FROM outbox.messages ORDER BY 1").fetchall() == [("dead",), ("published",)]
    assert replay(c, absent) == 1


def test_wrong_calls_are_refused(outbox, shared_cluster, database, unique):
    c, topic = outbox
    enqueue(c, topic, "x")
    drain(c)
    with pytest.raises(psycopg.errors.NullValueNotAllowed, match="topic must not be null"):
        replay(c, None)
    for target in ("", "no/topic", "."):
        with pytest.raises(psycopg.errors.InvalidParameterValue, match="illegal topic name"):
            replay(c, topic, target=target)
    with pytest.raises(psycopg.errors.ReadOnlySqlTransaction), c.transaction():
        c.execute("SET TRANSACTION READ ONLY")
        replay(c, topic)
    shared_cluster.sql(f'CREATE ROLE "{unique}" LOGIN')
    try:
        with shared_cluster.connect(database, user=unique, autocommit=True) as u:
            shared_cluster.sql("SELECT outbox.grant_producer(%s::text::regrole)", [unique], database)
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                replay(u, topic)
            shared_cluster.sql("SELECT outbox.grant_operator(%s::text::regrole)", [unique], database)
            assert replay(u, topic) == 1
    finally:
        shared_cluster.sql(f'DROP OWNED BY "{unique}"', dbname=database)
        shared_cluster.sql(f'DROP ROLE "{unique}"')


def test_an_old_snapshot_does_not_hide_what_is_published(outbox, shared_cluster, database):
    c, topic = outbox
    with shared_cluster.connect(database) as old:
        old.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        old.execute("SELECT count(*) FROM outbox.messages")
        enqueue(c, topic, "x")
        drain(c)
        c.execute("SELECT outbox.roll()")
        enqueue(c, topic, "y")
        drain(c)
        assert replay(old, topic) == 2
        # nor are the copies of this transaction copied
        assert replay(old, topic) == 2


def test_a_rollback_takes_the_copies_along(outbox, kafka):
    c, topic = outbox
    enqueue(c, topic, "x")
    drain(c)
    with c.transaction(force_rollback=True):
        assert replay(c, topic) == 1
    drain(c)
    assert len(kafka.read_all(topic)) == 1


def test_one_segment_is_locked_at_a_time(outbox):
    c, topic = outbox
    for _ in range(size(40, 400)):
        enqueue(c, topic, "x")
        c.execute("SELECT outbox.roll()")
    drain(c)
    with c.transaction():
        assert replay(c, topic) == size(40, 400)
        locked = c.execute("SELECT relation::regclass::text FROM pg_locks WHERE pid = pg_backend_pid() AND relation > 16000").fetchall()
    assert len([name for (name,) in locked if "_message_" in name]) < 10, locked


def test_the_limit_of_the_backlog_holds_for_copies(cluster, kafka, unique):
    topic = kafka.create_topic(unique, partitions=1)
    install_outbox(cluster, kafka)
    cluster.sql("SELECT outbox.enqueue(%s, i::text) FROM generate_series(1, 20) i", [topic])
    assert cluster.value("SELECT outbox.drain('30 s')")
    cluster.configure(**{"outbox.backlog_limit": 10, "outbox.backlog_limit_action": "reject"})
    cluster.reload()
    wait_until(lambda: cluster.value("SHOW outbox.backlog_limit") == "10")
    with pytest.raises(psycopg.errors.ConfigurationLimitExceeded) as refused:
        cluster.sql("SELECT outbox.replay(%s, NULL, NULL)", [topic])
    assert "this transaction has enqueued 10 more" in refused.value.diag.message_detail
    assert cluster.value("SELECT outbox.drain('30 s')")
    assert len(kafka.read_all(topic)) == 20


def test_many_messages_take_little_memory_and_can_be_cancelled(shared_cluster, database, kafka, unique):
    topic = kafka.create_topic(unique, partitions=1)
    install_outbox(shared_cluster, kafka, database)
    count = size(200_000, 3_000_000)
    with shared_cluster.connect(database, autocommit=True) as c:
        c.execute("SELECT outbox.enqueue(%s, repeat('x', 100), i::text) FROM generate_series(1, %s) i", [topic, count])
        assert value(c, "SELECT outbox.drain('5 min')")
        c.execute("SET statement_timeout = '200 ms'")
        with pytest.raises(psycopg.errors.QueryCanceled):
            replay(c, topic)
        c.execute("RESET statement_timeout")
        with shared_cluster.connect(database, autocommit=True) as fresh:
            before = anonymous_memory(fresh.info.backend_pid)
            assert replay(fresh, topic) == count
            grown = anonymous_memory(fresh.info.backend_pid) - before
        print(f"replay of {count} messages: {grown / 1e6:.1f} MB more memory")
        assert grown < 32e6
        assert value(c, "SELECT outbox.drain('5 min')")
    with kafka.reader(topic) as reader:
        assert sum(reader.end_offsets().values()) == 2 * count


def anonymous_memory(pid):
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"RssAnon:\s+(\d+) kB", status)[1]) * 1024


def test_a_copy_of_the_database_can_replay_what_the_original_has_published(cluster, kafka, unique, closing):
    topic = kafka.create_topic(unique, partitions=1)
    install_outbox(cluster, kafka)
    cluster.sql("SELECT outbox.enqueue(%s, i::text) FROM generate_series(1, 3) i", [topic])
    assert cluster.value("SELECT outbox.drain('30 s')")
    cluster.sql("SELECT outbox.replay(%s, NULL, NULL)", [topic])
    cluster.sql("SELECT outbox.drain('30 s')")
    cluster.sql("SELECT outbox.pause()")
    cluster.sql("SELECT outbox.enqueue(%s, '4')", [topic])
    cluster.stop()
    copy = closing(cluster.copy())
    copy.sql("SELECT outbox.resume()")
    assert copy.value("SELECT outbox.replay(%s, NULL, NULL)", [topic]) == 3
    assert copy.value("SELECT outbox.adopt()") == 4  # three copies, and the one that was pending
    assert copy.value("SELECT outbox.drain('30 s')")
    assert [r.value for r in kafka.consume(topic, until=10)[6:]] == [b"4", b"1", b"2", b"3"]
    assert copy.value("SELECT outbox.replay(%s, NULL, NULL)", [topic]) == 4
