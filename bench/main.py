"""Runs the measures and prints their table. Called by bench/run."""

import argparse
import importlib
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

BENCH = pathlib.Path(__file__).resolve().parent
ROOT = BENCH.parent
sys.path.insert(0, str(ROOT / "test" / "e2e"))

BUILD = os.environ.get("BUILD", "build")
MEASURES = ["drain", "transactions", "latency", "idle", "backlog", "dead_tuples", "maintenance"]


def install(tmp):
    """A PostgreSQL with outbox in this run's folder, so that it meets no other run."""
    source = os.environ.get("PG_CONFIG", "pg_config")
    command = [ROOT / "test" / "installation", tmp / "postgresql"]
    done = subprocess.run([*map(str, command)], stdout=subprocess.PIPE, text=True, check=True)
    make = ["make", "-s", "-C", ROOT, f"PG_CONFIG={source}", f"BUILD={BUILD}", f"{BUILD}/bare-producer"]
    subprocess.run([*map(str, make)], check=True)
    os.environ["PG_CONFIG"] = done.stdout.strip()


def measure(names):
    """Returns the text of the table."""
    import report
    from stage import Stage

    started = time.monotonic()
    with Stage() as stage:
        stage.warm_up()
        table = [*(peers_table(stage) if names == ["peers"] else report.table(measure_all(stage, names)))]
        text = "\n".join([*table, "", *report.conditions(stage), ""])
    print(f"\n{text}\nlines that do not hold: {text.count('**no**')}; {time.monotonic() - started:.0f} s")
    return text


def measure_all(stage, names):
    lines = []
    for name in names:
        lines += importlib.import_module(name).measure(stage)
    return lines


def peers_table(stage):
    import peers

    return peers.table(stage)


def main():
    parser = argparse.ArgumentParser(prog="bench/run")
    parser.add_argument("measures", nargs="*", metavar="measure", help=f"{', '.join(MEASURES)} (all), or peers")
    parser.add_argument("--output", type=pathlib.Path, help="where the table is also written (build/bench.md)")
    arguments = parser.parse_args()
    if unknown := set(arguments.measures) - {*MEASURES, "peers"}:
        parser.error(f"no such measure: {', '.join(unknown)}")
    tmp = pathlib.Path(tempfile.mkdtemp(prefix="outbox-bench-"))
    tmp.chmod(0o755)
    os.environ["OUTBOX_TMP"] = str(tmp)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # a terminated run still stops its servers
    try:
        install(tmp)
        text = measure(arguments.measures or MEASURES)
        default = "bench-peers.md" if arguments.measures == ["peers"] else "bench.md"
        output = arguments.output or ROOT / "build" / default
        output.write_text(text)
    finally:
        shutil.rmtree(tmp, ignore_errors=True)


if __name__ == "__main__":
    main()
