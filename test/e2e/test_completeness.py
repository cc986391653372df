"""What is committed is on the topic, exactly once, and each key in the order of its row lock."""

import dataclasses
import json
from types import SimpleNamespace

import pytest
from harness import Record, install_outbox, seeded, size
from harness.load import Event, Load, assert_nothing_is_left, check, drain, late_arrivals


def test_the_topic_holds_exactly_what_eight_writers_committed_in_lock_order(cluster, kafka, unique):
    topic = kafka.create_topic(unique, partitions=3)
    install_outbox(cluster, kafka)
    rng = seeded("pauses")
    with Load(cluster, topic) as load:
        for _ in range(size(4, 12)):
            load.run_for(4.5)
            # what piles up becomes one window, in which the order is not that of the commits' arrival
            cluster.sql("SELECT outbox.pause()")
            load.run_for(0.5 + rng.random())
            cluster.sql("SELECT outbox.resume()")
    drain(cluster)
    with kafka.reader(topic) as reader:
        records = reader.read_all()
        check(load, records)
        reader.assert_nothing_more()
    assert_nothing_is_left(cluster)
    # the load was what it should be: rollbacks of both kinds, and transactions that overtook each other
    assert load.counts["committed"] > size(300, 900), load.counts
    assert load.counts["rolled back"] > load.counts["committed"] / 8, load.counts
    assert load.counts["savepoints rolled back"] > load.counts["committed"] / 20, load.counts
    assert late_arrivals(records) > 50
    print(load.counts, "late:", late_arrivals(records))


def message(number, key, version, offset):
    value = json.dumps({"key": key, "version": version}).encode()
    return Record("t", 0, offset, key.encode(), value, [("id", b"%d" % number)], 0)


RIGHT = [message(1, "a", 1, 0), message(2, "b", 1, 1), message(3, "a", 2, 2), message(4, "a", 3, 3)]


def committed(records, **changes):
    events = {r.id: Event(r.id, r.key.decode(), json.loads(r.value)["version"]) for r in records}
    return SimpleNamespace(**({"events": lambda: events, "acknowledged": set(events), "discarded": set()} | changes))


WRONG = {
    "are missing": RIGHT[:-1],
    "never committed": [*RIGHT, message(5, "b", 2, 4)],
    "repeat a message": [*RIGHT, dataclasses.replace(RIGHT[3], offset=4)],
    "several partitions": [dataclasses.replace(RIGHT[0], partition=1), *RIGHT[1:]],
    "out of order": [*RIGHT[:2], dataclasses.replace(RIGHT[2], offset=3), dataclasses.replace(RIGHT[3], offset=2)],
    "Record": [*RIGHT[:3], dataclasses.replace(RIGHT[3], value=RIGHT[2].value)],
}


@pytest.mark.parametrize("complaint", WRONG)
def test_the_check_of_these_tests_notices_what_is_wrong(complaint):
    assert check(committed(RIGHT), RIGHT) == 0
    with pytest.raises(AssertionError, match=complaint):
        check(committed(RIGHT), WRONG[complaint])


def test_the_check_of_these_tests_lets_repeats_pass_only_behind_the_first_occurrence():
    again = [dataclasses.replace(r, offset=r.offset + 4) for r in RIGHT]
    assert check(committed(RIGHT), RIGHT + again, repeats=True) == 4
    swapped = [*RIGHT[:2], dataclasses.replace(RIGHT[2], offset=9), RIGHT[3], dataclasses.replace(RIGHT[2], offset=10)]
    with pytest.raises(AssertionError, match="out of order"):
        check(committed(RIGHT), swapped, repeats=True)
    with pytest.raises(AssertionError, match="lost 1 acknowledged"):
        check(committed(RIGHT, acknowledged={"1", "77"}), RIGHT)
