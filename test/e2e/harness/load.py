"""Writers that enqueue under a lock on their aggregate, and the check of what arrived.

The business tables decide: `event` has a row for each message, written in the message's own transaction (and savepoint),
so it holds exactly what was committed, also where a writer lost its connection during COMMIT and cannot know. `aggregate`
counts the versions of each key under its row lock: on the topic the versions of a key must be 1, 2, 3 … in this order.
"""

import collections
import contextlib
import json
import threading
import time

import psycopg

from .sizes import seeded
from .waiting import wait_until

Event = collections.namedtuple("Event", "message_id key version")

TABLES = """
CREATE TABLE aggregate (key text PRIMARY KEY, version bigint NOT NULL) WITH (fillfactor = 50);
CREATE TABLE event (message_id uuid PRIMARY KEY, key text, version bigint);
"""

BUMP = "UPDATE aggregate SET version = version + 1 WHERE key = %(key)s RETURNING version"
ENQUEUE = "SELECT outbox.enqueue(%(topic)s, %(payload)s::jsonb, %(key)s)"
INSERT = "INSERT INTO outbox.messages (topic, key, payload) VALUES (%(topic)s, %(key)s, %(payload)s) RETURNING message_id"
# RETURNING is computed with the lock held, so this keeps the order too
BUMP_AND_ENQUEUE = (
    "UPDATE aggregate SET version = version + 1 WHERE key = %(key)s RETURNING version,"
    " outbox.enqueue(%(topic)s, jsonb_build_object('key', key, 'version', version), key)"
)
EVENT = "INSERT INTO event VALUES (%s, %s, %s)"

# what a session is told when the server goes away under it; without a code it was not told anything
SERVER_GONE = {None, "57P01", "57P02", "57P03"}


