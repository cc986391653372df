"""What becomes of segments in which everything is published: kept, detached, or taken by a function; and what they wait for."""

import contextlib

import psycopg
import pytest
from harness import install_outbox, wait_until
from harness.load import drain
from harness.segments import configure, describe, roll, states, tables, wait_dropped, wait_only_open, wait_states, waits_for


@pytest.fixture
def topic(cluster, embedded):
    """The cluster with outbox, and a topic."""
    embedded.create_topic("t", partitions=1)
    install_outbox(cluster, embedded)
    return "t"


def enqueue(cluster, payload, key="k"):
    return cluster.value("SELECT outbox.enqueue('t', %s::text, %s)", [payload, key])


def closed_segment(cluster, payload="x", messages=3):
    """Enqueues, publishes and rolls; returns the number of the closed segment."""
    for _ in range(messages):
        enqueue(cluster, payload)
    drain(cluster)
    return roll(cluster) - 1


def wait_archived(cluster, *segments, timeout=20):
    wait_states(cluster, lambda s: all(s.get(n) == "archived" for n in segments), timeout, f"{segments} are archived")


def wait_waits_for(cluster, segment, text, timeout=10):
    wait_until(lambda: text in waits_for(cluster).get(segment, ""), timeout, lambda: f"{text!r}: {describe(cluster)}")


def maintenance(cluster):
    return cluster.sql("SELECT state, reason FROM outbox.workers WHERE process = 'outbox maintenance'")[0]


def wait_reason(cluster, text, timeout=10):
    wait_until(lambda: text in (maintenance(cluster)[1] or ""), timeout, lambda: f"{text!r}: {maintenance(cluster)}")


def events(cluster, segment, event="archive_failed"):
    query = "SELECT note FROM outbox._segment_event WHERE segment = %s AND event = %s ORDER BY at"
    return [note for (note,) in cluster.sql(query, [segment, event])]


def wait_failed(cluster, segment, text, timeout=15):
    wait_until(lambda: any(text in note for note in events(cluster, segment)), timeout, lambda: events(cluster, segment))


def indexes(cluster, table):
    return {name for (name,) in cluster.sql("SELECT amname FROM pg_index JOIN pg_class c ON c.oid = indexrelid JOIN pg_am a ON a.oid = relam"
                                            f" WHERE indrelid = '{table}'::regclass")}


def unfrozen(cluster, table):
    cluster.sql("CREATE EXTENSION IF NOT EXISTS pg_visibility")
    return cluster.value(f"SELECT pg_relation_size('{table}') / 8192 - all_frozen FROM pg_visibility_map_summary('{table}')")


# ---- keep


def test_a_kept_segment_is_frozen_loses_the_index_of_the_window_and_its_messages_are_found(cluster, topic):
    message_id = enqueue(cluster, "first")
    segment = closed_segment(cluster)
    enqueue(cluster, "in the next segment")
    wait_archived(cluster, segment)
    assert indexes(cluster, f"outbox._message_{segment}") == {"brin"}
    assert indexes(cluster, f"outbox._message_{segment + 1}") == {"brin", "btree"}
    for table in ("message", "progress"):
        assert unfrozen(cluster, f"outbox._{table}_{segment}") == 0
    assert events(cluster, segment, "archived") == ["kept"]
    shown = cluster.sql("SELECT payload, state, kafka_offset FROM outbox.get_message(%s)", [message_id])
    assert shown == [("first", "published", 0)]
    assert cluster.value("SELECT archived_at >= drained_at FROM outbox.segments WHERE segment = %s", [segment])
    drain(cluster)


def prepared(cluster, *statements):
    with cluster.connect() as c:
        for statement in statements:
            c.execute(statement)
        c.execute("PREPARE TRANSACTION 'forgotten one'")


def test_freezing_waits_for_old_snapshots_and_says_whose(cluster, topic):
    segment = closed_segment(cluster)
    with cluster.connect() as old:
        old.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        old.execute("SELECT 1")
        prepared(cluster, "SELECT pg_current_xact_id()")
        second = closed_segment(cluster)
        assert second == segment + 1
        wait_waits_for(cluster, second, f"pid {old.info.backend_pid}")
        wait_waits_for(cluster, second, 'prepared transaction "forgotten one"')
        old.rollback()
        cluster.sql("SELECT pg_current_xact_id()")
        wait_until(lambda: "pid" not in waits_for(cluster).get(second, ""), 5, lambda: describe(cluster))
        assert states(cluster)[second] == "drained"
        cluster.sql("ROLLBACK PREPARED 'forgotten one'")
    wait_archived(cluster, segment, second)


