"""The gate: the only room with a socket to a cluster.

Where the cluster is, how to log in to it and its TLS come from the official client's asyncio side;
LIST and WATCH are read here as bytes and given away as records and events. What decides what to
list, when to watch again or how long to back off does not belong here: a fault is told once, as one
error, to whoever asked.
"""

from declctl.transport.client import Client
from declctl.transport.config import Identity
from declctl.transport.health import ServerHealth, ServerStatus
from declctl.transport.messages import TransportStatistics
from declctl.transport.source import LineSplitter, ResourceSource

__all__ = [
    "Client",
    "Identity",
    "LineSplitter",
    "ResourceSource",
    "ServerHealth",
    "ServerStatus",
    "TransportStatistics",
]
