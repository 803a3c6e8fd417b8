"""The transport: the only room with sockets to a cluster.

The address of the cluster, the login and TLS come from the asyncio part of the official client. LIST and
WATCH are read here as bytes and returned as records and events. A fault is raised once, as one error. What to
list, when to watch again and how long to back off is decided by other rooms.
"""

from declctl.transport.client import Client
from declctl.transport.config import Identity
from declctl.transport.health import ServerHealth, ServerStatus
from declctl.transport.messages import RequestTotal, TransportStatistics
from declctl.transport.source import LineSplitter, ResourceSource

__all__ = [
    "Client",
    "Identity",
    "LineSplitter",
    "RequestTotal",
    "ResourceSource",
    "ServerHealth",
    "ServerStatus",
    "TransportStatistics",
]
