"""What operators see and wait for: pending, places in Kafka, one message among many, drain and wait_published."""

import contextlib
import threading
import time

import psycopg
import pytest
from harness import install_outbox, seeded, size, wait_until

@pytest.fixture
def outbox(shared_cluster, database, kafka, unique):
    """(connection in autocommit, topic with 3 partitions) of a database that has published one message."""
    topic = kafka.create_topic(unique, partitions=3)
    install_outbox(shared_cluster, kafka, database)
    with shared_cluster.connect(database, autocommit=True) as c:
        c.execute("SELECT outbox.enqueue(%s, 'first')", [topic])
        assert value(c, "SELECT outbox.drain('30 s')")
        yield c, topic


def value(connection, query, params=None):
    row = connection.execute(query, params).fetchone()
    return row and row[0]


PENDING = "SELECT pending FROM outbox.lanes"
COUNTED = "SELECT count(*) FROM outbox.messages WHERE state = 'pending'"


# ---- pending


def test_pending_is_never_zero_while_something_is_pending(shared_cluster, database, outbox, kafka):
    """Seen from a session that reads it right after its own commit and before it can know of any acknowledgement."""
    c, topic = outbox
    with kafka.reader(topic) as reader:
        for n in range(size(60, 2000)):
            with c.transaction():
                message_id = value(c, "SELECT outbox.enqueue(%s, 'x', 'k')", [topic])
            pending = value(c, PENDING)
            if pending == 0:  # then it must be acknowledged: on the topic already
                assert str(message_id) in {r.id for r in reader.read_all()}, n


def test_pending_counts_exactly_while_paused_and_falls_to_zero_with_the_last_acknowledgement(outbox):
    c, topic = outbox
    c.execute("SELECT outbox.pause()")
    expected = 0
    random = seeded("pending")
    for _ in range(10):
        with c.transaction():
            for _ in range(count := random.randrange(1, 20)):
                c.execute("SELECT outbox.enqueue(%s, 'x', 'k')", [topic])
            expected += count
        with c.transaction(force_rollback=True):
            c.execute("SELECT outbox.enqueue(%s, 'rolled back')", [topic])
        with c.transaction():
            c.execute("SELECT outbox.enqueue(%s, 'x')", [topic])
            with c.transaction(force_rollback=True):
                c.execute("SELECT outbox.enqueue(%s, 'savepoint rolled back')", [topic])
        expected += 1
        assert value(c, PENDING) >= expected, "it may be early, never late"
        wait_until(lambda goal=expected: value(c, PENDING) == goal, 2, lambda: f"{expected}, not {value(c, PENDING)}")
    assert value(c, "SELECT oldest_pending_age > '0' FROM outbox.lanes")
    c.execute("SELECT outbox.resume()")
    assert value(c, "SELECT outbox.drain('30 s')")
    # drain() returns when the worker has written the acknowledgements down, so the counter was there before
    assert c.execute("SELECT pending, oldest_pending_age FROM outbox.lanes").fetchone() == (0, None)


