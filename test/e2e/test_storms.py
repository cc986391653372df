"""Signals in every amount to our processes, and the extension dropped under load: nobody aborts, nothing else is lost."""

import contextlib
import os
import pathlib
import re
import signal
import threading
import time

import psycopg
import pytest
from harness import install_outbox, processes, seeded, size, wait_until
from harness.load import Load, assert_nothing_is_left, check, drain

# What the log says when a process aborts or the server restarts its sessions.
ACCIDENTS = re.compile("terminated by signal|PANIC:|TRAP:|reinitializing|in recovery mode")


@contextlib.contextmanager
def nothing_breaks(cluster):
    """An idle session stays, the postmaster stays, and the log tells of no accident."""
    started = cluster.value("SELECT pg_postmaster_start_time()")
    with cluster.connect(autocommit=True) as bystander:
        pid = bystander.info.backend_pid
        yield
        assert bystander.execute("SELECT pg_backend_pid(), pg_postmaster_start_time()").fetchone() == (pid, started)
    accidents = [line for line in cluster.log.splitlines() if ACCIDENTS.search(line)]
    assert accidents == []


def ours(cluster):
    """{pid: title} of our processes, from the moment they are forked; the server itself knows them a little later."""
    found = {}
    for pid in processes.processes_in(cluster.data):
        with contextlib.suppress(OSError):
            title = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
            if "outbox" in title and "postgres:" in title:
                found[pid] = title
    return found


def install(cluster, kafka, topic):
    """With a first message: it opens the segment, which takes a worker or a lock."""
    install_outbox(cluster, kafka)
    cluster.sql("SELECT outbox.enqueue(%s, 'x')", [kafka.create_topic(topic + "_first", partitions=1)])
    drain(cluster)


def published(cluster):
    return cluster.value("SELECT published FROM outbox.lanes") or 0


# ---- signals


def test_storms_of_terminations_at_random_moments_lose_nothing_and_restart_nobody(cluster, kafka, unique):
    topic = kafka.create_topic(unique, partitions=3)
    install(cluster, kafka, topic)
    rng = seeded("storms")
    others = [signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM, signal.SIGINT]
    terminated = 0
    with nothing_breaks(cluster):
        with Load(cluster, topic, pause_s=0.02) as load:
            for _ in range(size(30, 200)):
                wait_until(lambda: any("outbox worker" in title for title in ours(cluster).values()), 40, "a worker")
                load.run_for(rng.random() ** 3 * 0.6)
                for pid, title in ours(cluster).items():
                    # without a launcher there is no worker for a second
                    spared = rng.random() < (0.8 if "launcher" in title else 0.1)
                    number = rng.choice(others) if spared else signal.SIGTERM
                    terminated += processes.send(pid, number) and number == signal.SIGTERM
        drain(cluster)
        with kafka.reader(topic) as reader:
            repeated = check(load, reader.read_all(), repeats=True)
            reader.assert_nothing_more()
        assert_nothing_is_left(cluster)
    assert terminated > size(15, 100)
    print(f"{terminated} terminated, {load.counts}, {repeated} repeated")


def test_signals_again_and_again_neither_end_nor_stop_worker_and_launcher(cluster, kafka, unique):
    topic = kafka.create_topic(unique, partitions=3)
    install(cluster, kafka, topic)
    cluster.wait_worker()
    wait_until(lambda: len(ours(cluster)) == 3, 20, "worker, maintenance and launcher, no probe")
    before = ours(cluster)
    with nothing_breaks(cluster):
        with Load(cluster, topic) as load:
            load.wait_for_more(20)
            for number in (signal.SIGUSR1, signal.SIGHUP, signal.SIGALRM, signal.SIGUSR2):
                sent, goal, end = 0, published(cluster) + 20, time.monotonic() + size(1.5, 20)
                while time.monotonic() < end or published(cluster) < goal:
                    for _ in range(200):
                        sent += sum(processes.send(pid, number) for pid in before)
                        os.sched_yield()
                    assert time.monotonic() < end + 20, f"nothing is published under {number.name}"
                print(f"{sent} {number.name}")
            load.wait_for_more(20)
        drain(cluster)
        assert ours(cluster).keys() == before.keys()
        check(load, kafka.read_all(topic))
        assert_nothing_is_left(cluster)


