"""A window larger than the list of candidates: it is read piece by piece, wherever its messages stand."""

import collections
import concurrent.futures

from harness import install_outbox, size, wait_until
from harness.load import assert_nothing_is_left, drain

SESSIONS = 6
ROUNDS = 3
EACH = size(34_000, 200_000)  # 600,000 in all, three times the list; in full size 3,600,000


def write(cluster, topic, session):
    """Big transactions at the same time as others, so that ids and xids are not in one order; keys 0..9 of the session."""
    with cluster.connect(autocommit=True) as c:
        for part in range(ROUNDS):
            c.execute("BEGIN")
            c.execute(
                "SELECT count(outbox.enqueue(%(t)s, (%(p)s * %(n)s + i)::text, %(s)s || '-' || i %% 10))"
                " FROM generate_series(0, %(n)s - 1) i",
                {"t": topic, "p": part, "n": EACH, "s": f"session {session}"},
            )
            c.execute("SAVEPOINT s")
            c.execute("SELECT count(outbox.enqueue(%s, 'rolled back')) FROM generate_series(1, 5000)", [topic])
            c.execute("ROLLBACK TO s")
            c.execute("COMMIT")


def write_small(cluster, topic, session):
    with cluster.connect(autocommit=True) as c:
        for number in range(3000):
            c.execute("SELECT outbox.enqueue(%s, %s, %s)", [topic, str(number), f"small {session}"])


def test_a_window_of_interleaved_big_and_small_transactions_over_two_segments_is_complete_and_in_order(cluster, kafka, unique):
    topic = kafka.create_topic(unique, partitions=3)
    install_outbox(cluster, kafka)
    cluster.wait_worker()
    cluster.sql("SELECT outbox.pause()")
    with concurrent.futures.ThreadPoolExecutor() as threads:
        jobs = [threads.submit(write, cluster, topic, s) for s in range(SESSIONS)]
        jobs += [threads.submit(write_small, cluster, topic, s) for s in range(2)]
        written = "SELECT count(*) > 1000 FROM outbox._message WHERE key = 'small 0'"
        wait_until(lambda: cluster.value(written), 60, "writers are under way")
        cluster.sql("SELECT outbox.roll()")
        for job in jobs:
            job.result()
    # the places of what was rolled back are empty then, and their entries in the index are gone
    cluster.sql("VACUUM (TRUNCATE off)")
    cluster.sql("SELECT outbox.resume()")
    drain(cluster, seconds=300)
    numbers = collections.defaultdict(list)
    for record in sorted(kafka.read_all(topic), key=lambda r: (r.partition, r.offset)):
        numbers[record.key.decode()].append(int(record.value))
    big = {f"session {s}-{k}": list(range(k, ROUNDS * EACH, 10)) for s in range(SESSIONS) for k in range(10)}
    assert numbers == big | {f"small {s}": list(range(3000)) for s in range(2)}
    assert_nothing_is_left(cluster)
