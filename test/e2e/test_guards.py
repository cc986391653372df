"""What the owner or a superuser does to the extension's tables is refused, or messages stay right and the log still rolls."""

import psycopg
import pytest
from harness import install_outbox, wait_until

Refused = psycopg.errors.ObjectNotInPrerequisiteState  # 55000

CONFIGURATION = ["_identity", "_layout", "_segment", "_segment_event", "_lane"]
LOGS = ["_message", "_message_1", "_progress", "_progress_1"]


class Outbox:
    """A database with one published segment, its connection and what was enqueued."""

    def __init__(self, cluster, dbname, kafka, topic):
        self.cluster, self.dbname, self.kafka, self.topic, self.sent = cluster, dbname, kafka, topic, []
        install_outbox(cluster, kafka, dbname)
        self.connection = cluster.connect(dbname, autocommit=True)
        self.still_works()

    def __call__(self, query, params=None):
        cursor = self.connection.execute(query, params)
        return cursor.fetchall() if cursor.description else None

    def enqueue(self):
        payload = str(len(self.sent))
        self("SELECT outbox.enqueue(%s, %s, 'k', '{\"h\": \"1\"}')", [self.topic, payload])
        self.sent.append(payload)

    def still_works(self):
        """It rolls, and everything arrives once and in order."""
        self.enqueue()
        self("SELECT outbox.roll()")
        self.enqueue()
        assert self("SELECT outbox.drain('30 s')") == [(True,)]
        assert [r.value.decode() for r in self.kafka.read_all(self.topic)] == self.sent
        assert self("SELECT count(*) FROM outbox.messages WHERE state = 'published'") == [(len(self.sent),)]

    def reason(self):
        return " ".join(r or "" for (r,) in self("SELECT reason FROM outbox.workers"))


@pytest.fixture
def outbox(shared_cluster, database, kafka, unique):
    return Outbox(shared_cluster, database, kafka, kafka.create_topic(unique, partitions=1))


def first_column(outbox, table):
    return outbox("SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass AND attnum = 1", [f"outbox.{table}"])[0][0]


# ---- refused


@pytest.mark.parametrize("table", CONFIGURATION + LOGS)
def test_rows_are_not_changed_or_removed(outbox, table):
    column = first_column(outbox, table)
    for statement in (
        f"UPDATE outbox.{table} SET {column} = {column}",
        f"DELETE FROM outbox.{table}",
        f"TRUNCATE outbox.{table}",
        f"TRUNCATE outbox.{table} CASCADE",
        f"SET LOCAL session_replication_role = replica; DELETE FROM outbox.{table}",
    ):
        with pytest.raises(Refused, match="is not possible on table") as refused, outbox.connection.transaction():
            outbox(statement)
        assert "outbox.allow_data_loss" in refused.value.diag.message_hint, statement
    outbox.still_works()


def alterations(table, column):
    yield "ADD COLUMN x integer"
    yield "ADD COLUMN x integer NOT NULL DEFAULT 1"
    yield f"DROP COLUMN {column} CASCADE"
    yield f"RENAME COLUMN {column} TO x"
    yield f"ALTER {column} TYPE text"
    yield f"ALTER {column} SET DEFAULT NULL"
    yield f"ALTER {column} DROP NOT NULL"
    yield f"ADD CHECK ({column} IS NOT NULL)"
    yield f"ADD UNIQUE ({column})"
    yield f"ADD FOREIGN KEY ({column}) REFERENCES public.other"
    yield "SET UNLOGGED"
    yield "FORCE ROW LEVEL SECURITY"
    yield "RENAME TO x"
    yield "SET SCHEMA public"
    yield "INHERIT public.other"
    yield "SET (fillfactor = 90), ADD COLUMN x integer"


