"""The processes of a database beside its first worker: when they come and go, and who comes first where slots are short."""

import signal

import pytest
from harness import install_outbox, processes, wait_until
from harness.load import drain

MAINTENANCE = "outbox maintenance"


def processes_of(cluster, database="postgres"):
    return cluster.sql("SELECT process, worker, pid, state, reason FROM outbox.workers", dbname=database)


def workers(cluster, database="postgres"):
    """Pids of the running workers by their number."""
    return {number: pid for process, number, pid, *_ in processes_of(cluster, database) if process == "outbox worker" and pid}


def maintenance(cluster, database="postgres"):
    """(pid, state, reason) of the maintenance process; its row is always there, behind those of the workers."""
    ((process, number, *shown),) = [row for row in processes_of(cluster, database) if row[0] == MAINTENANCE]
    assert number is None
    return tuple(shown)


def wait_maintenance(cluster, database="postgres", other_than=()):
    def running():
        (pid, state, _) = maintenance(cluster, database)
        return pid if pid and pid not in other_than and state in ("idle", "running") else None

    return wait_until(running, 20, lambda: f"maintenance: {processes_of(cluster, database)}")


def publishes(cluster, topic, database="postgres"):
    message_id = cluster.value("SELECT outbox.enqueue(%s, 'x')", [topic], dbname=database)
    return cluster.value("SELECT outbox.wait_published(%s, '10 s')", [message_id], dbname=database)


def wait_workers(cluster, numbers):
    wait_until(lambda: sorted(workers(cluster)) == numbers, 10, lambda: f"{numbers}: {processes_of(cluster)}")
    return workers(cluster)


def test_workers_come_and_go_with_the_setting_the_highest_number_first(cluster, embedded, unique):
    embedded.create_topic(unique)
    install_outbox(cluster, embedded)
    first = wait_workers(cluster, [1])
    for count in (3, 2, 4, 1):
        cluster.configure(**{"outbox.workers_per_database": count})
        cluster.reload()
        now = wait_workers(cluster, list(range(1, count + 1)))
        assert now[1] == first[1], "the first one stays"
        assert sorted(cluster.worker_pids()) == sorted(now.values())
    cluster.configure(**{"outbox.workers_per_database": 64})  # more than outbox.max_workers_per_database
    cluster.reload()
    wait_workers(cluster, [1, 2, 3, 4])
    cluster.sql("DROP EXTENSION outbox CASCADE")
    wait_until(lambda: not cluster.worker_pids() and not cluster.backends(MAINTENANCE), 10, "all have left")
    install_outbox(cluster, embedded)
    wait_workers(cluster, [1, 2, 3, 4])
    wait_maintenance(cluster)


def test_all_processes_leave_a_database_that_is_dropped_renamed_or_copied(cluster, embedded, unique):
    embedded.create_topic(unique)
    cluster.configure(**{"outbox.workers_per_database": 2})
    cluster.reload()
    cluster.createdb("one")
    install_outbox(cluster, embedded, "one")
    wait_maintenance(cluster, "one")
    cluster.sql("ALTER DATABASE one RENAME TO two")
    wait_maintenance(cluster, "two")
    cluster.sql("CREATE DATABASE copy TEMPLATE two")
    wait_maintenance(cluster, "two")
    assert publishes(cluster, unique, "two")
    cluster.sql("DROP DATABASE two")  # without FORCE
    assert "terminating connection" not in cluster.log


def test_maintenance_comes_back_when_it_was_ended(cluster, embedded, unique):
    embedded.create_topic(unique)
    install_outbox(cluster, embedded)
    assert publishes(cluster, unique)
    first = wait_maintenance(cluster)
    cluster.sql("SELECT pg_terminate_backend(%s)", [first])
    second = wait_maintenance(cluster, other_than=[first])
    cluster.kill9(second)  # the server restarts all its sessions
    wait_until(lambda: "reinitializing" in cluster.log)
    cluster.wait_ready()
    wait_maintenance(cluster, other_than=[first, second])
    assert publishes(cluster, unique)


