"""`declctl top`: the load of a running process, live: its handlers, caches, last reload and leader.

Rates are differences of two reads of GET /status. A figure that has gone down belongs to a new process, and
has no rate. On a terminal the view is drawn again and again; everywhere else there is one sample.
"""

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec

from declctl.cli.admin_client import AdminAddress, admin_address, ask, expect, why_redacted
from declctl.cli.options import duration_of
from declctl.cli.report import PROCESS_HEADERS, age, headline, last_event, process_rows, slots_in_words
from declctl.cli.terminal import has_colour, line, make_table, print_json, print_table
from declctl.errors import UsageError
from declctl.kit import figures
from declctl.kit.documents import document_of
from declctl.kit.text import one_line
from declctl.runtime.reasons import RELOADED

if TYPE_CHECKING:  # late: only a terminal needs rich's live view
    from rich.console import RenderableType

_SECONDS = 2.0  # between two reads of a live view
_ONE_SECOND = 1.0  # between the two reads of one sample
_LEAST_SECONDS = 0.1
_FIELDS = ("name", "generation", "ready", "conditions", "resources", "handlers")
_HANDLER_HEADERS = (
    *("HANDLER", "CALLS/S", "FAILED/S", "RETRIED/S", "QUEUED", "RUNNING", "P50", "P95", "P99"),
    *("FAILED", "DEAD LETTERS", "LAST ERROR"),
)
_CACHE_HEADERS = ("CACHE", "OBJECTS", "MEMORY", "EVENTS/S", "RELISTS", "LAST EVENT", "STATE")
_PROCESS_HEADERS = ("PROCESS OF", *PROCESS_HEADERS)
_ALARMING = ("FAILED/S", "RETRIED/S", "FAILED", "DEAD LETTERS")


class HandlerLoad(msgspec.Struct, frozen=True):
    """The load of one handler. Rates are in calls each second; None where there is no difference yet."""

    name: str
    calls_per_second: float | None
    failed_per_second: float | None
    retried_per_second: float | None
    queued: int
    running: int
    p50_seconds: float
    p95_seconds: float
    p99_seconds: float
    failed: int  # since the start of the process
    dead_letters: int
    last_error: str | None
    isolation: Mapping[str, Any] | None  # the processes of an isolated handler, as in the status


class CacheLoad(msgspec.Struct, frozen=True):
    """The load of the cache of one resource."""

    name: str
    objects: int
    bytes: int
    events_per_second: float | None
    relists: int
    last_event_age: float | None  # seconds
    state: str


class LoadSample(msgspec.Struct, frozen=True):
    """The load of one process between two reads."""

    time: datetime
    seconds: float  # between the two reads
    name: str
    generation: int
    ready: bool
    leader: bool  # this process acts; also without an election
    leader_identity: str | None  # who holds the lease; None without an election
    slots: str  # those that this process handles, in words; empty without a sharding
    reload_reason: str  # of the last reload; empty before the first
    reload_status: str  # of the condition Reloaded: True, False or Unknown
    reload_time: str | None  # the end of the last reload, RFC 3339
    handlers: tuple[HandlerLoad, ...]
    caches: tuple[CacheLoad, ...]
    headline: str  # the name, the generation, and what is wrong


def sample(
    before: Mapping[str, Any], after: Mapping[str, Any], *, seconds: float, now: datetime
) -> LoadSample:
    """The load between two status documents that were read `seconds` apart."""
    rate = _Rates(seconds)
    old_handlers = {each["name"]: each for each in before["handlers"]}
    old_caches = {each["name"]: each for each in before["resources"]}
    reloaded = next((each for each in after["conditions"] if each["type"] == RELOADED), {})
    last_reload = after.get("lastReload") or {}
    election = after.get("leaderElection") or {}
    return LoadSample(
        time=now,
        seconds=seconds,
        name=after["name"],
        generation=after["generation"],
        ready=after["ready"],
        leader=after.get("leader", True),
        leader_identity=election.get("holder"),
        slots=slots_in_words(sharding) if (sharding := after.get("sharding")) else "",
        reload_reason=last_reload.get("reason", ""),
        reload_status=reloaded.get("status", "Unknown"),
        reload_time=last_reload.get("time"),
        handlers=tuple(_handler(each, old_handlers.get(each["name"]), rate) for each in after["handlers"]),
        caches=tuple(_cache(each, old_caches.get(each["name"]), rate) for each in after["resources"]),
        headline=headline(after, now=now),
    )


