"""What a message is on the topic, byte for byte: payloads, keys, headers, encodings, partitions, time stamps."""

import time

import psycopg
import pytest
from harness import install_outbox, seeded, size, wait_until

EVERY_BYTE = bytes(range(256))
NO_HEADERS = []

# The arguments of enqueue behind the topic, and key, value and headers of the record.
MESSAGES = {
    "text": ("'hello', 'k'", b"k", b"hello", NO_HEADERS),
    "text beyond ASCII": ("'Grüße € 😀', 'schlüssel 😀'", "schlüssel 😀".encode(), "Grüße € 😀".encode(), NO_HEADERS),
    "NULL literal": ("NULL, 'k'", b"k", None, NO_HEADERS),
    "NULL text": ("NULL::text, 'k'", b"k", None, NO_HEADERS),
    "NULL json": ("NULL::json, 'k'", b"k", None, NO_HEADERS),
    "NULL jsonb": ("NULL::jsonb, 'k'", b"k", None, NO_HEADERS),
    "NULL bytea": ("NULL::bytea, 'k'", b"k", None, NO_HEADERS),
    "empty text": ("''", None, b"", NO_HEADERS),
    "empty bytea": ("''::bytea", None, b"", NO_HEADERS),
    "text null": ("'null'", None, b"null", NO_HEADERS),
    "json null": ("'null'::json", None, b"null", NO_HEADERS),
    "jsonb null": ("'null'::jsonb", None, b"null", NO_HEADERS),
    "text {}": ("'{}'", None, b"{}", NO_HEADERS),
    "json {}": ("'{}'::json", None, b"{}", NO_HEADERS),
    "jsonb {}": ("'{}'::jsonb", None, b"{}", NO_HEADERS),
    "json as written": ("""'{"b":1,  "a":2,"a":3}'::json""", None, b'{"b":1,  "a":2,"a":3}', NO_HEADERS),
    "jsonb normalised": ("""'{"b":1,  "a":2,"a":3}'::jsonb""", None, b'{"a": 3, "b": 1}', NO_HEADERS),
    "NULL key": ("'x', NULL", None, b"x", NO_HEADERS),
    "empty key": ("'x', ''", b"", b"x", NO_HEADERS),
    "every byte": (f"'\\x{EVERY_BYTE.hex()}'::bytea, 'k'", b"k", EVERY_BYTE, NO_HEADERS),
    "every byte in the key": (f"'\\x00'::bytea, '\\x{EVERY_BYTE.hex()}'::bytea", EVERY_BYTE, b"\0", NO_HEADERS),
    "NULL bytea key": ("'x'::bytea, NULL::bytea", None, b"x", NO_HEADERS),
    "empty bytea key": ("'x'::bytea, ''::bytea", b"", b"x", NO_HEADERS),
    "NULL key and payload": ("NULL::bytea, NULL::bytea", None, None, NO_HEADERS),
    "a megabyte less a little": ("repeat('x', 900000)", None, b"x" * 900_000, NO_HEADERS),
    "header": ("""'x', headers => '{"a": "1"}'""", None, b"x", [("a", b"1")]),
    "no headers in an object": ("""'x', headers => '{}'""", None, b"x", NO_HEADERS),
    "null header": ("""'x', headers => '{"n": null}'""", None, b"x", [("n", None)]),
    "empty header": ("""'x', headers => '{"e": ""}'""", None, b"x", [("e", b"")]),
    "repeated header": (
        """'x', headers => '{"r": ["2", "1", null, "", "2"]}'""",
        None,
        b"x",
        [("r", b"2"), ("r", b"1"), ("r", None), ("r", b""), ("r", b"2")],
    ),
    "headers beyond ASCII": ("""'x', headers => '{"ü": "ß€😀"}'""", None, b"x", [("ü", "ß€😀".encode())]),
    "escaped header": (r"""'x', headers => '{"q": "a\"\\\n\u0001"}'""", None, b"x", [("q", b'a"\\\n\x01')]),
    "header that looks like json": ("""'x', headers => '{"j": "{\\"a\\": 1}"}'""", None, b"x", [("j", b'{"a": 1}')]),
}


def enqueue(connection, topic, arguments):
    return connection.execute(f"SELECT outbox.enqueue('{topic}', {arguments})").fetchone()[0]


def by_id(records):
    found = {r.id: r for r in records}
    assert len(found) == len(records), "an id came twice"
    return found


def own_headers(record):
    return [(name, value) for name, value in record.headers if name != "id"]


