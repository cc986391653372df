"""The log looks after itself: with a segment a second, and a snapshot that is as old as the run, nothing grows."""

import contextlib
import re
import subprocess

import pytest
from harness import install_outbox, size, wait_until
from harness.cluster import bindir
from harness.load import assert_nothing_is_left, drain
from harness.processes import server_user
from harness.samples import Samples, grown, thirds_of_latency
from harness.segments import configure, states, transaction, wait_opened

SECONDS = size(60, 600)
RATE = 300
CLIENTS = 4

# The payload says when it was enqueued. Every tenth transaction of a client is rolled back, so that there are dead tuples.
SCRIPT = r"""
\set n (:n + 1) % 10
BEGIN;
SELECT outbox.enqueue('{topic}', lpad((extract(epoch FROM clock_timestamp()) * 1000000)::bigint::text, 200, '0'), 'key-' || :n);
\if :n = 0
ROLLBACK;
\else
COMMIT;
\endif
"""

# Milliseconds. LogAppendTime, by which a latency is measured, has no smaller unit than one; and on a machine with two cores it
# depends on who else wants them: the 99th percentile of 300 is the third of them from the top.
NOISE = {"p50": size(5, 1), "p99": size(50, 5)}
# In a third of a minute it shows whether there was mostly one segment more or less of ten.
ONE_SEGMENT = {"disk, bytes": size(300_000, 0)}


@contextlib.contextmanager
def load(cluster, topic):
    """Clients that enqueue at a steady rate; yields a function that returns their pids."""
    script = cluster.folder / "script"
    script.write_text(SCRIPT.format(topic=topic))
    rate = ["-c", CLIENTS, "-j", 1, "-R", RATE, "-T", SECONDS]
    command = [bindir(cluster.pg_config) / "pgbench", "-n", *rate, "-D", "n=0", "-f", script]
    with subprocess.Popen(
        [*map(str, command)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        cwd=cluster.folder, env=cluster.environment(), **server_user(),
    ) as pgbench:  # fmt: skip
        pids = "SELECT pid FROM pg_stat_activity WHERE application_name = 'pgbench'"
        wait_until(lambda: len(cluster.sql(pids)) >= CLIENTS, 10, "clients are there")
        yield lambda: [pid for (pid,) in cluster.sql(pids)]
        output = pgbench.stdout.read()
    assert pgbench.returncode == 0, output
    assert "number of failed transactions: 0" in output, output


def latencies(records):
    """(second of the enqueue, milliseconds until Kafka had it)"""
    for record in records:
        at = int(record.value) / 1_000_000
        yield at, record.timestamp + 0.5 - at * 1000


def text(thirds):
    """Without what is nothing all the time."""
    something = {name: its for name, its in thirds.items() if any(its)}
    return "\n".join(f"  {name}: {first:,.1f} / {middle:,.1f} / {last:,.1f}" for name, (first, middle, last) in something.items())


def test_disk_memory_latency_and_dead_tuples_do_not_grow_although_a_snapshot_is_old(cluster, kafka, unique):
    topic = kafka.create_topic(unique, partitions=3, config={"message.timestamp.type": "LogAppendTime"})
    install_outbox(cluster, kafka)
    cluster.sql("CREATE EXTENSION pgstattuple")
    configure(cluster, segment_max_age="1s", retention="5s")
    begun = max(states(cluster), default=0)
    with transaction(cluster, "SELECT pg_current_xact_id(), count(*) FROM pg_class", isolation="REPEATABLE READ") as old:
        with load(cluster, topic) as sessions:
            wait_opened(cluster, begun + 8)  # as many as there will be
            with Samples(cluster, sessions=sessions) as samples:
                wait_until(lambda: not sessions(), SECONDS + 60, "the load is over", interval=0.5)
        ended = max(states(cluster))
        drain(cluster)
        assert old.info.transaction_status.name == "INTRANS"
    with kafka.reader(topic) as reader:
        records = reader.read_all()
        reader.assert_nothing_more()
    assert_nothing_is_left(cluster)
    assert ended - begun > SECONDS * 0.8, "a segment a second"
    thirds, late = samples.thirds(), thirds_of_latency(latencies(records))
    print(f"{len(records)} messages in {ended - begun} segments, {len(samples.all)} samples; first / middle / last third:")
    print(text(thirds))
    print(f"milliseconds from enqueue to Kafka:\n{text(late)}")
    assert {"memory of outbox worker, kB", "memory of outbox maintenance, kB", "memory of sessions, kB"} <= thirds.keys()
    assert thirds["dead tuples counted in _message_N"][1] > 0, "there are dead tuples to be seen"
    assert grown(thirds, noise=ONE_SEGMENT) == {}
    assert grown(late, noise=NOISE) == {}


# ---- the look itself


STEADY = {"disk, bytes": (1, 1000, 1100), "dead tuples known of _lane": (7, 0, 0), "p50": (0, 2, 3.2)}


@pytest.mark.parametrize(
    "name, growing",
    [
        ("disk, bytes", (1000, 1000, 1101)),
        ("dead tuples known of _lane", (0, 0, 0.1)),
        ("p50", (2, 2, 3.21)),
    ],
)
def test_what_grows_is_noticed(name, growing):
    noise = {"p50": 1, "p99": 5}
    assert grown(STEADY, noise=noise) == {}
    assert grown(STEADY | {name: growing}, noise=noise) == {name: growing}


def test_a_latency_that_grows_is_noticed_and_a_second_that_is_spoiled_is_not():
    def run(of_second):
        return thirds_of_latency((second + n / 10, of_second(second)) for second in range(62) for n in range(10))

    assert grown(run(lambda second: 500 if second == 55 else 10)) == {}
    assert grown(run(lambda second: 10 + second / 10)).keys() == {"p50", "p99"}