def test_a_vacuum_that_is_skipped_for_a_lock_is_made_up_for(cluster, topic):
    cluster.sql("SELECT outbox.pause()")
    enqueue(cluster, "x")
    segment = roll(cluster) - 1
    with cluster.connect() as reader:
        reader.execute(f"LOCK TABLE outbox._message_{segment} IN ACCESS SHARE MODE")  # the index cannot be dropped
        cluster.sql("SELECT outbox.resume()")
        wait_states(cluster, lambda s: s[segment] == "drained", 20)
        wait_until(lambda: unfrozen(cluster, f"outbox._message_{segment}") == 0, 20, "frozen all the same")
        assert indexes(cluster, f"outbox._message_{segment}") == {"brin", "btree"}
        reader.rollback()
    wait_archived(cluster, segment, timeout=70)


# ---- retention


def test_a_lock_that_holds_up_the_archive_is_named_until_it_is_gone(cluster, topic):
    with cluster.connect() as reader:
        enqueue(cluster, "first")
        drain(cluster)
        reader.execute("SELECT count(*) FROM outbox.messages")
        segment = roll(cluster) - 1
        who = f"locks: pid {reader.info.backend_pid}"
        wait_waits_for(cluster, segment, who, 20)
        wait_reason(cluster, f"segment {segment} waits for {who}", 20)
    wait_archived(cluster, segment, timeout=10)
    wait_until(lambda: maintenance(cluster) == ("idle", None), 5, lambda: maintenance(cluster))


def test_a_lock_on_no_more_than_the_toast_table_holds_up_the_drop_and_is_named(cluster, topic):
    segment = closed_segment(cluster)
    wait_archived(cluster, segment)
    toast = cluster.value(f"SELECT reltoastrelid::regclass::text FROM pg_class WHERE oid = 'outbox._message_{segment}'::regclass")
    with cluster.connect() as holder:
        holder.execute(f"SELECT count(*) FROM {toast}")
        configure(cluster, retention=0)
        who = f"locks: pid {holder.info.backend_pid}"
        wait_waits_for(cluster, segment, who)
        wait_reason(cluster, f"segment {segment} waits for {who}")
    wait_dropped(cluster, segment)


def test_segments_go_when_retention_is_over_and_not_before(cluster, topic):
    configure(cluster, retention="1h")
    first = closed_segment(cluster)
    wait_archived(cluster, first)
    configure(cluster, retention="-1")
    wait_archived(cluster, closed_segment(cluster))
    assert tables(cluster) == [1, 2, 3]
    configure(cluster, retention="0")
    wait_dropped(cluster, 1, 2)
    wait_only_open(cluster)
    assert cluster.sql("SELECT relname FROM pg_class WHERE relname ~ '^_(message|progress)_[12](_|$)'") == []
    drain(cluster)


def test_a_drop_waits_for_a_reader_and_a_prepared_transaction_and_says_so_while_all_else_goes_on(cluster, embedded, topic):
    configure(cluster, retention="0", segment_max_age="1s")
    with cluster.connect() as reader:
        reader.execute("SELECT count(*) FROM outbox._message")  # before there is a segment
        first = closed_segment(cluster)
        wait_waits_for(cluster, first, f"locks: pid {reader.info.backend_pid}")
        wait_reason(cluster, f"pid {reader.info.backend_pid}")
        assert maintenance(cluster)[0] == "running"
        prepared(cluster, "SELECT count(*) FROM outbox._message")
        with cluster.connect(autocommit=True) as producer:
            producer.execute("SET statement_timeout = '5s'")
            for n in range(3):
                producer.execute("SELECT outbox.enqueue('t', %s)", [str(n)])
                assert producer.execute("SELECT outbox.drain('4 s')").fetchone()[0]
        wait_states(cluster, lambda s: len(s) >= 3, 15, "it rolls by age")
    wait_waits_for(cluster, first, 'locks: prepared transaction "forgotten one"')
    assert first in tables(cluster)
    cluster.sql("COMMIT PREPARED 'forgotten one'")
    wait_dropped(cluster, first)
    wait_until(lambda: maintenance(cluster)[1] is None, 15, lambda: maintenance(cluster))


