"""Millions of messages pending over many segments drain as fast as in one, and need no more memory."""

import time

from harness import install_outbox, size, wait_until
from harness.background import InBackground
from harness.load import assert_nothing_is_left, drain
from harness.processes import rss_anon_kb
from harness.segments import configure, states, wait_only_open

MESSAGES = size(300_000, 5_000_000)
SEGMENTS = 20
PARTITIONS = 6
A_TRANSACTION = 5_000
ROUNDS = size(2, 1)
# What librdkafka's queue and a window's list take is the worker's; how much there is in segments must not count.
MEMORY_MB = 250

FILL = """
CREATE PROCEDURE fill(topic text, low integer, high integer) LANGUAGE plpgsql AS $$
BEGIN
  FOR n IN low .. high - 1 BY 5000 LOOP
    PERFORM count(outbox.enqueue(topic, lpad(i::text, 200, 'x'), 'key-' || i % 10000)) FROM generate_series(n, n + 4999) i;
    COMMIT;
  END LOOP;
END $$
"""


class Peak(InBackground):
    """The most memory that the worker and maintenance were seen with, in MB."""

    def __init__(self, cluster):
        super().__init__(cluster, self._look, 0.02)
        self.mb = {}

    def _look(self, connection):
        query = "SELECT pid, backend_type FROM pg_stat_activity WHERE backend_type ~ '^outbox (worker|maintenance)$'"
        for pid, name in connection.execute(query).fetchall():
            self.mb[name] = max(self.mb.get(name, 0), (rss_anon_kb(pid) or 0) / 1024)


def run(cluster, kafka, topic, segments):
    """Fill so many segments while nothing is published; returns (messages a second of the drain, peaks of memory)."""
    each = MESSAGES // segments
    with cluster.connect(autocommit=True) as c:
        configure(cluster, enabled="off")
        wait_until(lambda: c.execute("SELECT bool_and(state = 'paused') FROM outbox.workers").fetchone()[0], 30, "paused")
        for segment in range(segments):
            c.execute("SELECT outbox.roll()")
            c.execute("CALL fill(%s, %s, %s)", [topic, segment * each, (segment + 1) * each])
        filled = c.execute("SELECT count(*) FROM outbox.segments WHERE state IN ('rolled', 'open')").fetchone()[0]
        assert filled >= segments
        c.execute("CHECKPOINT")
        with Peak(cluster) as peak:
            began = time.monotonic()
            configure(cluster, enabled=None)
            drain(cluster, seconds=600)
            rate = MESSAGES / (time.monotonic() - began)
    return rate, peak.mb


def check(kafka, topic, rounds):
    """Each key's messages came in their order, once a round."""
    last, count = {}, 0
    for record in sorted(kafka.read_all(topic, timeout=600), key=lambda r: (r.partition, r.offset)):
        number = int(record.value.lstrip(b"x"))
        before = last.get(record.key)
        assert number % 10_000 == int(record.key.removeprefix(b"key-"))
        assert before is None or number in (before + 10_000, number % 10_000), (record, before)
        last[record.key] = number
        count += 1
    assert count == MESSAGES * rounds


def test_a_backlog_over_20_segments_drains_as_fast_as_in_one_with_bounded_memory(make_cluster, kafka, unique):
    cluster = make_cluster({"max_wal_size": "4GB", "shared_buffers": "256MB"})
    topic = kafka.create_topic(unique, partitions=PARTITIONS)
    install_outbox(cluster, kafka)
    cluster.sql(FILL)
    cluster.sql("SELECT outbox.enqueue(%s, '0', 'key-0')", [topic])
    drain(cluster)
    configure(cluster, retention="0s")
    best, peaks = {1: 0, SEGMENTS: 0}, {1: {}, SEGMENTS: {}}
    for _ in range(ROUNDS):
        for segments in best:
            rate, peak = run(cluster, kafka, topic, segments)
            print(f"{MESSAGES} messages over {segments} segments: {rate:,.0f}/s; MB at most: {peak}")
            best[segments] = max(best[segments], rate)
            peaks[segments] = {name: max(mb, peaks[segments].get(name, 0)) for name, mb in peak.items()}
    wait_only_open(cluster, timeout=120)
    assert_nothing_is_left(cluster)
    assert best[SEGMENTS] > size(0.5, 0.75) * best[1], best
    for name, mb in peaks[SEGMENTS].items():
        assert mb < MEMORY_MB, peaks
        assert mb < 1.25 * peaks[1][name] + 16, peaks
