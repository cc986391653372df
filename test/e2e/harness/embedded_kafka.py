"""The embedded Kafka (demo/embedded_kafka.cpp): no Java, starts at once, fails on command."""

import os
import pathlib
import subprocess
import threading

from .records import Readable
from .resources import Resource

ROOT = pathlib.Path(__file__).resolve().parents[3]


def program():
    """$OUTBOX_EMBEDDED_KAFKA, or build/embedded-kafka of this checkout, made if it is missing."""
    given = os.environ.get("OUTBOX_EMBEDDED_KAFKA")
    path = pathlib.Path(given) if given else ROOT / "build" / "embedded-kafka"
    if not given and not path.exists():
        subprocess.run(["make", "-s", "-C", ROOT, "build/embedded-kafka"], check=True)
    return path


class EmbeddedKafka(Resource, Readable):
    """One process; close() ends it. Keeps 5 MB or 100,000 records a partition; checks no sizes, timestamps or rights.

    Topics are made by create_topic() or by the first client that asks for them (4 partitions), as a client allows.
    Names of errors are librdkafka's (MSG_SIZE_TOO_LARGE, NOT_LEADER_FOR_PARTITION; _TRANSPORT drops the connection),
    of requests: Produce, Metadata, InitProducerId, … or a number.
    """

    def __init__(self, brokers=1, partitions=3, topics=None):
        args = [program(), "--brokers", str(brokers), "--partitions", str(partitions)]
        for name, count in (topics or {}).items():
            args += ["--topic", f"{name}:{count}"]
        self.default_partitions = partitions
        self._lock = threading.Lock()
        self._commands = []
        self._process = subprocess.Popen(args, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
        self.bootstrap = self._process.stdout.readline().strip()
        if not self.bootstrap:
            raise RuntimeError(f"the embedded Kafka did not start (exit {self._process.wait()})")
        self.register()

    def command(self, *words):
        """Send one command, raise ValueError unless the answer is ok. `help` on its standard input lists them."""
        line = " ".join(str(word) for word in words)
        with self._lock:
            self._process.stdin.write(line + "\n")
            answer = self._process.stdout.readline().strip()
        self._commands.append(f"{line} -> {answer}")
        if answer != "ok":
            raise ValueError(f"{line}: {answer}")

    def create_topic(self, name, partitions=None, config=None):
        """config is refused: the embedded Kafka has none."""
        assert not config, "the embedded Kafka knows no topic configuration"
        self.command("topic", name, partitions or self.default_partitions)
        return name

    def inject(self, request, error, count=1, broker=None, delay_ms=0):
        """The next `count` requests of this kind (to this broker; then also late by delay_ms) are answered with `error`."""
        self.command("error", request, error, count, *([] if broker is None else [broker, delay_ms]))

    def clear(self, request):
        """Forget what inject() without a broker has left."""
        self.command("clear", request)

    def topic_error(self, topic, error):
        """Metadata answers so for this topic until NO_ERROR is set."""
        self.command("topic-error", topic, error)

    def set_leader(self, topic, partition, broker):
        """broker: its id (from 1), or None for a partition without leader."""
        self.command("leader", topic, partition, "none" if broker is None else broker)

    def down(self, broker="all"):
        self.command("down", broker)

    def up(self, broker="all"):
        self.command("up", broker)

    def delay(self, milliseconds, broker="all"):
        """Every answer takes this long; 0 ends it."""
        self.command("delay", broker, milliseconds)

    @property
    def pid(self):
        return self._process.pid

    def close(self):
        if self._process.poll() is None:
            self._process.stdin.close()
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._process.stdout.close()
        self.unregister()

    def log_sections(self):
        return [(f"commands to the embedded Kafka {self.bootstrap}", "\n".join(self._commands[-50:]))]
