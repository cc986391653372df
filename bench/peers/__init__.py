"""`bench/run peers`: other ways to publish from PostgreSQL, in the same harness and with the same Kafka settings.

The numbers of a peer include its client, which is Python with confluent-kafka and psycopg2, both of them C inside.
"""

import dataclasses

from drain import open_transaction
from latency import percentile
from stage import median, number
from transactions import pgbench

from . import pgq, poller
from .systems import TICK_EVENTS, make

RUNS = 3
MESSAGES = number("BENCH_PEER_MESSAGES", 200_000)
RATE = 1000
SECONDS = number("BENCH_SECONDS", 4) + 1

NOW = "lpad((extract(epoch FROM clock_timestamp()) * 1000000)::bigint::text, 200, '0')"

# By the statistics: pages are pruned while they are used, and what is left of a row then is no tuple that can be counted.
DEAD = "SELECT coalesce(sum(n_dead_tup), 0)::bigint FROM pg_stat_all_tables WHERE schemaname = %s"


@dataclasses.dataclass
class Run:
    rate: float
    wal_enqueue: float
    wal_drain: float
    dead: float
    cpu_server: float  # a million messages
    cpu_client: float
    broken: int


def broken_order(records):
    """Records that come after one of the same key that was enqueued later."""
    last, broken = {}, 0
    for record in records:
        if record.value == b"first":
            continue
        sent = int(record.value.lstrip(b"x") or 0)
        broken += sent < last.get(record.key, -1)
        last[record.key] = max(sent, last.get(record.key, -1))
    return broken


def drain_once(stage, system):
    topic = stage.topic()
    stage.sql("CHECKPOINT")
    with stage.session() as session:
        wal = [stage.wal_position()]
        system.fill(session, topic, MESSAGES)
        wal.append(stage.wal_position())
        stage.sql("VACUUM ANALYZE")
        stage.sql("CHECKPOINT")
        wal_before, cpu = stage.wal_position(), stage.server_cpu()
        seconds, client = system.drain(session, topic)
        wal_drain, server = stage.wal_position() - wal_before, stage.server_cpu() - cpu
    records = [r for r in stage.kafka.read_all(topic) if r.value != b"first"]
    assert len(records) == MESSAGES, f"{system.name}: {len(records)} records"
    stage.kafka.delete_topic(topic)
    million = 1_000_000 / MESSAGES
    return Run(
        MESSAGES / seconds,
        (wal[1] - wal[0]) / MESSAGES,
        wal_drain / MESSAGES,
        stage.value(DEAD, [system.schema]) / MESSAGES,
        server * million,
        client * million,
        broken_order(records),
    )


def latency_once(stage, system):
    """p50 and p99 in milliseconds, as in latency.py."""
    topic = stage.topic({"message.timestamp.type": "LogAppendTime"})
    script = "\\set i random(0, 9999)\n" + system.enqueue.format(topic=topic, payload=NOW, key="'key-' || :i") + ";\n"
    stage.sql("VACUUM ANALYZE")
    with system.running(topic):
        pgbench(stage, script, "-c", 4, "-j", 1, "-R", RATE, "-T", SECONDS)
    late = [r.timestamp + 0.5 - int(r.value) / 1000 for r in stage.kafka.read_all(topic) if r.value != b"first"]
    return percentile(late, 50), percentile(late, 99)


def measure_one(stage, system):
    """The cells of its column."""
    drained = [drain_once(stage, system) for _ in range(RUNS)]
    with open_transaction(stage):
        beside = [drain_once(stage, system) for _ in range(RUNS)]
    late = [latency_once(stage, system) for _ in range(RUNS)]

    def of(field):
        return median(getattr(run, field) for run in drained)

    return [
        f"{of('rate'):,.0f}",
        f"{beside[-1].rate:,.0f}",
        f"{median(p50 for p50, _ in late):.1f} ms; {median(p99 for _, p99 in late):.1f} ms",
        f"{of('wal_enqueue'):.0f} B; {of('wal_drain'):.1f} B",
        f"{of('dead'):.2f}; {beside[-1].dead:.2f}",
        f"{max(run.broken for run in drained):,}",
        f"{of('cpu_server'):.1f}; {of('cpu_client'):.1f}",
    ]


ROWS = [
    f"drain of {MESSAGES:,} messages, messages/s",
    f"the same beside an open transaction that has written, the {RUNS}rd drain under it",
    f"{RATE:,} transactions/s: enqueue to LogAppendTime, p50; p99",
    "WAL a message: enqueue; drain",
    "dead tuples a message: after a drain; after the last one beside the open transaction",
    "messages behind a later one of their key",
    "CPU seconds a million messages, drain: server; client",
]


def table(stage):
    systems = make(stage)
    columns = []
    for system in systems:
        columns.append(measure_one(stage, system))
        print(f"{system.name}: {', '.join(columns[-1])}", flush=True)
    yield f"| measure | {' | '.join(system.name for system in systems)} |"
    yield "|---" * (len(systems) + 1) + "|"
    for row, *cells in zip(ROWS, *columns):
        yield f"| {row} | {' | '.join(cells)} |"
    yield ""
    yield from notes()


def notes():
    yield f"poller: {poller.BATCH:,} rows a claim, looks again after {poller.POLL_S * 1000:.0f} ms when there were none."
    yield f"PgQ: `pgq.ticker()` every {pgq.TICK_S * 1000:.0f} ms (pgqd's default is once a second), in the backlog after every"
    yield f"{TICK_EVENTS:,} events; its client looks again after {pgq.POLL_S * 1000:.0f} ms. Before each drain all tables are vacuumed and analyzed."
