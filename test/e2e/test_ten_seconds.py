"""Ten seconds with a bit of everything a server goes through. Also run on each other major version of PostgreSQL."""

import os
import signal

from harness import install_outbox, seeded, size
from harness.load import Load, assert_nothing_is_left, check, drain


def test_ten_seconds_of_rolls_vacuum_a_terminated_worker_and_a_crash_lose_nothing(cluster, kafka, unique):
    topic = kafka.create_topic(unique, partitions=3)
    install_outbox(cluster, kafka)
    rng = seeded("ten seconds")
    with Load(cluster, topic, pause_s=0.02, through_crashes=True) as load:
        load.run_for(size(2, 20))
        cluster.sql("SELECT outbox.roll()")
        cluster.sql("VACUUM FULL")
        load.run_for(2)
        os.kill(cluster.wait_worker(), signal.SIGTERM)
        load.run_for(2)
        cluster.sql("SELECT outbox.roll()")
        cluster.sql("VACUUM")
        load.run_for(1 + rng.random())
        cluster.crash()
        cluster.start()
        load.run_for(3)
    drain(cluster)
    with kafka.reader(topic) as reader:
        repeats = check(load, reader.read_all(), repeats=True)
        reader.assert_nothing_more()
    assert_nothing_is_left(cluster)
    assert load.counts["committed"] > size(200, 800), load.counts
    print(load.counts, "repeats:", repeats)
    text = cluster.dump("--schema-only")
    assert "EXTENSION" in text and "outbox" in text
