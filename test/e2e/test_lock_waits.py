"""Many sessions enqueue while the worker publishes and segments are rolled and vacuumed: nobody waits for anybody's lock."""

import re
import threading

from harness import install_outbox, size, wait_until
from harness.background import InBackground, LockWaits
from harness.load import assert_nothing_is_left, drain

CLIENTS = 64

# Each client has a business row of its own: who waits, waits for a lock of ours.
SCRIPT = """
BEGIN;
UPDATE account SET n = n + 1 WHERE id = :client_id;
SELECT outbox.enqueue('{topic}', 'first', :client_id::text);
SAVEPOINT s;
SELECT outbox.enqueue('{topic}', 'rolled back', :client_id::text);
ROLLBACK TO s;
INSERT INTO outbox.messages (topic, key, payload) VALUES ('{topic}', :client_id::text, repeat('x', 500));
COMMIT;
"""


def roll_and_vacuum(connection):
    connection.execute("SET lock_timeout = '10s'")
    segment = connection.execute("SELECT outbox.roll()").fetchone()[0]
    # SKIP_LOCKED: two vacuums of a table, ours and autovacuum's, do not go together
    connection.execute(f"VACUUM (ANALYZE, SKIP_LOCKED) outbox._message_{segment - 1}, outbox._message_{segment}")


def run_clients(cluster, topic, seconds):
    """Returns the number of committed transactions."""
    path = cluster.folder / "script"
    path.write_text(SCRIPT.format(topic=topic))
    done = cluster.run("pgbench", "-n", "-c", CLIENTS, "-j", 2, "-T", seconds, "-f", path)
    assert "number of failed transactions: 0" in done.stdout, done.stdout
    assert "aborted" not in done.stderr, done.stderr
    return int(re.search(r"transactions actually processed: (\d+)", done.stdout)[1])


def test_64_clients_worker_and_maintenance_wait_for_no_lock_but_that_of_extending_a_table(make_cluster, kafka, unique):
    cluster = make_cluster({"autovacuum_naptime": "1s", "max_connections": CLIENTS + 20, "deadlock_timeout": "100ms"})
    topic = kafka.create_topic(unique, partitions=3)
    install_outbox(cluster, kafka)
    cluster.sql("CREATE TABLE account (id int PRIMARY KEY, n int) WITH (fillfactor = 20)")
    cluster.sql("INSERT INTO account SELECT i, 0 FROM generate_series(0, %s) i", [CLIENTS])
    cluster.sql("SELECT outbox.enqueue(%s, 'opens the first segment')", [topic])
    drain(cluster)
    with LockWaits(cluster) as waits, InBackground(cluster, roll_and_vacuum, 1) as maintenance:
        transactions = run_clients(cluster, topic, size(10, 120))
    drain(cluster, seconds=120)
    others = waits.others_than("extend")
    print(
        f"{transactions} transactions, {maintenance.turns} rolls, {waits.turns} samples,"
        f" {waits.of('extend')} waits for the extension of a table, others: {others}"
    )
    assert others == {}
    assert waits.turns > size(200, 2000)
    assert maintenance.turns > size(3, 30)
    assert cluster.value("SELECT sum(deadlocks) FROM pg_stat_database") == 0
    assert "deadlock" not in cluster.log
    ids = [r.id for r in kafka.read_all(topic)]
    assert len(ids) == len(set(ids)) == 2 * transactions + 1
    assert_nothing_is_left(cluster)


def test_a_session_that_waits_for_a_lock_is_noticed(shared_cluster):
    """The look itself works."""
    with shared_cluster.connect() as holder, shared_cluster.connect() as waiter, LockWaits(shared_cluster) as waits:
        holder.execute("SELECT pg_advisory_xact_lock(1)")
        thread = threading.Thread(target=waiter.execute, args=("SELECT pg_advisory_xact_lock(1)",))
        thread.start()
        wait_until(lambda: waits.of("advisory") > 0, 10, "the wait is seen")
        holder.rollback()
        thread.join()
