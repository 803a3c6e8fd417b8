"""How a reflector asks (client-go's ReflectorOptions), and how long it waits after a fault (Backoff)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from declctl.errors import NotFound, StatusError
from declctl.kit import Clock

FIRST, FACTOR, LONGEST, QUIET = 0.8, 2.0, 30.0, 120.0  # seconds, as in client-go
_LONGEST_WHILE_MISSING = 10.0  # seconds: a kind that appears is listed soon after that
_LONGEST_RETRY_AFTER = 300.0  # seconds: the longest wait that a server can ask for


class Backoff(Protocol):
    """A schedule of waits. Each reflector has its own, and calls `seconds` once for each fault."""

    def seconds(self, fault: Exception) -> float:
        """The wait after this fault, in seconds."""
        ...


BackoffFactory = Callable[[Clock], Backoff]


class ExponentialBackoff:
    """`first` seconds, multiplied by `factor` after each fault up to `longest`.

    A wait of d becomes a random one in [d, 2d), so that a thousand clients do not return at the same moment.
    After `quiet` seconds without a fault the schedule begins at `first` again. Where a server asks for a
    longer wait (Retry-After), that counts, up to five minutes. While a kind is missing, d is at most ten
    seconds.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        first: float = FIRST,
        factor: float = FACTOR,
        longest: float = LONGEST,
        quiet: float = QUIET,
    ) -> None:
        self._clock = clock
        self._first, self._factor, self._longest, self._quiet = first, factor, longest, quiet
        self._next = first
        self._last = float("-inf")

    def seconds(self, fault: Exception) -> float:
        """The wait after this fault, in seconds."""
        now = self._clock.monotonic()
        if now - self._last > self._quiet:
            self._next = self._first
        longest = min(self._longest, _LONGEST_WHILE_MISSING) if isinstance(fault, NotFound) else self._longest
        base = min(self._next, longest)
        self._next = min(self._next * self._factor, self._longest)
        asked = fault.retry_after if isinstance(fault, StatusError) else None
        wait = max(base * (1 + self._clock.random()), min(asked or 0.0, _LONGEST_RETRY_AFTER))
        self._last = now + wait
        return wait


SHORTEST_WATCH = 300  # seconds: a server is never asked to end watches sooner


@dataclass(frozen=True, slots=True)
class ReflectorOptions:
    """Times are in seconds.

    - `idle_timeout`: a watch that says nothing for so long, not even a bookmark, is opened anew.
    - `page_size`: objects on a page of a LIST, of every one. None leaves it to client-go's policy:
      500 on a page where the server reads its storage anyway, and no pages where its watch cache can
      answer.
    - `watch_list`: ask for streaming lists. Off: always LIST, then WATCH.
    - `min_watch_timeout`: the server is asked to end a watch after a random time between this and
      its double; less than 300 counts as 300.
    - `backoff`: makes the schedule of waits after faults.
    - `check_consistency`: after each streaming list, list again at exactly its version and compare
      (client-go's data consistency detector). It costs a LIST from the server's storage.
    """

    idle_timeout: float = 90.0
    page_size: int | None = None
    watch_list: bool = True
    min_watch_timeout: int = SHORTEST_WATCH
    backoff: BackoffFactory = ExponentialBackoff
    check_consistency: bool = False


DEFAULT_OPTIONS = ReflectorOptions()
