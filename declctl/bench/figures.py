"""What was written down, as figures: pure functions over calls, changes and requests."""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from declctl.bench.calls import Call
from declctl.bench.cluster import Made
from declctl.sandbox import Request

_OURS = "declctl/"  # what handlers ask by themselves is not counted


@dataclass(frozen=True, slots=True)
class Figures:
    """What one change of the code cost. Times are in seconds.

    `lists` and `watches` are those asked of the API server after the edit was saved; a list that is
    streamed through a watch is both. `told_again` counts handlers' calls for objects that they knew
    (`Added`, part of a first sync). `retries` were waiting at that moment, and `retries_lost` of these were
    never made; `memos` are those that new code looked for, and `memos_lost` those that it missed.

    `effect` is the time from the save until the last handler's new code was told a change that was made
    after it. `changes` counts what handlers had to hear of changes made after the save, `unheard` what they
    never did, neither by itself nor as a later state, and `longest_wait` is the longest time from a change
    to the call.
    """

    lists: int
    watches: int
    told_again: int
    retries: int
    retries_lost: int
    memos: int
    memos_lost: int
    effect: float
    changes: int
    unheard: int
    longest_wait: float


@dataclass(frozen=True, slots=True)
class Observed:
    """Everything that was written down about one change of the code.

    `saved` is when the edit was saved, in monotonic seconds; `old` is the process and the generation that
    ran until then. `calls` begin with the start of the old process; `changes` and `requests` may. `attempts`
    has the handlers that give up, and after how many calls.
    """

    saved: float
    old: tuple[int, int]
    calls: Sequence[Call]
    changes: Sequence[Made]
    requests: Sequence[Request]
    hearing: "Hearing"
    attempts: Mapping[str, int] = field(default_factory=dict[str, int])

    def before(self) -> Iterator[Call]:
        """The calls of the old code that began before the edit was saved."""
        return (call for call in self.calls if call.began < self.saved and not self.is_new(call))

    def after(self) -> Iterator[Call]:
        """The calls of the new code."""
        return (call for call in self.calls if self.is_new(call))

    def is_new(self, call: Call) -> bool:
        """Whether it was the new code that was called."""
        return (call.process, call.generation) != self.old


@dataclass(frozen=True, slots=True)
class Hearing:
    """Which handlers hear of which types of changes, of which resource: learnt from what they were told."""

    types: Mapping[str, frozenset[str]]
    resources: Mapping[str, str] = field(default_factory=dict[str, str])

    @classmethod
    def of(cls, calls: Iterable[Call], changes: Iterable[Made]) -> "Hearing":
        """From calls for changes that were made on purpose: what is told at a start is none."""
        made = {(change.type, change.resource, change.key) for change in changes}
        types: dict[str, set[str]] = defaultdict(set)
        resources: dict[str, str] = {}
        for call in calls:
            if not call.initial and (call.type, call.resource, call.key) in made:
                types[call.handler].add(call.type)
                resources[call.handler] = call.resource
        return cls({name: frozenset(found) for name, found in types.items()}, resources)

    @property
    def handlers(self) -> frozenset[str]:
        """Those that hear of anything."""
        return frozenset(self.types)


def figures(observed: Observed) -> Figures:
    """What it cost; raises ValueError if a handler's new code was never told a change."""
    asked = [r for r in observed.requests if r.time >= observed.saved and r.user_agent.startswith(_OURS)]
    retries, lost = _retries(observed)
    memos, missed = _memos(observed)
    waits, unheard, effects = _waits(observed)
    missing = ", ".join(sorted(observed.hearing.handlers - effects.keys()))
    if missing:
        raise ValueError(f"the new code of {missing} was told no change")
    return Figures(
        lists=sum(_is_list(request) for request in asked),
        watches=sum(request.verb == "watch" for request in asked),
        told_again=_told_again(observed),
        retries=retries,
        retries_lost=lost,
        memos=memos,
        memos_lost=missed,
        effect=max(effects.values()) - observed.saved,
        changes=len(waits) + unheard,
        unheard=unheard,
        longest_wait=max(waits, default=0.0),
    )


def _is_list(request: Request) -> bool:
    """Whether a request begins a list: the first page of one, or a watch that brings everything first."""
    if request.verb == "watch":
        return request.params.get("sendInitialEvents") == "true"
    return request.verb == "list" and not request.params.get("continue")


def _told_again(observed: Observed) -> int:
    known = {(call.handler, call.key) for call in observed.before()}
    told = {(c.handler, c.key) for c in observed.after() if c.initial and c.type == "Added"}
    return len(known & told)


def _retries(observed: Observed) -> tuple[int, int]:
    """How many waited when the edit was saved, and how many of these were lost.

    A change that is tried again was received when it was received the first time. One that has not been
    tried again yet is lost with its process, or when its object was told anew in its place.
    """
    waiting = _waiting(observed)
    later = [call for call in observed.calls if call.began >= observed.saved]
    left = waiting - {(call.handler, call.key, call.received) for call in later}
    if any(call.process != observed.old[0] for call in later):
        return len(waiting), len(left)
    anew = {(call.handler, call.key) for call in later}
    return len(waiting), sum((handler, key) in anew for handler, key, _ in left)


def _waiting(observed: Observed) -> set[tuple[str, str, float]]:
    """The changes that had failed when the edit was saved, and were not given up."""
    attempts: dict[tuple[str, str, float], int] = defaultdict(int)
    for call in observed.before():
        change = call.handler, call.key, call.received
        if call.failed:
            attempts[change] += 1
        else:
            attempts.pop(change, None)
    limits = observed.attempts
    return {change for change, made in attempts.items() if made < limits.get(change[0], math.inf)}


def _memos(observed: Observed) -> tuple[int, int]:
    known = {(call.handler, call.uid): bool(call.memo_after) for call in observed.before()}
    first: dict[tuple[str, str], Call] = {}
    for call in observed.after():
        if known.get((call.handler, call.uid)):
            first.setdefault((call.handler, call.uid), call)
    return len(first), sum(not call.memo for call in first.values())


def _waits(observed: Observed) -> tuple[list[float], int, dict[str, float]]:
    """How long each change waited for each handler, how many were never heard, and the first of new code."""
    told: dict[tuple[str, str], list[Call]] = defaultdict(list)
    for call in sorted(observed.calls, key=lambda call: call.began):
        told[call.handler, call.key].append(call)
    latest = max(observed.calls, key=lambda call: call.began).process
    waits: list[float] = []
    effects: dict[str, float] = {}
    unheard = 0
    for change, handler in _expected(observed):
        call = next((c for c in told[handler, change.key] if _tells(c, change)), None)
        if call is None:
            unheard += not _is_held(told[handler, change.key], latest)
            continue
        waits.append(call.began - change.at)
        if observed.is_new(call):
            effects[handler] = min(effects.get(handler, call.began), call.began)
    return waits, unheard, effects


def _is_held(calls: Sequence[Call], process: int) -> bool:
    """Whether changes of this object wait in the process that runs, behind one that is tried again."""
    return bool(calls) and calls[-1].failed and calls[-1].process == process


def _expected(observed: Observed) -> Iterator[tuple[Made, str]]:
    hearing = observed.hearing
    for change in observed.changes:
        if change.at >= observed.saved:
            for handler, types in hearing.types.items():
                if change.type in types and hearing.resources[handler] == change.resource:
                    yield change, handler


def _tells(call: Call, change: Made) -> bool:
    if call.type == "Deleted" or change.type == "Deleted":
        return call.type == change.type
    return call.version >= change.version
