"""Java and the jars of Apache Kafka: found, or fetched once from Maven Central into the user's cache."""

import fcntl
import hashlib
import os
import pathlib
import shutil
import subprocess
import tempfile

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "kafka"
LOG_CONFIG = FOLDER / "log4j2.properties"

_why_not = None


class Unavailable(Exception):
    """There is no real Kafka on this machine; the text says why."""


def _cache():
    root = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
    return root / "outbox-test"


def jars():
    """The folder of the jars; raises Unavailable. A failure is remembered: it is not tried again by every test."""
    global _why_not
    if _why_not:
        raise Unavailable(_why_not)
    try:
        return _find_or_fetch()
    except Unavailable as reason:
        _why_not = str(reason)
        raise


def _find_or_fetch():
    if not shutil.which("java"):
        raise Unavailable("no java (Debian: default-jre-headless)")
    pom = FOLDER / "pom.xml"
    folder = _cache() / f"kafka-{hashlib.sha256(pom.read_bytes()).hexdigest()[:12]}"
    if folder.exists():
        return folder
    if not shutil.which("mvn"):
        raise Unavailable("no jars of Kafka and no mvn to fetch them (Debian: maven)")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(folder.with_suffix(".lock"), "w") as lock:  # other test runs on this machine wait for the same jars
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            _fetch(pom, folder)
    return folder


def _fetch(pom, folder):
    partial = pathlib.Path(tempfile.mkdtemp(prefix="partial-", dir=folder.parent))
    try:
        done = subprocess.run(
            ["mvn", "-q", "-B", "-f", pom, "dependency:copy-dependencies", f"-DoutputDirectory={partial}"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=600,
        )
        if done.returncode:
            errors = [line for line in done.stdout.splitlines() if "ERROR" in line]
            raise Unavailable("Maven could not fetch Kafka: " + (errors or ["no reason given"])[0].strip())
        partial.chmod(0o755)
        partial.rename(folder)
    except subprocess.TimeoutExpired:
        raise Unavailable("Maven did not fetch Kafka within 600 s") from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)
