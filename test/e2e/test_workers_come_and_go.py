"""Workers come, stop, hang and go while the number of lanes changes: nothing is missing, and each key keeps its order."""

import contextlib
import signal
import time

import psycopg
from harness import install_outbox, seeded, size, wait_until
from harness.load import Load, assert_nothing_is_left, check, drain
from harness.processes import send
from harness.segments import configure


def publishers(cluster):
    return [pid for (pid,) in cluster.sql("SELECT pid FROM outbox.workers WHERE worker IS NOT NULL AND pid IS NOT NULL")]


def one_of(cluster, rng):
    return rng.choice(wait_until(lambda: publishers(cluster), 20, "a worker is there"))


def terminate(cluster, rng):
    cluster.sql("SELECT pg_terminate_backend(%s)", [one_of(cluster, rng)])


def hang(cluster, rng):
    pid = one_of(cluster, rng)
    send(pid, signal.SIGSTOP)
    time.sleep(rng.random())  # how long it hangs
    send(pid, signal.SIGCONT)


def change_lanes(cluster, rng):
    # another session may be rolling for longer than the second it waits
    with contextlib.suppress(psycopg.errors.LockNotAvailable):
        cluster.sql("SELECT outbox.set_lanes(%s)", [rng.randrange(1, 7)])


def change_workers(cluster, rng):
    configure(cluster, workers_per_database=rng.randrange(1, 4))


def roll(cluster, rng):
    with contextlib.suppress(psycopg.errors.LockNotAvailable):
        cluster.sql("SELECT outbox.roll()")


def test_nothing_is_missing_while_workers_come_and_go_and_the_number_of_lanes_changes(cluster, kafka, unique):
    topic = kafka.create_topic(unique, partitions=3)
    configure(cluster, workers_per_database=3)
    install_outbox(cluster, kafka)
    rng = seeded("workers")
    actions = [terminate, hang, change_lanes, change_workers, roll] * size(6, 60)
    rng.shuffle(actions)
    with Load(cluster, topic, writers=6, keys=30, pause_s=0.02) as load:
        for action in actions:
            load.wait_for_more(rng.randrange(2, 60))
            action(cluster, rng)
    drain(cluster)
    with kafka.reader(topic) as reader:
        repeated = check(load, reader.read_all(), repeats=True)
        reader.assert_nothing_more()
    print(load.counts, "repeated:", repeated, cluster.sql("SELECT lane, pending, worker_pid FROM outbox.lanes"))
    assert_nothing_is_left(cluster)
    wait_until(lambda: cluster.value("SELECT every(worker_pid IS NOT NULL) FROM outbox.lanes"), 10, "every lane has a worker")


def test_a_transaction_that_has_enqueued_before_set_lanes_enqueues_to_the_new_lanes_after_it(cluster, kafka, unique):
    topic = kafka.create_topic(unique)
    install_outbox(cluster, kafka)
    enqueue = "SELECT outbox.enqueue(%s, %s, 'key')"
    with cluster.connect() as early, cluster.connect() as other:
        early.execute(enqueue, [topic, "0"])  # keeps its lock on the old segment
        cluster.sql("SELECT outbox.set_lanes(5)")
        other.execute(enqueue, [topic, "1"])
        other.commit()
        early.execute(enqueue, [topic, "2"])
        early.commit()
    drain(cluster)
    assert [record.value for record in kafka.read_all(topic)] == [b"0", b"1", b"2"]


def test_set_lanes_says_for_whom_later_messages_wait(cluster):
    cluster.sql("CREATE EXTENSION outbox")
    notices = []
    with cluster.connect() as writer, cluster.connect(autocommit=True) as operator:
        writer.execute("SELECT outbox.enqueue('t', 'x')")
        operator.add_notice_handler(lambda notice: notices.append((notice.message_primary, notice.message_detail)))
        operator.execute("SELECT outbox.set_lanes(3)")
        ((message, detail),) = notices
        assert "wait until earlier transactions have ended" in message
        assert f"pid {writer.info.backend_pid}" in detail
