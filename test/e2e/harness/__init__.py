"""Servers, brokers and readers for the end-to-end tests. README.md in this folder is the page to read first."""

from .cluster import Cluster
from .embedded_kafka import EmbeddedKafka
from .install import install_outbox
from .processes import free_port, free_ports
from .real_kafka import RealKafka
from .records import Reader, Record, consume
from .sizes import FULL, SEED, seeded, size
from .waiting import wait_until

__all__ = [
    "FULL",
    "SEED",
    "Cluster",
    "EmbeddedKafka",
    "Reader",
    "RealKafka",
    "Record",
    "consume",
    "free_port",
    "free_ports",
    "install_outbox",
    "seeded",
    "size",
    "wait_until",
]
