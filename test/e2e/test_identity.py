"""A database that is not where it published before (restored, copied, cloned) publishes nothing until outbox.adopt()."""

import threading

import pytest
from harness import install_outbox, seeded, size, wait_until

OFF, ON = {"outbox.enabled": "off"}, {"outbox.enabled": "on"}


def enqueue(cluster, database, topic, *payloads):
    """One transaction; returns {id as text: payload}."""
    with cluster.connect(database) as c:
        query = "SELECT outbox.enqueue(%s, %s::text, %s::text)"
        return {str(c.execute(query, [topic, p, f"k{i % 3}"]).fetchone()[0]): p.encode() for i, p in enumerate(payloads)}


def enqueue_many(cluster, database, topic, name, count=30):
    return enqueue(cluster, database, topic, *(f"{name} {n}" for n in range(count)))


def drain(cluster, database):
    assert cluster.value("SELECT outbox.drain('30 s')", dbname=database)


def worker_state(cluster, database):
    return cluster.sql("SELECT state, reason FROM outbox.workers", dbname=database)[0]


def wait_state(cluster, database, state):
    wait_until(lambda: worker_state(cluster, database)[0] == state, 30, lambda: f"{state}: {worker_state(cluster, database)}")
    return worker_state(cluster, database)[1]


def publish_some_keep_some(cluster, database, topic):
    """Leaves the outbox off. Returns what is published (in two segments, one rolled) and what is pending (in two)."""
    published = enqueue_many(cluster, database, topic, "published")
    cluster.sql("SELECT outbox.roll()", dbname=database)
    published |= enqueue_many(cluster, database, topic, "published too")
    drain(cluster, database)
    cluster.configure(**OFF)
    cluster.reload()
    wait_state(cluster, database, "paused")
    pending = enqueue_many(cluster, database, topic, "pending")
    cluster.sql("SELECT outbox.roll()", dbname=database)
    pending |= enqueue_many(cluster, database, topic, "pending too")
    with cluster.connect(database) as c:
        c.execute("SELECT outbox.enqueue(%s, 'rolled back')", [topic])
        c.rollback()
    return published, pending


def contents(records):
    """{id: value} of records that must be there once each."""
    found = {r.id: r.value for r in records}
    assert len(found) == len(records), "an id came twice"
    return found


def check_guarded_then_adopt(cluster, database, reader, pending):
    """The topic holds reader.records and nothing comes until adopt(); then `pending` and what was enqueued meanwhile, once each."""
    assert "adopt" in wait_state(cluster, database, "awaiting_adoption")
    meanwhile = enqueue_many(cluster, database, reader.topics[0], "meanwhile", 10)
    lanes = {lane for (lane,) in cluster.sql(
        "SELECT lane FROM outbox.messages WHERE message_id = ANY (%s::uuid[])", [list(meanwhile)], dbname=database)}
    assert lanes == {-1}
    assert worker_state(cluster, database)[0] == "awaiting_adoption"
    reader.assert_nothing_more(1)

    before = contents(reader.records)
    assert cluster.value("SELECT outbox.adopt()", dbname=database) == len(pending) + len(meanwhile)
    drain(cluster, database)
    after = enqueue_many(cluster, database, reader.topics[0], "after", 10)
    drain(cluster, database)
    assert contents(reader.read_all()) == before | pending | meanwhile | after
    assert cluster.value("SELECT outbox.adopt()", dbname=database) == 0, "it is adopted"
    check_ids(cluster, database, len(pending) + len(meanwhile) + len(after))
    check_states(cluster, database, contents(reader.records), reader)
    return contents(reader.records)


def check_ids(cluster, database, at_least):
    """No id was given twice, although the messages of two identities lie in one log."""
    rows = cluster.sql("SELECT id, message_id FROM outbox._message", dbname=database)
    assert len(rows) >= at_least
    assert len({i for i, _ in rows}) == len({m for _, m in rows}) == len(set(rows))