def test_a_cancelled_worker_or_launcher_goes_on(cluster, kafka, unique):
    topic = kafka.create_topic(unique, partitions=3)
    install(cluster, kafka, topic)
    cluster.wait_worker()
    wait_until(lambda: len(ours(cluster)) == 3, 20, "worker, maintenance and launcher, no probe")
    before = ours(cluster)
    with nothing_breaks(cluster):
        with Load(cluster, topic) as load:
            for _ in range(size(5, 30)):
                load.wait_for_more(20)
                for pid in before:
                    assert cluster.value("SELECT pg_cancel_backend(%s)", [pid])
        drain(cluster)
        assert ours(cluster).keys() == before.keys()
        check(load, kafka.read_all(topic), repeats=True)
        assert_nothing_is_left(cluster)


# ---- DROP EXTENSION


def drop_with_data_loss(cluster):
    with cluster.connect() as c:
        c.execute("SET outbox.allow_data_loss = on")
        c.execute("SET statement_timeout = '20s'")
        c.execute("DROP EXTENSION outbox CASCADE")


def test_the_extension_dropped_with_messages_in_flight_and_created_again_publishes(cluster, own_kafka):
    own_kafka.create_topic("t", partitions=3)
    install_outbox(cluster, own_kafka)
    enqueue = "SELECT outbox.enqueue('t', %s || ' ' || n) FROM generate_series(1, %s) n"
    first = {str(row[0]) for row in cluster.sql(enqueue, ["first", 10])}
    drain(cluster)
    with nothing_breaks(cluster):
        for turn in range(size(3, 20)):
            own_kafka.pause()
            try:
                lost = {str(row[0]) for row in cluster.sql(enqueue, [f"lost {turn}", 20_000])}
                with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match=f"{len(lost)} messages"):
                    cluster.sql("DROP EXTENSION outbox CASCADE")
                drop_with_data_loss(cluster)
                install_outbox(cluster, own_kafka)
                again = {str(row[0]) for row in cluster.sql(enqueue, [f"again {turn}", 1000])}
            finally:
                own_kafka.resume()
            drain(cluster)
            first |= again
            assert_nothing_is_left(cluster)
            with own_kafka.reader("t") as reader:
                found = [r.id for r in reader.read_all() if not r.value.startswith(b"lost")]
            assert sorted(found) == sorted(first)


def test_writers_meet_only_a_missing_extension_while_it_is_dropped_and_created_again(cluster, kafka, unique):
    topic = kafka.create_topic(unique, partitions=3)
    install_outbox(cluster, kafka)
    stop, unexpected, committed = threading.Event(), [], []
    errors = psycopg.errors
    missing = (errors.UndefinedFunction, errors.InvalidSchemaName, errors.UndefinedTable, errors.UndefinedObject)

    def write():
        with cluster.connect(autocommit=True) as c:
            while not stop.is_set():
                try:
                    committed.append(c.execute("SELECT outbox.enqueue(%s, 'x')", [topic]).fetchone()[0])
                except missing:
                    pass
                except psycopg.Error as error:
                    unexpected.append(f"{error.sqlstate} {error}")

    writers = [threading.Thread(target=write, daemon=True) for _ in range(4)]
    with nothing_breaks(cluster):
        for writer in writers:
            writer.start()
        for _ in range(size(5, 50)):
            before = len(committed)
            wait_until(lambda before=before: len(committed) > before + 100, 30, "messages are enqueued")
            drop_with_data_loss(cluster)
            install_outbox(cluster, kafka)
        stop.set()
        for writer in writers:
            writer.join()
        last = cluster.value("SELECT outbox.enqueue(%s, 'last')", [topic])
        drain(cluster)
    assert unexpected == []
    ids = [r.id for r in kafka.read_all(topic)]
    assert ids.count(str(last)) == 1
    assert len(set(ids)) == len(ids)
    assert set(ids) <= {str(i) for i in [*committed, last]}