class _Rates:
    """Makes rates of counters."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def of(self, before: float | None, after: float | None) -> float | None:
        """The difference each second; None if a counter is missing, or has begun anew."""
        if before is None or after is None or after < before or self._seconds <= 0:
            return None
        return (after - before) / self._seconds


def _handler(now: Mapping[str, Any], old: Mapping[str, Any] | None, rate: _Rates) -> HandlerLoad:
    def rated(*names: str) -> float | None:
        if old is None:
            return None
        return rate.of(sum(old.get(name, 0) for name in names), sum(now.get(name, 0) for name in names))

    return HandlerLoad(
        name=now["name"],
        # Each call ends in one of three ways.
        calls_per_second=rated("succeeded", "failed", "retried"),
        failed_per_second=rated("failed"),
        retried_per_second=rated("retried"),
        queued=now["queued"],
        running=now["running"],
        # An older process has one percentile alone.
        p50_seconds=now.get("p50Seconds", 0.0),
        p95_seconds=now.get("p95Seconds", 0.0),
        p99_seconds=now.get("p99Seconds", 0.0),
        failed=now["failed"],
        dead_letters=now.get("deadLetters", 0),
        last_error=now.get("lastError"),
        isolation=now.get("isolation"),
    )


def _cache(now: Mapping[str, Any], old: Mapping[str, Any] | None, rate: _Rates) -> CacheLoad:
    def events(document: Mapping[str, Any]) -> int:
        # A bookmark is no event of an object.
        return sum(
            count
            for informer in document.get("informers") or ()
            for kind, count in informer["reflector"]["events"].items()
            if kind != "BOOKMARK"
        )

    return CacheLoad(
        name=now["name"],
        objects=now["objects"],
        bytes=now["bytes"],
        events_per_second=None if old is None else rate.of(events(old), events(now)),
        relists=now["relists"],
        last_event_age=now["lastEventAge"],
        state=now["error"] or now.get("state") or "",
    )


def show_top(
    admin: str | None,
    *,
    once: bool,
    interval: str | None,
    as_json: bool,
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    """Print one sample, or draw the view until Ctrl-C; returns 0.

    There is one sample with `once`, with `as_json`, and without a terminal. `interval` is a duration; `sleep`
    waits so many seconds. Raises UsageError if no process answers the first time.
    """
    live = sys.stdout.isatty() and not once and not as_json
    seconds = (_SECONDS if live else _ONE_SECOND) if interval is None else _duration(interval)
    poller = LoadPoller(admin_address(admin))
    try:
        if live:
            _draw(poller, seconds, sleep)
            return 0
        sleep(seconds)
        taken = poller.poll()
    except KeyboardInterrupt:  # the usual end of a live view
        return 0
    if as_json:
        print_json({name: value for name, value in document_of(taken).items() if name != "headline"})
    else:
        _print(taken)
        if poller.why_redacted is not None:
            line(poller.why_redacted, err=True)
    return 0


class LoadPoller:
    """Reads the status of one process, and makes a sample of each two reads.

    The constructor reads it a first time. It and `poll` raise UsageError if no process answers.
    """

    def __init__(self, target: AdminAddress, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.target = target
        self.why_redacted: str | None = None  # why the last answer has no texts; None if it has them
        self._clock = clock
        self._before = self._read()
        self._read_at = clock()

    @property
    def name(self) -> str:
        """The name of the controller that has answered last."""
        return str(self._before["name"])

    def poll(self) -> LoadSample:
        """Read the status again; the load since the last read."""
        after, now = self._read(), self._clock()
        seconds, before = now - self._read_at, self._before
        self._before, self._read_at = after, now
        # Another process at the same address: its counters have nothing to do with those before.
        if after["name"] != before["name"]:
            before = {**before, "handlers": (), "resources": ()}
        return sample(before, after, seconds=seconds, now=datetime.now(UTC))

    def _read(self) -> Mapping[str, Any]:
        answer = ask(self.target, "GET", "/status")
        self.why_redacted = why_redacted(answer)
        return expect(answer, *_FIELDS)


def _duration(text: str) -> float:
    seconds = duration_of("--interval", text)
    if seconds < _LEAST_SECONDS:
        raise UsageError(f"--interval: at least {_LEAST_SECONDS:g} s, such as 2s.")
    return seconds


def _draw(poller: LoadPoller, seconds: float, sleep: Callable[[float], None]) -> None:
    """Draw the view on the other screen of the terminal, again and again."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console = Console(no_color=not has_colour(sys.stdout), highlight=False, markup=False)
    # The other screen: what was on the terminal is there again afterwards.
    first: RenderableType = Text(one_line(f"reading {poller.name} at {poller.target} …"))
    with Live(first, console=console, screen=True, auto_refresh=False, vertical_overflow="ellipsis") as live:
        while True:
            sleep(seconds)
            try:
                view = _view(poller.poll(), seconds, notes=[poller.why_redacted or ""])
            except UsageError as error:
                # A process that restarts is back in a moment.
                view = Text(one_line(f"{error}"), style="red")
            live.update(view, refresh=True)


