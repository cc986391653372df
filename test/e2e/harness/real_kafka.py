"""A real single-node Apache Kafka (KRaft): its own folder and ports, broken and mended in every way there is."""

import base64
import signal
import subprocess
import uuid

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic

from . import cache, kafka_config, kafka_jars, processes
from .records import Readable
from .resources import Resource
from .waiting import wait_until


class RealKafka(Resource, Readable):
    """Started by the constructor, which skips the test (pytest.skip) where Java or the jars are missing.

    properties: lines over the broker's defaults ({"message.max.bytes": 2000}). Topics are not created by themselves.
    secure=True adds a SASL_SSL listener on localhost (`secure_bootstrap`, `ca`): users alice and bob, passwords
    alice-secret and bob-secret, mechanisms PLAIN and SCRAM-SHA-256 (librdkafka before 2.6.1 fails at SCRAM with Kafka 4).
    There, and only there, rights are checked: a user may nothing until grant(). The plain listener may do everything.
    """

    def __init__(self, properties=None, *, secure=False, heap="1g"):
        try:
            self._jars = kafka_jars.jars()
        except cache.Unavailable as reason:
            pytest.skip(f"no real Kafka: {reason}")
        self.folder = processes.make_folder("kafka-")
        self.log_path = self.folder / "broker.log"
        self.port = processes.free_ports(3)
        self.bootstrap = f"127.0.0.1:{self.port}"
        self.secure_bootstrap = f"localhost:{self.port + 2}" if secure else None
        self.ca = self.folder / "tls" / "ca.pem" if secure else None
        self._heap = heap
        self._process = None
        self._admin = None
        self.register()
        try:
            kafka_config.write(self.folder, self.port, properties or {}, secure)
            self._format(kafka_config.scram_users() if secure else [])
            self.start()
        except BaseException:
            self.close()
            raise

    # ---- the process

    def _java(self, heap):
        options = [
            *("-Xms64m", f"-Xmx{heap}", "-XX:+UseSerialGC"),
            # a killed broker leaves its files in its own folder
            *("-XX:-UsePerfData", f"-Djava.io.tmpdir={self.folder}"),
            f"-Dlog4j2.configurationFile={kafka_jars.LOG_CONFIG}",
        ]
        return ["java", *options, "-cp", f"{self._jars}/*"]

    def tool(self, name, *args):
        """Run a class of Kafka's own tools (org.apache.kafka.tools.AclCommand); about 2 s. Returns its output."""
        done = subprocess.run(
            [*self._java("256m"), name, *map(str, args)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=120,
        )
        if done.returncode:
            raise AssertionError(f"{name} {args} failed:\n{done.stdout}")
        return done.stdout

    def _format(self, users):
        cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        config = self.folder / "server.properties"
        self.tool("kafka.tools.StorageTool", "format", "--standalone", f"--cluster-id={cluster_id}", "-c", config, *users)

    def start(self, timeout=120):
        """Start and wait until it answers a metadata request."""
        self.start_without_waiting()
        try:
            wait_until(self._answers, timeout, "Kafka answers", interval=0.1)
        except AssertionError:
            raise AssertionError(f"Kafka did not answer:\n{processes.tail(self.log_path, 30)}") from None
        return self

    def start_without_waiting(self):
        with open(self.log_path, "ab") as log:
            self._process = subprocess.Popen(
                [*self._java(self._heap), "kafka.Kafka", self.folder / "server.properties"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
                start_new_session=True,  # an interrupt of the tests must not reach the broker before its reader
            )

    def _answers(self):
        if self._process.poll() is not None:
            raise RuntimeError(f"Kafka ended with {self._process.returncode}:\n{processes.tail(self.log_path, 30)}")
        try:
            return self.admin.list_topics(timeout=2).brokers
        except KafkaException:
            return None

    @property
    def pid(self):
        return self._process.pid

    @property
    def running(self):
        return self._process is not None and self._process.poll() is None

    def stop(self, timeout=60):
        """A clean stop."""
        self._end(signal.SIGTERM, timeout)

    def kill(self):
        """SIGKILL: a crash. The data stays; start() brings it back on the same port."""
        self._end(signal.SIGKILL, 20)

    def _end(self, number, timeout):
        if self.running:
            self._process.send_signal(number)
            self._process.wait(timeout)

    def restart(self):
        self.stop()
        return self.start()

    def pause(self):
        """SIGSTOP: it hangs, and its sockets stay open."""
        self._process.send_signal(signal.SIGSTOP)

    def resume(self):
        self._process.send_signal(signal.SIGCONT)

    def close(self):
        """Kill it and remove everything."""
        self.kill()
        self._admin = None
        processes.remove_folder(self.folder)
        self.unregister()

    def log_sections(self):
        return [(f"Kafka log, port {self.port}", processes.tail(self.log_path))]

    # ---- the certificate of the secure listener

    def replace_certificate(self, ca="ca", days=365):
        """Write another certificate, of this CA; days < 0: one that has expired. restart() or reload_certificate()
        makes it count. Returns the file of the CA."""
        kafka_config.make_certificate(self.ca.parent, ca, days)
        return self.other_ca(ca)

    def other_ca(self, name):
        """The certificate file of a CA, which is made if it is new. `ca` is that of the broker at its start."""
        return kafka_config.make_ca(self.ca.parent, name)

    def reload_certificate(self):
        """For new connections, while it runs; open ones stay."""
        keystore = {"listener.name.sasl_ssl.ssl.keystore.location": str(self.ca.parent / "broker.p12")}
        resource = ConfigResource("broker", "1", set_config=keystore)
        self.admin.alter_configs([resource], request_timeout=30)[resource].result()

    # ---- topics

    @property
    def admin(self):
        """A confluent_kafka AdminClient on the plain listener."""
        if self._admin is None:
            self._admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        return self._admin

    def create_topic(self, name, partitions=3, config=None):
        """Create a topic and wait until it has its leaders; config: {"max.message.bytes": 2000}. Returns the name."""
        topic = NewTopic(name, num_partitions=partitions, replication_factor=1, config=_texts(config))
        self.admin.create_topics([topic], request_timeout=30)[name].result()
        wait_until(lambda: self._has_leaders(name, partitions), 30, f"leaders of {name}")
        return name

    def _has_leaders(self, name, partitions):
        found = self.admin.list_topics(name, timeout=5).topics[name].partitions
        return len(found) == partitions and all(p.leader >= 0 for p in found.values())

    def delete_topic(self, name):
        self.admin.delete_topics([name], request_timeout=30)[name].result()

    def alter_topic(self, name, config):
        """Set the topic's own configuration to exactly this."""
        resource = ConfigResource("topic", name, set_config=_texts(config))
        self.admin.alter_configs([resource], request_timeout=30)[resource].result()

    # ---- rights, checked on the secure listener only

    def grant(self, user, *operations, topic=None):
        """Allow operations (Write, Describe, DescribeConfigs, Read, …) on a topic, or on the cluster without one."""
        self._acl("--add", user, operations, topic)

    def revoke(self, user, *operations, topic=None):
        self._acl("--remove", user, operations, topic)

    def _acl(self, action, user, operations, topic):
        resource = ["--topic", topic] if topic else ["--cluster"]
        allowed = [word for operation in operations for word in ("--operation", operation)]
        force = ["--force"] if action == "--remove" else []
        self.tool(
            "org.apache.kafka.tools.AclCommand",
            *("--bootstrap-server", self.bootstrap, action, *force),
            *("--allow-principal", f"User:{user}", *allowed, *resource),
        )


def _texts(config):
    return {name: str(value) for name, value in (config or {}).items()}