def test_maintenance_that_hangs_holds_up_no_message(cluster, embedded, unique):
    embedded.create_topic(unique)
    install_outbox(cluster, embedded)
    assert publishes(cluster, unique)
    pid = wait_maintenance(cluster)
    processes.send(pid, signal.SIGSTOP)
    try:
        cluster.sql("SELECT outbox.roll()")
        assert publishes(cluster, unique)
        assert cluster.value("SELECT outbox.drain('10 s')")
    finally:
        processes.send(pid, signal.SIGCONT)


@pytest.mark.parametrize("paused_by", ["pause", "enabled"])
def test_a_pause_is_for_publishing_and_enabled_off_for_maintenance_too(cluster, embedded, paused_by):
    install_outbox(cluster, embedded)
    wait_maintenance(cluster)
    if paused_by == "pause":
        cluster.sql("SELECT outbox.pause()")
    else:
        cluster.configure(**{"outbox.enabled": "off"})
        cluster.reload()
    wait_until(lambda: processes_of(cluster)[0][3] == "paused", 10, "the worker is paused")
    if paused_by == "pause":
        wait_maintenance(cluster)
    else:
        wait_until(lambda: maintenance(cluster)[1:] == ("paused", "outbox.enabled is off"), 10, "so is maintenance")


def test_where_max_worker_processes_is_short_a_worker_takes_the_place_of_maintenance(make_cluster, embedded, unique):
    # the launcher of logical replication, ours, a worker and maintenance
    cluster = make_cluster({"max_worker_processes": 4})
    embedded.create_topic(unique)
    for name in ("one", "two"):
        cluster.createdb(name)
    install_outbox(cluster, embedded, "one")
    wait_maintenance(cluster, "one")
    install_outbox(cluster, embedded, "two")
    assert publishes(cluster, unique, "two")
    assert publishes(cluster, unique, "one")
    for name in ("one", "two"):
        wait_until(lambda: "max_worker_processes" in (maintenance(cluster, name)[2] or ""), 10, lambda: processes_of(cluster, name))
    cluster.restart()  # the probe of the second database needs the place as well
    for name in ("one", "two"):
        cluster.wait_worker(name)
        assert publishes(cluster, unique, name)
        drain(cluster, name)
    cluster.dropdb("two", force=False)
    wait_maintenance(cluster, "one")


def test_worker_and_maintenance_rest_while_kafka_is_away_and_closed_segments_wait_for_it(cluster, embedded):
    embedded.create_topic("t", 1)
    install_outbox(cluster, embedded)
    cluster.sql("SELECT outbox.enqueue('t', 'x')")
    assert cluster.value("SELECT outbox.drain('20 s')")
    embedded.down()
    for _ in range(3):
        cluster.sql("SELECT outbox.roll()")
        cluster.sql("SELECT outbox.enqueue('t', 'x')")
    transactions = "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()"
    cluster.sql("SELECT pg_stat_clear_snapshot()")
    with cluster.connect(autocommit=True) as c:
        c.execute("SELECT pg_sleep(3)")  # what happens in so much time is looked at
        before = c.execute(transactions).fetchone()[0]
        c.execute("SELECT pg_sleep(3)")
        after = c.execute(transactions).fetchone()[0]
    assert after - before < 100


def test_where_max_worker_processes_is_short_each_database_has_one_worker_before_another_has_two(make_cluster, embedded, unique):
    # the launcher of logical replication, ours and three more
    cluster = make_cluster({"max_worker_processes": 5, "outbox.workers_per_database": 2})
    embedded.create_topic(unique)
    for name in ("one", "two", "three"):
        cluster.createdb(name)
        install_outbox(cluster, embedded, name)
        assert publishes(cluster, unique, name), processes_of(cluster, name)
    for name in ("one", "two", "three"):
        wait_until(lambda: set(workers(cluster, name)) == {1}, 20, lambda: processes_of(cluster, name))
        assert publishes(cluster, unique, name)
