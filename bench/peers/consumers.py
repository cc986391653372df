"""Runs the processes that carry a peer's messages to Kafka."""

import contextlib
import multiprocessing
import time

import psycopg2

from .kafka_client import Client

_processes = multiprocessing.get_context("spawn")  # librdkafka does not survive a fork


class Consumers:
    """`work(connection, client, number)` publishes one batch and returns how many messages it had.

    With `until_empty` a process ends at the first batch of none; else it looks again after `poll_s`, until stop().
    """

    def __init__(self, stage, topic, work, count, poll_s):
        self.started_at = None
        self._ready = _processes.Semaphore(0)
        self._go, self._stop = _processes.Event(), _processes.Event()
        self._last = [_processes.Value("d", 0) for _ in range(count)]
        self._cpu = [_processes.Value("d", 0) for _ in range(count)]
        address = {"host": stage.cluster.host, "port": stage.cluster.port, "user": "postgres", "dbname": "postgres"}
        common = (address, stage.kafka.bootstrap, topic, work, poll_s, self._ready, self._go, self._stop)
        self._running = [
            _processes.Process(target=_run, args=(*common, self._last[n], self._cpu[n], n), daemon=True)
            for n in range(count)
        ]
        for process in self._running:
            process.start()
        for _ in self._running:
            assert self._ready.acquire(timeout=60), "a consumer does not start"

    def start(self):
        self.started_at = time.time()
        self._go.set()

    def stop(self):
        """They end when nothing is left."""
        self._stop.set()
        for process in self._running:
            process.join(600)
            assert process.exitcode == 0, f"a consumer ended with {process.exitcode}"

    @property
    def seconds(self):
        """From start() to the end of the last batch that had messages."""
        return max(last.value for last in self._last) - self.started_at

    @property
    def cpu(self):
        return sum(cpu.value for cpu in self._cpu)


def _run(address, bootstrap, topic, work, poll_s, ready, go, stop, last, cpu, number):
    client = Client(bootstrap)
    client.publish([(0, topic, "key", "first")])  # nothing of it is new when the clock starts
    connection = psycopg2.connect(**address)
    with contextlib.closing(connection):
        ready.release()
        go.wait()
        used = time.process_time()
        while True:
            over = stop.is_set()
            if work(connection, client, number):
                last.value = time.time()
            elif over:
                break
            else:
                time.sleep(poll_s)
        cpu.value = time.process_time() - used
