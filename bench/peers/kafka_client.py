"""confluent-kafka with outbox's settings (src/publish/config.cpp), as a careful client would use it."""

from confluent_kafka import Producer

SETTINGS = {
    "linger.ms": 0,
    "queue.buffering.max.messages": 100_000,
    "queue.buffering.max.kbytes": 65_536,
    "enable.idempotence": True,
    "acks": "all",
    "partitioner": "murmur2_random",
    "message.timeout.ms": 0,
    "delivery.report.only.error": True,
}


class Client:
    def __init__(self, bootstrap):
        self._failed = []
        self._producer = Producer(SETTINGS | {"bootstrap.servers": bootstrap, "on_delivery": self._on_failure})

    def _on_failure(self, error, _message):
        self._failed.append(error)

    def publish(self, messages):
        """(id, topic, key, payload) each; returns when Kafka has acknowledged all of them."""
        for number, topic, key, payload in messages:
            headers = [("id", f"{number:036d}")]
            while True:
                try:
                    self._producer.produce(topic, payload, key, headers=headers)
                    break
                except BufferError:
                    self._producer.poll(0.01)
        left = self._producer.flush()
        assert not left and not self._failed, self._failed