class Load:
    """Writers in threads between start() and stop(), or within `with`.

    pause_s: the longest random sleep between the statements of a transaction.
    asynchronous: this share of the transactions commits with synchronous_commit = off.
    prepared: this share of the transactions ends in two phases.
    through_crashes: writers reconnect when the server goes away; else that is an error like all others.
    """

    def __init__(
        self, cluster, topic, dbname="postgres", *,
        writers=8, keys=12, pause_s=0.05, asynchronous=0.0, prepared=0.0, through_crashes=False, name="load",
    ):  # fmt: skip
        self.cluster, self.topic, self.dbname = cluster, topic, dbname
        self.pause_s, self.asynchronous, self.prepared = pause_s, asynchronous, prepared
        self.through_crashes, self.name = through_crashes, name
        self.keys = [f"{name}-key-{i}" for i in range(keys)]
        self._drawn = tuple(self.keys)  # by the writers in threads
        self.errors = []
        self.acknowledged = set()  # ids whose COMMIT was answered; nothing may take those away
        self.discarded = set()  # ids that were rolled back
        self.counts = collections.Counter()
        self.seconds = []  # how long each committed transaction took
        self._threads = [threading.Thread(target=self._write, args=(n,), daemon=True) for n in range(writers)]
        self._stopping = threading.Event()
        self._make_tables()

    def _make_tables(self):
        with self.cluster.connect(self.dbname) as c:
            if c.execute("SELECT to_regclass('aggregate')").fetchone()[0] is None:
                c.execute(TABLES)
            c.execute("INSERT INTO aggregate SELECT unnest(%s::text[]), 0", [self.keys])

    # ---- control

    def start(self):
        for thread in self._threads:
            thread.start()
        return self

    def stop(self, timeout=60):
        """Writers finish their transaction; every error any of them saw fails the test."""
        self._stopping.set()
        deadline = time.monotonic() + timeout
        for thread in self._threads:
            thread.join(max(deadline - time.monotonic(), 0.1))
        stuck = [t.name for t in self._threads if t.is_alive()]
        assert not self.errors, f"{len(self.errors)} errors in writers, first: {self.errors[0]}"
        assert not stuck, f"writers that hang: {stuck}"

    def __enter__(self):
        return self.start()

    def __exit__(self, kind, *_):
        if kind is None:
            self.stop()
        else:  # the failure of the test itself is the one to show
            with contextlib.suppress(AssertionError):
                self.stop(timeout=5)

    def run_for(self, seconds):
        """Let the writers work, and fail as soon as one of them has."""
        end = time.monotonic() + seconds
        wait_until(lambda: self.errors or time.monotonic() >= end, seconds + 30, "the load's time is over")
        assert not self.errors, self.errors[0]

    def wait_for_more(self, transactions, timeout=30):
        """Wait until the writers have committed that many more."""
        enough = self.counts["committed"] + transactions
        wait_until(
            lambda: self.errors or self.counts["committed"] >= enough, timeout, lambda: f"more commits: {self.counts}"
        )
        assert not self.errors, self.errors[0]

    def events(self):
        """What is committed, as {message id: Event}."""
        rows = self.cluster.sql(
            "SELECT message_id::text, key, version FROM event WHERE key = ANY (%s)", [self.keys], self.dbname
        )
        return {row[0]: Event(*row) for row in rows}

    # ---- a writer

    def _write(self, number):
        rng = seeded(f"{self.name} writer {number}")
        connection = None
        while not self._stopping.is_set():
            try:
                if connection is None or connection.closed:
                    connection = psycopg.connect(
                        host=self.cluster.host, port=self.cluster.port, dbname=self.dbname, user="postgres", autocommit=True
                    )
                self._transaction(connection, rng)
            except psycopg.OperationalError as error:
                if not self.through_crashes or error.sqlstate not in SERVER_GONE:
                    return self._fail(number, error)
                self.counts["disconnected"] += 1
                connection = None
                self._stopping.wait(0.05)
            except Exception as error:  # noqa: BLE001
                return self._fail(number, error)
        if connection is not None:
            connection.close()

    def _fail(self, number, error):
        self.errors.append(f"{self.name} writer {number}: {type(error).__name__} {getattr(error, 'sqlstate', '')}: {error}")

    def _pause(self, rng):
        if rng.random() < 0.7:
            time.sleep(rng.random() ** 3 * self.pause_s)

    def _transaction(self, connection, rng):
        # no `with connection.transaction()` around it: that ends without an error when the connection is lost at its end
        began = time.monotonic()
        connection.execute("BEGIN")
        asynchronous = rng.random() < self.asynchronous
        if asynchronous:
            connection.execute("SET LOCAL synchronous_commit = off")
        written = self._statements(connection, rng)
        prepared = self._prepare(connection, rng) if rng.random() < self.prepared else ""
        if rng.random() < 0.2:
            connection.execute(f"ROLLBACK {prepared}")
            self.discarded.update(written)
            self.counts["rolled back"] += 1
            return
        assert connection.execute(f"COMMIT {prepared}").statusmessage.startswith("COMMIT")
        if not asynchronous:
            self.acknowledged.update(written)
        self.counts["committed"] += 1
        self.counts["committed in two phases"] += bool(prepared)
        self.seconds.append(time.monotonic() - began)

    def _prepare(self, connection, rng):
        """What COMMIT and ROLLBACK need to name the transaction, which lives on without its session."""
        name = f"'{self.name} {rng.getrandbits(64)}'"
        connection.execute(f"PREPARE TRANSACTION {name}")
        self._pause(rng)
        return f"PREPARED {name}"

    def _statements(self, connection, rng):
        written = []
        if rng.random() < 0.5:
            connection.execute("SELECT pg_current_xact_id()")  # long before the lock
            self._pause(rng)
        for key in sorted(rng.sample(self._drawn, rng.choice([1, 1, 2, 3]))):
            written += self._savepoint(connection, rng, key) if rng.random() < 0.3 else self._bump(connection, rng, key)
            self._pause(rng)
        return written

    def _savepoint(self, connection, rng, key):
        """One in three is rolled back: 10 % of all."""
        connection.execute("SAVEPOINT s")
        written = self._bump(connection, rng, key)
        if rng.random() < 2 / 3:
            connection.execute("RELEASE s")
            return written
        connection.execute("ROLLBACK TO s")
        self.discarded.update(written)
        self.counts["savepoints rolled back"] += 1
        return []

    def _bump(self, connection, rng, key):
        values = {"topic": self.topic, "key": key}
        way = rng.randrange(3)
        if way == 0:
            version, message_id = connection.execute(BUMP_AND_ENQUEUE, values).fetchone()
        else:
            (version,) = connection.execute(BUMP, values).fetchone()
            self._pause(rng)
            values["payload"] = json.dumps({"key": key, "version": version})
            (message_id,) = connection.execute(ENQUEUE if way == 1 else INSERT, values).fetchone()
        connection.execute(EVENT, [message_id, key, version])
        return [str(message_id)]

    # ---- one more writer

    @contextlib.contextmanager
    def asleep(self):
        """A writer, with a key of its own, that is asleep between two messages of its transaction as long as the `with` lasts."""
        key = f"{self.name}-asleep"
        self.cluster.sql("INSERT INTO aggregate VALUES (%s, 0)", [key], self.dbname)
        self.keys.append(key)
        rng = seeded(key)
        with self.cluster.connect(self.dbname) as connection:
            written = self._bump(connection, rng, key)
            yield connection
            written += self._bump(connection, rng, key)
        self.acknowledged.update(written)


