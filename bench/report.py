"""The table, and what it was measured on."""

import dataclasses
import datetime
import os
import pathlib
import re
import subprocess
import textwrap

from harness import kafka_jars
from stage import PARTITIONS, bare_producer

SETTINGS = (
    "fsync", "synchronous_commit", "wal_sync_method", "full_page_writes", "shared_buffers", "max_wal_size",
    "checkpoint_timeout", "autovacuum_naptime",
)  # fmt: skip


@dataclasses.dataclass
class Line:
    measure: str
    result: str
    at_least: str = "reported"
    held: bool | None = None  # None: only reported


def table(lines):
    yield "| measure | result | at least | held |"
    yield "|---|---|---|---|"
    for line in lines:
        held = {True: "yes", False: "**no**", None: ""}[line.held]
        yield f"| {line.measure} | {line.result} | {line.at_least} | {held} |"


def conditions(stage):
    """Versions, machine, settings."""
    yield from textwrap.wrap(" ".join(_conditions(stage)), 124)


def _conditions(stage):
    settings = ", ".join(f"{name} = {stage.value(f'SHOW {name}')}" for name in SETTINGS)
    postgresql = stage.value("SHOW server_version").split()[0]
    today = datetime.date.today().isoformat()
    yield f"{today}. PostgreSQL {postgresql}, librdkafka {_librdkafka()}, Kafka {_kafka()} (one broker, {_java()})."
    yield f"{_machine()}; server, broker and clients on it together."
    yield f"{settings}. Topics have {PARTITIONS} partitions and one replica, kept in the broker's page cache (its default)."


def _librdkafka():
    return bare_producer("version").strip()


def _kafka():
    names = (path.name for path in pathlib.Path(kafka_jars.jars()).iterdir())
    return next(found[1] for name in names if (found := re.fullmatch(r"kafka_[0-9.]+-([0-9.]+)\.jar", name)))


def _java():
    text = subprocess.run(["java", "-version"], capture_output=True, text=True).stderr
    found = re.search(r'version "([^"]+)"', text)
    return f"Java {found[1]}" if found else "Java"


def _machine():
    cpu = re.search(r"model name\s*: (.*)", pathlib.Path("/proc/cpuinfo").read_text())
    memory = int(re.search(r"MemTotal:\s*(\d+)", pathlib.Path("/proc/meminfo").read_text())[1]) / 1024 / 1024
    return f"{len(os.sched_getaffinity(0))} cores ({cpu[1] if cpu else 'unknown'}), {memory:.0f} GB memory"