def test_a_view_of_a_user_on_a_segment_keeps_it_and_is_named(cluster, topic):
    segment = closed_segment(cluster)
    cluster.sql(f"CREATE VIEW mine AS SELECT id FROM outbox._message_{segment}")
    configure(cluster, retention="0")
    wait_reason(cluster, f"depend on it: view public.mine depends on table outbox._message_{segment}")
    state, reason = maintenance(cluster)
    assert state == "backing_off" and "CASCADE" not in reason
    wait_waits_for(cluster, segment, "cannot be dropped: ")
    wait_waits_for(cluster, segment, "view public.mine depends on")
    later = closed_segment(cluster)
    wait_dropped(cluster, later)
    cluster.sql("DROP VIEW mine")
    wait_dropped(cluster, segment)
    wait_until(lambda: maintenance(cluster)[1] is None, 15, lambda: maintenance(cluster))
    errors = [line for line in cluster.log.splitlines() if "ERROR:" in line]
    assert len(errors) < 5, "it does not fill the log"


def test_messages_are_published_once_and_shown_as_published_over_drops_and_restarts(cluster, embedded, topic):
    ids = []
    for n in range(3):
        ids.append(str(enqueue(cluster, str(n))))
        closed_segment(cluster, messages=0)
    ids.append(str(enqueue(cluster, "last")))
    drain(cluster)
    wait_archived(cluster, 1, 2, 3)
    configure(cluster, retention="1s")
    wait_dropped(cluster, 1, 2, 3)
    configure(cluster, retention=None)
    for again in (cluster.restart, lambda: (cluster.crash(), cluster.start())):
        again()
        drain(cluster)
        assert cluster.sql("SELECT payload, state FROM outbox.messages") == [("last", "published")]
    ids.append(str(enqueue(cluster, "after")))
    drain(cluster)
    assert [r.id for r in embedded.read_all("t")] == ids


def test_the_last_segment_of_a_layout_stays_as_long_as_one_before_it(cluster, embedded, topic):
    first = closed_segment(cluster, "first")
    second = closed_segment(cluster, "second")
    cluster.sql("SELECT outbox.set_lanes(2)")  # the segment that was open is the last one of its layout
    wait_archived(cluster, first, second, second + 1)
    with cluster.connect() as reader:
        reader.execute(f"SELECT 1 FROM outbox._message_{first}")  # of this one only
        configure(cluster, retention="0")
        wait_dropped(cluster, second)
        wait_waits_for(cluster, first, f"locks: pid {reader.info.backend_pid}")
        assert second + 1 in tables(cluster)
        drain(cluster)
        assert set(cluster.sql("SELECT payload, state FROM outbox.messages")) == {("first", "published")}
        reader.rollback()
    wait_only_open(cluster)
    assert len(embedded.read_all("t")) == 6


def test_a_cursor_is_carried_to_what_stays_of_its_layout(cluster, topic):
    """Where a lane has no progress in a later segment: as in a dump that was made just after a roll."""
    enqueue(cluster, "first")
    drain(cluster)
    cluster.sql("SELECT outbox.pause()")
    roll(cluster)
    cluster.createdb("restored")
    cluster.restore(cluster.dump(), "restored")
    cursors = "SELECT generation, lane, seq, completed::text FROM outbox._cursors() WHERE generation = 0"
    (before,) = cluster.sql(cursors, dbname="restored")
    cluster.sql("SELECT outbox.adopt()", dbname="restored")
    assert cluster.value("SELECT count(*) FROM outbox._progress_2", dbname="restored") == 0
    with cluster.connect("restored") as reader:
        reader.execute("SELECT 1 FROM outbox._message_2")  # of this one only
        configure(cluster, retention="0")
        wait_dropped(cluster, 1, dbname="restored")
        assert cluster.sql(cursors, dbname="restored") == [before]
        assert cluster.sql("SELECT messages, receipts FROM outbox._progress_2", dbname="restored") == [(0, None)]
        reader.rollback()
    wait_only_open(cluster, dbname="restored")


