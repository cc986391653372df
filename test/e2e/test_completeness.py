"""What is committed is on the topic, exactly once, and each key in the order of its row lock."""

from harness import install_outbox, size
from harness.load import Load, assert_nothing_is_left, check, drain, late_arrivals


def test_the_topic_holds_exactly_what_eight_writers_committed_in_lock_order(cluster, kafka, unique):
    topic = kafka.create_topic(unique, partitions=3)
    install_outbox(cluster, kafka)
    with Load(cluster, topic) as load:
        load.run_for(size(20, 60))
    drain(cluster)
    with kafka.reader(topic) as reader:
        records = reader.read_all()
        check(load, records)
        reader.assert_nothing_more()
    assert_nothing_is_left(cluster)
    # the load was what it should be: rollbacks of both kinds, and transactions that overtook each other
    assert load.counts["committed"] > size(500, 1500), load.counts
    assert load.counts["rolled back"] > load.counts["committed"] / 8, load.counts
    assert load.counts["savepoints rolled back"] > load.counts["committed"] / 20, load.counts
    assert late_arrivals(records) > 50
    print(load.counts, "late:", late_arrivals(records))
