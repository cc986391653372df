"""When the open segment is closed without anybody asking: by age, by size, and never an empty one."""

import os
import pathlib
import time

from harness import install_outbox, wait_until
from harness.load import drain
from harness.segments import configure, describe, states, wait_opened


def start(cluster, embedded, **settings):
    embedded.create_topic("t", partitions=1)
    install_outbox(cluster, embedded)
    configure(cluster, **settings)


def enqueue(cluster, payload="x"):
    cluster.sql("SELECT outbox.enqueue('t', %s::text)", [payload])


def opened(cluster):
    return max(states(cluster), default=0)


def transactions(cluster, dbname="postgres"):
    """Of a database, as another one sees it."""
    return cluster.value("SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = %s", [dbname], dbname="template1")


def test_a_segment_is_closed_when_it_is_old_enough_and_has_messages(cluster, embedded):
    start(cluster, embedded, segment_max_age="2s")
    enqueue(cluster)
    wait_opened(cluster, 2, 10)
    age = "SELECT rolled_at - opened_at >= interval '2 s' FROM outbox.segments WHERE segment = 1"
    assert cluster.value(age), describe(cluster)
    cluster.wait_worker()
    time.sleep(4)  # nothing is to happen: there is nothing to poll for
    assert opened(cluster) == 2, "an empty one stays open"
    enqueue(cluster)
    wait_opened(cluster, 3, 5)
    drain(cluster)


def test_a_segment_is_closed_when_it_is_large_enough_with_what_is_in_its_toast_table(cluster, embedded):
    start(cluster, embedded, segment_max_size="512kB")
    for _ in range(3):
        enqueue(cluster)
    drain(cluster)
    wait_until(lambda: cluster.value("SELECT state FROM outbox.workers WHERE process = 'outbox maintenance'") == "idle", 10)
    assert opened(cluster) == 1
    incompressible = "SELECT outbox.enqueue('t', string_agg(gen_random_uuid()::text, '')) FROM generate_series(1, 12000)"
    cluster.sql(incompressible)
    size = "SELECT pg_relation_size('outbox._message_1') FROM outbox.segments"
    assert cluster.value(size) < 100_000
    wait_opened(cluster, 2, 10)
    cluster.sql("SELECT outbox.enqueue('t', 'many') FROM generate_series(1, 5000)")
    wait_opened(cluster, 3, 10)


def test_a_change_of_the_settings_counts_at_once(cluster, embedded):
    start(cluster, embedded)
    enqueue(cluster)
    drain(cluster)
    configure(cluster, segment_max_age="1s")
    wait_opened(cluster, 2, 5)
    configure(cluster, segment_max_age=None)
    enqueue(cluster)
    drain(cluster)
    configure(cluster, segment_max_size="64kB")
    wait_opened(cluster, 3, 5)


def test_it_goes_on_after_a_restart_and_while_nothing_is_published(cluster, embedded):
    start(cluster, embedded)
    enqueue(cluster)
    drain(cluster)
    cluster.sql("SELECT outbox.pause()")
    cluster.sql("ALTER SYSTEM SET outbox.segment_max_age = '1s'")
    cluster.restart()
    wait_opened(cluster, 2, 10)
    for n in (3, 4):
        enqueue(cluster)
        wait_opened(cluster, n, 10)
    assert states(cluster)[3] == "rolled", "its message waits"
    cluster.sql("SELECT outbox.resume()")
    drain(cluster)


def processor_seconds(cluster):
    """Of maintenance, so far."""
    pid = cluster.value("SELECT pid FROM outbox.workers WHERE process = 'outbox maintenance'")
    user, system = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def assert_takes_no_processor(cluster):
    before = processor_seconds(cluster)
    time.sleep(2)  # nothing is to happen
    assert processor_seconds(cluster) - before < 0.2


def test_maintenance_sleeps_before_the_first_message_and_after_the_last(cluster, embedded):
    start(cluster, embedded)
    wait_until(lambda: cluster.value("SELECT state FROM outbox.workers WHERE process = 'outbox maintenance'") == "idle", 10)
    assert_takes_no_processor(cluster)
    enqueue(cluster)
    cluster.sql("SELECT outbox.roll()")
    with cluster.connect() as writer:
        writer.execute("SELECT outbox.enqueue('t', 'late')")
        cluster.sql("SELECT outbox.roll()")
        assert_takes_no_processor(cluster)
        writer.rollback()
    drain(cluster)
    assert_takes_no_processor(cluster)


def test_an_idle_database_has_no_transactions(cluster, embedded):
    cluster.configure(autovacuum="off")
    cluster.restart()
    start(cluster, embedded, retention="1h")
    for n in range(3):
        enqueue(cluster)
        drain(cluster)
        cluster.sql("SELECT outbox.roll()")
    enqueue(cluster)
    drain(cluster)
    seen = []

    def at_rest():
        seen.append(transactions(cluster))
        return len(seen) > 12 and len(set(seen[-12:])) == 1

    wait_until(at_rest, 40, lambda: seen, interval=1)  # the worker looks once in 30 s


def test_a_roll_waits_for_nobody_who_has_locked_the_log_and_says_so(cluster, embedded):
    start(cluster, embedded, segment_max_age="1s")
    with cluster.connect() as other:
        enqueue(cluster)
        other.execute("LOCK TABLE outbox._progress IN SHARE UPDATE EXCLUSIVE MODE")
        reason = "SELECT reason FROM outbox.workers WHERE process = 'outbox maintenance'"
        wait_until(lambda: "cannot be closed" in (cluster.value(reason) or ""), 10, lambda: cluster.value(reason))
        enqueue(cluster)
        drain(cluster)
        assert opened(cluster) == 1
        other.rollback()
    wait_opened(cluster, 2, 10)
    wait_until(lambda: cluster.value(reason) is None, 10, lambda: cluster.value(reason))
