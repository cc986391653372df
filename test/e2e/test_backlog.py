"""outbox.backlog_limit: when Kafka is away for long, the disk does not fill up in silence."""

import re
import threading

import psycopg
import pytest
from harness import install_outbox, size, wait_until

Full = psycopg.errors.ConfigurationLimitExceeded  # 53400


@pytest.fixture
def topic(embedded, unique):
    return embedded.create_topic(unique, partitions=1)


def set_limit(cluster, limit, action="reject"):
    cluster.configure(**{"outbox.backlog_limit": limit, "outbox.backlog_limit_action": action})
    cluster.reload()
    wait_until(
        lambda: cluster.sql("SELECT current_setting('outbox.backlog_limit'), current_setting('outbox.backlog_limit_action')")
        == [(str(limit), action)],
        message="the settings are read",
    )


def enqueue(connection, topic, count=1):
    connection.execute("SELECT outbox.enqueue(%s, i::text, i::text) FROM generate_series(1, %s) i", [topic, count])


def notices_of(*connections):
    """A list that fills with (severity, SQLSTATE, detail, hint) of what these are told."""
    told = []
    for connection in connections:
        connection.add_notice_handler(
            lambda n: told.append((n.severity_nonlocalized, n.sqlstate, n.message_detail, n.message_hint))
        )
    return told


def pending(cluster, dbname="postgres"):
    return cluster.value("SELECT coalesce(sum(pending), 0)::int FROM outbox.lanes", dbname=dbname)


def drain(cluster, dbname="postgres"):
    assert cluster.value("SELECT outbox.drain('30 s')", dbname=dbname)


def test_at_the_limit_messages_are_refused_until_kafka_has_taken_some(cluster, embedded, topic):
    install_outbox(cluster, embedded)
    cluster.sql("SELECT outbox.enqueue(%s, 'first')", [topic])
    drain(cluster)
    embedded.down()
    set_limit(cluster, 10)
    with cluster.connect(autocommit=True) as c:
        enqueue(c, topic, 4)
        with c.transaction():
            enqueue(c, topic, 6)
        for statement in ("SELECT outbox.enqueue(%s, 'x')", "INSERT INTO outbox.messages (topic, payload) VALUES (%s, 'x')"):
            with pytest.raises(Full) as refused:
                c.execute(statement, [topic])
            text = refused.value.diag
            assert text.message_primary == "the message cannot be enqueued: too many messages wait for Kafka"
            assert re.fullmatch(
                r"10 messages of this database wait for Kafka, the oldest for \d\d:\d\d:\d\d\. outbox.backlog_limit is 10\.",
                text.message_detail,
            ), text.message_detail
            assert "outbox.workers tells why" in text.message_hint
        embedded.up()
        drain(cluster)
        enqueue(c, topic, 10)
    drain(cluster)
    assert len(embedded.consume(topic, until=21)) == 21


def test_what_a_transaction_has_enqueued_counts_and_a_rollback_frees_it(cluster, embedded, topic):
    install_outbox(cluster, embedded)
    embedded.down()
    set_limit(cluster, 10)
    with cluster.connect(autocommit=True) as c:
        enqueue(c, topic, 4)
        with c.transaction():
            for _ in range(3):
                with c.transaction(force_rollback=True):
                    enqueue(c, topic, 6)
            enqueue(c, topic, 6)
            with pytest.raises(Full) as refused, c.transaction():
                enqueue(c, topic)
            assert "this transaction has enqueued 6 more" in refused.value.diag.message_detail
        assert pending(cluster) == 10
        with pytest.raises(Full):
            enqueue(c, topic)
    set_limit(cluster, 20)
    with cluster.connect(autocommit=True) as c:
        for _ in range(3):
            with c.transaction(force_rollback=True):
                enqueue(c, topic, 10)
        enqueue(c, topic, 10)
        with pytest.raises(Full):
            enqueue(c, topic)


def test_with_warn_messages_pass_and_the_database_is_warned_once_in_ten_seconds(cluster, embedded, topic):
    install_outbox(cluster, embedded)
    embedded.down()
    set_limit(cluster, 5, "warn")
    with cluster.connect(autocommit=True) as c, cluster.connect(autocommit=True) as d:
        notices = notices_of(c, d)
        enqueue(c, topic, 5)
        assert notices == []
        for _ in range(20):
            enqueue(c, topic, 5)
            enqueue(d, topic, 5)
    assert pending(cluster) == 205
    ((severity, sqlstate, detail, hint),) = notices
    assert (severity, sqlstate) == ("WARNING", "53400")
    assert detail.startswith("5 messages of this database wait for Kafka"), detail
    assert "outbox.workers" in hint
    assert cluster.log.count("WARNING:  too many messages wait for Kafka") == 1


def test_a_reload_changes_limit_and_action_in_open_sessions(cluster, embedded, topic):
    install_outbox(cluster, embedded)
    embedded.down()
    with cluster.connect(autocommit=True) as c:

        def change(limit, action):
            set_limit(cluster, limit, action)
            wait_until(
                lambda: c.execute("SHOW outbox.backlog_limit").fetchone() == (str(limit),)
                and c.execute("SHOW outbox.backlog_limit_action").fetchone() == (action,)
            )

        enqueue(c, topic, 100)
        change(50, "reject")
        with pytest.raises(Full):
            enqueue(c, topic)
        change(50, "warn")
        enqueue(c, topic)
        change(50, "reject")
        with pytest.raises(Full):
            enqueue(c, topic)
        change(10_000_000, "reject")
        enqueue(c, topic)
        change(102, "reject")
        with pytest.raises(Full):
            enqueue(c, topic)
        change(0, "reject")
        enqueue(c, topic, 100)


