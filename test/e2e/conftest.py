"""Fixtures of the end-to-end tests; harness/README.md explains them."""

import contextlib
import itertools
import os

import pytest
from harness import SEED, Cluster, EmbeddedKafka, RealKafka, cache, current_librdkafka, processes, resources

_numbers = itertools.count(1)


def pytest_report_header():
    return f"OUTBOX_SEED={SEED}"


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    report = outcome.get_result()
    if report.failed:
        for resource in resources.in_use():
            with contextlib.suppress(Exception):
                report.sections += resource.log_sections()


@pytest.fixture
def closing():
    """closing(primary.standby()) closes what it gets when the test ends, last first, and returns it."""
    with contextlib.ExitStack() as stack:
        yield stack.enter_context


@pytest.fixture
def make_cluster(closing):
    """make_cluster(options) starts a Cluster that ends with the test."""
    return lambda *args, **kwargs: closing(Cluster(*args, **kwargs))


@pytest.fixture
def make_real_kafka(closing):
    """make_real_kafka(properties, secure=…) starts a RealKafka that ends with the test."""
    return lambda *args, **kwargs: closing(RealKafka(*args, **kwargs))


@pytest.fixture
def make_embedded(closing):
    """make_embedded(brokers=3) starts an EmbeddedKafka that ends with the test."""
    return lambda *args, **kwargs: closing(EmbeddedKafka(*args, **kwargs))


@pytest.fixture
def cluster(make_cluster):
    """A cluster of this test's own: it may stop it, kill it, configure it."""
    return make_cluster()


@pytest.fixture(scope="session")
def shared_cluster():
    """One cluster for all tests that only need a database. Do not restart, kill or reconfigure it."""
    with Cluster() as cluster:
        yield cluster


@pytest.fixture
def database(shared_cluster, unique):
    """The name of a new, empty database of the shared cluster, dropped after the test."""
    name = shared_cluster.createdb(unique)
    yield name
    shared_cluster.dropdb(name)


@pytest.fixture(scope="session")
def current_pg_config():
    """Of a PostgreSQL whose outbox uses a current librdkafka: for Cluster(pg_config=…)."""
    try:
        pg_config, folder = current_librdkafka.install()
    except cache.Unavailable as reason:
        pytest.skip(f"no current librdkafka: {reason}")
    yield pg_config
    processes.remove_folder(folder)


@pytest.fixture(scope="session")
def kafka():
    """One real broker for all tests that do not break it. Use topics of your own: kafka.create_topic(unique)."""
    with RealKafka() as kafka:
        yield kafka


@pytest.fixture
def own_kafka(make_real_kafka):
    """A real broker of this test's own: it may stop it, kill it, pause it."""
    return make_real_kafka()


@pytest.fixture
def embedded(make_embedded):
    """An embedded Kafka of this test's own."""
    return make_embedded()


@pytest.fixture
def unique(request):
    """A name no other test uses, for topics, databases, roles: lower case letters, digits, underscores, 40 at most."""
    name = "".join(c if c.isalnum() else "_" for c in request.node.name.lower())[:24].strip("_")
    return f"{name}_{os.getpid()}_{next(_numbers)}"
