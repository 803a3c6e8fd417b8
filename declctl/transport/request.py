"""What is put on the wire and what comes back; the wire itself is `wire`, which is slow to load."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked. It is counted as `verb`; a WATCH has `watch_seconds`, after which it is over."""

    verb: str
    path: str
    method: str = "GET"
    params: Mapping[str, str] = field(default_factory=dict[str, str])
    body: Any = None
    content_type: str = "application/json"
    accept: str = "application/json"
    watch_seconds: int = 0


class BrokenBody(ValueError):
    """A body that is not what the head of its answer said: no chunks, or no gzip."""


class Sink(Protocol):
    """What takes the bytes of a body."""

    def feed(self, part: memoryview) -> None:
        """The next bytes, at least one. Their memory is used again afterwards: what is kept is copied."""
        ...


class Channel(Protocol):
    """The body of one LIST or WATCH, as it comes."""

    async def read(self) -> bool:
        """Wait until the sink was given more; False if there will be no more. Raises the ApiError family."""
        ...

    def close(self) -> None:
        """End its connection at once unless everything was read; twice is harmless."""
        ...


class Wire(Protocol):
    """The connections to one server."""

    async def fetch(self, request: Request) -> bytes:
        """The body of a successful answer; raises the ApiError family."""
        ...

    async def open(self, request: Request, sink: Sink) -> Channel:
        """The body of a LIST or a WATCH, once the server has accepted it; raises the ApiError family.

        It goes into the sink while the channel is read, and a little ahead of that.
        """
        ...

    async def close(self) -> None:
        """Close every connection; requests after this raise Unreachable."""
        ...