def test_what_is_known_of_dropped_segments_is_forgotten_but_not_under_an_old_snapshot(cluster, topic):
    configure(cluster, retention="0")
    with cluster.connect() as old:
        old.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        old.execute("SELECT 1")
        wait_dropped(cluster, *(closed_segment(cluster) for _ in range(3)))
        wait_dropped(cluster, closed_segment(cluster))
        assert cluster.value("SELECT count(*) FROM outbox._segment") == 5
        assert cluster.value("SELECT pg_stat_get_tuples_deleted('outbox._segment'::regclass)") == 0
    cluster.sql("SELECT pg_current_xact_id()")
    wait_until(lambda: cluster.value("SELECT count(*) FROM outbox._segment") == 1, 40, "rows of segments")
    assert cluster.value("SELECT count(DISTINCT segment) FROM outbox._segment_event") == 0
    assert closed_segment(cluster) == 5, "numbers do not start over"


# ---- detach


def test_detached_segments_are_moved_and_outlive_the_extension(cluster, embedded, topic):
    configure(cluster, archive_mode="detach", retention="1s")
    segment = closed_segment(cluster, "moved")
    wait_dropped(cluster, segment)
    moved = "SELECT convert_from(payload, 'UTF8') FROM outbox_archive._message_1"
    assert cluster.sql(moved) == [("moved",)] * 3
    assert cluster.value("SELECT count(*) FROM outbox_archive._progress_1") > 0
    assert cluster.sql("SELECT inhparent FROM pg_inherits WHERE inhrelid = 'outbox_archive._message_1'::regclass") == []
    assert cluster.sql("SELECT tgname FROM pg_trigger WHERE tgrelid::regclass::text LIKE 'outbox_archive.%%'") == []
    assert cluster.sql("SELECT 1 FROM outbox.messages WHERE payload = 'moved'") == []
    cluster.sql("SET outbox.allow_data_loss = on")
    drain(cluster)
    cluster.sql("DROP EXTENSION outbox CASCADE")
    assert cluster.sql(moved) == [("moved",)] * 3
    install_outbox(cluster, embedded)
    assert closed_segment(cluster, "the second first") == 1
    wait_dropped(cluster, 1)
    names = "SELECT relname FROM pg_class WHERE relnamespace = 'outbox_archive'::regnamespace AND relkind = 'r' AND relname LIKE '\\_message%%'"
    first, second = sorted(name for (name,) in cluster.sql(names))
    assert first == "_message_1" and second.startswith("_message_1_")
    assert cluster.sql(moved) == [("moved",)] * 3
    cluster.sql(f"DROP TABLE outbox_archive.{first}, outbox_archive.{second}")  # they are the operator's


def test_segments_are_not_moved_into_a_schema_of_somebody_else(cluster, topic):
    cluster.sql("CREATE ROLE stranger")
    cluster.sql("CREATE SCHEMA outbox_archive AUTHORIZATION stranger")
    configure(cluster, archive_mode="detach", retention="0")
    segment = closed_segment(cluster)
    wait_reason(cluster, 'schema "outbox_archive" belongs to "stranger"')
    assert segment in tables(cluster)
    cluster.sql("ALTER SCHEMA outbox_archive OWNER TO postgres")
    wait_dropped(cluster, segment)


# ---- function


@pytest.fixture
def archiver(cluster, topic):
    """An operator with a schema, a table for what its function takes, and that function, which is registered."""
    cluster.psql("""
        CREATE ROLE archiver LOGIN;
        SELECT outbox.grant_operator('archiver');
        CREATE SCHEMA archiver AUTHORIZATION archiver;
    """)
    with cluster.connect(user="archiver") as c:
        c.execute("CREATE TABLE taken (segment text, payload text, as_role name, path text)")
        define(c, "EXECUTE format('INSERT INTO taken SELECT %L, convert_from(payload, ''UTF8''), current_user, current_schema() FROM %s', s, s);")
        c.execute("SELECT outbox.set_archive_function('take(regclass)')")
    configure(cluster, archive_mode="function")
    return "archiver"


def define(connection, body):
    connection.execute(f"CREATE OR REPLACE FUNCTION archiver.take(s regclass) RETURNS void LANGUAGE plpgsql AS $$ BEGIN {body} END $$")


def taken(cluster):
    return cluster.sql("SELECT segment, payload, as_role, path FROM archiver.taken ORDER BY segment")


