"""A backlog of committed messages: drained by outbox, drained beside an open transaction, sent by librdkafka alone.

In turns. The same runs tell what the messages cost in WAL and CPU time.
"""

import contextlib
import dataclasses

import usage
from report import Line
from stage import median, number

RUNS = 3
MESSAGES = number("BENCH_MESSAGES", 500_000)


@dataclasses.dataclass
class Run:
    seconds: float
    cpu_enqueue: float  # of all processes of the server
    cpu_worker: float
    cpu_others: float
    wal_enqueue: int
    wal_drain: int


def outbox_once(stage, beside=contextlib.nullcontext):
    topic = stage.topic()
    stage.pause()
    stage.sql("CHECKPOINT")
    worker = stage.worker_pid()
    with stage.session() as session, beside(stage):
        wal, cpu = [stage.wal_position()], [stage.server_cpu()]
        stage.fill(session, topic, MESSAGES)
        wal.append(stage.wal_position())
        cpu.append(stage.server_cpu())
        stage.sql("CHECKPOINT")
        wal_before, cpu_before = stage.wal_position(), stage.server_cpu()
        worker_before = usage.cpu_seconds([worker])
        seconds = stage.resume_and_drain(session)
        cpu_drain = stage.server_cpu() - cpu_before
        cpu_worker = usage.cpu_seconds([worker]) - worker_before
        wal_drain = stage.wal_position() - wal_before
    assert stage.records_on(topic) == MESSAGES + 1
    stage.kafka.delete_topic(topic)
    return Run(seconds, cpu[1] - cpu[0], cpu_worker, cpu_drain - cpu_worker, wal[1] - wal[0], wal_drain)


@contextlib.contextmanager
def open_transaction(stage):
    """Another session has written before the messages are enqueued, and does not end: it holds an xid and the horizon of vacuum."""
    with stage.cluster.connect() as connection:
        connection.execute("INSERT INTO bench_plain VALUES ('open', 'transaction', '')")
        yield
        connection.rollback()


def bare_once(stage):
    topic = stage.topic()
    run = stage.bare(topic, MESSAGES)
    stage.kafka.delete_topic(topic)
    return run


def measure(stage):
    bare, alone, beside = [], [], []
    for _ in range(RUNS):
        bare.append(bare_once(stage))
        alone.append(outbox_once(stage))
        beside.append(outbox_once(stage, open_transaction))
        print(f"drain: bare {bare[-1].seconds:.2f} s, outbox {alone[-1].seconds:.2f} s, ", end="")
        print(f"beside an open transaction {beside[-1].seconds:.2f} s", flush=True)
    return lines(bare, alone, beside)


def lines(bare, alone, beside):
    seconds = median(run.seconds for run in alone)
    seconds_bare = median(run.seconds for run in bare)
    ratio = seconds_bare / seconds
    ratio_beside = seconds / median(run.seconds for run in beside)

    def of(field, per):
        return median(getattr(run, field) for run in alone) * per / MESSAGES

    wal_drain = of("wal_drain", 1)
    million = 1_000_000
    return [
        Line(
            f"drain of {MESSAGES:,} committed messages / bare librdkafka",
            f"{ratio:.2f} ({MESSAGES / seconds:,.0f}/s / {MESSAGES / seconds_bare:,.0f}/s)",
            "0.7",
            ratio >= 0.7,
        ),
        Line(
            "the same beside an open transaction that has written / without",
            f"{ratio_beside:.2f}",
            "0.95",
            ratio_beside >= 0.95,
        ),
        Line(
            "WAL a message: enqueue; drain",
            f"{of('wal_enqueue', 1):.0f} B; {wal_drain:.1f} B",
            "drain ≤ 20 B",
            wal_drain <= 20,
        ),
        Line(
            "CPU seconds a million messages, drain: worker; rest of the server",
            f"{of('cpu_worker', million):.1f}; {of('cpu_others', million):.2f}"
            f" (bare librdkafka {median(run.cpu for run in bare) * million / MESSAGES:.1f})",
        ),
        Line("CPU seconds a million messages, enqueue: whole server", f"{of('cpu_enqueue', million):.1f}"),
    ]
