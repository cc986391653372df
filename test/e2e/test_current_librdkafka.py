"""With a current librdkafka: TLS with SCRAM and PLAIN, and what an operator sees and does when Kafka does not let us in."""

import time

import pytest
from harness import Cluster, RealKafka, current_librdkafka, size, wait_until
from harness.load import Load, assert_nothing_is_left, check, drain
from harness.secure import SUPER_ALICE, install_secure, lines_of_worker, wait_backing_off, worker_state

pytestmark = pytest.mark.timeout(size(1200, 3600))  # the first time librdkafka is built


@pytest.fixture(scope="module")
def shared_cluster(current_pg_config):
    with Cluster(pg_config=current_pg_config) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def secure_kafka():
    """For tests that leave its certificate alone."""
    with RealKafka(SUPER_ALICE, secure=True) as kafka:
        yield kafka


@pytest.fixture
def own_secure_kafka(make_real_kafka):
    return make_real_kafka(SUPER_ALICE, secure=True)


def set_option(cluster, database, name, value, of="SERVER kafka"):
    cluster.sql(f"ALTER {of} OPTIONS (SET \"{name}\" '{value}')", dbname=database)


def check_all(cluster, database, kafka, topic, load, repeats=False):
    """What was committed is on the topic, per key in order; nothing failed, nothing counts as tried."""
    drain(cluster, database, 60)
    check(load, kafka.read_all(topic), repeats)
    assert_nothing_is_left(cluster, database)
    assert cluster.sql("SELECT failures FROM outbox.lanes", dbname=database) == [(0,)]


def assert_quiet(cluster, database, after, seconds):
    """While it goes on failing, the log does not grow, and outbox.workers says the same all the time."""
    before = worker_state(cluster, database)
    end = time.monotonic() + seconds
    wait_until(lambda: time.monotonic() > end or worker_state(cluster, database) != before, seconds + 5)
    assert worker_state(cluster, database) == before
    lines = lines_of_worker(cluster, after)
    assert 1 <= len(lines) <= 6, "\n".join(lines)


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "PLAIN"])
def test_messages_arrive_over_tls_with(mechanism, shared_cluster, database, secure_kafka, unique):
    topic = secure_kafka.create_topic(unique)
    install_secure(shared_cluster, secure_kafka, database, mechanism=mechanism)
    assert shared_cluster.value("SELECT librdkafka FROM outbox.version()", dbname=database) == current_librdkafka.VERSION
    with Load(shared_cluster, topic, database) as load:
        load.wait_for_more(size(100, 5000), timeout=300)
    check_all(shared_cluster, database, secure_kafka, topic, load)


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "PLAIN"])
def test_a_wrong_password_is_named_and_messages_go_out_once_it_is_right(
    mechanism, shared_cluster, database, secure_kafka, unique
):
    topic = secure_kafka.create_topic(unique)
    before = len(shared_cluster.log)
    install_secure(shared_cluster, secure_kafka, database, mechanism=mechanism, password="not-her-secret")
    with Load(shared_cluster, topic, database) as load:
        load.wait_for_more(50)
    reason = wait_backing_off(shared_cluster, database, "Kafka does not let this client in")
    assert "uthentication failed" in reason and "secret" not in reason, reason
    assert_quiet(shared_cluster, database, before, size(4, 75))
    assert "not-her-secret" not in shared_cluster.log[before:]
    set_option(shared_cluster, database, "sasl.password", "alice-secret", of="USER MAPPING FOR PUBLIC SERVER kafka")
    drain(shared_cluster, database, 5)
    check_all(shared_cluster, database, secure_kafka, topic, load)


def test_a_wrong_ca_is_named_and_messages_go_out_once_it_is_right(shared_cluster, database, secure_kafka, unique):
    topic = secure_kafka.create_topic(unique)
    before = len(shared_cluster.log)
    install_secure(shared_cluster, secure_kafka, database, pem=secure_kafka.other_ca("stranger").read_text())
    with Load(shared_cluster, topic, database) as load:
        load.wait_for_more(50)
    reason = wait_backing_off(shared_cluster, database, "no TLS connection to Kafka")
    assert "certificate verify failed: the broker's certificate" in reason, reason
    assert_quiet(shared_cluster, database, before, size(5, 75))
    set_option(shared_cluster, database, "ssl.ca.pem", secure_kafka.ca.read_text())
    drain(shared_cluster, database, 5)
    check_all(shared_cluster, database, secure_kafka, topic, load)


def test_an_expired_certificate_is_named_and_a_new_one_is_noticed(shared_cluster, database, own_secure_kafka, unique):
    topic = own_secure_kafka.create_topic(unique)
    own_secure_kafka.replace_certificate(days=-1)
    own_secure_kafka.restart()
    before = len(shared_cluster.log)
    install_secure(shared_cluster, own_secure_kafka, database)
    with Load(shared_cluster, topic, database) as load:
        load.wait_for_more(50)
    reason = wait_backing_off(shared_cluster, database, "no TLS connection to Kafka")
    assert "certificate has expired" in reason, reason
    assert_quiet(shared_cluster, database, before, size(3, 75))
    own_secure_kafka.replace_certificate()
    own_secure_kafka.reload_certificate()
    drain(shared_cluster, database, 10)
    check_all(shared_cluster, database, own_secure_kafka, topic, load)


def test_a_certificate_of_another_ca_is_taken_over_under_load(shared_cluster, database, own_secure_kafka, unique):
    topic = own_secure_kafka.create_topic(unique)
    bundle = own_secure_kafka.folder / "bundle.pem"
    bundle.write_text(own_secure_kafka.ca.read_text())
    install_secure(shared_cluster, own_secure_kafka, database, location=bundle)
    worker = shared_cluster.wait_worker(database)
    with Load(shared_cluster, topic, database) as load:
        load.wait_for_more(50)
        # a renewal: nobody notices
        own_secure_kafka.replace_certificate()
        own_secure_kafka.reload_certificate()
        load.wait_for_more(50)
        assert worker_state(shared_cluster, database)[0] in ("running", "idle")
        # another CA, first in the file that the option names, then in the option
        other = own_secure_kafka.replace_certificate(ca="second").read_text()
        own_secure_kafka.restart()
        wait_backing_off(shared_cluster, database, "certificate verify failed")
        bundle.write_text(other)
        shared_cluster.reload()
        wait_until(lambda: worker_state(shared_cluster, database)[0] in ("running", "idle"), 10, "it reads the new file")
        load.wait_for_more(50)
        other = own_secure_kafka.replace_certificate(ca="third").read_text()
        own_secure_kafka.restart()
        wait_backing_off(shared_cluster, database, "certificate verify failed")
        options = f"DROP \"ssl.ca.location\", ADD \"ssl.ca.pem\" '{other}'"
        shared_cluster.sql(f"ALTER SERVER kafka OPTIONS ({options})", dbname=database)
        wait_until(lambda: worker_state(shared_cluster, database)[0] in ("running", "idle"), 10, "it uses the new option")
        load.wait_for_more(50)
    # what was stored and not answered when the broker ended is sent again by the producer with the new certificate
    check_all(shared_cluster, database, own_secure_kafka, topic, load, repeats=True)
    assert shared_cluster.wait_worker(database) == worker, "the same process all the time"