def test_the_function_takes_each_segment_once_as_its_role_and_then_retention_counts(cluster, archiver):
    numbers = [closed_segment(cluster, f"in {n}", messages=1) for n in (1, 2, 3)]
    wait_archived(cluster, *numbers)
    expected = [(f"outbox._message_{n}", f"in {n}", "archiver", "archiver") for n in numbers]
    assert taken(cluster) == expected
    wait_until(lambda: all(sorted(events(cluster, n, "archived")) == ["function archiver.take(regclass)", "kept"] for n in numbers), 20)
    for n in numbers:  # the right to read was for the call
        with cluster.connect(user="archiver") as c, pytest.raises(psycopg.errors.InsufficientPrivilege):
            c.execute(f"SELECT 1 FROM outbox._message_{n}")
    cluster.restart()
    configure(cluster, retention="0")
    wait_only_open(cluster)
    assert taken(cluster) == expected


def test_a_segment_stays_until_the_function_has_taken_it_and_the_views_say_why(cluster, archiver):
    cluster.sql("ALTER TABLE archiver.taken ADD CHECK (payload <> 'poison')")
    configure(cluster, retention="0")
    good = closed_segment(cluster, "good", messages=1)
    bad = closed_segment(cluster, "poison", messages=1)
    wait_failed(cluster, bad, "check constraint")
    wait_waits_for(cluster, bad, "check constraint")
    wait_reason(cluster, "check constraint")
    assert maintenance(cluster)[0] == "backing_off"
    later = closed_segment(cluster, "later", messages=1)
    wait_dropped(cluster, good, later)
    assert bad in tables(cluster)
    assert {row[1] for row in taken(cluster)} == {"good", "later"}
    wait_until(lambda: len(events(cluster, bad)) >= 2, 20, "it is tried again")
    cluster.sql("ALTER TABLE archiver.taken DROP CONSTRAINT taken_payload_check")
    cluster.sql("SELECT outbox.set_archive_function('archiver.take(regclass)')", user="archiver")  # at once
    wait_dropped(cluster, bad, timeout=8)
    wait_until(lambda: maintenance(cluster)[1] is None, 15, lambda: maintenance(cluster))


@pytest.mark.parametrize(("spoil", "text", "mend"), [
    ("REVOKE EXECUTE ON FUNCTION archiver.take(regclass) FROM PUBLIC, archiver",
     "may not execute the archive function archiver.take(regclass)", "GRANT EXECUTE ON FUNCTION archiver.take(regclass) TO archiver"),
    ("ALTER FUNCTION archiver.take(regclass) RENAME TO other", "archive function archiver.take(regclass) does not exist",
     "ALTER FUNCTION archiver.other(regclass) RENAME TO take"),
    ("ALTER ROLE archiver RENAME TO other", 'role "archiver", which has registered the archive function, does not exist',
     "ALTER ROLE other RENAME TO archiver"),
    ("SELECT outbox.revoke_operator('archiver')", "is no operator", "SELECT outbox.grant_operator('archiver')"),
])  # fmt: skip
def test_what_became_of_function_and_role_is_looked_at_for_each_call(cluster, archiver, spoil, text, mend):
    cluster.sql(spoil)
    segment = closed_segment(cluster, messages=1)
    wait_failed(cluster, segment, text)
    assert taken(cluster) == []
    cluster.sql(mend)
    wait_archived(cluster, segment)  # after 10 s
    assert len(taken(cluster)) == 1


def test_a_function_that_somebody_else_has_given_the_registered_name_is_not_called(cluster, topic):
    cluster.psql("""
        CREATE ROLE evil LOGIN;
        CREATE ROLE owner LOGIN;
        CREATE SCHEMA open_to_all;
        GRANT ALL ON SCHEMA open_to_all TO PUBLIC;
        CREATE TABLE called (by name);
        GRANT INSERT ON called TO PUBLIC;
    """)

    def make(user):
        cluster.psql(f"""
            BEGIN;
            DROP FUNCTION IF EXISTS open_to_all.take(regclass);
            SET LOCAL ROLE {user};
            CREATE FUNCTION open_to_all.take(s regclass) RETURNS void LANGUAGE sql AS 'INSERT INTO public.called VALUES (''{user}'')';
            COMMIT;
        """)

    make("owner")
    cluster.sql("SELECT outbox.set_archive_function('open_to_all.take(regclass)')")
    make("evil")
    configure(cluster, archive_mode="function")
    segment = closed_segment(cluster, messages=1)
    text = 'archive function open_to_all.take(regclass) belongs to "evil" now, to "owner" when it was registered'
    wait_failed(cluster, segment, text)
    wait_waits_for(cluster, segment, text)
    assert cluster.sql("SELECT * FROM called") == []
    make("owner")  # one who had the registering role's trust before
    wait_archived(cluster, segment)
    make("postgres")  # can be everybody anyway
    wait_archived(cluster, closed_segment(cluster, messages=1))
    assert cluster.sql("SELECT * FROM called") == [("owner",), ("postgres",)]