def check_states(cluster, database, everything, reader):
    """Each message is shown once, as published, with the place where it is."""
    places = {r.id: (r.partition, r.offset) for r in reader.records}
    query = "SELECT message_id::text, state, kafka_partition, kafka_offset FROM outbox.messages"
    rows = cluster.sql(query, dbname=database)
    assert len(rows) == len({row[0] for row in rows})
    for message_id, state, partition, offset in rows:
        assert (state, (partition, offset)) == ("published", places[message_id]), everything[message_id]
    assert {row[0] for row in rows} == set(everything)


def spend_xids(cluster, count=3000):
    """So that the transaction ids of two clusters do not match by chance."""
    cluster.sql(f"DO $$ BEGIN FOR i IN 1..{count} LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; END $$")


def test_a_dump_restored_into_another_cluster_waits_for_adopt(make_cluster, kafka, unique):
    topic = kafka.create_topic(unique)
    source, target = make_cluster(), make_cluster()
    spend_xids(source)
    source.createdb(unique)
    install_outbox(source, kafka, unique)
    published, pending = publish_some_keep_some(source, unique, topic)
    dump = source.dump(dbname=unique)
    target.createdb("restored")
    target.restore(dump, "restored")
    with kafka.reader(topic) as reader:
        assert contents(reader.read(until=len(published))) == published
        everything = check_guarded_then_adopt(target, "restored", reader, pending)

        # once more, into a third place: what the second has published is not pending there
        third = target.createdb("third")
        target.configure(**OFF)
        target.reload()
        wait_state(target, "restored", "paused")
        pending = enqueue_many(target, "restored", topic, "pending again")
        target.restore(target.dump(dbname="restored"), third)
        target.configure(**ON)
        target.reload()
        drain(target, "restored")
        assert contents(reader.read_all()) == everything | pending
        wait_state(target, third, "awaiting_adoption")
        new = enqueue_many(target, third, topic, "third")
        assert target.value("SELECT outbox.adopt()", dbname=third) == len(pending) + len(new)
        drain(target, third)
        # two databases had the same messages: each published them, under the same ids
        records = reader.read_all()
        assert {r.id: r.value for r in records} == everything | pending | new
        assert len(records) == len(everything) + 2 * len(pending) + len(new)
        check_ids(target, third, len(pending) + len(new))


def test_pg_dump_into_an_empty_database_keeps_pending_messages_and_dead_letters(make_cluster, kafka, unique):
    topic = kafka.create_topic(unique)
    cluster = make_cluster()
    cluster.createdb("source")
    install_outbox(cluster, kafka, "source")
    small = kafka.create_topic(unique + "_small", config={"max.message.bytes": 2000})
    (dead,) = enqueue(cluster, "source", small, "x" * 5000)
    wait_until(lambda: cluster.value("SELECT count(*) FROM outbox.dead_letters", dbname="source") == 1)
    published, pending = publish_some_keep_some(cluster, "source", topic)
    cluster.createdb("target")
    cluster.restore(cluster.dump(dbname="source"), "target")
    states = dict(cluster.sql("SELECT state, count(*) FROM outbox.messages GROUP BY state", dbname="target"))
    assert states == {"published": len(published), "pending": len(pending), "dead": 1}
    cluster.configure(**ON)
    cluster.reload()
    with kafka.reader(topic) as reader:
        drain(cluster, "source")
        assert contents(reader.read_all()) == published | pending, "the source goes on by itself"
        wait_state(cluster, "target", "awaiting_adoption")
        reader.assert_nothing_more(1)
        assert cluster.value("SELECT outbox.adopt()", dbname="target") == len(pending)
        drain(cluster, "target")
        records = reader.read_all()
        assert contents(records[len(published) + len(pending) :]) == pending
    kafka.alter_topic(small, {})
    cluster.sql("SELECT outbox.resend(%s)", [dead], dbname="target")
    assert [r.id for r in kafka.consume(small, until=1)] == [dead]


