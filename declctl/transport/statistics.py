"""What the gate counts: requests, bytes, open watches."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TransportStatistics:
    """The figures of one client.

    `requests` counts by verb (LIST, WATCH, GET, …) and HTTP status, which is 0 where no answer
    came.
    """

    requests: Mapping[tuple[str, int], int]
    bytes_in: int
    open_watches: int
    last_error: str | None


class Tally:
    """The figures as they grow; only the rooms of this folder write them, on the client's loop."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, int]] = Counter()
        self.bytes_in = 0
        self.open_watches = 0
        self.last_error: str | None = None

    def answered(self, verb: str, status: int) -> None:
        """An answer began."""
        self.requests[verb, status] += 1

    def failed(self, verb: str, message: str) -> None:
        """No answer came."""
        self.requests[verb, 0] += 1
        self.last_error = message

    def frozen(self) -> TransportStatistics:
        """The figures of this moment."""
        return TransportStatistics(dict(self.requests), self.bytes_in, self.open_watches, self.last_error)