@pytest.mark.parametrize("table", CONFIGURATION + LOGS)
def test_tables_keep_their_shape_and_place(outbox, table):
    outbox("CREATE TABLE public.other (id bigint PRIMARY KEY); CREATE FUNCTION public.f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'")
    column = first_column(outbox, table)
    statements = [f"ALTER TABLE outbox.{table} {what}" for what in alterations(table, column)]
    statements += [
        f"CREATE TRIGGER t BEFORE INSERT ON outbox.{table} FOR EACH ROW EXECUTE FUNCTION public.f()",
        f"CREATE TRIGGER t AFTER INSERT ON outbox.{table} FOR EACH STATEMENT EXECUTE FUNCTION public.f()",
        f"CREATE RULE r AS ON INSERT TO outbox.{table} DO INSTEAD NOTHING",
        f"CREATE TABLE public.child () INHERITS (outbox.{table})",
    ]
    for statement in statements:
        with pytest.raises(Refused, match=f'is not possible on table "outbox.{table}"') as refused, outbox.connection.transaction():
            outbox(statement)
        assert refused.value.diag.message_detail, statement
        assert "outbox.allow_data_loss" in refused.value.diag.message_hint, statement
    outbox.still_works()


@pytest.mark.parametrize("table", ["_message", "_progress"])
def test_partitions_come_and_go_by_the_extension_only(outbox, table):
    outbox(f"CREATE TABLE public.foreign_part (LIKE outbox.{table})")
    for statement in (
        f"CREATE TABLE public.p PARTITION OF outbox.{table} DEFAULT",
        f"CREATE TABLE public.p PARTITION OF outbox.{table} FOR VALUES IN (1000)",
        f"ALTER TABLE outbox.{table} ATTACH PARTITION public.foreign_part FOR VALUES IN (1000)",
        f"ALTER TABLE outbox.{table} ATTACH PARTITION public.foreign_part DEFAULT",
        f"ALTER TABLE outbox.{table} DETACH PARTITION outbox.{table}_1",
        f"ALTER TABLE outbox.{table} DETACH PARTITION outbox.{table}_1 CONCURRENTLY",
    ):
        with pytest.raises(Refused, match="is not possible on table"):
            outbox(statement)
    outbox.still_works()


def test_who_may_not_alter_them_learns_that_and_no_more(outbox, unique):
    outbox(f'CREATE ROLE "{unique}"')
    try:
        with pytest.raises(psycopg.errors.InsufficientPrivilege), outbox.connection.transaction():
            outbox(f'GRANT USAGE ON SCHEMA outbox TO "{unique}"')
            outbox(f'SET LOCAL ROLE "{unique}"')
            outbox("ALTER TABLE outbox._message ADD COLUMN x integer")
    finally:
        outbox(f'DROP ROLE "{unique}"')


# ---- survived

HARMLESS = {
    "row level security": "ALTER TABLE outbox.{0} ENABLE ROW LEVEL SECURITY; CREATE POLICY p ON outbox.{0} USING (false)",
    "triggers disabled": "ALTER TABLE outbox.{0} DISABLE TRIGGER ALL",
    "replica identity": "ALTER TABLE outbox.{0} REPLICA IDENTITY FULL",
}


@pytest.mark.parametrize("what", HARMLESS)
def test_harmless_changes_are_let_through(outbox, what):
    for table in CONFIGURATION + LOGS:
        outbox(HARMLESS[what].format(table))
        outbox.still_works()


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE outbox._message_1 SET (fillfactor = 50)",
        "ALTER TABLE outbox._message ALTER payload SET STATISTICS 0",
        "ALTER TABLE outbox._message_2 SET TABLESPACE {space}",
        "ALTER TABLE outbox._message_1 SET TABLESPACE {space}",
        "ALTER TABLE outbox._progress_2 SET TABLESPACE {space}",
        "ALTER TABLE outbox._segment SET TABLESPACE {space}",
        "CREATE INDEX ON outbox._message (topic)",
        "CREATE UNIQUE INDEX ON outbox._message_2 (id)",
        "CREATE UNIQUE INDEX ON outbox._message (segment, id)",
        "VACUUM FULL outbox._message",
        "VACUUM FULL outbox._progress",
        "VACUUM (FULL, ANALYZE) outbox._segment",
        "CLUSTER outbox._message_2 USING _message_2_window",
        "CLUSTER outbox._segment USING _segment_pkey",
        "REINDEX SCHEMA outbox",
        "CREATE PUBLICATION everything FOR ALL TABLES",
        "COMMENT ON TABLE outbox._message IS 'ours'",
    ],
)
def test_maintenance_by_hand_changes_nothing_for_messages(outbox, unique, statement):
    outbox("SET allow_in_place_tablespaces = on")
    space = f'"{unique}_space"'
    outbox("SELECT outbox.pause()")
    outbox.enqueue()
    if "{space}" in statement:
        outbox(f"CREATE TABLESPACE {space} LOCATION ''")
    outbox(statement.format(space=space))
    outbox.enqueue()
    outbox("SELECT outbox.resume()")
    outbox.still_works()
    if "{space}" in statement:
        for (table,) in outbox(
            "SELECT oid::regclass::text FROM pg_class WHERE relkind = 'r'"
            " AND reltablespace = (SELECT oid FROM pg_tablespace WHERE spcname = %s)",
            [space.strip('"')],
        ):
            outbox(f"ALTER TABLE {table} SET TABLESPACE pg_default")
        outbox.still_works()
        outbox(f"DROP TABLESPACE {space}")