def test_an_empty_outbox_restored_publishes_by_itself(shared_cluster, database, kafka, unique):
    topic = kafka.create_topic(unique)
    install_outbox(shared_cluster, kafka, database)
    shared_cluster.wait_worker(database)
    target = shared_cluster.createdb(database + "r")
    shared_cluster.restore(shared_cluster.dump(dbname=database), target)
    sent = enqueue_many(shared_cluster, target, topic, "first", 5)
    drain(shared_cluster, target)
    assert contents(kafka.read_all(topic)) == sent
    shared_cluster.dropdb(target)


def test_a_dump_taken_under_load_keeps_everything_committed_before_it(make_cluster, kafka, unique):
    topic = kafka.create_topic(unique)
    cluster = make_cluster()
    cluster.createdb("source")
    install_outbox(cluster, kafka, "source")
    stop, sent = threading.Event(), []

    def write(number):
        random = seeded(f"writer {number}")
        with cluster.connect("source") as c:
            while not stop.is_set():
                ids = [str(c.execute("SELECT outbox.enqueue(%s, 'x', %s)", [topic, str(number)]).fetchone()[0])
                       for _ in range(random.randrange(1, 5))]
                c.commit()
                sent.extend(ids)

    writers = [threading.Thread(target=write, args=[n]) for n in range(3)]
    for writer in writers:
        writer.start()
    dumps = []
    for _ in range(size(2, 10)):
        wait_until(lambda goal=len(sent) + 100: len(sent) > goal)
        before = set(sent)
        dumps.append((before, cluster.dump(dbname="source")))
    stop.set()
    for writer in writers:
        writer.join()
    drain(cluster, "source")
    for number, (before, dump) in enumerate(dumps):
        target = cluster.createdb(f"target{number}")
        cluster.restore(dump, target)
        wait_state(cluster, target, "awaiting_adoption")
        cluster.sql("SELECT outbox.adopt()", dbname=target)
        drain(cluster, target)
        rows = cluster.sql("SELECT message_id::text, state FROM outbox.messages", dbname=target)
        assert {state for _, state in rows} == {"published"}
        assert before <= {i for i, _ in rows} <= set(sent)
        assert len(rows) == len({i for i, _ in rows})


def test_a_copied_data_directory_waits_for_adopt_and_the_original_does_not(cluster, closing, kafka, unique):
    topic = kafka.create_topic(unique)
    install_outbox(cluster, kafka)
    published, pending = publish_some_keep_some(cluster, "postgres", topic)
    cluster.stop()
    with kafka.reader(topic) as reader:
        assert contents(reader.read(until=len(published))) == published
        copy = closing(cluster.copy(ON))
        check_guarded_then_adopt(copy, "postgres", reader, pending)
        copy.restart()
        new = enqueue_many(copy, "postgres", topic, "after a restart of the copy", 5)
        drain(copy, "postgres")
        records = list(reader.read_all())
        assert contents(records[-len(new) :]) == new, "adopted once, it stays adopted"

        cluster.configure(**ON)
        cluster.start()
        drain(cluster, "postgres")
        assert contents(reader.read_all()[len(records) :]) == pending, "the original goes on where it was"


def test_a_clone_by_template_waits_for_adopt_and_the_original_does_not(cluster, kafka, unique):
    topic = kafka.create_topic(unique)
    source = cluster.createdb("source")
    install_outbox(cluster, kafka, source)
    published, pending = publish_some_keep_some(cluster, source, topic)
    clone = cluster.createdb("clone", template=source)
    cluster.configure(**ON)
    cluster.reload()
    with kafka.reader(topic) as reader:
        reader.read(until=len(published) + len(pending))
        assert contents(reader.records) == published | pending
        wait_state(cluster, clone, "awaiting_adoption")
        meanwhile = enqueue_many(cluster, clone, topic, "meanwhile", 5)
        more = enqueue_many(cluster, source, topic, "source goes on", 5)
        drain(cluster, source)
        assert contents(reader.read_all()) == published | pending | more
        reader.assert_nothing_more(1)
        assert cluster.value("SELECT outbox.adopt()", dbname=clone) == len(pending) + len(meanwhile)
        drain(cluster, clone)
        records = reader.read_all()
        assert contents(records[len(published | pending | more) :]) == pending | meanwhile


