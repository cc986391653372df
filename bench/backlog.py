"""A server started with millions of messages pending: when the first one is on the topic, and what the worker needs."""

import threading
import time

import usage
from report import Line
from stage import PARTITIONS, bare_producer, number

MESSAGES = number("BENCH_BACKLOG", 5_000_000)
FILLERS = 2
A_TRANSACTION = 50_000


def fill(stage, topic):
    def work():
        with stage.session() as session:
            stage.fill(session, topic, MESSAGES // FILLERS, A_TRANSACTION)

    fillers = [threading.Thread(target=work) for _ in range(FILLERS)]
    for filler in fillers:
        filler.start()
    for filler in fillers:
        filler.join()


def find_worker(stage):
    """Without asking the server: it may not accept sessions yet."""
    title = b"outbox worker"
    return next((pid for pid in stage.server_pids() if title in usage.command_line(pid)), None)


class Sampler:
    """The largest RssAnon of the worker, looked at 20 times a second until it has drained."""

    def __init__(self, stage):
        self.peak_kb = 0
        self._stage = stage
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._over.set()
        self._thread.join()

    def _run(self):
        worker = None
        while not self._over.wait(0.05):
            worker = worker or find_worker(self._stage)
            if worker:
                self.peak_kb = max(self.peak_kb, usage.rss_anon_kb(worker))


def first_append(stage, topic):
    """The earliest LogAppendTime, in seconds since 1970."""
    with stage.kafka.reader(topic) as reader:
        reader.read(until=lambda records: len({r.partition for r in records}) == PARTITIONS, timeout=60)
        return min(r.timestamp for r in reader.records) / 1000


def measure(stage):
    topic = stage.kafka.create_topic("bench-backlog", PARTITIONS, {"message.timestamp.type": "LogAppendTime"})
    stage.pause()
    fill(stage, topic)
    stage.sql("ALTER SYSTEM RESET outbox.enabled")
    stage.cluster.stop()
    started = time.time()
    with Sampler(stage) as sampler:
        stage.cluster.start()
        ready = time.time()
        stage.drain()
        drained = time.time()
    assert stage.records_on(topic) == MESSAGES
    first = first_append(stage, topic) - started
    peak = sampler.peak_kb / 1024
    queue = float(bare_producer("queue"))
    return [
        Line(
            f"start of the server with {MESSAGES:,} pending: to the first record",
            f"{first:.2f} s (to the first session {ready - started:.2f} s; all drained after {drained - started:.1f} s)",
            "< 5 s",
            first < 5,
        ),
        Line(
            "the same: peak RssAnon of the worker",
            f"{peak:.0f} MB (librdkafka's queue: {queue:.0f} MB when full)",
            "< 64 MB + queue",
            peak < 64 + queue,
        ),
    ]
