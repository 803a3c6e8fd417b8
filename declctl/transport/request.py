"""What is put on the wire and what comes back; the wire itself is `wire`, which is slow to load."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked. It is counted as `verb`; a WATCH is over after `watch_seconds`."""

    verb: str
    path: str
    method: str = "GET"
    params: Mapping[str, str] = field(default_factory=dict[str, str])
    body: Any = None
    content_type: str = "application/json"
    accept: str = "application/json"
    watch_seconds: int = 0


class Channel(Protocol):
    """The body of one WATCH, as it comes."""

    async def read(self) -> bytes:
        """Whatever has arrived, at least a byte; empty at the end. Raises Unreachable."""
        ...

    def close(self) -> None:
        """End its connection at once, whatever else is still in it; twice is harmless."""
        ...


class Wire(Protocol):
    """The connections to one server."""

    async def fetch(self, request: Request) -> bytes:
        """The body of a successful answer; raises the ApiError family."""
        ...

    async def open(self, request: Request) -> Channel:
        """The body of a WATCH, once the server has accepted it; raises the ApiError family."""
        ...

    async def close(self) -> None:
        """Close every connection; requests after this raise Unreachable."""
        ...
