"""What goes on beside a test, in a thread and with a connection of its own."""

import collections
import threading

SAMPLE = """
SELECT wait_event, backend_type, query FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()
"""


class InBackground:
    """Calls what is given again and again, with a connection, until the end of `with`."""

    def __init__(self, cluster, work, pause_s, dbname="postgres"):
        self.connection = cluster.connect(dbname, autocommit=True)
        self.work, self.pause_s = work, pause_s
        self.error, self.turns = None, 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self):
        try:
            while not self._stop.wait(self.pause_s):
                self.work(self.connection)
                self.turns += 1
        except Exception as error:  # noqa: BLE001
            self.error = error

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, kind, *_):
        self._stop.set()
        self._thread.join(30)
        assert kind is not None or self.error is None, self.error


class LockWaits(InBackground):
    """What sessions of the database are seen waiting for."""

    def __init__(self, cluster, dbname="postgres"):
        super().__init__(cluster, self._look, 0.002, dbname)
        self.seen = collections.Counter()

    def _look(self, connection):
        for wait_event, backend_type, query in connection.execute(SAMPLE).fetchall():
            self.seen[wait_event, backend_type, query.strip()[:60]] += 1

    def of(self, wait_event):
        return sum(times for (event, _, _), times in self.seen.items() if event == wait_event)

    def others_than(self, *wait_events):
        return {what: times for what, times in self.seen.items() if what[0] not in wait_events}
