"""How a reflector asks: what may be set for one resource (client-go's ReflectorOptions)."""

from dataclasses import dataclass

from declctl.informer.reflector.backoff import BackoffFactory, ExponentialBackoff

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
