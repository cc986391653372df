"""Nothing is on the topic before its transaction is on disk, also with synchronous_commit = off."""

import threading

import psycopg
from harness import install_outbox, seeded, size
from harness.load import drain

# Nobody else flushes the WAL: neither the WAL writer nor other sessions nor a vacuum.
QUIET = {"wal_writer_delay": "10s", "wal_writer_flush_after": "100MB", "autovacuum": "off"}


def test_an_asynchronous_commit_that_reached_kafka_outlives_a_crash(make_cluster, embedded, unique):
    cluster = make_cluster(QUIET)
    topic = embedded.create_topic(unique, partitions=1)
    install_outbox(cluster, embedded)
    cluster.sql("CREATE TABLE placed (name text)")
    cluster.sql("SELECT outbox.enqueue(%s, 'first')", [topic])
    cluster.sql("SELECT outbox.drain('10 s')")
    phantoms = []
    with embedded.reader(topic) as reader:
        for name in map(str, range(size(4, 20))):
            with cluster.connect(autocommit=True) as c:
                c.execute("SET synchronous_commit = off")
                c.execute("BEGIN")
                c.execute("INSERT INTO placed VALUES (%s)", [name])
                c.execute("SELECT outbox.enqueue(%s, %s)", [topic, name])
                c.execute("COMMIT")
                reader.read(until=lambda records, value=name.encode(): any(r.value == value for r in records))
                cluster.kill9()
            cluster.start()
            cluster.wait_worker()
            if cluster.value("SELECT count(*) FROM placed WHERE name = %s", [name]) != 1:
                phantoms.append(name)
    assert phantoms == []


def write(cluster, topic, stop, failures):
    """A writer that commits asynchronously until the server is gone."""
    number = 0
    try:
        with cluster.connect(autocommit=True) as c:
            c.execute("SET synchronous_commit = off")
            while not stop.is_set():
                number += 1
                c.execute("BEGIN")
                (message_id,) = c.execute("SELECT outbox.enqueue(%s, 'x')", [topic]).fetchone()
                c.execute("INSERT INTO business VALUES (%s)", [message_id])
                c.execute("COMMIT")
    except psycopg.OperationalError:
        pass
    except Exception as error:  # noqa: BLE001
        failures.append(error)


def test_after_an_immediate_stop_every_message_on_the_topic_has_its_business_row(make_cluster, embedded, unique):
    cluster = make_cluster(QUIET)
    topic = embedded.create_topic(unique, partitions=1)
    install_outbox(cluster, embedded)
    cluster.sql("CREATE TABLE business (message_id uuid)")
    rng = seeded("immediate stops")
    failures = []
    with embedded.reader(topic) as reader:
        for _ in range(size(5, 30)):
            cluster.wait_worker()
            before = len(reader.records)
            stop = threading.Event()
            writers = [threading.Thread(target=write, args=(cluster, topic, stop, failures)) for _ in range(4)]
            for writer in writers:
                writer.start()
            reader.read(until=before + 1 + rng.randrange(50))
            cluster.crash()
            stop.set()
            for writer in writers:
                writer.join()
            cluster.start()
            reader.read_all()
            committed = {str(row[0]) for row in cluster.sql("SELECT message_id FROM business")}
            phantoms = {r.id for r in reader.records} - committed
            assert not phantoms, f"{len(phantoms)} of {len(reader.records)} were never committed"
    assert not failures
    drain(cluster)
    assert {r.id for r in embedded.read_all(topic)} == committed
