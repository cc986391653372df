"""Java and the jars of Apache Kafka: found, or fetched once from Maven Central into the user's cache."""

import hashlib
import pathlib
import shutil

from . import cache
from .cache import Unavailable

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "kafka"
LOG_CONFIG = FOLDER / "log4j2.properties"
POM = FOLDER / "pom.xml"


def jars():
    """The folder of the jars; raises Unavailable."""
    if not shutil.which("java"):
        raise Unavailable("no java (Debian: default-jre-headless)")
    return cache.cached(f"kafka-{hashlib.sha256(POM.read_bytes()).hexdigest()[:12]}", _fetch)


def _fetch(folder):
    if not shutil.which("mvn"):
        raise Unavailable("no jars of Kafka and no mvn to fetch them (Debian: maven)")
    cache.run("mvn", "-q", "-B", "-f", POM, "dependency:copy-dependencies", f"-DoutputDirectory={folder}")
