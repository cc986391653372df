"""Lanes: their number changes under load, workers share them, stop, die; order per key holds, and no lane slows another."""

import contextlib
import signal
import statistics
import threading
import time

import pytest
from harness import install_outbox, size, wait_until
from harness.load import Load, assert_nothing_is_left, check, drain
from harness.processes import send
from harness.segments import configure, describe, states, wait_states

STOPPED_S = 10
HANDED_ON_S = 5
MANY = size(100_000, 1_000_000)


def enqueue(connection, topic, value, key):
    return str(connection.execute("SELECT outbox.enqueue(%s, %s, %s)", [topic, value, key]).fetchone()[0])


def set_lanes(cluster, lanes):
    cluster.sql(f"SELECT outbox.set_lanes({lanes})")


def claims(cluster):
    """{pid: lanes} of the workers that publish."""
    query = "SELECT pid, lanes FROM outbox.workers WHERE worker IS NOT NULL AND pid IS NOT NULL"
    return {pid: tuple(lanes or ()) for pid, lanes in cluster.sql(query)}


def describe_lanes(cluster):
    return "\n".join([*map(str, cluster.sql("TABLE outbox.lanes")), *map(str, cluster.sql("TABLE outbox.workers"))])


def wait_shared(cluster, lanes, workers=2):
    """Until so many lanes are claimed, by so many workers, each with as many as the others or one more; returns claims()."""

    def shared():
        found = claims(cluster)
        counts = sorted(len(its) for its in found.values())
        claimed = [lane for its in found.values() for lane in its]
        fair = counts and counts[-1] - counts[0] <= 1
        return len(counts) == workers and len(claimed) == len(set(claimed)) == lanes and fair and found

    return wait_until(shared, 30, lambda: f"{lanes} lanes shared by {workers} workers:\n{describe_lanes(cluster)}")


