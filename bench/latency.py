"""1,000 transactions a second: from enqueue to the broker's LogAppendTime, the commit included.

The time of the enqueue stands in the payload. LogAppendTime is cut to whole milliseconds, so half of one is added.
"""

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


def transaction_times(folder):
    """Milliseconds that pgbench's transactions took, from its logs: time and how late it began are in microseconds."""
    for log in folder.glob("pgbench_log.*"):
        for line in log.read_text().splitlines():
            _client, _number, time, _script, _second, _microsecond, lag = map(int, line.split())
            yield (time - lag) / 1000
        log.unlink()


def outbox_once(stage):
    """p50 and p99 in milliseconds, those of the transaction alone, transactions a second, and WAL of one."""
    topic = stage.topic({"message.timestamp.type": "LogAppendTime"})
    wal = stage.wal_position()
    pgbench(stage, SCRIPT.format(topic=topic), "-c", CLIENTS, "-j", 1, "-R", RATE, "-T", SECONDS, "--log")
    stage.drain()
    wal = stage.wal_position() - wal
    times = list(transaction_times(stage.cluster.folder))
    late = [r.timestamp + 0.5 - int(r.value) / 1000 for r in stage.kafka.read_all(topic) if r.value != b"first"]
    own = percentile(times, 50), percentile(times, 99)
    return percentile(late, 50), percentile(late, 99), *own, len(late) / SECONDS, wal / len(late)


def bare_once(stage):
    run = stage.bare(stage.topic(), RATE * SECONDS, RATE)
    return run.p50_ms, run.p99_ms


def measure(stage):
    ours, bare = [], []
    for _ in range(RUNS):
        bare.append(bare_once(stage))
        ours.append(outbox_once(stage))
        print("latency: bare p50 {:.2f} ms, p99 {:.2f} ms, ".format(*bare[-1]), end="")
        print("outbox p50 {:.2f} ms, p99 {:.2f} ms, transaction p50 {:.2f} ms, p99 {:.2f} ms".format(*ours[-1]), flush=True)
    p50, p99, own50, own99, rate, wal = (median(column) for column in zip(*ours))
    bare50, bare99 = (median(column) for column in zip(*bare))
    return [
        Line(
            f"{rate:,.0f} transactions/s: enqueue to LogAppendTime, p50; p99",
            f"{p50:.1f} ms; {p99:.1f} ms (the transaction {own50:.1f} ms; {own99:.1f} ms;"
            f" bare librdkafka, to its report: {bare50:.1f} ms; {bare99:.1f} ms)",
            "≤ 2 ms; ≤ 10 ms",
            p50 <= 2 and p99 <= 10,
        ),
        Line("WAL a transaction of one message at that rate, enqueue, commit and drain", f"{wal:.0f} B"),
    ]
