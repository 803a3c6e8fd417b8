"""The recorder of a process: what is told of caches, calls, requests and reloads, while somebody listens.

`declctl run --record` writes it to a file (`recording`). `declctl replay` compares it with such a file, and
answers the requests itself. Without a recorder, each place that tells it something costs one comparison with
None.
"""

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from datetime import datetime
from typing import TYPE_CHECKING, Protocol

import msgspec

if TYPE_CHECKING:  # the lowest modules of `runtime` import this one
    from declctl.informer.informer import SharedIndexInformer
    from declctl.manifest import Plan
    from declctl.manifest.plan import WatchKey
    from declctl.objects import Codec, RequestSender
    from declctl.transport import Client
    from declctl.transport.official import ClientObserver

current_call: ContextVar[int] = ContextVar("declctl_recorded_call", default=0)
"""The number of the call in whose thread or task this code runs; 0 outside of calls."""


class EndedCall(msgspec.Struct, frozen=True):
    """How a call has ended."""

    outcome: str  # the word of `declctl tap`
    error_type: str = ""
    error: str = ""
    requeue: float | None = None  # seconds, that a reconciler has asked for
    retry: float | None = None  # seconds, until a failed call is made again
    revision: str = ""  # of the object that the call has received
    attempt: int = 1
    seconds: float = 0.0


class CommittedFiles(msgspec.Struct, frozen=True):
    """The files of a generation that was committed."""

    generation: int
    manifest: str  # the name of its file in `files`
    files: Mapping[str, bytes]  # by path below the folder of the manifest
    back: bool = False  # a rollback has brought them back


class Recorder(Protocol):
    """Receives what a process sees and does. No method waits or raises."""

    def follow(self, watch: "WatchKey", informer: "SharedIndexInformer", codec: "Codec") -> None:
        """A cache was made. On the machinery loop."""
        ...

    def begins(self, handler: str, key: str, generation: int) -> int:
        """A call begins; returns its number. In the thread or task of its worker, before it reads."""
        ...

    def ended(self, call: int, end: EndedCall) -> None:
        """A call has ended. From any thread."""
        ...

    def now(self, clock: Callable[[], datetime]) -> datetime:
        """The time that `ctx.now` returns to a call; `clock` has the present one. From any thread."""
        ...

    def around(self, sender: "RequestSender") -> "RequestSender":
        """The sender that the requests of handlers pass, made of the one that sends them."""
        ...

    def client_observer(self) -> "ClientObserver":
        """What sees the requests of `ctx.client` and `ctx.sync_client`."""
        ...

    def committed(self, files: CommittedFiles) -> None:
        """A generation was committed. On the machinery loop."""
        ...

    def reloaded(self, result: str, generation: int, line: str) -> None:
        """An attempt to reload has ended. On the machinery loop."""
        ...

    def close(self) -> None:
        """The process ends."""
        ...


MakeRecorder = Callable[["Client", "Plan"], Recorder]
"""Makes the recorder of a process, on the machinery loop, once the client has connected."""
