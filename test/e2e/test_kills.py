"""Worker, broker and server die at random points under load: nothing is missing, and repeats carry the same id."""

import collections
import os
import signal
import time

import psycopg
from harness import install_outbox, seeded, size, wait_until
from harness.load import Load, assert_nothing_is_left, check, drain


def wait_worker_back(cluster, gone):
    """A worker other than `gone` is there within 5 s, counted from when the server answers again."""
    answers_since = time.monotonic()
    found = []
    while not found:
        try:
            found = [pid for pid in cluster.worker_pids() if pid != gone]
        except psycopg.OperationalError:  # it has only now noticed, or is recovering
            answers_since = time.monotonic()
        assert time.monotonic() - answers_since < 5, "no worker is back within 5 s"
        time.sleep(0.02)


def terminate_worker(cluster, kafka):
    pid = cluster.wait_worker()
    os.kill(pid, signal.SIGTERM)
    wait_worker_back(cluster, pid)


def kill_worker(cluster, kafka):
    pid = cluster.wait_worker()
    cluster.kill9(pid)
    wait_worker_back(cluster, pid)
    cluster.wait_ready()


def kill_broker(cluster, kafka):
    kafka.kill()
    kafka.start()


def kill_postmaster(cluster, kafka):
    cluster.kill9()
    cluster.start()
    wait_worker_back(cluster, None)


def stop_immediately(cluster, kafka):
    cluster.crash()
    cluster.start()
    wait_worker_back(cluster, None)


KILLS = [terminate_worker, kill_worker, kill_broker, kill_postmaster, stop_immediately]


def plan(rng, count):
    """Each kind about equally often, in random order."""
    kinds = [KILLS[i % len(KILLS)] for i in range(count)]
    rng.shuffle(kinds)
    return kinds


def assert_repeats_are_recent(records, kills):
    """What is repeated was first appended shortly before a kill; nothing begins again further back.

    3 s: PostgreSQL loses up to 0.6 s of asynchronous commits, a slow machine adds to that.
    """
    first, repeats = {}, set()
    for record in sorted(records, key=lambda r: (r.partition, r.offset)):
        if record.id in first:
            repeats.add(record.id)
        else:
            first[record.id] = record.timestamp / 1000
    old = [first[i] for i in repeats if not any(kill - 3 < first[i] < kill + 2 for kill in kills)]
    assert not old, f"{len(old)} repeats were first sent long before a kill: {sorted(old)[:5]}, kills: {kills}"


def test_nothing_is_missing_after_kills_at_random_points_under_load(cluster, own_kafka):
    topic = own_kafka.create_topic("t", partitions=3, config={"message.timestamp.type": "LogAppendTime"})
    install_outbox(cluster, own_kafka)
    rng = seeded("kills")
    kills = []
    with Load(cluster, topic, pause_s=0.02, asynchronous=0.3, through_crashes=True) as load:
        for kill in plan(rng, size(12, 50)):
            load.wait_for_more(rng.randrange(5, 120))
            load.run_for(rng.random() * 0.3)
            kills.append(time.time())
            kill(cluster, own_kafka)
    drain(cluster)
    with own_kafka.reader(topic) as reader:
        records = reader.read_all()
        repeated = check(load, records, repeats=True)
        reader.assert_nothing_more()
    assert_repeats_are_recent(records, kills)
    assert_nothing_is_left(cluster)
    print(load.counts, len(records), "records, repeated:", repeated)


def test_a_worker_that_is_terminated_again_and_again_is_back_within_5_s(cluster, kafka, unique):
    topic = kafka.create_topic(unique, partitions=3)
    install_outbox(cluster, kafka)
    rng = seeded("terminations")
    with Load(cluster, topic, pause_s=0.02) as load:
        for _ in range(size(5, 30)):
            load.wait_for_more(rng.randrange(5, 50))
            terminate_worker(cluster, kafka)
    drain(cluster)
    with kafka.reader(topic) as reader:
        check(load, reader.read_all(), repeats=True)
        reader.assert_nothing_more()
    assert_nothing_is_left(cluster)


def test_a_big_window_goes_on_where_it_was_left_when_the_worker_died_in_it(cluster, kafka, unique):
    topic = kafka.create_topic(unique, partitions=3)
    install_outbox(cluster, kafka, options={"batch.num.messages": 50})  # slow enough to be met halfway
    count, keys = size(100_000, 1_000_000), 50
    cluster.sql(
        "SELECT count(outbox.enqueue(%s, (i / %s)::text, (i %% %s)::text)) FROM generate_series(0, %s) i",
        [topic, keys, keys, count - 1],
    )

    with kafka.reader(topic) as reader:

        def published():
            return sum(reader.end_offsets().values())

        for kill in (terminate_worker, kill_worker, stop_immediately, terminate_worker):
            before = published()
            wait_until(lambda before=before: published() > before + 100, 60, "more is published", interval=0.002)
            assert published() < count, "the worker is done already"
            kill(cluster, kafka)
            # counted again soon, not only when all is sent
            wait_until(lambda: cluster.value("SELECT pending FROM outbox.lanes") is not None, 10, "pending is counted")
    drain(cluster)
    versions = collections.defaultdict(list)
    for record in sorted(kafka.read_all(topic), key=lambda r: (r.partition, r.offset)):
        seen = versions[record.key]
        if int(record.value) >= len(seen):  # not a repeat
            seen.append(int(record.value))
    assert len(versions) == keys
    assert all(found == list(range(count // keys)) for found in versions.values())
    assert_nothing_is_left(cluster)