def test_without_a_function_segments_stay_and_the_views_say_what_to_do(cluster, topic):
    configure(cluster, archive_mode="function", retention="0")
    segment = closed_segment(cluster)
    wait_waits_for(cluster, segment, "outbox.set_archive_function")
    wait_reason(cluster, "outbox.set_archive_function")
    assert segment in tables(cluster)
    configure(cluster, archive_mode="keep")
    wait_dropped(cluster, segment)


def test_a_function_that_hangs_delays_only_itself_and_can_be_cancelled(cluster, archiver):
    with cluster.connect(user="archiver") as c:
        define(c, "PERFORM pg_sleep(600);")
    configure(cluster, segment_max_age="1s")
    segment = closed_segment(cluster, messages=1)
    shown = "SELECT pid, reason FROM outbox.workers WHERE process = 'outbox archive'"
    wait_until(lambda: any(f"segment {segment}" in row[1] for row in cluster.sql(shown)), 10, "the process says what it does")
    ((pid, _),) = cluster.sql(shown)
    for n in range(3):
        enqueue(cluster, str(n))
        drain(cluster)
        wait_states(cluster, lambda s: sum(state == "drained" for state in s.values()) > n, 15, "rolled and drained")
    assert cluster.sql(shown)[0][0] == pid
    with cluster.connect(user="archiver") as c:
        define(c, "")
    cluster.sql("SELECT pg_cancel_backend(%s)", [pid])
    wait_failed(cluster, segment, "canceling statement due to user request")
    wait_archived(cluster, segment)


def test_a_database_whose_archive_function_hangs_can_be_dropped(cluster, embedded):
    embedded.create_topic("t")
    cluster.createdb("one")
    install_outbox(cluster, embedded, "one")
    cluster.psql("CREATE FUNCTION take(s regclass) RETURNS void LANGUAGE sql AS 'SELECT pg_sleep(600)'", dbname="one")
    cluster.sql("SELECT outbox.set_archive_function('take(regclass)')", dbname="one")
    configure(cluster, archive_mode="function")
    cluster.sql("SELECT outbox.enqueue('t', 'x')", dbname="one")
    roll(cluster, "one")
    wait_until(lambda: cluster.backends("outbox archive", "one"), 10)
    cluster.dropdb("one", force=False)


ESCAPES = {
    "role": ("SET ROLE postgres;", "cannot set parameter"),
    "session": ("SET SESSION AUTHORIZATION postgres;", "cannot set parameter"),
    "other segment": ("PERFORM FROM outbox._message;", "permission denied"),
    "private": ("PERFORM FROM outbox._lane;", "permission denied"),
}


@pytest.mark.parametrize("way", ESCAPES)
def test_a_function_becomes_nobody_else(cluster, archiver, way):
    body, text = ESCAPES[way]
    with cluster.connect(user="archiver") as c:
        define(c, body)
    wait_failed(cluster, closed_segment(cluster, messages=1), text)


def test_nothing_of_a_function_runs_as_anybody_else_later(cluster, archiver):
    """A deferred trigger, a setting, and a temporary table: all what a function may leave behind."""
    with cluster.connect(user="archiver") as c:
        c.execute("CREATE TABLE later (as_role name, note text)")
        c.execute("CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
                  " INSERT INTO archiver.later VALUES (current_user, 'trigger');"
                  " BEGIN SET ROLE postgres; EXCEPTION WHEN OTHERS THEN INSERT INTO archiver.later VALUES (current_user, SQLERRM); END;"
                  " RETURN NULL; END $$")
        c.execute("CREATE CONSTRAINT TRIGGER note AFTER INSERT ON taken DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION note()")
        define(c, "CREATE TEMP TABLE scratch (n int); SET search_path = archiver; INSERT INTO archiver.taken VALUES ('x');")
    numbers = [closed_segment(cluster, messages=1) for _ in range(2)]
    wait_archived(cluster, *numbers)
    found = cluster.sql("SELECT as_role, note FROM archiver.later")
    assert {role for role, _ in found} == {"archiver"}
    assert [note for _, note in found].count("trigger") == 2
    assert sum("cannot set parameter" in note for _, note in found) == 2