@contextlib.contextmanager
def stopped(pid):
    send(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        send(pid, signal.SIGCONT)


def published(kafka, topic):
    with kafka.reader(topic) as reader:
        return sum(reader.end_offsets().values())


def wait_for_publishing(kafka, topic, more, timeout=20):
    goal = published(kafka, topic) + more
    wait_until(lambda: published(kafka, topic) >= goal, timeout, "more is published", interval=0.1)


def test_1_to_4_to_2_lanes_under_load_with_two_workers_one_of_them_stopped_keep_every_keys_order(cluster, kafka, unique):
    topic = kafka.create_topic(unique, partitions=3)
    configure(cluster, workers_per_database=2)
    install_outbox(cluster, kafka)
    with Load(cluster, topic, keys=40) as load:
        load.run_for(size(2, 30))
        wait_shared(cluster, 1)
        set_lanes(cluster, 4)
        load.run_for(size(2, 30))
        # from then on nobody gives up a lane by himself
        wait_states(cluster, lambda s: "rolled" not in s.values(), 30, "the lane of before is done with")
        pid = min(wait_shared(cluster, 4))
        with stopped(pid):
            ends = time.monotonic() + STOPPED_S
            lanes = claims(cluster)[pid]
            # the lanes of the other worker do not care
            wait_for_publishing(kafka, topic, 20)
            set_lanes(cluster, 2)
            load.wait_for_more(20)
            load.run_for(ends - time.monotonic())
            assert claims(cluster)[pid] == lanes, "it is not dead"
            assert len(lanes) == 2
            assert "rolled" in states(cluster).values(), "the stopped worker has not published what it holds"
        wait_shared(cluster, 2)
        load.run_for(size(2, 30))
    drain(cluster)
    with kafka.reader(topic) as reader:
        check(load, reader.read_all())
        reader.assert_nothing_more()
    print(load.counts)
    assert_nothing_is_left(cluster)
    wait_states(cluster, lambda s: list(s.values())[-1] == "open" and "rolled" not in s.values(), 30, "all is drained")


def test_a_transaction_that_waited_for_a_row_through_set_lanes_enqueues_behind_the_one_it_waited_for(cluster, kafka, unique):
    # what is in segments of another number of lanes is published earlier as a whole
    topic = kafka.create_topic(unique, partitions=1)
    install_outbox(cluster, kafka)
    cluster.sql("CREATE TABLE account AS SELECT 1 AS n")
    update = "UPDATE account SET n = n + 1 RETURNING outbox.enqueue('{}', '{}', 'k')"
    with cluster.connect() as earlier, cluster.connect() as later:
        enqueue(later, topic, "other", "other")
        earlier.execute("UPDATE account SET n = n + 1")
        waiting = threading.Thread(target=later.execute, args=[update.format(topic, "later")])
        waiting.start()
        pid = later.info.backend_pid
        wait_until(lambda: cluster.value("SELECT cardinality(pg_blocking_pids(%s))", [pid]) > 0, 10, "it waits for the row")
        set_lanes(cluster, 2)
        enqueue(earlier, topic, "earlier", "k")
        earlier.commit()
        waiting.join()
        later.commit()
    drain(cluster)
    values = [r.value.decode() for r in kafka.read_all(topic) if r.key == b"k"]
    assert values == ["earlier", "later"]


# ---- one lane beside another


def keys_of_lanes(cluster, topic, lanes):
    """A key for each lane, tried out."""
    with cluster.connect() as c:
        for n in range(lanes * 20):
            enqueue(c, topic, "try", f"key {n}")
    drain(cluster)
    rows = cluster.sql("SELECT lane, max(convert_from(key, 'UTF8')) FROM outbox._message WHERE lane IN"
                       " (SELECT lane FROM outbox.lanes) AND key LIKE 'key %' GROUP BY lane ORDER BY lane")  # fmt: skip
    return dict(rows)


PENDING = "SELECT pending FROM outbox.lanes WHERE lane = %s"


def latencies(connection, topic, lane, key, going_on):
    """Seconds from the call of enqueue until Kafka has acknowledged, one message of this lane after the other."""
    found = []
    while going_on(len(found)):
        began = time.monotonic()
        enqueue(connection, topic, "light", key)
        while connection.execute(PENDING, [lane]).fetchone()[0] != 0:
            assert time.monotonic() - began < 60, "published within a minute"
        found.append(time.monotonic() - began)
    return found


@pytest.mark.parametrize("workers", [1, 2])
def test_a_rush_in_one_lane_does_not_slow_another(cluster, kafka, unique, workers):
    topic = kafka.create_topic(unique, partitions=6)
    configure(cluster, workers_per_database=workers)
    install_outbox(cluster, kafka)
    set_lanes(cluster, 2)
    keys = keys_of_lanes(cluster, topic, 2)
    (heavy, heavy_key), lane_of_light = keys.items()
    wait_shared(cluster, 2, workers)
    with cluster.connect(autocommit=True) as c, cluster.connect(autocommit=True) as light:
        before = latencies(light, topic, *lane_of_light, lambda n: n < 100)
        c.execute(
            "SELECT count(outbox.enqueue(%s, lpad(i::text, 500, 'x'), %s)) FROM generate_series(1, %s) i",
            [topic, heavy_key, MANY],
        )
        began = time.monotonic()
        beside = latencies(light, topic, *lane_of_light, lambda _: c.execute(PENDING, [heavy]).fetchone()[0] > 0)
        rush = time.monotonic() - began
    drain(cluster, seconds=size(60, 300))
    print(
        f"{workers} workers: {MANY} messages in {rush:.2f} s; beside them {len(beside)}, median {1000 * statistics.median(beside):.1f} ms,"
        f" longest {1000 * max(beside):.1f} ms; before, median {1000 * statistics.median(before):.1f} ms"
    )
    assert published(kafka, topic) == MANY + len(before) + len(beside) + 40
    # in the lane of the rush a message waits for half of it, or for all
    assert statistics.median(beside) < rush / size(3, 40)
    assert max(beside) < rush / size(2, 8)
    assert_nothing_is_left(cluster)


# ---- workers come and go


def assert_all_lanes_publish(cluster, topic, keys, within_s):
    """A message of each lane, committed now, is with Kafka in time."""
    with cluster.connect(autocommit=True) as c:
        deadline = time.monotonic() + within_s
        for message_id in [enqueue(c, topic, "now", key) for key in keys.values()]:
            left = f"{max(deadline - time.monotonic(), 0.001)} s"
            assert c.execute("SELECT outbox.wait_published(%s, %s)", [message_id, left]).fetchone()[0], describe_lanes(cluster)


def test_a_worker_that_dies_hands_its_lanes_on_within_five_seconds(cluster, kafka, unique):
    topic = kafka.create_topic(unique, partitions=3)
    configure(cluster, workers_per_database=2)
    install_outbox(cluster, kafka)
    set_lanes(cluster, 4)
    keys = keys_of_lanes(cluster, topic, 4)
    assert len(keys) == 4
    with Load(cluster, topic) as load:
        for _ in range(size(2, 10)):
            for pid in [max(wait_shared(cluster, 4)), min(wait_shared(cluster, 4))]:
                send(pid, signal.SIGTERM)
                assert_all_lanes_publish(cluster, topic, keys, HANDED_ON_S)
                assert pid not in claims(cluster)
        # fewer workers, then more: lanes move
        for workers in (1, 3):
            configure(cluster, workers_per_database=workers)
            assert_all_lanes_publish(cluster, topic, keys, HANDED_ON_S)
            wait_shared(cluster, 4, workers)
    drain(cluster)
    with kafka.reader(topic) as reader:
        check(load, [r for r in reader.read_all() if r.key.decode() in load.keys], repeats=True)
        reader.assert_nothing_more()
    assert_nothing_is_left(cluster)


# ---- what is said about them


def test_each_lanes_pending_is_what_waits_in_it_through_changes_of_their_number(cluster, kafka, unique):
    topic = kafka.create_topic(unique, partitions=3)
    configure(cluster, workers_per_database=2)
    install_outbox(cluster, kafka)
    counted = "SELECT lane, count(*) FROM outbox.messages WHERE state = 'pending' GROUP BY lane"
    said = "SELECT lane, pending FROM outbox.lanes WHERE pending IS DISTINCT FROM 0"
    with cluster.connect(autocommit=True) as c:
        enqueue(c, topic, "first", "first")
        drain(cluster)
        for lanes in (4, 2, 3):
            c.execute("SELECT outbox.pause()")
            c.execute("SELECT outbox.enqueue(%s, 'before', i::text) FROM generate_series(1, 30) i", [topic])
            set_lanes(cluster, lanes)
            c.execute("SELECT outbox.enqueue(%s, 'after', i::text) FROM generate_series(1, 50) i", [topic])
            expected = dict(c.execute(counted).fetchall())
            assert sum(expected.values()) == 80
            wait_until(lambda: dict(c.execute(said).fetchall()) == expected, 10, lambda: f"{expected}\n{describe_lanes(cluster)}")
            c.execute("SELECT outbox.resume()")
            drain(cluster)
            wait_shared(cluster, lanes)
            assert c.execute("SELECT count(*) FROM outbox.lanes").fetchone() == (lanes,)
            assert_nothing_is_left(cluster)
    with kafka.reader(topic) as reader:
        records = reader.read_all()
        reader.assert_nothing_more()
    assert len(records) == 1 + 3 * 80
    for key in map(str, range(1, 31)):
        its = [r.value for r in sorted(records, key=lambda r: r.offset) if r.key.decode() == key]
        assert its == [b"before", b"after"] * 3


def test_drain_waits_for_the_messages_of_lanes_that_wait_for_an_older_number_of_lanes(cluster, kafka, unique):
    topic = kafka.create_topic(unique, partitions=1)
    configure(cluster, workers_per_database=2)
    install_outbox(cluster, kafka)
    with cluster.connect(autocommit=True) as c, cluster.connect() as late:
        enqueue(c, topic, "first", "a")
        enqueue(late, topic, "late", "b")
        for lanes in (4, 2):
            set_lanes(cluster, lanes)
            ids = [enqueue(c, topic, f"{lanes} lanes", str(n)) for n in range(20)]
            assert not c.execute("SELECT outbox.drain('1 s')").fetchone()[0], describe(cluster)
            assert not c.execute("SELECT outbox.wait_published(%s, '0 s')", [ids[0]]).fetchone()[0]
        assert published(kafka, topic) == 1
        late.commit()
        drain(cluster)
    values = [r.value.decode() for r in sorted(kafka.read_all(topic), key=lambda r: r.offset)]
    assert values == ["first", "late", *["4 lanes"] * 20, *["2 lanes"] * 20]
    assert_nothing_is_left(cluster)


def test_lanes_beyond_a_lowered_max_lanes_are_named_and_the_others_are_published(make_cluster, embedded, unique):
    cluster = make_cluster()
    embedded.create_topic(unique)
    install_outbox(cluster, embedded)
    set_lanes(cluster, 10)
    cluster.sql("SELECT outbox.pause()")
    ids = cluster.sql("SELECT outbox.enqueue(%s, 'x', 'k' || i) FROM generate_series(1, 100) i", [unique])
    lanes = dict(cluster.sql("SELECT lane, count(*) FROM outbox._message GROUP BY lane"))
    cluster.configure(**{"outbox.max_lanes": 2})
    cluster.restart()
    cluster.sql("SELECT outbox.resume()")
    reachable = lanes[0] + lanes[1]
    wait_until(lambda: len(embedded.read_all(unique)) == reachable, 20, describe_lanes(cluster))
    said = ("backing_off", "lane 9 is in use and outbox.max_lanes is 2: raise it and restart the server")
    wait_until(lambda: said in cluster.sql("SELECT state, reason FROM outbox.workers"), 10, lambda: describe_lanes(cluster))
    assert f"LOG:  outbox worker is {said[0]}: {said[1]}" in cluster.log
    assert cluster.sql("SELECT count(last_error) FROM outbox.lanes") == [(0,)]
    cluster.configure(**{"outbox.max_lanes": 64})
    cluster.restart()
    drain(cluster)
    assert {r.id for r in embedded.read_all(unique)} == {str(message_id) for (message_id,) in ids}
