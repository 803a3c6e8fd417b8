"""Who asked for what: every request for a resource, in the order in which it arrived.

Tests count LISTs here.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from declctl.objects import KubeObject


@dataclass(frozen=True, slots=True)
class Request:
    """One request. `resource` is the plural, with a subresource behind a slash (`pods/status`).

    `verb` is one of list, watch, get, create, update, patch, delete, deletecollection; `namespace` and `name`
    are empty where there is none; `time` is in seconds on the server's monotonic clock; `connection` numbers
    the TCP connections from 1.
    """

    verb: str
    resource: str
    namespace: str
    name: str
    params: Mapping[str, str]
    time: float
    connection: int
    user_agent: str

    def document(self) -> KubeObject:
        """As JSON."""
        return {**asdict(self), "params": dict(self.params)}


class Ledger:
    """The requests since the start, or since the last `clear`; of very many, the newest `limit`."""

    def __init__(self, *, limit: int = 200_000) -> None:
        self._requests: deque[Request] = deque(maxlen=limit)

    def record(self, request: Request) -> None:
        """Write one down."""
        self._requests.append(request)

    def requests(
        self, verb: str | None = None, *, resource: str | None = None, namespace: str | None = None
    ) -> tuple[Request, ...]:
        """Those that match everything that is given; `namespace` "" means without one."""
        return tuple(
            request
            for request in self._requests
            if verb in (None, request.verb)
            and resource in (None, request.resource)
            and namespace in (None, request.namespace)
        )

    def count(
        self, verb: str | None = None, *, resource: str | None = None, namespace: str | None = None
    ) -> int:
        """How many match."""
        return len(self.requests(verb, resource=resource, namespace=namespace))

    def clear(self) -> None:
        """Start afresh."""
        self._requests.clear()
