"""A commit is read within milliseconds also when the worker was just busy with something else: no wake-up is lost."""

import time

from harness import install_outbox, wait_until


def seconds_until(cluster, pending, limit):
    started = time.monotonic()
    wait_until(lambda: cluster.value("SELECT pending FROM outbox.lanes") == pending, limit, "it is published")
    return time.monotonic() - started


def started(cluster, embedded):
    topic = embedded.create_topic("t")
    install_outbox(cluster, embedded)
    cluster.sql("SELECT outbox.enqueue(%s, 'first')", [topic])
    cluster.sql("SELECT outbox.drain('30 s')")
    return topic


def wait_for_lock(cluster):
    waits = "SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE backend_type = 'outbox worker'"
    wait_until(lambda: cluster.value(waits), 10, "the worker waits for a lock", interval=0.005)


def test_a_commit_during_a_lock_wait_of_the_worker_is_read_when_the_wait_is_over(cluster, embedded):
    topic = started(cluster, embedded)
    # else the timer of the worker's lock_timeout, a second after the wait began, would wake it
    cluster.configure(deadlock_timeout="30s")
    cluster.reload()
    with cluster.connect() as locker:
        locker.execute("LOCK TABLE outbox._progress_1 IN ACCESS EXCLUSIVE MODE")
        cluster.sql("SELECT outbox.enqueue(%s, 'its progress waits')", [topic])
        wait_for_lock(cluster)
        cluster.sql("SELECT outbox.enqueue(%s, 'its latch is lost')", [topic])
        locker.rollback()
    assert seconds_until(cluster, 0, 10) < 0.6  # without: a second after the wait began


def test_an_error_is_tried_again_when_its_pause_is_over(cluster, embedded):
    topic = started(cluster, embedded)
    with cluster.connect() as locker, cluster.connect(autocommit=True) as writer:
        writer.execute("SELECT outbox.enqueue(%s, 'knows the segment')", [topic])
        writer.execute("SELECT outbox.drain('30 s')")
        locker.execute("LOCK TABLE outbox._segment IN ACCESS EXCLUSIVE MODE")
        writer.execute("SELECT outbox.enqueue(%s, 'cannot be read')", [topic])
        wait_until(lambda: "lock timeout" in cluster.log, 20, "the worker gives the lock up")
        locker.rollback()
    assert seconds_until(cluster, 0, 30) < 3


def test_looks_that_find_nothing_do_not_hold_up_a_message_while_a_missing_topic_is_looked_up(cluster, kafka, unique):
    topic = kafka.create_topic(unique, partitions=1)
    install_outbox(cluster, kafka)
    cluster.sql("SELECT outbox.enqueue(%s, 'first')", [topic])
    cluster.sql("SELECT outbox.drain('30 s')")
    with cluster.connect(autocommit=True) as c:
        c.execute("SELECT outbox.enqueue('missing', 'x')")  # a dead letter after 5 s
        for _ in range(300):  # each has the worker look
            c.execute("BEGIN")
            c.execute("SELECT outbox.enqueue(%s, 'rolled back')", [topic])
            c.execute("ROLLBACK")
            c.execute("SELECT outbox.drain('1 ms')")
        c.execute("SELECT outbox.enqueue(%s, 'good')", [topic])
        assert [r.value for r in kafka.consume(topic, until=2, timeout=3)] == [b"first", b"good"]
        assert c.execute("SELECT count(*) FROM outbox.dead_letters").fetchone() == (0,), "too late to show anything"
