"""One transaction of very many messages: it is resumed where it was left, costs no memory for good, and holds up nobody."""

import collections
import pathlib
import re

import pytest
from harness import install_outbox, size, wait_until
from harness.load import assert_nothing_is_left, drain

COUNT = size(200_000, 1_000_000)
FILL = (
    "SELECT count(outbox.enqueue(%s, to_char(n, 'FM00000000') || repeat('x', 192), n::text))"
    " FROM generate_series(0, %s - 1) n"
)
# Repeats stand around the cursor: 10,000 to 20,000 are usual.
AROUND_THE_CURSOR = 50_000
PUBLISHED = "SELECT published FROM outbox.lanes"


@pytest.fixture
def topic(kafka, unique):
    return kafka.create_topic(unique, partitions=3, config={"message.timestamp.type": "LogAppendTime"})


def commit_big(cluster, topic, count):
    """In one transaction; the payload begins with the message's number, which is its key as well."""
    assert cluster.value(FILL, [topic, count]) == count


def wait_published(connection, count, timeout=60):
    """Poll the worker's counter, which moves with every report from Kafka."""
    return wait_until(
        lambda: (done := connection.execute(PUBLISHED).fetchone()[0]) >= count and done,
        timeout, f"{count} are acknowledged", interval=0.001,
    )  # fmt: skip


def numbers(records):
    """How often each message is there, by its number; its key and its payload agree."""
    found = collections.Counter()
    for record in records:
        assert record.value == b"%08d" % int(record.key) + b"x" * 192
        found[int(record.key)] += 1
    return found


def test_a_big_transaction_is_resumed_where_the_terminated_worker_left_it(cluster, kafka, topic):
    install_outbox(cluster, kafka)
    cluster.sql("SELECT outbox.enqueue(%s, '', '-1')", [kafka.create_topic(topic + "_first", partitions=1)])
    drain(cluster)
    cluster.sql("SELECT outbox.reset_counters()")
    pid = cluster.wait_worker()
    with cluster.connect(autocommit=True) as c:
        commit_big(cluster, topic, COUNT)
        acknowledged = wait_published(c, COUNT // 2)
        assert c.execute("SELECT pg_terminate_backend(%s)", [pid]).fetchone()[0]
        assert acknowledged < COUNT * 0.9, f"{acknowledged} were sent already"
    cluster.wait_worker(other_than=[pid])
    drain(cluster)
    found = numbers(kafka.read_all(topic))
    assert found.keys() == set(range(COUNT))
    repeated = sorted(number for number, times in found.items() if times > 1)
    print(f"terminated when {acknowledged} of {COUNT} were acknowledged: {len(repeated)} repeated, from {repeated[:1]} on")
    # what was on its way, and what another partition was ahead
    assert len(repeated) < AROUND_THE_CURSOR
    assert not repeated or repeated[0] > acknowledged - AROUND_THE_CURSOR
    assert_nothing_is_left(cluster)


# ---- memory


def rss_anon_kb(pid):
    return int(re.search(r"RssAnon:\s+(\d+) kB", pathlib.Path(f"/proc/{pid}/status").read_text())[1])


def memory_contexts(cluster, pid):
    """All bytes in the memory contexts of a process, which it writes to the log."""

    def totals():
        return re.findall(rf"\[{pid}\].*Grand total: (\d+) bytes", cluster.log)

    before = len(totals())
    assert cluster.value("SELECT pg_log_backend_memory_contexts(%s)", [pid])
    return int(wait_until(lambda: totals()[before:], 10, "the memory contexts are logged")[0])


def memory_after(cluster, topic, count):
    """Of a new worker, once it has published a transaction of `count` messages."""
    (old,) = cluster.worker_pids()
    cluster.sql("SELECT pg_terminate_backend(%s)", [old])
    pid = cluster.wait_worker(other_than=[old])
    commit_big(cluster, topic, count)
    drain(cluster)
    wait_until(lambda: cluster.value("SELECT state FROM outbox.workers") == "idle", 10, "the worker is idle")
    assert cluster.worker_pids() == [pid]
    return rss_anon_kb(pid), memory_contexts(cluster, pid) // 1024


def test_a_big_transaction_leaves_no_more_memory_in_use_than_a_smaller_one(cluster, kafka, topic):
    install_outbox(cluster, kafka)
    cluster.wait_worker()
    smaller = memory_after(cluster, topic, COUNT // 5)
    bigger = memory_after(cluster, topic, COUNT)
    print(f"RssAnon and memory contexts in kB after {COUNT // 5}: {smaller}, after {COUNT}: {bigger}")
    for before, after in zip(smaller, bigger, strict=True):
        assert abs(after - before) < 2048, (smaller, bigger)


# ---- others


def test_a_message_of_another_topic_committed_meanwhile_arrives_right_after_a_big_transaction(cluster, kafka, topic):
    other = kafka.create_topic(topic + "_other", partitions=1, config={"message.timestamp.type": "LogAppendTime"})
    install_outbox(cluster, kafka)
    with cluster.connect(autocommit=True) as c:
        c.execute("SELECT outbox.enqueue(%s, 'before')", [other])
        drain(cluster)
        c.execute("SELECT outbox.reset_counters()")
        commit_big(cluster, topic, COUNT)
        acknowledged = wait_published(c, COUNT // 10)
        c.execute("SELECT outbox.enqueue(%s, 'meanwhile')", [other])
        assert c.execute(PUBLISHED).fetchone()[0] < COUNT * 0.9, "the big one was sent already"
    drain(cluster)
    others = {r.value: r.timestamp for r in kafka.read_all(other)}
    big = sorted(r.timestamp for r in kafka.read_all(topic))
    behind = sum(t > others[b"meanwhile"] for t in big)
    print(
        f"{COUNT} in {big[-1] - big[0]} ms; committed when {acknowledged} were acknowledged,"
        f" it arrived {others[b'meanwhile'] - big[-1]} ms after the last and before {behind} of them"
    )
    assert behind < COUNT / 10
    assert others[b"meanwhile"] - big[-1] < max(1000, (big[-1] - big[0]) / 4)
    assert_nothing_is_left(cluster)
