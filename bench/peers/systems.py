"""outbox and its peers behind one interface, so that one harness measures them all."""

import contextlib

from stage import PAYLOAD

from . import pgq, poller
from .consumers import Consumers

KEY = "'key-' || i % 1000"
TICK_EVENTS = 20_000
NUMBERS = "generate_series(low, least(low + a_transaction, messages) - 1) i"

FILL = f"""
CREATE OR REPLACE PROCEDURE {{schema}}_fill(topic text, messages integer, a_transaction integer) LANGUAGE plpgsql AS $$
BEGIN
  FOR low IN 0 .. messages - 1 BY a_transaction LOOP
    {{fill}};
    COMMIT;
    IF (low + a_transaction) % {TICK_EVENTS} = 0 OR low + a_transaction >= messages THEN
      {{tick}};
      COMMIT;
    END IF;
  END LOOP;
END $$
"""


class Outbox:
    name = "outbox"
    schema = "outbox"
    enqueue = "SELECT outbox.enqueue('{topic}', {payload}, {key})"
    fill_statement = f"PERFORM count(outbox.enqueue(topic, {PAYLOAD}, {KEY})) FROM {NUMBERS}"
    tick = None

    def __init__(self, stage):
        self._stage = stage

    def fill(self, session, topic, messages):
        self._stage.pause()
        session.execute(f"CALL {self.schema}_fill(%s, %s, 1000)", [topic, messages])

    def drain(self, session, _topic):
        """Returns seconds, and the CPU seconds of clients outside the server."""
        return self._stage.resume_and_drain(session), 0

    @contextlib.contextmanager
    def running(self, _topic):
        yield
        self._stage.drain()


class Client:
    """A peer whose messages are carried by clients; `module` says how."""

    def __init__(self, stage, name, module, count=1, also=()):
        self._stage, self.name, self._module, self._count, self._also = stage, name, module, count, also
        self.schema = module.SCHEMA
        self.enqueue = module.ENQUEUE
        self.fill_statement = module.FILL.format(payload=PAYLOAD, key=KEY, numbers=NUMBERS)
        self.tick = module.TICK

    def install(self):
        with self._stage.cluster.connect() as connection:
            connection.execute(self._module.INSTALL)

    def fill(self, session, topic, messages):
        session.execute(f"CALL {self.schema}_fill(%s, %s, 1000)", [topic, messages])

    def drain(self, _session, topic):
        consumers = self._consumers(topic)
        consumers.start()
        consumers.stop()
        return consumers.seconds, consumers.cpu

    def _consumers(self, topic):
        return Consumers(self._stage, topic, self._module.work, self._count, self._module.POLL_S)

    @contextlib.contextmanager
    def running(self, topic):
        both = [self._consumers(topic), *(Consumers(self._stage, topic, *also) for also in self._also)]
        for consumers in both:
            consumers.start()
        yield
        for consumers in both:
            consumers.stop()


def make(stage):
    """Installs all of them."""
    one = Client(stage, "poller, 1 process", poller)
    four = Client(stage, "poller, 4 processes", poller, count=4)
    queue = Client(stage, "PgQ", pgq, also=[(pgq.tick, 1, pgq.TICK_S)])
    one.install()
    queue.install()
    systems = [Outbox(stage), one, four, queue]
    for system in systems:
        stage.sql(FILL.format(schema=system.schema, fill=system.fill_statement, tick=system.tick or "NULL"))
    return systems