SETTINGS = ("search_path", "session_replication_role", "lock_timeout", "row_security", "enable_seqscan", "client_min_messages")


def test_a_deferred_trigger_and_a_function_after_reset_all_have_ordinary_settings(cluster, archiver):
    seen = ", ".join(f"current_setting('{name}')" for name in SETTINGS)
    with cluster.connect(user="archiver") as c:
        c.execute(f"CREATE TABLE seen (at text, {', '.join(f'{name} text' for name in SETTINGS)})")
        c.execute(f"CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO seen SELECT 'commit', {seen}; RETURN NULL; END $$")
        c.execute("CREATE CONSTRAINT TRIGGER note AFTER INSERT ON taken DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION note()")
        define(c, f"SET search_path = archiver; RESET ALL; INSERT INTO seen SELECT 'reset', {seen}; INSERT INTO taken VALUES ('x');")
    wait_archived(cluster, closed_segment(cluster, messages=1))
    ordinary = ('"$user", public', "origin", "0", "on", "on", "notice")
    assert sorted(cluster.sql("SELECT * FROM archiver.seen")) == [("commit", *ordinary), ("reset", *ordinary)]


def test_what_a_deferred_trigger_writes_is_checked_by_foreign_keys(cluster, archiver):
    with cluster.connect(user="archiver") as c:
        c.execute("CREATE TABLE parent (id int PRIMARY KEY)")
        c.execute("CREATE TABLE child (id int REFERENCES parent)")
        c.execute("CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO archiver.child VALUES (1); RETURN NULL; END $$")
        c.execute("CREATE CONSTRAINT TRIGGER note AFTER INSERT ON taken DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION note()")
    segment = closed_segment(cluster, messages=1)
    wait_failed(cluster, segment, "violates foreign key constraint")
    cluster.sql("INSERT INTO archiver.parent VALUES (1)", user="archiver")
    wait_archived(cluster, segment)


