"""What a worker does while nothing is enqueued."""

import time

import usage
from harness import wait_until
from report import Line
from stage import number

SECONDS = number("BENCH_IDLE_SECONDS", 10)

# Asked from another database, so that the question itself does not count.
STATISTICS = """
SELECT xact_commit + xact_rollback, tup_returned + tup_fetched + tup_inserted + tup_updated + tup_deleted
  FROM pg_stat_database WHERE datname = 'postgres'
"""


def is_still(worker):
    """The worker's main thread has not run for 6 s: the upkeep 5 s after the last messages is over."""
    before = usage.wakeups(worker)
    time.sleep(6)  # the measure itself, not a wait for something
    return usage.wakeups(worker) == before


def read(worker, observer):
    transactions, tuples = observer.execute(STATISTICS).fetchone()
    return {
        "transactions": transactions,
        "tuples": tuples,
        "WAL": int(observer.execute("SELECT pg_current_wal_insert_lsn() - '0/0'").fetchone()[0]),
        "wakeups": usage.wakeups(worker),
        "CPU": usage.cpu_nanoseconds(worker),
    }


def wal_records(stage, begin, end):
    """Records between two positions; the background writer's snapshot of running transactions, after any write, is not ours."""
    if begin == end:
        return 0
    positions = [f"{p >> 32:X}/{p & 0xFFFFFFFF:X}" for p in (begin, end)]
    found = stage.cluster.run("pg_waldump", "-p", stage.cluster.data / "pg_wal", "-s", positions[0], "-e", positions[1])
    return sum("RUNNING_XACTS" not in line for line in found.stdout.splitlines())


def wait_still(worker):
    wait_until(lambda: is_still(worker), 60, "the worker is idle")


def look(stage, worker, observer):
    """What one look at the catalogs costs: the worker takes one every 30 s, and at a reload.

    It also hands in the statistics of what was done before, and the next look is 30 s away.
    """
    wait_still(worker)
    before = read(worker, observer)
    stage.sql("SELECT pg_reload_conf()")
    wait_until(lambda: usage.wakeups(worker) > before["wakeups"], 10, "the worker looks")
    wait_still(worker)
    return (read(worker, observer)["CPU"] - before["CPU"]) / 1e6


def measure(stage):
    stage.drain()
    worker = stage.worker_pid()
    with stage.cluster.connect("template1", autocommit=True) as observer:
        looks = [look(stage, worker, observer) for _ in range(2)]
        before = read(worker, observer)
        time.sleep(SECONDS)
        after = read(worker, observer)
    used = {name: after[name] - before[name] for name in before}
    records = wal_records(stage, before["WAL"], after["WAL"])
    cpu = used["CPU"] / (SECONDS * 1e9)
    return [
        Line(
            f"idle worker, {SECONDS} s: transactions; tuples read or written; WAL records of the server",
            f"{used['transactions']}; {used['tuples']}; {records}",
            "0; 0; 0",
            not (used["transactions"] or used["tuples"] or records),
        ),
        Line(
            "idle worker: CPU; wakeups of its main thread",
            f"{cpu:.3%}; {used['wakeups']} (a look at the catalogs every 30 s: {looks[-1]:.1f} ms)",
            "< 0.1 %",
            cpu < 0.001,
        ),
    ]
