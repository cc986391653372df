"""For tests with the secure listener of a RealKafka: the foreign server, and what an operator sees when it fails."""

from .install import install_outbox
from .waiting import wait_until

# alice may do everything, so that a test does without grant()
SUPER_ALICE = {"super.users": "User:ANONYMOUS;User:alice"}


def install_secure(cluster, kafka, database, *, mechanism="SCRAM-SHA-256", password="alice-secret", **ca):
    """ca: pem="…" or location=path; that of the broker without either."""
    name, value = next(iter(ca.items())) if ca else ("pem", kafka.ca.read_text())
    options = {"security.protocol": "SASL_SSL", "sasl.mechanisms": mechanism, f"ssl.ca.{name}": value}
    secrets = {"sasl.username": "alice", "sasl.password": password}
    install_outbox(cluster, kafka.secure_bootstrap, database, options=options, user_mapping=secrets)


def worker_state(cluster, database):
    return cluster.sql("SELECT state, reason FROM outbox.workers", dbname=database)[0]


def wait_backing_off(cluster, database, words, timeout=30):
    """Wait for that state with a reason that holds these words; returns the reason."""

    def found():
        state, reason = worker_state(cluster, database)
        return state == "backing_off" and words in reason and reason

    return wait_until(found, timeout, lambda: f"backing off with {words!r}: {worker_state(cluster, database)}")


def lines_of_worker(cluster, after):
    """Lines that the worker wrote to the server log behind that many characters of it."""
    return [line for line in cluster.log[after:].splitlines() if "outbox worker" in line]
