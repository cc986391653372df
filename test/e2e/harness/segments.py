"""The life of the log: its settings, and which segments there are in which state."""

import contextlib

from psycopg import sql as pgsql

from .background import InBackground
from .waiting import wait_until

# Settings that keep maintenance busy: a segment a second, dropped as soon as it may be.
BUSY = {"segment_max_age": "1s", "retention": "1s"}


def configure(cluster, **settings):
    """configure(cluster, retention="5s") sets outbox.retention for the server and reloads it; None: back to the default."""
    for name, value in settings.items():
        name = pgsql.SQL("outbox.") + pgsql.Identifier(name)
        if value is None:
            cluster.sql(pgsql.SQL("ALTER SYSTEM RESET {}").format(name))
        else:
            cluster.sql(pgsql.SQL("ALTER SYSTEM SET {} = {}").format(name, pgsql.Literal(value)))
    cluster.sql("SELECT pg_reload_conf()")


def roll(cluster, dbname="postgres"):
    """The number of the new segment."""
    return cluster.value("SELECT outbox.roll()", dbname=dbname)


def states(cluster, dbname="postgres"):
    return dict(cluster.sql("SELECT segment, state FROM outbox.segments ORDER BY segment", dbname=dbname))


def waits_for(cluster, dbname="postgres"):
    """{segment: what its next step waits for}, without those that wait for nothing."""
    query = "SELECT segment, waits_for FROM outbox.segments WHERE waits_for IS NOT NULL ORDER BY segment"
    return dict(cluster.sql(query, dbname=dbname))


def tables(cluster, dbname="postgres"):
    """Numbers of the segments that have a message table."""
    query = (
        "SELECT substring(relname FROM '[0-9]+$')::int FROM pg_class"
        " WHERE relnamespace = 'outbox'::regnamespace AND relname ~ '^_message_[0-9]+$' ORDER BY 1"
    )
    return [number for (number,) in cluster.sql(query, dbname=dbname)]


def describe(cluster, dbname="postgres"):
    return "\n".join(map(str, cluster.sql("SELECT * FROM outbox.segments ORDER BY segment", dbname=dbname)))


def wait_states(cluster, condition, timeout=30, message="", dbname="postgres"):
    """Poll {segment: state} until condition(states) holds; returns them."""
    found = {}

    def holds():
        found.clear()
        found.update(states(cluster, dbname))
        return condition(found)

    wait_until(holds, timeout, lambda: f"{message}\n{describe(cluster, dbname)}", interval=0.1)
    return found


def wait_opened(cluster, segment, timeout=30, dbname="postgres"):
    """Until this segment, or a later one, is there."""
    return wait_states(cluster, lambda s: max(s, default=0) >= segment, timeout, f"segment {segment} is opened", dbname)


def wait_dropped(cluster, *segments, timeout=30, dbname="postgres"):
    message = f"segments {segments} are dropped"
    wait_states(cluster, lambda s: not s.keys() & set(segments), timeout, message, dbname)
    assert not set(segments) & set(tables(cluster, dbname)), "the view lists what there is"


def wait_only_open(cluster, timeout=30, dbname="postgres"):
    """Until retention has taken all but the open segment (a roll may be under way)."""
    wait_states(cluster, lambda s: list(s.values()) == ["open"], timeout, "only the open segment is left", dbname)


class Watch(InBackground):
    """Every state that any segment was seen in, within `with`, in the order in which it was seen."""

    def __init__(self, cluster, dbname="postgres"):
        super().__init__(cluster, self._look, 0.05, dbname)
        self.seen = {}

    def _look(self, connection):
        for segment, state in connection.execute("SELECT segment, state FROM outbox.segments").fetchall():
            its = self.seen.setdefault(segment, [])
            if state not in its:
                its.append(state)


@contextlib.contextmanager
def transaction(cluster, *statements, isolation="READ COMMITTED", dbname="postgres"):
    """A session that has run these statements and stays in its transaction, rolled back at the end."""
    with cluster.connect(dbname) as connection:
        connection.execute(f"SET TRANSACTION ISOLATION LEVEL {isolation}")
        for statement in statements:
            connection.execute(statement)
        yield connection
        connection.rollback()