# ---- what must have arrived


def check(load, records, repeats=False):
    """Compare the records of a topic with what `load` committed; returns the number of repeated records.

    repeats: the same message may be there again (after a crash); then the order counts by first occurrence.
    """
    events = load.events()
    lost = load.acknowledged - events.keys()
    assert not lost, f"the database itself lost {len(lost)} acknowledged transactions"
    assert not load.discarded & events.keys()
    by_id = collections.defaultdict(list)
    for record in sorted(records, key=lambda r: (r.partition, r.offset)):
        by_id[record.id].append(record)
    _check_set(events, by_id)
    repeated = sum(len(same) - 1 for same in by_id.values())
    assert repeats or repeated == 0, f"{repeated} records repeat a message, first: {_first_repeat(by_id)}"
    for message_id, same in by_id.items():
        _check_content(events[message_id], same)
    _check_order(events, [same[0] for same in by_id.values()])
    return repeated


def _check_set(events, by_id):
    missing = [e for i, e in events.items() if i not in by_id]
    assert not missing, f"{len(missing)} of {len(events)} committed messages are missing, first: {min(missing)}"
    phantoms = [r[0] for i, r in by_id.items() if i not in events]
    assert not phantoms, f"{len(phantoms)} records were never committed, first: {phantoms[0]}"


def _first_repeat(by_id):
    return next(same for same in by_id.values() if len(same) > 1)


def _check_content(event, same):
    expected = {"key": event.key, "version": event.version}
    for record in same:
        assert (json.loads(record.value), record.key.decode()) == (expected, event.key), record


def _check_order(events, firsts):
    """Per key the versions are 1 … n, in the order of the topic, in one partition."""
    found = collections.defaultdict(list)
    for record in firsts:
        found[record.key.decode()].append(record)
    for key, its_records in found.items():
        assert len({r.partition for r in its_records}) == 1, f"{key} is in several partitions"
        versions = [events[r.id].version for r in sorted(its_records, key=lambda r: r.offset)]
        if versions != list(range(1, len(versions) + 1)):
            at = next(i for i, v in enumerate(versions) if v != i + 1)
            raise AssertionError(f"{key}: versions out of order at {at}: {versions[max(at - 5, 0) : at + 10]}")


def late_arrivals(records):
    """How many records stand behind one with a larger message id (its low 32 bits are in the UUID)."""
    count, newest = 0, {}
    for record in sorted(records, key=lambda r: (r.partition, r.offset)):
        number = int(record.id[-8:], 16)
        count += number < newest.get(record.partition, 0)
        newest[record.partition] = max(number, newest.get(record.partition, 0))
    return count


def drain(cluster, dbname="postgres", seconds=60):
    """Wait until everything committed is published."""
    assert cluster.value(f"SELECT outbox.drain('{seconds} s')", dbname=dbname), (
        f"not drained within {seconds} s: {cluster.sql('TABLE outbox.workers', dbname=dbname)}"
        f" {cluster.sql('TABLE outbox.lanes', dbname=dbname)}"
    )


def assert_nothing_is_left(cluster, dbname="postgres"):
    """After drain(): no dead letters, nothing pending."""
    assert cluster.sql("SELECT message_id, reason FROM outbox.dead_letters", dbname=dbname) == []
    pending = "SELECT sum(pending), bool_and(pending IS NOT NULL) FROM outbox.lanes"
    wait_until(lambda: cluster.sql(pending, dbname=dbname) == [(0, True)], 5, "pending is 0")