@pytest.mark.parametrize("before", ["", "x"])
def test_a_long_error_of_the_function_is_cut_between_characters(cluster, archiver, before):
    with cluster.connect(user="archiver") as c:
        define(c, f"RAISE EXCEPTION '{before}%', repeat('é', 2000);")
    segment = closed_segment(cluster, messages=1)
    wait_failed(cluster, segment, f"{before}éé")
    wait_waits_for(cluster, segment, f"{before}éé")
    wait_reason(cluster, f"{before}éé")
    cluster.createdb("restored")
    cluster.restore(cluster.dump(), "restored")
    assert events(cluster, segment) == [before + "é" * ((511 - len(before)) // 2)]


def test_a_function_copies_segments_to_a_program(cluster, archiver):
    out = cluster.folder / "out"
    cluster.sql("GRANT pg_execute_server_program TO archiver")
    with cluster.connect(user="archiver") as c:
        define(c, "EXECUTE format('COPY (SELECT convert_from(payload, ''UTF8'') FROM %s ORDER BY id) TO PROGRAM %L',"
                  f" s, 'cat >> {out}');")
    numbers = [closed_segment(cluster, f"segment {n}", messages=2) for n in (1, 2)]
    wait_archived(cluster, *numbers)
    assert out.read_text() == "segment 1\nsegment 1\nsegment 2\nsegment 2\n"


def test_what_set_archive_function_refuses(cluster, topic):
    cluster.psql("""
        CREATE ROLE nobody LOGIN;
        CREATE ROLE operator LOGIN;
        SELECT outbox.grant_operator('operator');
        CREATE FUNCTION two(regclass, int) RETURNS void LANGUAGE sql AS '';
        CREATE FUNCTION wrong(text) RETURNS void LANGUAGE sql AS '';
        CREATE PROCEDURE proc(regclass) LANGUAGE sql AS '';
        CREATE FUNCTION secret(regclass) RETURNS void LANGUAGE sql AS '';
        REVOKE EXECUTE ON FUNCTION secret(regclass) FROM PUBLIC;
    """)
    for name in ("two(regclass, int)", "wrong(text)", "proc(regclass)"):
        with pytest.raises(psycopg.errors.InvalidFunctionDefinition):
            cluster.sql("SELECT outbox.set_archive_function(%s)", [name])
    with pytest.raises(psycopg.errors.UndefinedFunction):
        cluster.sql("SELECT outbox.set_archive_function(%s)", ["none(regclass)"])
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match="secret"):
        cluster.sql("SELECT outbox.set_archive_function(%s)", ["secret(regclass)"], user="operator")
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        cluster.sql("SELECT outbox.set_archive_function(NULL)", user="nobody")
    cluster.sql("SELECT outbox.set_archive_function(%s)", ["secret(regclass)"])
    assert cluster.sql("SELECT function, role, owner FROM outbox._archive_function") == [("public.secret(regclass)", "postgres", "postgres")]
    cluster.sql("SELECT outbox.set_archive_function(NULL)", user="operator")
    assert cluster.sql("SELECT function, role FROM outbox._archive_function") == []


def test_a_dump_carries_the_function_and_what_became_of_segments(cluster, archiver):
    segment = closed_segment(cluster, messages=1)
    wait_archived(cluster, segment)
    wait_until(lambda: len(events(cluster, segment, "archived")) == 2, 20)
    dump = cluster.dump()
    cluster.createdb("restored")
    cluster.restore(dump, "restored")
    same = "SELECT function, role, owner FROM outbox._archive_function"
    assert cluster.sql(same, dbname="restored") == cluster.sql(same)
    assert cluster.value("SELECT state FROM outbox.workers WHERE process = 'outbox maintenance'", dbname="restored") in (
        "awaiting_adoption", "not_running")
    cluster.sql("SELECT outbox.adopt()", dbname="restored")
    wait_states(cluster, lambda s: s.get(segment) == "foreign", 10, dbname="restored")
    configure(cluster, retention="0")
    wait_dropped(cluster, segment, dbname="restored")


# ---- a worker that has not heard


@contextlib.contextmanager
def stopped(pid):
    import signal

    from harness import processes

    processes.send(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        processes.send(pid, signal.SIGCONT)


def test_a_worker_that_has_not_heard_that_a_segment_is_drained_does_not_mind_that_it_is_gone(cluster, embedded, topic):
    configure(cluster, retention="1h")
    enqueue(cluster, "first")
    drain(cluster)
    worker = cluster.wait_worker()
    (pid,) = cluster.sql("SELECT pid FROM outbox.workers WHERE process = 'outbox maintenance'")[0]
    quiet = "SELECT 1 FROM outbox._segment_event WHERE event = 'quiet'"
    past = "SELECT bool_and(outbox._is_past(c.completed, e.moment)) FROM outbox._cursors() c, outbox._segment_event e WHERE e.event = 'quiet'"
    with stopped(worker):
        roll(cluster)
        wait_until(lambda: cluster.sql(quiet), 10, "maintenance has asked for progress")
        cluster.sql("SELECT pg_stat_clear_snapshot()")
        with stopped(pid):
            import os
            import signal

            os.kill(worker, signal.SIGCONT)
            wait_until(lambda: cluster.value(past), 10, "the worker has written it")
            os.kill(worker, signal.SIGSTOP)
            second = enqueue(cluster, "second")
        wait_archived(cluster, 1)
        configure(cluster, retention="0")
        wait_dropped(cluster, 1)
    assert cluster.value("SELECT outbox.wait_published(%s, '10 s')", [second])
    assert [r.value for r in embedded.read_all("t")] == [b"first", b"second"]
    assert [line for line in cluster.log.splitlines() if "ERROR:" in line] == []


def test_an_archive_process_that_cannot_start_is_trouble_until_there_is_nothing_to_archive(make_cluster, embedded):
    # the launcher of logical replication, ours, a worker and maintenance
    cluster = make_cluster({"max_worker_processes": 4})
    embedded.create_topic("t", partitions=1)
    install_outbox(cluster, embedded)
    segment = closed_segment(cluster)
    wait_waits_for(cluster, segment, "the archive process cannot start: all slots of max_worker_processes are in use", 20)
    assert maintenance(cluster)[0] == "backing_off"
    configure(cluster, retention=0)
    wait_dropped(cluster, segment)
    wait_until(lambda: maintenance(cluster) == ("idle", None), 10, lambda: maintenance(cluster))
