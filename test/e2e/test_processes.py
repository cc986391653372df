"""What outbox is in the processes of a server: threads and their signals, symbols, and the company of other extensions."""

import pathlib
import re
import subprocess

import pytest
from harness import install_outbox
from harness.cluster import pg_config

SIGNALS = [n for n in range(1, 65) if n not in (9, 19, 32, 33)]  # KILL and STOP cannot be blocked, 32 and 33 are glibc's


def threads(pid):
    """The names and the masks of blocked signals of a process's threads but for the first."""
    found = {}
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        if task.name != str(pid):
            status = (task / "status").read_text()
            name = re.search(r"^Name:\s*(.*)$", status, re.MULTILINE)[1]
            found[f"{name} {task.name}"] = int(re.search(r"^SigBlk:\s*(\S+)$", status, re.MULTILINE)[1], 16)
    return found


def test_the_threads_of_librdkafka_block_all_signals(shared_cluster, database, kafka, unique):
    topic = kafka.create_topic(unique)
    install_outbox(shared_cluster, kafka, database)
    shared_cluster.sql("SELECT outbox.enqueue(%s, 'x')", [topic], dbname=database)
    shared_cluster.sql("SELECT outbox.drain('30 s')", dbname=database)
    masks = threads(shared_cluster.wait_worker(database))
    assert len(masks) >= 2, masks  # its own, and one a broker
    open_ones = {name: [n for n in SIGNALS if not mask >> (n - 1) & 1] for name, mask in masks.items()}
    assert not any(open_ones.values()), open_ones


def test_no_process_but_the_worker_has_threads(shared_cluster, database, kafka, unique):
    topic = kafka.create_topic(unique)
    install_outbox(shared_cluster, kafka, database)
    with shared_cluster.connect(database, autocommit=True) as c:
        c.execute("SELECT outbox.enqueue(%s, 'x')", [topic])
        c.execute("ALTER SERVER kafka OPTIONS (ADD \"linger.ms\" '1')")  # checked by librdkafka
        c.execute("SELECT outbox.drain('30 s')")
        others = [shared_cluster.postmaster_pid, c.info.backend_pid]
        others += [b["pid"] for b in shared_cluster.backends() if b["backend_type"] != "outbox worker"]
        assert {pid: threads(pid) for pid in others if threads(pid)} == {}


def test_the_library_exports_nothing_but_what_postgresql_looks_up():
    library = pathlib.Path(subprocess.check_output([pg_config(), "--pkglibdir"], text=True).strip()) / "outbox.so"
    listed = subprocess.check_output(["nm", "-D", "--defined-only", library], text=True)
    symbols = [line.split()[-1].split("@")[0] for line in listed.splitlines()]
    entry_points = re.compile(r"(_PG_init|Pg_magic_func|(pg_finfo_)?outbox_\w+)$")
    assert "_PG_init" in symbols
    assert [symbol for symbol in symbols if not entry_points.match(symbol)] == []


COMPANIONS = "pg_stat_statements,auto_explain"


@pytest.mark.parametrize("preload", [f"outbox,{COMPANIONS}", f"{COMPANIONS},outbox"])
def test_it_works_beside_other_extensions(make_cluster, kafka, unique, preload):
    options = {"shared_preload_libraries": preload, "auto_explain.log_min_duration": 0, "auto_explain.log_analyze": "on"}
    cluster = make_cluster(options | {"auto_explain.log_nested_statements": "on", "pg_stat_statements.track": "all"})
    topic = kafka.create_topic(unique)
    for extension in ("pg_stat_statements", "pgcrypto", "postgres_fdw"):
        cluster.sql(f"CREATE EXTENSION {extension}")
    install_outbox(cluster, kafka)
    cluster.sql("SELECT outbox.enqueue(%s, encode(public.digest('x', 'sha256'), 'hex'), 'pgcrypto')", [topic])
    enqueue_through_a_foreign_table(cluster, topic)
    cluster.sql("SELECT outbox.drain('30 s')")
    assert sorted(r.key for r in kafka.consume(topic, until=2)) == [b"pgcrypto", b"postgres_fdw"]
    assert "PANIC" not in cluster.log


def enqueue_through_a_foreign_table(cluster, topic):
    where = f"host '{cluster.host}', port '{cluster.port}', dbname 'postgres'"
    cluster.psql(f"""
        CREATE SERVER loopback FOREIGN DATA WRAPPER postgres_fdw OPTIONS ({where});
        CREATE USER MAPPING FOR postgres SERVER loopback;
        CREATE FOREIGN TABLE remote_messages (topic text, key text, payload text)
          SERVER loopback OPTIONS (schema_name 'outbox', table_name 'messages');
        INSERT INTO remote_messages VALUES ('{topic}', 'postgres_fdw', 'x');
    """)


def test_python_in_a_backend_and_librdkafka_in_the_worker_do_not_meet(shared_cluster, database, kafka, unique):
    topic = kafka.create_topic(unique)
    if not shared_cluster.sql("SELECT 1 FROM pg_available_extensions WHERE name = 'plpython3u'"):
        pytest.skip("this PostgreSQL has no plpython3u")
    install_outbox(shared_cluster, kafka, database)
    with shared_cluster.connect(database) as c:
        c.execute("CREATE EXTENSION plpython3u")
        c.execute("""
            CREATE FUNCTION announce(topic text) RETURNS text LANGUAGE plpython3u AS $$
            plan = plpy.prepare("SELECT outbox.enqueue($1, $2, $3) AS id", ["text", "text", "text"])
            try:
                with plpy.subtransaction():
                    plpy.execute(plan, [topic, "rolled back", "python"])
                    raise ValueError
            except ValueError:
                return plpy.execute(plan, [topic, "from python", "python"])[0]["id"]
            $$""")
        c.execute("SELECT announce(%s)", [topic])
    shared_cluster.sql("SELECT outbox.drain('30 s')", dbname=database)
    assert [r.value for r in kafka.read_all(topic)] == [b"from python"]
