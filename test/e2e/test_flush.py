"""Nothing is on the topic before its transaction is on disk, also with synchronous_commit = off."""

from harness import install_outbox, size

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