def test_adopt_waits_for_open_transactions_and_takes_what_they_wrote(cluster, kafka, unique):
    topic = kafka.create_topic(unique)
    source = cluster.createdb("source")
    install_outbox(cluster, kafka, source)
    enqueue_many(cluster, source, topic, "published")
    drain(cluster, source)
    clone = cluster.createdb("clone", template=source)
    wait_state(cluster, clone, "awaiting_adoption")
    c = cluster.connect(clone)
    late = c.execute("SELECT outbox.enqueue(%s, 'late')", [topic]).fetchone()[0]
    adopted = []
    adopter = threading.Thread(target=lambda: adopted.append(cluster.value("SELECT outbox.adopt()", dbname=clone)))
    adopter.start()
    waits = "SELECT count(*) FROM pg_stat_activity WHERE datname = %s AND wait_event_type = 'Lock'"
    wait_until(lambda: cluster.value(waits, [clone]) == 1, 5, "adopt() waits for the writer")
    c.commit()
    adopter.join()
    assert adopted == [1]
    drain(cluster, clone)
    assert [r.value for r in kafka.read_all(topic) if r.id == str(late)] == [b"late"]


def test_a_promoted_standby_goes_on_by_itself_and_loses_nothing(make_cluster, closing, kafka, unique):
    topic = kafka.create_topic(unique)
    primary = make_cluster()
    install_outbox(primary, kafka)
    published = enqueue_many(primary, "postgres", topic, "published")
    drain(primary, "postgres")
    standby = closing(primary.standby())
    assert standby.worker_pids() == []
    assert worker_state(standby, "postgres")[0] == "not_running"
    primary.configure(**OFF)
    primary.reload()
    wait_state(primary, "postgres", "paused")
    pending = enqueue_many(primary, "postgres", topic, "pending")
    position = primary.value("SELECT pg_current_wal_flush_lsn()")
    wait_until(lambda: standby.value("SELECT pg_last_wal_replay_lsn() >= %s", [position]))
    primary.kill9()
    with kafka.reader(topic) as reader:
        reader.read(until=len(published))
        reader.assert_nothing_more()
        standby.promote()
        reader.read(until=len(published) + len(pending))
        new = enqueue_many(standby, "postgres", topic, "new")
        drain(standby, "postgres")
        assert contents(reader.read_all()) == published | pending | new
        for restart in (standby.restart, lambda: (standby.crash(), standby.start())):
            restart()
            new |= enqueue_many(standby, "postgres", topic, "after a restart")
            drain(standby, "postgres")
        assert {r.id: r.value for r in reader.read_all()} == published | pending | new
        check_ids(standby, "postgres", len(published | pending | new))


@pytest.mark.parametrize("signal_file", ["recovery", None])
def test_a_base_backup_that_is_no_standby_waits_for_adopt(signal_file, cluster, closing, kafka, unique):
    topic = kafka.create_topic(unique)
    install_outbox(cluster, kafka)
    published, pending = publish_some_keep_some(cluster, "postgres", topic)
    backup = closing(cluster.base_backup({"restore_command": "false"} | ON, signal_file=signal_file))
    backup.wait_ready()
    wait_until(lambda: not backup.value("SELECT pg_is_in_recovery()"), 30)
    with kafka.reader(topic) as reader:
        reader.read(until=len(published))
        check_guarded_then_adopt(backup, "postgres", reader, pending)
