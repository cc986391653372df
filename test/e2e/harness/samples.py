"""What grows and what does not: samples over time, and the last third of them beside the middle third."""

import collections
import statistics
import time

import psycopg

from .background import InBackground
from .processes import rss_anon_kb

# Tables of ours, a family for all segments' (_message_7 is _message_N), with what is in their TOAST tables.
OURS = """
SELECT c.oid, regexp_replace(coalesce(t.relname, c.relname), '[0-9]+', 'N') || CASE WHEN t.oid IS NOT NULL THEN ' TOAST' ELSE '' END
  FROM pg_class c LEFT JOIN pg_class t ON t.reltoastrelid = c.oid
 WHERE c.relkind IN ('r', 't')
   AND coalesce(t.relnamespace, c.relnamespace) IN (SELECT oid FROM pg_namespace WHERE nspname IN ('outbox', 'outbox_archive'))
"""
DEAD_KNOWN = f"""
SELECT family, sum(coalesce(pg_stat_get_dead_tuples(oid), 0))::bigint FROM ({OURS}) AS ours(oid, family) GROUP BY family
"""
DEAD_COUNTED = f"""
SELECT family, sum((pgstattuple(oid)).dead_tuple_count)::bigint FROM ({OURS}) AS ours(oid, family) GROUP BY family
"""
BYTES = f"""
SELECT coalesce(sum(pg_total_relation_size(oid)), 0)::bigint FROM ({OURS}) AS ours(oid, family) WHERE family !~ 'TOAST$'
"""
PROCESSES = """
SELECT pid, backend_type FROM pg_stat_activity WHERE datname = current_database() AND backend_type ~ '^outbox (worker|maintenance)$'
"""


class Samples(InBackground):
    """Twice a second within `with`: {what: number} of disk, memory and dead tuples. pgstattuple must be installed."""

    def __init__(self, cluster, dbname="postgres", sessions=()):
        """sessions: a function that returns pids of clients whose memory counts too."""
        super().__init__(cluster, self._look, 0.5, dbname)
        self.all = []  # of (time.monotonic(), {what: number})
        self._sessions = sessions
        self._cluster = cluster

    def _look(self, connection):
        try:
            found = self._disk(connection) | self._dead(connection)
        except (psycopg.errors.UndefinedTable, psycopg.errors.InternalError_):
            return  # a segment was dropped just now
        self.all.append((time.monotonic(), found | self._memory(connection)))

    def _disk(self, connection):
        return {"disk, bytes": connection.execute(BYTES).fetchone()[0]}

    def _dead(self, connection):
        known = {f"dead tuples known of {family}": n for family, n in connection.execute(DEAD_KNOWN).fetchall()}
        counted = {f"dead tuples counted in {family}": n for family, n in connection.execute(DEAD_COUNTED).fetchall()}
        return known | counted

    def _memory(self, connection):
        found = collections.Counter()
        for pid, name in connection.execute(PROCESSES).fetchall():
            found[f"memory of {name}, kB"] += rss_anon_kb(pid) or 0
        for pid in self._sessions() if self._sessions else ():
            found["memory of sessions, kB"] += rss_anon_kb(pid) or 0
        return dict(found)

    def thirds(self):
        """{what: (of the first third, of the middle, of the last)}; 0 for what was not there."""
        began, ended = self.all[0][0], self.all[-1][0]
        parts = [[], [], []]
        for at, found in self.all:
            parts[min(int(3 * (at - began) / (ended - began)), 2)].append(found)
        names = sorted({name for _, found in self.all for name in found})
        return {name: tuple(middle_mean([found.get(name, 0) for found in part]) for part in parts) for name in names}


def middle_mean(values):
    """Mean of the middle half.

    What is measured goes up and down with every segment, so a median would be one or the other; and a vacuum that comes
    along, or a stop of the machine, must not count.
    """
    quarter = len(values) // 4
    middle = statistics.fmean(sorted(values)[quarter : len(values) - quarter])
    return middle or statistics.fmean(values)  # a little now and then is not nothing


def percentile(values, percent):
    ordered = sorted(values)
    return ordered[min(len(ordered) * percent // 100, len(ordered) - 1)]


def thirds_of_latency(timed):
    """timed: pairs (second at which it began, how long it took). {"p50": (a number a third), "p99": …}.

    The percentile of each second counts, and of those the median: a pause of the machine spoils a second, not a third.
    """
    seconds = collections.defaultdict(list)
    for at, took in timed:
        seconds[int(at)].append(took)
    whole = [seconds[at] for at in sorted(seconds)][1:-1]
    parts = [whole[len(whole) * i // 3 : len(whole) * (i + 1) // 3] for i in range(3)]
    return {
        f"p{percent}": tuple(statistics.median(percentile(second, percent) for second in part) for part in parts)
        for percent in (50, 99)
    }


def grown(thirds, most=1.1, noise=None):
    """What is larger in the last third than `most` times the middle one. What was nothing stays nothing.

    noise: {beginning of a name: how much more is nothing}, in the unit of the measure.
    """
    found = {}
    for name, (first, middle, last) in thirds.items():
        more = next((n for beginning, n in (noise or {}).items() if name.startswith(beginning)), 0)
        if last > middle * most + more * (middle > 0):
            found[name] = (first, middle, last)
    return found
