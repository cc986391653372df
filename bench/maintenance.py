"""1,000 enqueues a second while a segment is rolled, frozen and dropped every second, beside the same without.

Each call of enqueue is timed in the server, where it runs; beside it the whole transaction as its client sees it.
"""

import contextlib

from harness import wait_until
from latency import percentile, transaction_times
from report import Line
from stage import median, number
from transactions import pgbench

RUNS = 3
RATE = 1000
SECONDS = number("BENCH_SECONDS", 4) + 4
CLIENTS = 4

TIMED = """
CREATE UNLOGGED TABLE bench_time (microseconds float8);
CREATE FUNCTION bench_timed_enqueue(topic text, payload text, key text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  began timestamptz := clock_timestamp();
BEGIN
  PERFORM outbox.enqueue(topic, payload, key);
  INSERT INTO public.bench_time VALUES (extract(epoch FROM clock_timestamp() - began) * 1000000);
END $$;
"""
SCRIPT = "\\set i random(0, 9999)\nSELECT bench_timed_enqueue('{topic}', lpad((:i)::text, 200, 'x'), 'key-' || :i);\n"
STATES = "SELECT segment, state FROM outbox.segments ORDER BY segment"


def configure(stage, **settings):
    for name, value in settings.items():
        stage.sql(f"ALTER SYSTEM SET outbox.{name} = '{value}'" if value else f"ALTER SYSTEM RESET outbox.{name}")
    stage.sql("SELECT pg_reload_conf()")


@contextlib.contextmanager
def maintenance(stage):
    """A segment a second, and none is kept; at the end there is nothing left to do."""
    configure(stage, segment_max_age="1s", retention="1s")
    first = stage.sql(STATES)[0][0]
    wait_until(lambda: stage.sql(STATES)[0][0] > first, 60, "segments are dropped")
    yield
    configure(stage, segment_max_age=None)
    wait_until(lambda: [state for _, state in stage.sql(STATES)] == ["open"], 60, "all but the open segment are dropped")
    configure(stage, retention=None)


def once(stage, topic):
    """p99 in microseconds of enqueue, of the transaction; how many segments were opened and dropped."""
    stage.sql("TRUNCATE bench_time")
    before = [segment for segment, _ in stage.sql(STATES)]
    pgbench(stage, SCRIPT.format(topic=topic), "-c", CLIENTS, "-j", 1, "-R", RATE, "-T", SECONDS, "--log")
    after = [segment for segment, _ in stage.sql(STATES)]
    times = [ms * 1000 for ms in transaction_times(stage.cluster.folder)]
    calls = [us for (us,) in stage.sql("SELECT microseconds FROM bench_time")]
    return percentile(calls, 99), percentile(times, 99), after[-1] - before[-1], after[0] - before[0]


def measure(stage):
    stage.cluster.psql(TIMED)
    topic = stage.topic()
    alone, during = [], []
    for _ in range(RUNS):
        alone.append(once(stage, topic))
        with maintenance(stage):
            during.append(once(stage, topic))
        print("maintenance: p99 of enqueue {:.0f} µs, transaction {:.0f} µs; ".format(*alone[-1]), end="")
        print("during it {:.0f} µs, {:.0f} µs; {} segments opened, {} dropped".format(*during[-1]), flush=True)
    stage.drain()
    call, transaction, *_ = (median(column) for column in zip(*alone))
    call_during, transaction_during, opened, dropped = (median(column) for column in zip(*during))
    busy = min(opened, dropped) >= 0.7 * SECONDS
    return [
        Line(
            f"p99 of enqueue at {RATE:,}/s, a segment rolled, frozen and dropped each second / without",
            f"{call_during / call:.2f} ({call_during:.0f} µs / {call:.0f} µs; in {SECONDS} s {opened} opened, {dropped} dropped)",
            "≤ 2",
            busy and call_during / call <= 2,
        ),
        Line(
            "the same, the whole transaction",
            f"{transaction_during / transaction:.2f} ({transaction_during / 1000:.1f} ms / {transaction / 1000:.1f} ms)",
            "≤ 2",
            transaction_during / transaction <= 2,
        ),
    ]