# ---- with outbox.allow_data_loss, or in a server where the library was not loaded when it was done


@pytest.fixture
def forced(outbox):
    """The same, where everything is let through."""
    outbox("SET outbox.allow_data_loss = on")
    return outbox


def test_what_an_owner_adds_to_the_log_is_kept_by_a_roll(forced):
    forced("ALTER TABLE outbox._message ADD COLUMN x integer DEFAULT 5, ADD CHECK (x > 0), ADD CHECK (id > 0)")
    forced("ALTER TABLE outbox._progress ADD COLUMN x integer DEFAULT 5, ADD CHECK (x > 0)")
    forced("CREATE UNIQUE INDEX ON outbox._message (segment, id, x)")
    forced.still_works()
    forced("ALTER TABLE outbox._message DROP COLUMN x")
    forced.still_works()


def test_a_column_that_enqueue_cannot_fill_is_an_error_and_no_null(forced):
    forced("ALTER TABLE outbox._message ADD COLUMN x integer NOT NULL DEFAULT 5")
    with pytest.raises(psycopg.errors.NotNullViolation) as refused:
        forced.enqueue()
    assert refused.value.diag.message_hint == "ALTER TABLE outbox._message ALTER x DROP NOT NULL"
    forced(refused.value.diag.message_hint)
    forced.still_works()


def replaced(change):
    """The open segment's table is another one."""
    return f"""
        ALTER TABLE outbox._message_2 RENAME TO saved;
        CREATE TABLE outbox._message_2 (LIKE outbox._message);
        CREATE INDEX ON outbox._message_2 (lane, xid, id);
        INSERT INTO outbox._message_2 SELECT * FROM outbox.saved;
        ALTER TABLE outbox._message_2 {change};
        """


# what is not here PostgreSQL refuses: views of the extension depend on the column
SPOILT = {
    "topic may be null": ("_message", "ALTER TABLE outbox._message ALTER topic DROP NOT NULL"),
    "a dropped column": ("_message_2", replaced("DROP COLUMN headers")),
    "a dropped column of the key": ("_message_2", replaced("DROP COLUMN id, ADD COLUMN id bigint")),
    "another type": ("_message_2", replaced("ALTER topic TYPE integer USING 0")),
    "another type of the index": ("_message_2", replaced("ALTER id TYPE text")),
    "too few columns": ("_identity", "ALTER TABLE outbox._identity DROP COLUMN place CASCADE"),
    "no progress": ("_progress", "ALTER TABLE outbox._progress DROP COLUMN completed CASCADE"),
}


@pytest.mark.parametrize("what", SPOILT)
def test_a_spoilt_table_is_said_and_nothing_wrong_is_published(forced, what):
    table, change = SPOILT[what]
    forced("SELECT outbox.pause()")
    forced.enqueue()
    before = forced.sent[:-1]
    pid = forced.cluster.postmaster_pid
    forced(change)
    for worker in forced.cluster.worker_pids(forced.dbname):  # one that knows the table by its oid would go on with it
        forced("SELECT pg_terminate_backend(%s)", [worker])
        forced.cluster.wait_worker(forced.dbname, other_than=[worker])
    forced("SELECT outbox.resume()")
    wait_until(lambda: "is not as the extension made it" in forced.reason(), 20, lambda: forced.reason())
    assert f'table "outbox.{table}' in forced.reason()
    published = [r.value.decode() for r in forced.kafka.read_all(forced.topic)]
    if table == "_progress":  # seen when the progress is to be written
        assert published in (before, forced.sent)
    else:
        assert published == before
        with forced.cluster.connect(forced.dbname) as c, pytest.raises(Refused, match="is not as the extension made it") as refused:
            c.execute("SELECT outbox.enqueue(%s, 'x')", [forced.topic])
        assert refused.value.diag.message_detail
        assert refused.value.diag.message_hint
    assert forced.cluster.postmaster_pid == pid
    assert "was terminated by signal" not in forced.cluster.log


