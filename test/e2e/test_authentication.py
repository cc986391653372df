"""With the librdkafka that outbox was built with: what it says of SCRAM, which versions before 2.6.1 cannot do with Kafka 4."""

import pytest
from harness import RealKafka, wait_until
from harness.load import assert_nothing_is_left, drain
from harness.secure import SUPER_ALICE, install_secure, lines_of_worker, wait_backing_off, worker_state


@pytest.fixture
def old_library(shared_cluster, database):
    shared_cluster.sql("CREATE EXTENSION outbox", dbname=database)
    version = shared_cluster.value("SELECT librdkafka FROM outbox.version()", dbname=database)
    if tuple(int(n) for n in version.split(".")[:3]) >= (2, 6, 1):
        pytest.skip(f"librdkafka {version} can do SCRAM with Kafka 4")
    return version


def warnings_of(cluster, database, *statements):
    notices = []
    with cluster.connect(database, autocommit=True) as c:
        c.add_notice_handler(lambda n: notices.append((n.severity, n.message_primary)))
        for statement in statements:
            c.execute(statement)
    return notices


def test_each_statement_that_chooses_scram_warns(shared_cluster, database, old_library):
    create = "CREATE SERVER {} FOREIGN DATA WRAPPER outbox_kafka OPTIONS (\"bootstrap.servers\" 'x:1'{})"
    warning = ("WARNING", f"librdkafka {old_library} cannot authenticate with SCRAM-SHA-512 to Kafka 4 brokers;")
    for statement in (
        create.format("a", ", \"sasl.mechanism\" 'SCRAM-SHA-512'"),
        create.format("b", ", \"sasl.mechanisms\" 'SCRAM-SHA-512'"),
    ):
        ((severity, text),) = warnings_of(shared_cluster, database, statement)
        assert (severity, text[: len(warning[1])]) == warning
    assert warnings_of(shared_cluster, database, create.format("c", ""), create.format("d", ", \"sasl.mechanism\" 'PLAIN'")) == []
    for statement in (
        "ALTER SERVER c OPTIONS (ADD \"sasl.mechanisms\" 'SCRAM-SHA-512')",
        "ALTER SERVER d OPTIONS (SET \"sasl.mechanism\" 'SCRAM-SHA-512')",
    ):
        ((severity, text),) = warnings_of(shared_cluster, database, statement)
        assert (severity, text[: len(warning[1])]) == warning


def test_a_library_that_cannot_do_scram_says_so_until_the_mechanism_is_changed(
    shared_cluster, database, old_library, unique
):
    with RealKafka(SUPER_ALICE, secure=True) as kafka:
        topic = kafka.create_topic(unique, partitions=1)
        before = len(shared_cluster.log)
        install_secure(shared_cluster, kafka, database, mechanism="SCRAM-SHA-256")
        ids = [
            str(shared_cluster.value("SELECT outbox.enqueue(%s, 'x', 'k')", [topic], dbname=database)) for _ in range(3)
        ]
        reason = wait_backing_off(shared_cluster, database, "Kafka does not let this client in")
        assert f"librdkafka {old_library} cannot authenticate with SCRAM-SHA-256 to Kafka 4 brokers" in reason, reason
        assert "2.6.1 or newer can, and sasl.mechanism=PLAIN over TLS works" in reason, reason
        assert shared_cluster.value("SELECT last_error FROM outbox.lanes", dbname=database) == reason
        assert len(lines_of_worker(shared_cluster, before)) <= 4
        shared_cluster.sql("ALTER SERVER kafka OPTIONS (SET \"sasl.mechanisms\" 'PLAIN')", dbname=database)
        drain(shared_cluster, database, 10)
        assert [r.id for r in kafka.read_all(topic)] == ids
        assert_nothing_is_left(shared_cluster, database)
        wait_until(lambda: worker_state(shared_cluster, database) == ("idle", None), 5)