def test_pending_falls_to_zero_within_50_ms_of_the_last_acknowledgement(outbox, kafka):
    """The consumer's clock starts later than the acknowledgement and sees no earlier than the broker; the best of some counts."""
    c, topic = outbox
    delays = []
    with kafka.reader(topic) as reader:
        for n in range(20):
            c.execute("SELECT outbox.enqueue(%s, 'x')", [topic])
            reader.read(until=n + 2)
            seen = time.monotonic()
            wait_until(lambda: value(c, PENDING) == 0, 5, interval=0.001)
            delays.append(time.monotonic() - seen)
    assert sorted(delays)[len(delays) // 2] < 0.05, delays


def test_pending_is_null_until_counted_after_a_start_and_right_then(cluster, kafka, unique):
    topic = kafka.create_topic(unique)
    install_outbox(cluster, kafka)
    cluster.sql("SELECT outbox.enqueue(%s, 'x')", [topic])
    assert cluster.value("SELECT outbox.drain('30 s')")
    cluster.sql("SELECT outbox.pause()")
    for _ in range(7):
        cluster.sql("SELECT outbox.enqueue(%s, 'x')", [topic])
    for stop in (cluster.stop, cluster.crash):
        stop()
        cluster.start()
        seen = [cluster.value(PENDING)]
        wait_until(lambda: seen.append(cluster.value(PENDING)) or seen[-1] is not None, 15, "it is counted")
        assert set(seen) <= {None, 7}
    cluster.sql("SELECT outbox.resume()")
    assert cluster.value("SELECT outbox.drain('30 s')")
    assert cluster.value(PENDING) == 0


def test_a_prepared_transaction_counts_once_the_worker_has_read_it(outbox):
    c, topic = outbox
    c.execute("SELECT outbox.pause()")
    c.execute("BEGIN")
    c.execute("SELECT outbox.enqueue(%s, 'x')", [topic])
    c.execute(f"PREPARE TRANSACTION '{topic}'")
    assert value(c, PENDING) == 0
    c.execute(f"COMMIT PREPARED '{topic}'")
    wait_until(lambda: value(c, PENDING) == 1, 5, "it counts")
    c.execute("SELECT outbox.resume()")
    assert value(c, "SELECT outbox.drain('30 s')")
    assert value(c, PENDING) == 0


def test_counters_count_messages_bytes_and_failures_since_reset(outbox, kafka):
    c, topic = outbox
    c.execute("SELECT outbox.reset_counters()")
    for _ in range(5):
        c.execute("SELECT outbox.enqueue(%s, '12345', 'key')", [topic])
    small = kafka.create_topic(topic + "_small", config={"max.message.bytes": 2000})
    c.execute("SELECT outbox.enqueue(%s, repeat('x', 5000))", [small])
    wait_until(lambda: value(c, "SELECT count(*) FROM outbox.dead_letters") == 1)
    query = "SELECT published, bytes, failures, last_published_at > counted_since FROM outbox.lanes"
    assert c.execute(query).fetchone() == (5, 40, 1, True)


@pytest.mark.parametrize("view", ["lanes", "workers", "segments"])
def test_reading_the_views_touches_no_message_table(view, outbox):
    c, _ = outbox
    with c.transaction():
        c.execute(f"SELECT * FROM outbox.{view}")
        # outbox.segments asks for the size of each leaf, which takes no lock that is kept
        locks = "SELECT relation::regclass::text FROM pg_locks WHERE pid = pg_backend_pid() AND relation IS NOT NULL"
        held = {name for (name,) in c.execute(locks)}
    assert not any(name.startswith(("outbox._message", "outbox._progress")) for name in held), held
    assert len(held) > 1


def test_the_views_answer_while_the_parent_table_is_locked(shared_cluster, database, outbox):
    c, _ = outbox
    with shared_cluster.connect(database) as locker:
        locker.execute("LOCK TABLE ONLY outbox._message, ONLY outbox._progress IN ACCESS EXCLUSIVE MODE")
        c.execute("SET lock_timeout = '1 s'")
        for view in ("lanes", "workers", "segments"):
            assert c.execute(f"SELECT * FROM outbox.{view}").fetchall()


# ---- places


def test_every_message_shows_the_partition_and_offset_where_consumers_find_it(outbox, kafka):
    c, topic = outbox
    count = size(2000, 50_000)
    for _ in range(4):
        c.execute("SELECT count(outbox.enqueue(%s, 'x', n::text)) FROM generate_series(1, %s) n", [topic, count // 8])
        c.execute("SELECT count(outbox.enqueue(%s, 'x')) FROM generate_series(1, %s) n", [topic, count // 8])
        c.execute("SELECT outbox.roll()")
    assert value(c, "SELECT outbox.drain('60 s')")
    shown = {str(row[0]): row[1:] for row in c.execute("SELECT message_id, state, kafka_partition, kafka_offset FROM outbox.messages")}
    assert shown == {r.id: ("published", r.partition, r.offset) for r in kafka.read_all(topic)}
    assert len(shown) == count // 8 * 8 + 1


def blocks_read_by_get_message(connection, message_id):
    plan = value(connection, f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) SELECT * FROM outbox.get_message('{message_id}')")
    return plan[0]["Plan"]["Shared Hit Blocks"] + plan[0]["Plan"]["Shared Read Blocks"]


def test_one_message_among_many_is_found_in_milliseconds(outbox, kafka):
    c, topic = outbox
    count = size(300_000, 3_000_000)
    random = seeded("find")
    found = []
    for _ in range(3):
        rows = c.execute(
            "WITH m AS MATERIALIZED (SELECT n, outbox.enqueue(%s, repeat('x', 100), (n %% 1000)::text) AS id"
            " FROM generate_series(1, %s) n) SELECT id FROM m WHERE n %% 5000 = 7",
            [topic, count // 3],
        ).fetchall()
        found += [row[0] for row in rows]
        c.execute("SELECT outbox.roll()")
    small = kafka.create_topic(topic + "_small", config={"max.message.bytes": 2000})
    dead = value(c, "SELECT outbox.enqueue(%s, repeat('x', 5000))", [small])
    assert value(c, "SELECT outbox.drain('120 s')")
    wait_until(lambda: value(c, "SELECT count(*) FROM outbox.dead_letters") == 1)
    kafka.alter_topic(small, {})
    c.execute("SELECT outbox.resend(%s)", [dead])
    # milliseconds, said so that a busy machine does not matter: a small part of what reading everything would cost
    limit = int(value(c, "SELECT sum(message_bytes + progress_bytes) / 8192 FROM outbox.segments")) // 25
    for message_id in [*random.sample(found, 40), dead]:
        assert value(c, "SELECT message_id FROM outbox.get_message(%s)", [message_id]) == message_id
        # the worker summarises new pages of the BRIN index now and then
        wait_until(
            lambda m=message_id: blocks_read_by_get_message(c, m) < limit,
            20,
            lambda m=message_id: f"{blocks_read_by_get_message(c, m)} blocks read, limit {limit}",
        )
    absent = [str(found[0])[:-1] + ("0" if str(found[0])[-1] != "0" else "1"), "00000000-0000-0000-0000-000000000000"]
    for message_id in absent:
        assert c.execute("SELECT * FROM outbox.get_message(%s)", [message_id]).fetchall() == []


# ---- waiting


def test_wait_published_tells_true_false_or_why_it_cannot(shared_cluster, database, outbox):
    c, topic = outbox
    wait = "SELECT outbox.wait_published(%s, '1 s')"
    published = value(c, "SELECT outbox.enqueue(%s, 'x')", [topic])
    assert value(c, "SELECT outbox.wait_published(%s)", [published])
    assert value(c, wait, [published]), "also later"
    with pytest.raises(psycopg.errors.NoDataFound):
        c.execute(wait, ["01234567-89ab-7def-8123-456789abcdef"])
    with c.transaction(force_rollback=True):
        own = value(c, "SELECT outbox.enqueue(%s, 'x')", [topic])
        with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState), c.transaction():
            c.execute(wait, [own])
    with shared_cluster.connect(database) as other:
        open_one = value(other, "SELECT outbox.enqueue(%s, 'x')", [topic])
        with pytest.raises(psycopg.errors.NoDataFound):
            c.execute(wait, [open_one])
    c.execute("SELECT outbox.pause()")
    waiting = value(c, "SELECT outbox.enqueue(%s, 'x')", [topic])
    assert not value(c, wait, [waiting])
    assert not value(c, "SELECT outbox.drain('0.3 s')")
    c.execute("SELECT outbox.resume()")
    assert value(c, "SELECT outbox.wait_published(%s, '10 s')", [waiting])


def test_drain_waits_for_what_was_committed_before_it_and_for_nothing_later(shared_cluster, database, outbox, kafka):
    c, topic = outbox
    stop = threading.Event()

    def write():
        with shared_cluster.connect(database) as w, contextlib.closing(w):
            while not stop.is_set():
                w.execute("SELECT outbox.enqueue(%s, 'noise')", [topic])
                w.commit()

    writer = threading.Thread(target=write)
    writer.start()
    try:
        with shared_cluster.connect(database) as open_one:
            open_one.execute("SELECT outbox.enqueue(%s, 'open')", [topic])
            for _ in range(size(5, 50)):
                ids = [value(c, "SELECT outbox.enqueue(%s, 'mine')", [topic]) for _ in range(20)]
                assert value(c, "SELECT outbox.drain('20 s')")
                states = "SELECT DISTINCT state FROM outbox.messages WHERE message_id = ANY (%s)"
                assert c.execute(states, [ids]).fetchall() == [("published",)]
    finally:
        stop.set()
        writer.join()


# ---- volume


def test_a_large_transaction_does_not_hold_up_another_topic(shared_cluster, database, outbox, kafka):
    """The other topic's message commits later; what commits while a large window is being read is not forgotten either."""
    c, topic = outbox
    other = kafka.create_topic(topic + "_other", partitions=1)
    count = size(50_000, 1_000_000)
    with shared_cluster.connect(database) as large:
        large.execute("SELECT count(outbox.enqueue(%s, repeat('x', 200), n::text)) FROM generate_series(1, %s) n", [topic, count])
        before = value(c, "SELECT outbox.enqueue(%s, 'while the large one is open')", [other])
        assert value(c, "SELECT outbox.wait_published(%s, '10 s')", [before])
        large.commit()
        begin = time.monotonic()
        sent = []
        while value(c, COUNTED if len(sent) % 10 == 9 else PENDING) and len(sent) < 2000:
            sent.append(value(c, "SELECT outbox.enqueue(%s, 'x')", [other]))
        last = value(c, "SELECT outbox.enqueue(%s, 'last')", [other])
        assert value(c, "SELECT outbox.wait_published(%s, '30 s')", [last])
        elapsed = time.monotonic() - begin
    records = kafka.consume(other, until=2 + len(sent))
    assert [r.id for r in records] == [str(i) for i in (before, *sent, last)]
    assert len(kafka.read_all(topic)) == count + 1
    assert sent, "something was committed while the large transaction was being published"
    assert elapsed < 60


def test_a_hundred_thousand_rows_in_one_statement_arrive_once_each(outbox, kafka):
    c, topic = outbox
    count = size(100_000, 2_000_000)
    c.execute("CREATE TABLE orders AS SELECT n AS id, 'customer ' || n %% 100 AS customer FROM generate_series(1, %s) n", [count])
    ids = {str(row[0]) for row in c.execute("SELECT outbox.enqueue(%s, to_jsonb(o), o.id::text) FROM orders o", [topic])}
    assert len(ids) == count
    with kafka.reader(topic) as reader:
        reader.read(until=count + 1, timeout=120)
        assert value(c, "SELECT outbox.drain('60 s')")
        records = [r for r in reader.read_all() if r.value != b"first"]
    assert len(records) == count
    assert {r.id for r in records} == ids
    assert {(r.key, r.value) for r in records} == {
        (b"%d" % n, b'{"id": %d, "customer": "customer %d"}' % (n, n % 100)) for n in range(1, count + 1)
    }


def test_pending_leaves_out_rolled_back_savepoints_that_wait_for_their_layout(cluster, embedded):
    embedded.create_topic("t", 1)
    install_outbox(cluster, embedded)
    with cluster.connect() as late, cluster.connect() as c:
        late.execute("SELECT outbox.enqueue('t', 'late', 'k')")
        cluster.sql("SELECT outbox.set_lanes(2)")
        for _ in range(5):
            c.execute("SAVEPOINT s")
            c.execute("SELECT outbox.enqueue('t', 'back', 'k')")
            c.execute("ROLLBACK TO s")
        c.execute("SELECT outbox.enqueue('t', '1', 'k')")
        c.commit()
        wait_until(lambda: cluster.value("SELECT sum(pending) FROM outbox.lanes") == 1, 20, "one message is pending")
        late.commit()
    assert cluster.value("SELECT outbox.drain('20 s')")
    assert cluster.value("SELECT sum(pending) FROM outbox.lanes") == 0
