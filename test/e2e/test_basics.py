"""Each step of a message once, with what users usually do in between. Also run under valgrind."""

import json
import os
import signal

import psycopg
import pytest
from harness import install_outbox, wait_until

SLOW = float(os.environ.get("OUTBOX_SLOWNESS", "1"))  # how many times longer things take than on a server as it is


def drain(cluster):
    assert cluster.value("SELECT outbox.drain(%s::interval)", [f"{60 * SLOW} s"]) is True


def test_each_step_of_a_message(cluster, kafka, unique):
    topic = kafka.create_topic(unique, partitions=3, config={"max.message.bytes": 3000})
    install_outbox(cluster, kafka)
    expected = enqueue_of_all_kinds(cluster, topic)
    drain(cluster)
    records = kafka.consume(topic, until=len(expected), timeout=60 * SLOW)
    assert sorted(r.value or b"" for r in records) == sorted(expected)

    cluster.sql("SELECT outbox.roll()")
    large = cluster.value("SELECT outbox.enqueue(%s, repeat('x', 5000), 'large')", [topic])
    small = cluster.value("SELECT outbox.enqueue(%s, 'small', 'large')", [topic])
    drain(cluster)
    assert cluster.sql("SELECT message_id FROM outbox.dead_letters") == [(large,)]
    assert cluster.value("SELECT state FROM outbox.get_message(%s)", [small]) == "published"

    old = cluster.wait_worker()
    os.kill(old, signal.SIGTERM)
    cluster.wait_worker(timeout=30 * SLOW, other_than=[old])
    cluster.sql("SELECT outbox.pause()")
    cluster.sql("SELECT outbox.enqueue(%s, i::text, 'k') FROM generate_series(1, 50) i", [topic])
    cluster.sql("ALTER SERVER kafka OPTIONS (ADD \"linger.ms\" '1')")
    cluster.sql("SELECT outbox.resume()")
    drain(cluster)
    assert all(cluster.sql(f"SELECT * FROM outbox.{view}") is not None for view in views(cluster))

    # one is a dead letter
    cluster.psql("SET outbox.allow_data_loss = on; DROP EXTENSION outbox CASCADE")
    wait_until(lambda: not cluster.worker_pids(), 30 * SLOW, "the worker leaves")
    install_outbox(cluster, kafka)
    cluster.sql("SELECT outbox.enqueue(%s, 'again', 'k')", [topic])
    drain(cluster)
    cluster.stop(timeout=60 * SLOW)
    assert "PANIC" not in cluster.log and "TRAP" not in cluster.log


def enqueue_of_all_kinds(cluster, topic):
    """Returns the payloads that are committed."""
    with cluster.connect() as c:
        headers = json.dumps({"a": "1", "b": ["2", None], "ü": ""})
        c.execute("SELECT outbox.enqueue(%s, 'text', 'k', %s)", [topic, headers])
        c.execute("SELECT outbox.enqueue(%s, %s::bytea, %s::bytea)", [topic, b"\0bytes", b"\xff"])
        c.execute("SELECT outbox.enqueue(%s, NULL::text, 'tombstone')", [topic])
        c.execute("SELECT outbox.enqueue(%s, repeat('compressible ', 200))", [topic])
        c.execute("INSERT INTO outbox.messages (topic, payload, key) VALUES (%s, 'view', 'k')", [topic])
        c.execute("SAVEPOINT s")
        c.execute("SELECT outbox.enqueue(%s, 'rolled back to a savepoint')", [topic])
        c.execute("ROLLBACK TO s")
    with cluster.connect() as c:
        c.execute("SELECT outbox.enqueue(%s, 'rolled back')", [topic])
        c.rollback()
        with pytest.raises(psycopg.Error):
            c.execute("SELECT outbox.enqueue('no/topic', 'x')")
    with cluster.connect(autocommit=True) as c:
        c.execute("BEGIN")
        c.execute("SELECT outbox.enqueue(%s, 'prepared')", [topic])
        c.execute("PREPARE TRANSACTION 'p'")
        c.execute("COMMIT PREPARED 'p'")
    return [b"text", b"\0bytes", b"", b"compressible " * 200, b"view", b"prepared"]


def views(cluster):
    rows = cluster.sql("SELECT relname FROM pg_class WHERE relnamespace = 'outbox'::regnamespace AND relkind = 'v'")
    return [name for (name,) in rows]


def test_the_statistics_of_a_segment_count_each_message_once(shared_cluster, database):
    shared_cluster.sql("CREATE EXTENSION outbox", dbname=database)
    shared_cluster.sql("SELECT count(outbox.enqueue('t', 'x')) FROM generate_series(1, 100)", dbname=database)
    inserted = "SELECT n_tup_ins FROM pg_stat_all_tables WHERE relid = 'outbox._message_1'::regclass"
    wait_until(lambda: shared_cluster.value(inserted, dbname=database), 20, "the statistics know of the messages")
    assert shared_cluster.value(inserted, dbname=database) == 100
