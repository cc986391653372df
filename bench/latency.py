"""1,000 transactions a second: from enqueue to the broker's LogAppendTime, the commit included.

The time of the enqueue stands in the payload. LogAppendTime is cut to whole milliseconds, so half of one is added.
"""

import re

from report import Line
from stage import median, number
from transactions import pgbench

RUNS = 3
RATE = 1000
SECONDS = number("BENCH_SECONDS", 4) + 1
CLIENTS = 4

SCRIPT = r"""\set i random(0, 9999)
SELECT outbox.enqueue('{topic}', lpad((extract(epoch FROM clock_timestamp()) * 1000000)::bigint::text, 200, '0'),
                      'key-' || :i);
"""


def percentile(values, percent):
    return sorted(values)[len(values) * percent // 100]


def outbox_once(stage):
    """p50 and p99 in milliseconds, pgbench's average of the whole transaction, transactions a second, and WAL."""
    topic = stage.topic({"message.timestamp.type": "LogAppendTime"})
    wal = stage.wal_position()
    output = pgbench(
        stage, SCRIPT.format(topic=topic), "-c", CLIENTS, "-j", 1, "-R", RATE, "-T", SECONDS, "--random-seed=1"
    )
    stage.drain()
    wal = stage.wal_position() - wal
    # without the time that pgbench itself came late
    commit = float(re.search(r"latency average = ([0-9.]+)", output)[1]) - float(
        re.search(r"rate limit schedule lag: avg ([0-9.]+)", output)[1]
    )
    records = stage.kafka.read_all(topic)
    late = [r.timestamp + 0.5 - int(r.value) / 1000 for r in records if r.value != b"first"]
    return percentile(late, 50), percentile(late, 99), commit, len(late) / SECONDS, wal / len(late)


def bare_once(stage):
    run = stage.bare(stage.topic(), RATE * SECONDS, RATE)
    return run.p50_ms, run.p99_ms


def measure(stage):
    ours, bare = [], []
    for _ in range(RUNS):
        bare.append(bare_once(stage))
        ours.append(outbox_once(stage))
        print("latency: bare p50 {:.2f} ms, p99 {:.2f} ms, ".format(*bare[-1]), end="")
        print("outbox p50 {:.2f} ms, p99 {:.2f} ms, transaction {:.2f} ms".format(*ours[-1]), flush=True)
    p50, p99, commit, rate, wal = (median(column) for column in zip(*ours))
    bare50, bare99 = (median(column) for column in zip(*bare))
    return [
        Line(
            f"{rate:,.0f} transactions/s: enqueue to LogAppendTime, p50; p99",
            f"{p50:.1f} ms; {p99:.1f} ms (of it the transaction {commit:.1f} ms;"
            f" bare librdkafka to its report {bare50:.1f} ms; {bare99:.1f} ms)",
            "≤ 2 ms; ≤ 10 ms",
            p50 <= 2 and p99 <= 10,
        ),
        Line("WAL a transaction of one message at that rate, enqueue, commit and drain", f"{wal:.0f} B"),
    ]
