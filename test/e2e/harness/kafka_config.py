"""server.properties of the real Kafka, and the certificates of its secure listener."""

import subprocess

USERS = {"alice": "alice-secret", "bob": "bob-secret"}
_STORE_PASSWORD = "changeit"  # of a key that lives as long as the test


def write(folder, port, properties, secure):
    """Plain listener on `port`, controller on port + 1, SASL_SSL on port + 2."""
    listeners = {"PLAINTEXT": f"127.0.0.1:{port}", "CONTROLLER": f"127.0.0.1:{port + 1}"}
    advertised = {"PLAINTEXT": f"127.0.0.1:{port}"}
    lines = _base(folder, port)
    if secure:
        (folder / "tls").mkdir()
        make_certificate(folder / "tls")
        listeners["SASL_SSL"] = f"127.0.0.1:{port + 2}"
        advertised["SASL_SSL"] = f"localhost:{port + 2}"
        lines |= _secure(folder / "tls")
    lines["listeners"] = ",".join(f"{name}://{where}" for name, where in listeners.items())
    lines["advertised.listeners"] = ",".join(f"{name}://{where}" for name, where in advertised.items())
    lines |= properties
    text = "".join(f"{name}={value}\n" for name, value in lines.items())
    (folder / "server.properties").write_text(text)


def _base(folder, port):
    return {
        "process.roles": "broker,controller",
        "node.id": 1,
        "controller.quorum.bootstrap.servers": f"127.0.0.1:{port + 1}",
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "PLAINTEXT",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL_SSL:SASL_SSL",
        "log.dirs": folder / "log",
        "auto.create.topics.enable": "false",
        "num.partitions": 3,
        "group.initial.rebalance.delay.ms": 0,
        # after a crash the controller refuses the same broker until its old session has ended
        "broker.session.timeout.ms": 2000,
        "broker.heartbeat.interval.ms": 500,
        # one broker cannot hold three replicas of the internal topics
        "offsets.topic.replication.factor": 1,
        "offsets.topic.num.partitions": 5,
        "transaction.state.log.replication.factor": 1,
        "transaction.state.log.min.isr": 1,
        "transaction.state.log.num.partitions": 5,
        "share.coordinator.state.topic.replication.factor": 1,
        "share.coordinator.state.topic.min.isr": 1,
    }


def _secure(tls):
    package = "org.apache.kafka.common.security"
    users = " ".join(f'user_{name}="{password}"' for name, password in USERS.items())
    return {
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
        "listener.name.sasl_ssl.scram-sha-256.sasl.jaas.config": f"{package}.scram.ScramLoginModule required;",
        "listener.name.sasl_ssl.plain.sasl.jaas.config": f"{package}.plain.PlainLoginModule required {users};",
        "ssl.keystore.location": tls / "broker.p12",
        "ssl.keystore.password": _STORE_PASSWORD,
        "ssl.keystore.type": "PKCS12",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",  # whoever comes through the plain listener
    }


def scram_users():
    """Arguments of StorageTool format."""
    return [
        word
        for name, password in USERS.items()
        for word in ("--add-scram", f"SCRAM-SHA-256=[name={name},password={password}]")
    ]


_REQUEST = ["req", "-newkey", "rsa:2048", "-nodes"]


def make_ca(tls, name):
    """name.pem and name.key, unless they are there; returns the first."""
    certificate = tls / f"{name}.pem"
    if not certificate.exists():
        _openssl(tls, *_REQUEST, "-x509", "-days", 365, "-subj", f"/CN=test-{name}", "-keyout", f"{name}.key", "-out", certificate)
    return certificate


def make_certificate(tls, ca="ca", days=365):
    """broker.p12 of the secure listener, signed by this CA; days < 0: it has expired."""
    signed_by = make_ca(tls, ca)
    (tls / "names").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1")
    _openssl(tls, *_REQUEST, "-subj", "/CN=localhost", "-keyout", "broker.key", "-out", "broker.csr")
    _openssl(
        *(tls, "x509", "-req", "-in", "broker.csr", "-CA", signed_by, "-CAkey", f"{ca}.key", "-CAcreateserial"),
        *("-days", days, "-extfile", "names", "-out", "broker.pem"),
    )
    _openssl(
        *(tls, "pkcs12", "-export", "-in", "broker.pem", "-inkey", "broker.key", "-certfile", signed_by),
        *("-passout", f"pass:{_STORE_PASSWORD}", "-out", "broker.p12"),
    )


def _openssl(tls, *words):
    subprocess.run(["openssl", *map(str, words)], cwd=tls, check=True, capture_output=True)