def _view(taken: LoadSample, seconds: float, *, notes: Sequence[str] = ()) -> "RenderableType":
    """The sample as rich draws it, with `notes` above the tables; empty ones are left out."""
    from rich.console import Group
    from rich.text import Text

    first, *rest = _head(taken)
    processes = process_rows((each.name, each.isolation) for each in taken.handlers)
    alarm = not taken.ready or taken.reload_status == "False"
    return Group(
        Text(one_line(first), style="bold red" if alarm else "bold"),
        *(
            Text(one_line(each), style="dim")
            for each in (*rest, *filter(None, notes), f"every {figures.duration(seconds)}; Ctrl-C ends")
        ),
        Text(),
        make_table(_HANDLER_HEADERS, _handler_rows(taken), style=_style),
        Text(),
        make_table(_CACHE_HEADERS, _cache_rows(taken)),
        *((Text(), make_table(_PROCESS_HEADERS, processes)) if processes else ()),
    )


def _style(header: str, value: object) -> str:
    """Failures are red."""
    return "red" if header in _ALARMING and value not in (None, 0, "0", "-") else ""


def _print(taken: LoadSample) -> None:
    for each in _head(taken):
        line(each)
    line()
    print_table(_HANDLER_HEADERS, _handler_rows(taken))
    line()
    print_table(_CACHE_HEADERS, _cache_rows(taken))
    if processes := process_rows((each.name, each.isolation) for each in taken.handlers):
        line()
        print_table(_PROCESS_HEADERS, processes)


def _head(taken: LoadSample) -> Iterator[str]:
    yield taken.headline
    reload = taken.reload_reason or "none yet"
    if taken.reload_time:
        reload += f" {age(taken.reload_time, now=taken.time)} ago"
    followed = f"follows {taken.leader_identity}" if taken.leader_identity else "no leader yet"
    leads = "leads" if taken.leader else followed
    objects, memory = sum(each.objects for each in taken.caches), sum(each.bytes for each in taken.caches)
    parts = [f"last reload: {reload}", f"{figures.count(objects)} objects in {figures.byte_size(memory)}"]
    parts += [taken.slots] if taken.slots else []
    yield "; ".join([*parts, leads] if taken.leader_identity is not None or not taken.leader else parts)


def _handler_rows(taken: LoadSample) -> Sequence[Sequence[object]]:
    return [
        (
            each.name,
            *map(_rate, (each.calls_per_second, each.failed_per_second, each.retried_per_second)),
            each.queued,
            each.running,
            *map(_took, (each.p50_seconds, each.p95_seconds, each.p99_seconds)),
            each.failed,
            each.dead_letters,
            each.last_error,
        )
        for each in taken.handlers
    ]


def _cache_rows(taken: LoadSample) -> Sequence[Sequence[object]]:
    return [
        (
            each.name,
            each.objects,
            figures.byte_size(each.bytes),
            _rate(each.events_per_second),
            each.relists,
            last_event(each.last_event_age),
            each.state,
        )
        for each in taken.caches
    ]


def _rate(value: float | None) -> str | None:
    return None if value is None else figures.rate(value)


def _took(seconds: float) -> str | None:
    return figures.duration(seconds) if seconds else None  # 0 stands for no calls
