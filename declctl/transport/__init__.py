"""The transport: the only room with sockets to a cluster.

The official client's loaders log in; requests go over connections of this room. LIST and WATCH are read as
bytes and returned as records and events. A fault is raised once, as one error. What to list, when to watch
again and how long to back off is decided by other rooms.
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