def test_every_payload_key_and_header_arrives_byte_for_byte(shared_cluster, database, kafka, unique):
    topic = kafka.create_topic(unique, partitions=3)
    install_outbox(shared_cluster, kafka, database)
    with shared_cluster.connect(database) as c:
        before = time.time()
        ids = {name: enqueue(c, topic, arguments) for name, (arguments, *_) in MESSAGES.items()}
        after = time.time()
    with kafka.reader(topic) as reader:
        records = by_id(reader.read(until=len(MESSAGES)))
        shared_cluster.sql("SELECT outbox.drain('30 s')", dbname=database)
        reader.assert_nothing_more()
    for name, (_, key, value, headers) in MESSAGES.items():
        record = records[str(ids[name])]
        assert (record.key, record.value, own_headers(record)) == (key, value, headers), name
        assert [value for n, value in record.headers if n == "id"] == [str(ids[name]).encode()], name
        # the commit comes later than the enqueue whose time counts
        assert int(before * 1000) <= record.timestamp <= int(after * 1000) + 1, name
    check_view_of_messages(shared_cluster, database, ids)


def check_view_of_messages(cluster, database, ids):
    query = "SELECT message_id, key_bytes, payload_bytes, key, payload, state FROM outbox.messages"
    rows = {row[0]: row[1:] for row in cluster.sql(query, dbname=database)}
    for name, (_, key, value, _) in MESSAGES.items():
        key_bytes, payload_bytes, key_text, payload_text, state = rows[ids[name]]
        assert (key_bytes, payload_bytes, state) == (key, value, "published"), name
        assert (key_text, payload_text) == (as_text(key), as_text(value)), name


def as_text(value):
    """None where it is not text: a zero byte is valid UTF-8, but no text of PostgreSQL."""
    try:
        return None if value is None or b"\0" in value else value.decode()
    except UnicodeDecodeError:
        return None


def test_an_insert_into_messages_arrives_like_an_enqueue(shared_cluster, database, kafka, unique):
    topic = kafka.create_topic(unique, partitions=1)
    install_outbox(shared_cluster, kafka, database)
    with shared_cluster.connect(database) as c:
        rows = c.execute(
            "INSERT INTO outbox.messages (topic, key, payload, headers) VALUES (%(t)s, 'k', 'text', '{\"a\": [\"1\", null]}'),"
            " (%(t)s, NULL, NULL, NULL), (%(t)s, '', '', '{}') RETURNING message_id",
            {"t": topic},
        ).fetchall()
        rows += c.execute(
            "INSERT INTO outbox.messages (topic, key_bytes, payload_bytes) VALUES (%s, %s, %s) RETURNING message_id",
            [topic, EVERY_BYTE, EVERY_BYTE],
        ).fetchall()
        rows += c.execute(
            "INSERT INTO outbox.messages (topic, key, payload) SELECT %s, n::text, repeat('p', n) FROM generate_series(1, 3) n"
            " RETURNING message_id",
            [topic],
        ).fetchall()
    with kafka.reader(topic) as reader:
        records = reader.read(until=7)
        reader.assert_nothing_more()
    assert [r.id for r in records] == [str(message_id) for (message_id,) in rows]
    assert [(r.key, r.value, own_headers(r)) for r in records] == [
        (b"k", b"text", [("a", b"1"), ("a", None)]),
        (None, None, []),
        (b"", b"", []),
        (EVERY_BYTE, EVERY_BYTE, []),
        *[(str(n).encode(), b"p" * n, []) for n in (1, 2, 3)],
    ]


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
def test_text_is_published_as_utf_8_from_a_database_in(encoding, shared_cluster, kafka, unique):
    topic = kafka.create_topic(unique, partitions=1)
    database = shared_cluster.createdb(unique, encoding=encoding)
    install_outbox(shared_cluster, kafka, database)
    euro = "€".encode()
    with shared_cluster.connect(database, client_encoding="UTF8") as c:
        ids = [
            enqueue(c, topic, arguments)
            for arguments in (
                "'Grüße', 'ü'",
                """'{"ä":  "ö"}'::json, 'ü'""",
                """'{"ä":  "ö"}'::jsonb, 'ü'""",
                """'x', headers => '{"ü": ["ß", null]}'""",
                f"'\\x{EVERY_BYTE.hex()}'::bytea, '\\xff'::bytea",
                f"'\\x{euro.hex()}'::bytea",
            )
        ]
    with kafka.reader(topic) as reader:
        records = reader.read(until=len(ids))
        reader.assert_nothing_more()
    assert [r.id for r in records] == [str(i) for i in ids]
    assert [(r.key, r.value, own_headers(r)) for r in records] == [
        ("ü".encode(), "Grüße".encode(), []),
        ("ü".encode(), '{"ä":  "ö"}'.encode(), []),
        ("ü".encode(), '{"ä": "ö"}'.encode(), []),
        (None, b"x", [("ü", "ß".encode()), ("ü", None)]),
        (b"\xff", EVERY_BYTE, []),
        (None, euro, []),
    ]
    with shared_cluster.connect(database, client_encoding="UTF8") as c:
        rows = c.execute("SELECT key, payload, payload_bytes FROM outbox.messages ORDER BY kafka_offset").fetchall()
    assert rows[0] == ("ü", "Grüße", "Grüße".encode())
    assert rows[4] == (None, None, EVERY_BYTE)
    assert rows[5] == (None, None if encoding == "LATIN1" else "€", euro)
    shared_cluster.dropdb(database)


