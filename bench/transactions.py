"""Transactions a second of two clients: one enqueue each, beside one INSERT into a plain table without index."""

import re

from report import Line
from stage import median, number

RUNS = 3
CLIENTS = 2
SECONDS = number("BENCH_SECONDS", 4)

# pgbench with prepared statements: neither side is hidden behind parsing
DRAW = "\\set i random(0, 9999)\n"
PLAIN = DRAW + "INSERT INTO bench_plain VALUES ('topic', 'key-' || :i, lpad((:i)::text, 200, 'x'));\n"
ENQUEUE = DRAW + "SELECT outbox.enqueue('{topic}', lpad((:i)::text, 200, 'x'), 'key-' || :i);\n"


def pgbench(stage, script, *args):
    """Run a script and return what pgbench prints."""
    path = stage.cluster.folder / "script.sql"
    path.write_text(script)
    common = ["-n", "-M", "prepared", "-f", path]
    return stage.cluster.run("pgbench", *common, *args, "postgres").stdout


def tps(stage, script):
    output = pgbench(stage, script, "-c", CLIENTS, "-j", CLIENTS, "-T", SECONDS)
    return float(re.search(r"tps = ([0-9.]+)", output)[1])


def measure(stage):
    topic = stage.topic()
    enqueue = ENQUEUE.format(topic=topic)
    plain, publishing, paused, wal = [], [], [], []
    tps(stage, PLAIN)  # files are made and grow for the first time
    for _ in range(RUNS):
        plain.append(tps(stage, PLAIN))
        publishing.append(tps(stage, enqueue))
        stage.drain()
        stage.pause()
        paused.append(tps(stage, enqueue))
        with stage.session() as session:
            stage.resume_and_drain(session)
        print(f"transactions: plain {plain[-1]:.0f}/s, publishing {publishing[-1]:.0f}/s, ", end="")
        print(f"paused {paused[-1]:.0f}/s", flush=True)
    ratio = median(publishing) / median(plain)
    return [
        Line(
            f"transactions/s, {CLIENTS} clients, one enqueue each, worker publishing / plain INSERT",
            f"{ratio:.2f} ({median(publishing):,.0f}/s / {median(plain):,.0f}/s)",
            "0.85",
            ratio >= 0.85,
        ),
        Line("the same, worker paused", f"{median(paused) / median(plain):.2f} ({median(paused):,.0f}/s)"),
    ]
