"""What every measure stands on: one PostgreSQL with outbox, one Kafka, and the messages of the benchmark."""

import dataclasses
import os
import pathlib
import statistics
import subprocess
import time

import usage
from harness import Cluster, RealKafka, install_outbox, processes, wait_until

ROOT = pathlib.Path(__file__).resolve().parent.parent
BARE_PRODUCER = ROOT / os.environ.get("BUILD", "build") / "bare-producer"
PARTITIONS = 6
WARM_UP = 500_000

# The rest is PostgreSQL's default: fsync, synchronous_commit and full_page_writes on.
SETTINGS = {
    "shared_buffers": "256MB",
    "max_wal_size": "4GB",  # no checkpoint by itself within a measure
    "checkpoint_timeout": "1h",
    "autovacuum_naptime": "1h",  # nor a vacuum
    "log_checkpoints": "off",
}

# 200 bytes and one of 10,000 keys, as bench/bare_producer.cpp makes them; outbox adds the header id.
PAYLOAD = "lpad(i::text, 200, 'x')"
KEY = "'key-' || i % 10000"

FILL = f"""
CREATE PROCEDURE bench_fill(topic text, messages integer, a_transaction integer) LANGUAGE plpgsql AS $$
BEGIN
  FOR low IN 0 .. messages - 1 BY a_transaction LOOP
    PERFORM count(outbox.enqueue(topic, {PAYLOAD}, {KEY}))
      FROM generate_series(low, least(low + a_transaction, messages) - 1) i;
    COMMIT;
  END LOOP;
END $$
"""


class Stage:
    """The servers of a run; close() ends them."""

    def __init__(self):
        self.kafka = RealKafka()
        self.cluster = None
        self._topics = 0
        try:
            self.cluster = Cluster(SETTINGS)
            install_outbox(self.cluster, self.kafka)
            self.sql(FILL)
            self.sql("CREATE TABLE bench_plain (topic text, key text, payload text)")
        except BaseException:
            self.close()
            raise

    def close(self):
        if self.cluster:
            self.cluster.close()
        self.kafka.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def sql(self, query, params=None):
        return self.cluster.sql(query, params)

    def value(self, query, params=None):
        return self.cluster.value(query, params)

    # ---- messages

    def topic(self, config=None):
        """A new topic; one message of outbox is on it, so that nothing of it is new to the worker."""
        self._topics += 1
        name = self.kafka.create_topic(f"bench-{self._topics}", PARTITIONS, config)
        self.sql("SELECT outbox.enqueue(%s, 'first', 'key')", [name])
        self.drain()
        return name

    def session(self):
        """A connection that stays, so that what its backend has used stays too."""
        return self.cluster.connect(autocommit=True)

    def fill(self, session, topic, messages, a_transaction=1000):
        """Enqueue in transactions of `a_transaction` messages."""
        session.execute("CALL bench_fill(%s, %s, %s)", [topic, messages, a_transaction])

    # outbox.pause() would do, but outbox.resume() deletes its row, and dead tuples are counted at the end
    def pause(self):
        self.sql("ALTER SYSTEM SET outbox.enabled = off")
        self.sql("SELECT pg_reload_conf()")
        wait_until(lambda: self.value("SELECT state FROM outbox.workers") == "paused", 30, "the worker is paused")

    def drain(self):
        assert self.value("SELECT outbox.drain('10 minutes')"), "outbox did not drain"

    def resume_and_drain(self, session):
        """Seconds from the signal that ends pause() until all is acknowledged and in the progress log."""
        self.sql("ALTER SYSTEM RESET outbox.enabled")
        started = time.perf_counter()
        session.execute("SELECT pg_reload_conf()")
        (done,) = session.execute("SELECT outbox.drain('10 minutes')").fetchone()
        seconds = time.perf_counter() - started
        assert done, "outbox did not drain"
        return seconds

    def records_on(self, topic):
        with self.kafka.reader(topic) as reader:
            return sum(reader.end_offsets().values())

    # ---- the processes

    def worker_pid(self):
        return self.cluster.wait_worker()

    def server_pids(self):
        return processes.processes_in(self.cluster.data)

    def server_cpu(self):
        """CPU seconds of all processes that the server has or had."""
        return usage.cpu_seconds(self.server_pids()) + usage.cpu_seconds_of_children(self.cluster.postmaster_pid)

    def wal_position(self):
        return int(self.value("SELECT pg_current_wal_insert_lsn() - '0/0'"))

    # ---- the yardstick

    def warm_up(self):
        """The broker's code is compiled while it runs."""
        self.bare(self.topic(), WARM_UP)

    def bare(self, topic, messages, rate=None):
        """librdkafka alone."""
        rate = [] if rate is None else [rate]
        return Bare(*map(float, bare_producer(self.kafka.bootstrap, topic, messages, *rate).split()))


@dataclasses.dataclass
class Bare:
    """What bench/bare_producer.cpp prints."""

    seconds: float
    cpu: float
    p50_ms: float  # from produce to report
    p99_ms: float


def bare_producer(*args):
    return subprocess.run([str(BARE_PRODUCER), *map(str, args)], stdout=subprocess.PIPE, text=True, check=True).stdout


def median(values):
    return statistics.median(values)


def number(name, default):
    """A size that the environment may change."""
    return int(os.environ.get(name, default))