def test_sql_ascii_text_that_is_not_utf_8_is_refused_and_bytea_is_not(shared_cluster, kafka, unique):
    topic = kafka.create_topic(unique, partitions=1)
    database = shared_cluster.createdb(unique, encoding="SQL_ASCII")
    install_outbox(shared_cluster, kafka, database)
    for arguments in (
        r"E'\xff'",
        r"E'\xc3'",
        r"E'\xed\xa0\x80'",
        r"'x', E'k\xfc'",
        r"""E'"\xff"'::json""",
        r"""E'"\xff"'::jsonb""",
        r"""'x', headers => E'{"a": "\xfc"}'""",
        r"""'x', headers => E'{"\xfc": "a"}'""",
    ):
        with shared_cluster.connect(database) as c, pytest.raises(psycopg.errors.CharacterNotInRepertoire):
            enqueue(c, topic, arguments)
    with shared_cluster.connect(database) as c:
        enqueue(c, topic, r"'\xff'::bytea, '\xed'::bytea")
    (record,) = kafka.consume(topic, until=1)
    assert (record.key, record.value) == (b"\xed", b"\xff")
    shared_cluster.dropdb(database)


# ---- partitions


def murmur2(data):
    """As org.apache.kafka.common.utils.Utils.murmur2."""
    m, mask = 0x5BD1E995, 0xFFFFFFFF
    h = 0x9747B28C ^ len(data)
    for i in range(0, len(data) - len(data) % 4, 4):
        k = int.from_bytes(data[i : i + 4], "little") * m & mask
        k = (k ^ k >> 24) * m & mask
        h = (h * m & mask) ^ k
    if rest := data[len(data) - len(data) % 4 :]:
        h = (h ^ int.from_bytes(rest, "little")) * m & mask
    h = (h ^ h >> 13) * m & mask
    return h ^ h >> 15


def java_partition(key, partitions):
    return (murmur2(key) & 0x7FFFFFFF) % partitions


def test_partitions_are_those_of_java_clients(shared_cluster, database, kafka, unique):
    known = [(b"TT0124", 15, 10), (b"354afe16-939a-4ea8-8e17-8bb0840b6886", 10, 4)]
    for key, partitions, partition in known:
        assert java_partition(key, partitions) == partition
    topics = {n: kafka.create_topic(f"{unique}_{n}", partitions=n) for n in (10, 15)}
    install_outbox(shared_cluster, kafka, database)
    random = seeded("keys")
    keys = [b"", b"\0", b"\xff" * 7, EVERY_BYTE, *(key for key, _, _ in known)]
    keys += [random.randbytes(random.randrange(1, 40)) for _ in range(size(200, 5000))]
    with shared_cluster.connect(database) as c, c.cursor() as cursor:
        for topic in topics.values():
            cursor.executemany("SELECT outbox.enqueue(%s, 'x'::bytea, %s::bytea)", [(topic, key) for key in keys])
    for count, topic in topics.items():
        records = kafka.consume(topic, until=len(keys))
        assert {r.key: r.partition for r in records} == {key: java_partition(key, count) for key in keys}


def test_messages_without_a_key_are_spread_over_the_partitions(shared_cluster, database, kafka, unique):
    topic = kafka.create_topic(unique, partitions=4)
    install_outbox(shared_cluster, kafka, database)

    def all_partitions_used():
        shared_cluster.sql("SELECT outbox.enqueue(%s, 'x')", [topic], dbname=database)
        return all(reader.end_offsets().values())

    with kafka.reader(topic) as reader:
        wait_until(all_partitions_used, 30, "every partition has a message")
