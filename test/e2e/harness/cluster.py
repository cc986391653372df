"""A throwaway PostgreSQL cluster: its own folder, socket and port, started and stopped in every way there is."""

import os
import pathlib
import signal
import subprocess

import psycopg
from psycopg import sql as pgsql

from . import processes
from .resources import Resource
from .waiting import wait_until

DEFAULTS = {
    "listen_addresses": "127.0.0.1",
    "log_line_prefix": "%m [%p] %b %d ",
    "max_prepared_transactions": 20,
    "max_worker_processes": 32,
    "shared_buffers": "64MB",
    "shared_preload_libraries": "outbox",
    "wal_level": "replica",
}


def pg_config():
    return os.environ.get("PG_CONFIG", "pg_config")


def bindir(of=None):
    return pathlib.Path(subprocess.check_output([of or pg_config(), "--bindir"], text=True).strip())


class Cluster(Resource):
    """Made and started by the constructor; close() ends every process and removes the folder.

    options: settings over DEFAULTS above; None leaves one out ({"shared_preload_libraries": ""} starts without outbox).
    data: where the data directory comes from: None makes one with initdb, else a function that fills the given path.
    pg_config: of which PostgreSQL, by default that of the environment.
    """

    def __init__(self, options=None, *, start=True, data=None, pg_config=None):
        self.pg_config = pg_config
        self.folder = processes.make_folder("pg-", for_server=True)
        self.data = self.folder / "data"
        self.log_path = self.folder / "log"
        self.port = processes.free_port()
        self.options = DEFAULTS | (options or {})
        self._connections = []
        self.register()
        try:
            (data or self._initdb)(self.data)
            self.configure(**self.options)
            if start:
                self.start()
        except BaseException:
            self.close()
            raise

    # ---- programs of PostgreSQL

    @property
    def host(self):
        """The folder of the Unix socket."""
        return str(self.folder)

    def environment(self):
        """Environment that makes psql, pg_dump, prove … reach this cluster as its superuser."""
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("PG") and not k.startswith("LC_")}
        return inherited | {
            "LC_ALL": "C.UTF-8",
            "PGHOST": self.host,
            "PGPORT": str(self.port),
            "PGUSER": "postgres",
            "PGDATABASE": "postgres",
        }

    def run(self, program, *args, input=None, check=True, env=None):
        """Run a program of PostgreSQL as the server's user; the CompletedProcess has stdout and stderr as text."""
        done = subprocess.run(
            [bindir(self.pg_config) / program, *map(str, args)],
            input=input,
            stdin=None if input is not None else subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="surrogateescape",  # a dump is in its database's encoding
            cwd=self.folder,
            env=self.environment() | (env or {}),
            **processes.server_user(),
        )
        if check and done.returncode:
            raise AssertionError(f"{program} {args} failed ({done.returncode}):\n{done.stdout}{done.stderr}")
        return done

    def psql(self, script, dbname="postgres", check=True):
        """Run a script through psql, stop at its first error; returns the unaligned output."""
        args = ["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-d", dbname, "-f", "-"]
        return self.run("psql", *args, input=script, check=check).stdout

    def dump(self, *args, dbname="postgres"):
        """pg_dump as plain SQL."""
        return self.run("pg_dump", *args, "-d", dbname).stdout

    def restore(self, script, dbname):
        """Load what dump() gave into an existing database."""
        self.psql(script, dbname=dbname)

    # ---- start and stop

    def _initdb(self, path):
        self.run("initdb", "-D", path, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C.UTF-8", "--no-sync")

    def configure(self, **settings):
        """Append to postgresql.conf; restart() or reload() makes it count. Names with a dot: configure(**{"outbox.enabled": "off"})."""
        with open(self.data / "postgresql.conf", "a") as conf:
            for name, value in settings.items():
                if value is not None:
                    escaped = str(value).replace("'", "''")
                    conf.write(f"{name} = '{escaped}'\n")

    def _pg_ctl(self, *args, check=True):
        # the log goes to a file: a server that inherits our pipe would keep subprocess waiting
        return self.run("pg_ctl", "-D", self.data, "-s", *args, check=check)

    def start(self, timeout=60):
        """Start and wait until it accepts connections (a standby: read-only ones)."""
        server = f"-p {self.port} -k {self.host}"
        self._pg_ctl("start", "-w", "-t", timeout, "-l", self.log_path, "-o", server)
        return self

    def stop(self, mode="fast", timeout=60):
        """pg_ctl stop -m smart|fast|immediate; AssertionError if it takes longer than `timeout` seconds."""
        self._pg_ctl("stop", "-w", "-t", timeout, "-m", mode)

    def restart(self, mode="fast"):
        self.stop(mode)
        return self.start()

    def crash(self):
        """An immediate stop: no checkpoint, recovery at the next start."""
        self.stop("immediate")

    def kill9(self, pid=None):
        """SIGKILL to one process, or without pid to the postmaster.

        One process: the server restarts all sessions; wait_ready() before anything else (a fast stop during that
        recovery hangs in PostgreSQL 15). The postmaster: it is over when the last of its processes has gone.
        """
        if pid is not None:
            processes.send(pid, signal.SIGKILL)
            return
        postmaster = self.postmaster_pid
        processes.end_processes([postmaster])
        # the orphans notice by themselves; what does not is ended, as an operator would
        try:
            wait_until(lambda: not processes.processes_in(self.data), 10)
        except AssertionError:
            processes.end_processes(processes.processes_in(self.data))
        # a dead process that nobody has waited for yet would count as "another postmaster" at the next start
        wait_until(lambda: not pathlib.Path(f"/proc/{postmaster}").exists(), 20, "the postmaster is reaped")

    def wait_ready(self, timeout=60):
        """Wait until a session can be opened, as after kill9(pid)."""

        def try_it():
            try:
                return self.value("SELECT true")
            except psycopg.OperationalError:
                return None

        wait_until(try_it, timeout, "the server accepts sessions")

    def reload(self):
        self._pg_ctl("reload")

    def promote(self):
        self._pg_ctl("promote", "-w")

    @property
    def postmaster_pid(self):
        return int((self.data / "postmaster.pid").read_text().splitlines()[0])

    @property
    def running(self):
        return bool(processes.processes_in(self.data))

    def close(self):
        for connection in self._connections:
            connection.close()
        self._connections.clear()
        if self.running:
            self._pg_ctl("stop", "-w", "-t", 15, "-m", "immediate", check=False)
        processes.end_processes(processes.processes_in(self.data))
        processes.remove_folder(self.folder)
        self.unregister()

    # ---- connections and SQL

    def connect(self, dbname="postgres", user="postgres", autocommit=False, **kwargs):
        """A psycopg connection (a transaction begins by itself unless autocommit); closed with the cluster at the latest."""
        connection = psycopg.connect(
            host=self.host, port=self.port, dbname=dbname, user=user, autocommit=autocommit, **kwargs
        )
        self._connections.append(connection)
        return connection

    def sql(self, query, params=None, dbname="postgres", **kwargs):
        """Run one statement in a connection of its own, committed; returns the rows (a list of tuples) or None."""
        with psycopg.connect(host=self.host, port=self.port, dbname=dbname, autocommit=True, **{"user": "postgres", **kwargs}) as c:
            cursor = c.execute(query, params)
            return cursor.fetchall() if cursor.description else None

    def value(self, query, params=None, dbname="postgres", **kwargs):
        """The first column of the first row, or None."""
        rows = self.sql(query, params, dbname, **kwargs)
        return rows[0][0] if rows else None

    def createdb(self, name, encoding="UTF8", template="template0"):
        """A new database; encodings other than UTF8 get locale C. Returns its name."""
        statement = "CREATE DATABASE {} TEMPLATE {} ENCODING {}" + ("" if encoding == "UTF8" else " LOCALE 'C'")
        self.sql(pgsql.SQL(statement).format(pgsql.Identifier(name), pgsql.Identifier(template), pgsql.Literal(encoding)))
        return name

    def dropdb(self, name, force=True):
        statement = "DROP DATABASE {}" + (" WITH (FORCE)" if force else "")
        self.sql(pgsql.SQL(statement).format(pgsql.Identifier(name)))

    def backends(self, backend_type=None, dbname=None):
        """Rows of pg_stat_activity as dicts, of one backend_type ('outbox worker') and one database if given."""
        query = (
            "SELECT * FROM pg_stat_activity WHERE (%(type)s::text IS NULL OR backend_type = %(type)s)"
            " AND (%(db)s::text IS NULL OR datname = %(db)s) ORDER BY pid"
        )
        with psycopg.connect(host=self.host, port=self.port, dbname="postgres", user="postgres", autocommit=True) as c:
            cursor = c.cursor(row_factory=psycopg.rows.dict_row)
            return cursor.execute(query, {"type": backend_type, "db": dbname}).fetchall()

    def worker_pids(self, dbname="postgres"):
        """Pids of the processes that publish for this database."""
        return [b["pid"] for b in self.backends("outbox worker", dbname)]

    def wait_worker(self, dbname="postgres", timeout=30, other_than=()):
        """Wait for a worker of this database (not one of `other_than`) and return its pid."""
        pids = wait_until(
            lambda: [p for p in self.worker_pids(dbname) if p not in other_than], timeout, f"a worker of {dbname}"
        )
        return pids[0]

    # ---- copies

    def copy(self, options=None, start=True):
        """A new cluster with a copy of the data directory of this one, which must be stopped."""
        assert not self.running, "stop the cluster before its data directory is copied"
        return Cluster(self.options | (options or {}), start=start, data=self._copy_data, pg_config=self.pg_config)

    def _copy_data(self, path):
        subprocess.run(["cp", "-a", "--", str(self.data), str(path)], check=True)

    def base_backup(self, options=None, signal_file=None, start=True):
        """A new cluster from pg_basebackup of this running one.

        signal_file: "standby" follows this cluster; "recovery" is point-in-time recovery (give restore_command in
        options); None starts the backup as a copy.
        """

        def fill(path):
            follow = ["-R"] if signal_file == "standby" else []
            self.run("pg_basebackup", "-D", path, "-X", "stream", "-c", "fast", *follow)
            if signal_file == "recovery":
                (path / "recovery.signal").touch()

        return Cluster(self.options | (options or {}), start=start, data=fill, pg_config=self.pg_config)

    def standby(self, options=None, start=True):
        """A streaming standby of this cluster; promote() makes it a primary."""
        return self.base_backup(options, signal_file="standby", start=start)

    # ---- logs

    @property
    def log(self):
        """The server log, all of it."""
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def log_sections(self):
        return [(f"server log, port {self.port}", processes.tail(self.log_path))]
