"""What is on a topic, read from its beginning without a consumer group."""

import dataclasses
import time

from confluent_kafka import Consumer, KafkaException, TopicPartition

from .waiting import wait_until


@dataclasses.dataclass(frozen=True)
class Record:
    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: list  # of (name, bytes or None), in order
    timestamp: int  # milliseconds

    def header(self, name):
        """The value of the only header of this name."""
        (value,) = [v for n, v in self.headers if n == name]
        return value

    @property
    def id(self):
        """The message id that enqueue() returned, as text."""
        return self.header("id").decode()


def _to_record(message):
    return Record(
        message.topic(),
        message.partition(),
        message.offset(),
        message.key(),
        message.value(),
        message.headers() or [],
        message.timestamp()[1],
    )


class Reader:
    """Reads all partitions of the topics from offset 0 on; `records` is everything read so far.

    Partitions that appear later are not seen: create the topics, with all partitions, first. A topic that does not
    exist yet is waited for.
    """

    def __init__(self, bootstrap, topics, timeout=30, **config):
        self.topics = [topics] if isinstance(topics, str) else list(topics)
        self.records = []
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "outbox-test-reader",  # librdkafka wants one; nothing is committed
                "enable.auto.commit": False,
                "fetch.wait.max.ms": 50,
                "fetch.error.backoff.ms": 50,
                "reconnect.backoff.max.ms": 500,
                "topic.metadata.refresh.interval.ms": 1000,
                **config,
            }
        )
        try:
            self.partitions = wait_until(self._find_partitions, timeout, f"topics {self.topics} exist", interval=0.1)
        except BaseException:
            self._consumer.close()
            raise
        self._next = dict.fromkeys(self.partitions, 0)
        self._consumer.assign([TopicPartition(t, p, 0) for t, p in self.partitions])

    def _find_partitions(self):
        found = []
        for topic in self.topics:
            try:
                metadata = self._consumer.list_topics(topic, timeout=5).topics[topic]
            except KafkaException:
                return None
            if metadata.error is not None or not metadata.partitions:
                return None
            found += [(topic, partition) for partition in sorted(metadata.partitions)]
        return found

    def _take(self, timeout):
        taken = []
        for message in self._consumer.consume(num_messages=1000, timeout=timeout):
            if message.error() is None:
                record = _to_record(message)
                self._next[record.topic, record.partition] = record.offset + 1
                taken.append(record)
        self.records += taken
        return taken

    def read(self, until, timeout=30):
        """Read on until `until` holds and return all records so far.

        until: how many records in all, or a function of the list of all records. AssertionError after `timeout` seconds.
        """
        enough = (lambda records: len(records) >= until) if isinstance(until, int) else until
        deadline = time.monotonic() + timeout
        while not enough(self.records):
            if time.monotonic() >= deadline:
                raise AssertionError(f"{self.topics}: not within {timeout} s: {len(self.records)} records, until {until}")
            self._take(0.1)
        return self.records

    def end_offsets(self, timeout=30):
        """{(topic, partition): offset of the next record to be written}, asked of the broker now."""

        def ask():
            try:
                return {
                    (t, p): self._consumer.get_watermark_offsets(TopicPartition(t, p), timeout=5)[1]
                    for t, p in self.partitions
                }
            except KafkaException:
                return None

        return wait_until(ask, timeout, f"end offsets of {self.topics}", interval=0.1)

    def read_all(self, timeout=60):
        """Read everything that is on the topics at this moment and return all records so far."""
        end = self.end_offsets()
        return self.read(lambda _: all(self._next[where] >= offset for where, offset in end.items()), timeout)

    def assert_nothing_more(self, seconds=0.5):
        """Fail if the topics hold a record that was not read, now or within `seconds`.

        Wait for the worker first (outbox.drain, wait_published, lanes.pending = 0): absence shows only after that.
        """
        before = len(self.records)
        self._take(seconds)
        self.read_all()
        extra = self.records[before:]
        assert not extra, f"{len(extra)} records more than expected, first: {extra[0]}"

    def close(self):
        self._consumer.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def consume(bootstrap, topics, until, timeout=30, **config):
    """Read topics from their beginning until a count or a predicate holds; returns the list of records."""
    with Reader(bootstrap, topics, timeout, **config) as reader:
        return reader.read(until, timeout)


class Readable:
    """Mixin for brokers: what tests ask of either kind."""

    bootstrap: str

    def reader(self, *topics, **config):
        """A Reader; close it or use `with`."""
        return Reader(self.bootstrap, topics, **config)

    def consume(self, *topics, until, timeout=30):
        return consume(self.bootstrap, topics, until, timeout)

    def read_all(self, *topics, timeout=60):
        """Everything that is on the topics now."""
        with self.reader(*topics) as reader:
            return reader.read_all(timeout)
