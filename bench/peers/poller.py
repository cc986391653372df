"""The textbook outbox: a table with a status; a client claims rows, publishes them and updates their status."""

SCHEMA = "poller"
BATCH = 1000
POLL_S = 0.02

# One index, the poller's best case: with a primary key on id the planner is free to walk that one instead, past all rows
# that were sent, and in some runs does so.
INSTALL = """
CREATE SCHEMA poller;
CREATE TABLE poller.outbox (
  id      bigint GENERATED ALWAYS AS IDENTITY,
  topic   text NOT NULL,
  key     text,
  payload text,
  status  text NOT NULL DEFAULT 'PENDING'
);
CREATE UNIQUE INDEX ON poller.outbox (status, id);
"""

ENQUEUE = "INSERT INTO poller.outbox (topic, key, payload) VALUES ('{topic}', {key}, {payload})"

FILL = "INSERT INTO poller.outbox (topic, key, payload) SELECT topic, {key}, {payload} FROM {numbers}"
TICK = None

CLAIM = """
SELECT id, topic, key, payload FROM poller.outbox WHERE status = 'PENDING' ORDER BY id LIMIT %s FOR UPDATE SKIP LOCKED
"""
MARK = "UPDATE poller.outbox SET status = 'SENT' WHERE status = 'PENDING' AND id = ANY(%s)"


def work(connection, client, _number):
    with connection, connection.cursor() as cursor:
        cursor.execute(CLAIM, [BATCH])
        messages = cursor.fetchall()
        if messages:
            client.publish(messages)
            cursor.execute(MARK, [[message[0] for message in messages]])
    return len(messages)