# ---- dump and restore, subscriptions


def test_a_restored_log_is_guarded_too(outbox, shared_cluster, unique):
    script = shared_cluster.dump(dbname=outbox.dbname)
    copy = shared_cluster.createdb(f"{unique}_copy")
    try:
        shared_cluster.restore(script, copy)
        with shared_cluster.connect(copy, autocommit=True) as c:
            for table in ("_message_1", "_progress_1"):
                for statement in (f"TRUNCATE outbox.{table}", f"DELETE FROM outbox.{table}", f"ALTER TABLE outbox.{table} ADD x int"):
                    with pytest.raises(Refused):
                        c.execute(statement)
            assert c.execute("SELECT outbox.adopt()").fetchone() == (0,)
            c.execute("SELECT outbox.roll()")
            assert c.execute("SELECT count(*) FROM outbox.messages WHERE state = 'published'").fetchone() == (len(outbox.sent),)
    finally:
        shared_cluster.dropdb(copy)


def test_a_subscriber_with_the_extension_publishes_its_own_messages_only(make_cluster, kafka, unique):
    here, there = make_cluster({"wal_level": "logical"}), make_cluster({"wal_level": "logical"})
    topics = [kafka.create_topic(f"{unique}-{n}", partitions=1) for n in ("here", "there")]
    publisher, subscriber = (Outbox(c, "postgres", kafka, t) for c, t in zip((here, there), topics, strict=True))
    for one in (publisher, subscriber):
        one("CREATE TABLE public.business (id integer PRIMARY KEY)")
    publisher("CREATE PUBLICATION everything FOR ALL TABLES")
    publisher("INSERT INTO public.business VALUES (1)")
    identity = subscriber("SELECT * FROM outbox._identity")
    subscriber(
        f"CREATE SUBSCRIPTION s CONNECTION 'host={here.host} port={here.port} user=postgres dbname=postgres'"
        " PUBLICATION everything"
    )

    def arrived(number):
        wait_until(lambda: subscriber("SELECT id FROM public.business WHERE id = %s", [number]), 60, "replication goes on")

    arrived(1)
    wait_until(lambda: subscriber("SELECT 1 FROM pg_subscription_rel WHERE srsubstate NOT IN ('r', 's')") == [], 60, "all tables are synchronised")
    for _ in range(3):
        publisher.enqueue()
    assert publisher("SELECT outbox.drain('30 s')") == [(True,)]
    message = publisher("SELECT outbox.enqueue(%s, 'refused')", [f"{unique}-absent"])[0][0]
    assert publisher("SELECT outbox.drain('30 s')") == [(True,)]
    publisher("SELECT outbox.resend(%s)", [message])
    publisher("SELECT outbox.pause()")
    publisher("SELECT outbox.resume()")
    publisher("SET outbox.allow_data_loss = on")
    publisher("DELETE FROM outbox._segment_event WHERE event = 'quiet'")
    publisher("INSERT INTO public.business VALUES (2)")
    arrived(2)
    assert subscriber("SELECT * FROM outbox._identity") == identity
    assert subscriber("SELECT count(*) FROM outbox._message") == [(len(subscriber.sent),)]
    assert subscriber("SELECT count(*) FROM outbox._dead_letter") == [(0,)]
    subscriber.still_works()
    assert [r.value.decode() for r in kafka.read_all(topics[0])] == publisher.sent

    # A table that the subscriber has not got stops any subscription, so also the next segment, until it has one of that name.
    publisher("SELECT outbox.roll()")
    for _ in range(2):
        publisher("SELECT outbox.roll()")
    publisher.enqueue()
    publisher("INSERT INTO public.business VALUES (3)")
    while not subscriber("SELECT 1 FROM outbox.segments WHERE segment = %s", [publisher("SELECT max(segment) FROM outbox.segments")[0][0]]):
        subscriber("SELECT outbox.roll()")
    arrived(3)
    subscriber.still_works()
    assert publisher("SELECT outbox.drain('30 s')") == [(True,)]
    assert [r.value.decode() for r in kafka.read_all(topics[0])] == publisher.sent