def test_another_database_is_not_affected(cluster, embedded, topic):
    cluster.createdb("other")
    for dbname in ("postgres", "other"):
        install_outbox(cluster, embedded, dbname)
    embedded.down()
    set_limit(cluster, 5)
    with cluster.connect(autocommit=True) as c, cluster.connect("other", autocommit=True) as d:
        enqueue(c, topic, 5)
        with pytest.raises(Full):
            enqueue(c, topic)
        enqueue(d, topic, 5)
        with pytest.raises(Full):
            enqueue(d, topic)


def test_many_sessions_together_reach_the_limit_and_no_more(cluster, embedded, topic):
    install_outbox(cluster, embedded)
    cluster.sql("SELECT outbox.enqueue(%s, 'first')", [topic])
    drain(cluster)
    embedded.down()
    limit, sessions = size(2_000, 50_000), 8
    set_limit(cluster, limit)
    unexpected = []

    def write():
        with cluster.connect(autocommit=True) as c:
            try:
                while True:
                    enqueue(c, topic)
            except Full:
                pass
            except psycopg.Error as error:
                unexpected.append(error)

    threads = [threading.Thread(target=write) for _ in range(sessions)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert unexpected == []
    assert limit <= cluster.value("SELECT count(*) FROM outbox.messages WHERE state = 'pending'") < limit + sessions


def test_nobody_is_refused_while_the_worker_counts_what_is_far_below_the_limit(cluster, embedded, topic):
    """The worker moves numbers from one counter to another; in between both have them."""
    install_outbox(cluster, embedded)
    set_limit(cluster, 1000)
    with cluster.connect(autocommit=True) as c:
        for _ in range(size(100, 2000)):
            enqueue(c, topic, 600)
            enqueue(c, topic, 1)
            wait_until(lambda: c.execute("SELECT pending FROM outbox.lanes").fetchone()[0] == 0, interval=0.001)


def test_the_limit_holds_while_the_worker_or_the_server_starts_again(cluster, embedded, topic):
    install_outbox(cluster, embedded)
    embedded.down()
    set_limit(cluster, 10)
    with cluster.connect(autocommit=True) as c:
        enqueue(c, topic, 10)
        old = cluster.wait_worker()
        c.execute("SELECT pg_terminate_backend(%s)", [old])
        wait_until(lambda: old not in cluster.worker_pids(), message="the worker ends")
        with pytest.raises(Full):
            enqueue(c, topic)
        cluster.wait_worker(other_than=[old])
        with pytest.raises(Full):
            enqueue(c, topic)
    cluster.restart()
    wait_until(lambda: pending(cluster) == 10, message="the worker has counted")
    with cluster.connect(autocommit=True) as c, pytest.raises(Full):
        enqueue(c, topic)


def test_what_awaits_adoption_counts_once(cluster, embedded, topic, closing):
    install_outbox(cluster, embedded)
    embedded.down()
    cluster.sql("SELECT outbox.enqueue(%s, 'before')", [topic])
    cluster.stop()
    copy = closing(cluster.copy())
    wait_until(lambda: copy.value("SELECT state FROM outbox.workers") == "awaiting_adoption")
    set_limit(copy, 5)
    with copy.connect(autocommit=True) as c:
        with c.transaction(force_rollback=True):
            enqueue(c, topic, 4)
        enqueue(c, topic, 5)  # what the copy brought along is not counted before it is adopted
        with pytest.raises(Full) as refused:
            enqueue(c, topic)
        assert refused.value.diag.message_detail.startswith("5 messages of this database wait"), refused.value.diag.message_detail
        assert c.execute("SELECT outbox.adopt()").fetchone() == (6,)
        set_limit(copy, 7)
        wait_until(lambda: pending(copy) == 6, message="the worker has counted")
        wait_until(lambda: c.execute("SHOW outbox.backlog_limit").fetchone() == ("7",))
        enqueue(c, topic)
        with pytest.raises(Full):
            enqueue(c, topic)
        embedded.up()
        drain(copy)
        enqueue(c, topic, 7)


def test_a_dead_letter_can_be_resent_at_the_limit(cluster, embedded, topic):
    install_outbox(cluster, embedded)
    embedded.topic_error("refused", "TOPIC_AUTHORIZATION_FAILED")
    message = cluster.value("SELECT outbox.enqueue('refused', 'x')")
    drain(cluster)
    assert cluster.sql("SELECT message_id FROM outbox.dead_letters") == [(message,)]
    embedded.down()
    set_limit(cluster, 5)
    with cluster.connect(autocommit=True) as c:
        enqueue(c, topic, 5)
        notices = notices_of(c)
        c.execute("SELECT outbox.resend(%s)", [message])
        assert [sqlstate for _, sqlstate, *_ in notices] == ["53400"], "it is warned all the same"
        with pytest.raises(Full) as refused:
            enqueue(c, topic)
        assert refused.value.diag.message_detail.startswith("6 messages")


def test_a_new_extension_begins_with_nothing_in_its_backlog(cluster, embedded, topic):
    install_outbox(cluster, embedded)
    embedded.down()
    set_limit(cluster, 10)
    with cluster.connect(autocommit=True) as c:
        for _ in range(3):
            wait_until(lambda: not pending(cluster))
            enqueue(c, topic, 10)
            with pytest.raises(Full):
                enqueue(c, topic)
            with c.transaction():
                c.execute("SET LOCAL outbox.allow_data_loss = on")
                c.execute("DROP EXTENSION outbox CASCADE")
                c.execute("CREATE EXTENSION outbox")

            def try_it():
                try:
                    with c.transaction(force_rollback=True):
                        enqueue(c, topic, 10)
                        return True
                except Full:
                    return False

            wait_until(try_it, message="what was dropped does not count")
