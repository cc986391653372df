"""PgQ: a log of events, cut into batches by a ticker, read by a registered consumer."""

SCHEMA = "pgq"
POLL_S = 0.005
TICK_S = 0.02  # its daemon, pgqd, looks once a second by default

INSTALL = """
CREATE EXTENSION pgq;
SELECT pgq.create_queue('bench');
SELECT pgq.set_queue_config('bench', 'ticker_max_lag', '10 milliseconds');
SELECT pgq.register_consumer('bench', 'kafka');
"""

ENQUEUE = "SELECT pgq.insert_event('bench', '{topic}', {payload}, {key}, NULL, NULL, NULL)"

FILL = "PERFORM count(pgq.insert_event('bench', topic, {payload}, {key}, NULL, NULL, NULL)) FROM {numbers}"
TICK = "PERFORM pgq.ticker('bench')"  # in a transaction of its own, as the daemon does


def tick(connection, _client, _number):
    """The daemon's part; its consumer is another process."""
    with connection, connection.cursor() as cursor:
        cursor.execute("SELECT pgq.ticker('bench')")
    return 0


def work(connection, client, _number):
    with connection, connection.cursor() as cursor:
        cursor.execute("SELECT pgq.next_batch('bench', 'kafka')")
        (batch,) = cursor.fetchone()
    if batch is None:
        return 0
    with connection, connection.cursor() as cursor:
        cursor.execute("SELECT ev_id, ev_type, ev_extra1, ev_data FROM pgq.get_batch_events(%s)", [batch])
        messages = cursor.fetchall()
    client.publish(messages)
    with connection, connection.cursor() as cursor:
        cursor.execute("SELECT pgq.finish_batch(%s)", [batch])
    return 1
