"""Nothing depends on vacuum, analyze or an operator: not how fast a poll is, and not that the disk is cleaned up."""

import statistics
import time

import pytest
from harness import install_outbox, size, wait_until
from harness.load import Load, assert_nothing_is_left, check, drain
from harness.segments import Watch, configure, roll, states, wait_only_open, wait_opened, wait_states

PUBLISHED = size(200_000, 3_000_000)
PENDING = 10
SAMPLES = size(300, 1000)

# The CI size runs beside other things on two cores; the full size is for a machine of its own.
POLL = size(2, 1.3)
LOOK_UP_MS = size(20, 3)


@pytest.fixture
def left_alone(make_cluster):
    """A cluster in which nobody vacuums or analyzes."""
    return make_cluster({"autovacuum": "off", "shared_buffers": "256MB", "max_wal_size": "4GB"})


# ---- how fast a poll is


class Poll:
    """A database with its own topic; what is done in it is timed."""

    def __init__(self, cluster, kafka, name, published):
        self.cluster, self.name = cluster, cluster.createdb(name)
        self.topic = kafka.create_topic(name, partitions=3)
        install_outbox(cluster, kafka, name)
        self.connection = cluster.connect(name, autocommit=True)
        self.seconds = {"poll": [], "get_message": [], "restart": []}
        self._enqueue(1)
        self.drain()
        for _ in range(published // 50_000):
            self._enqueue(50_000)
        self.drain()
        self.first = self.connection.execute("SELECT message_id FROM outbox._message ORDER BY id LIMIT 1").fetchone()[0]

    def _enqueue(self, count):
        query = "SELECT count(outbox.enqueue(%s, lpad(i::text, 100, 'x'), (i %% 1000)::text)) FROM generate_series(1, %s) i"
        self.connection.execute(query, [self.topic, count])

    def drain(self):
        assert self.connection.execute("SELECT outbox.drain('300 s')").fetchone()[0]

    def poll(self):
        """From the commit of ten messages to Kafka's acknowledgement of the last."""
        self._enqueue(PENDING)
        began = time.monotonic()
        while self.connection.execute("SELECT pending FROM outbox.lanes").fetchone()[0] > 0:
            assert time.monotonic() - began < 10
        self.seconds["poll"].append(time.monotonic() - began)

    def get_message(self):
        began = time.monotonic()
        (state,) = self.connection.execute("SELECT state FROM outbox.get_message(%s)", [self.first]).fetchone()
        self.seconds["get_message"].append(time.monotonic() - began)
        assert state == "published"
        return self.seconds["get_message"][-1]

    def restart(self):
        """From the start of a worker, which knows nothing, to the acknowledgement of ten."""
        old = self.cluster.wait_worker(self.name)
        self._enqueue(PENDING)
        self.cluster.sql("SELECT pg_terminate_backend(%s)", [old])
        new = self.cluster.wait_worker(self.name, other_than=[old])
        self.drain()
        age = "SELECT extract(epoch FROM clock_timestamp() - backend_start)::float8 FROM pg_stat_activity WHERE pid = %s"
        self.seconds["restart"].append(self.connection.execute(age, [new]).fetchone()[0])

    def median_ms(self, what):
        return 1000 * statistics.median(self.seconds[what])


def measure(polls, what, times):
    """In turns: the machine is the same for all."""
    for poll in polls:
        poll.seconds[what].clear()
    for _ in range(times):
        for poll in polls:
            getattr(poll, what)()
    medians = [poll.median_ms(what) for poll in polls]
    print(f"{what}: {medians[1]:.2f} ms beside {PUBLISHED} published, {medians[0]:.2f} ms on an empty log")
    return medians


def test_a_poll_beside_millions_of_published_messages_is_as_fast_as_on_an_empty_log(left_alone, kafka, unique):
    polls = [Poll(left_alone, kafka, f"{unique}_{n}", n) for n in (0, PUBLISHED)]
    full = polls[1]
    # the index by which a message is found gets its summaries a moment after the messages, and that takes a core
    wait_until(lambda: full.get_message() < 0.02, 60, "found in milliseconds")
    empty_ms, full_ms = measure(polls, "poll", SAMPLES)
    assert full_ms < POLL * empty_ms
    empty_ms, full_ms = measure(polls, "restart", size(5, 20))
    assert full_ms < POLL * empty_ms + 20
    empty_ms, full_ms = measure(polls, "get_message", SAMPLES)
    assert full_ms < 3 * empty_ms + LOOK_UP_MS
    never = "SELECT bool_and(reltuples = -1) FROM pg_class WHERE relname ~ '^_(message|progress)_1$'"
    assert left_alone.value(never, dbname=full.name), "never analyzed"
    for poll in polls:
        roll(left_alone, poll.name)
        wait_states(left_alone, lambda s: s[1] == "archived", 60, "archived", poll.name)
    empty_ms, full_ms = measure(polls, "get_message", SAMPLES)
    assert full_ms < 3 * empty_ms + LOOK_UP_MS


# ---- what is cleaned up


COPY_OUT = """
CREATE FUNCTION copy_out(segment regclass) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  EXECUTE format('INSERT INTO public.copied SELECT message_id FROM %s', segment);
END $$
"""
RELATIONS = "SELECT count(*) FROM pg_class WHERE relnamespace = 'outbox'::regnamespace"
ROWS = "SELECT (SELECT count(*) FROM outbox._segment) + (SELECT count(*) FROM outbox._segment_event)"


def kept_elsewhere(cluster, mode):
    """Ids of the messages that left the log."""
    if mode == "function":
        return [i for (i,) in cluster.sql("SELECT message_id::text FROM copied")]
    if mode == "keep":
        return []
    names = cluster.sql(
        "SELECT c.oid::regclass::text FROM pg_class c WHERE relnamespace = 'outbox_archive'::regnamespace"
        " AND relkind = 'r' AND relname ~ '^_message_'"
    )
    return [i for (name,) in names for (i,) in cluster.sql(f"SELECT message_id::text FROM {name}")]


@pytest.mark.parametrize("mode", ["function", *size([], ["detach", "keep"])])
def test_old_segments_are_archived_and_go_without_an_operator_or_autovacuum(left_alone, kafka, unique, mode):
    cluster = left_alone
    topic = kafka.create_topic(unique, partitions=3)
    install_outbox(cluster, kafka)
    cluster.sql("CREATE TABLE copied (message_id uuid)")
    cluster.sql(COPY_OUT)
    cluster.sql("SELECT outbox.enqueue(%s, 'opens the first segment', 'other')", [topic])
    relations = cluster.value(RELATIONS)
    if mode == "function":
        cluster.sql("SELECT outbox.set_archive_function('copy_out(regclass)')")
    configure(cluster, segment_max_age="1s", retention="2s", archive_mode=mode)
    with Watch(cluster) as watch, Load(cluster, topic) as load:
        load.wait_for_more(10)
        wait_opened(cluster, max(states(cluster)) + size(3, 60), timeout=30 + size(0, 120))
        load.wait_for_more(10)
    drain(cluster)
    with kafka.reader(topic) as reader:
        check(load, [r for r in reader.read_all() if r.key != b"other"])
    wait_only_open(cluster)
    assert_nothing_is_left(cluster)
    # what is left is what one segment needs
    assert cluster.value(RELATIONS) == relations
    wait_until(lambda: cluster.value(ROWS) < 20, 30, lambda: f"few rows: {cluster.value(ROWS)}")
    elsewhere = kept_elsewhere(cluster, mode)
    assert len(elsewhere) == len(set(elsewhere))
    if mode != "keep":
        here = [i for (i,) in cluster.sql("SELECT message_id::text FROM outbox._message")]
        assert load.events().keys() <= {*here, *elsewhere}
    if mode != "detach":
        assert "archived" in {state for its in watch.seen.values() for state in its}
    print(f"{len(watch.seen)} segments, {len(load.events())} messages, {len(elsewhere)} of them kept elsewhere")
