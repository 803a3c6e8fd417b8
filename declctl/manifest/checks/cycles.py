"""A rule about handlers that write what calls each other: without an end, if they disagree."""

from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from declctl import codes
from declctl.manifest.document import Findings, Location
from declctl.manifest.values import Json, Path, dotted, entries_at, items_at, value_at

_Kind = tuple[str, str]  # group and kind
_MOST_STARTS = 50  # handlers from which a cycle is looked for; more than people write


class _Handler(NamedTuple):
    """A handler that declares what it writes."""

    name: str  # for messages
    writes: Mapping[_Kind, Path]  # with the place of each
    called_by: frozenset[_Kind]  # kinds whose changes lead to calls of it


class _Write(NamedTuple):
    """A step of a cycle: a handler that writes a kind."""

    handler: int
    kind: _Kind


def check_cycles(findings: Findings) -> None:
    """Warn of handlers that write kinds whose changes call each other, by `applies`, once for each cycle.

    A handler that writes what calls itself is none: an operator watches what it has made.
    """
    handlers = list(_handlers(findings))
    called: dict[_Kind, list[int]] = defaultdict(list)
    written = {kind for handler in handlers for kind in handler.writes}
    for number, handler in enumerate(handlers):
        for kind in handler.called_by & written:
            called[kind].append(number)
    starts = [number for numbers in called.values() for number in numbers]
    told: set[int] = set()
    for start in list(dict.fromkeys(sorted(starts)))[:_MOST_STARTS]:
        cycle = () if start in told else _cycle(handlers, called, start)
        if cycle:
            told.update(step.handler for step in cycle)
            _report(findings, handlers, cycle)


def _handlers(findings: Findings) -> Iterator[_Handler]:
    kinds: dict[str, _Kind] = {}
    for _, resource in entries_at(findings.data, "spec", "resources"):
        name = resource.get("name")
        if isinstance(name, str):
            kinds.setdefault(name, _kind(resource))
    for path, handler in entries_at(findings.data, "spec", "handlers"):
        items = enumerate(items_at(handler, "applies"))
        writes = {_kind(item): (*path, "applies", at) for at, item in items if isinstance(item, dict)}
        name = handler.get("name")
        if not writes or not isinstance(name, str) or findings.is_blamed((*path, "applies")):
            continue
        # An owner mapping leads to the owner alone, which is mostly an object of the writer.
        sources = [
            handler,
            *(each for _, each in entries_at(handler, "watches") if "owner" not in _map_to(each)),
        ]
        names = (value_at(source, "resourceRef", "name") for source in sources)
        called_by = frozenset(kinds[each] for each in names if isinstance(each, str) and each in kinds)
        yield _Handler(findings.quoted((*path, "name"), name), writes, called_by)


def _cycle(
    handlers: Sequence[_Handler], called: Mapping[_Kind, Sequence[int]], start: int
) -> tuple[_Write, ...]:
    """The shortest cycle of two handlers or more from `start`; empty if there is none."""
    before: dict[int, _Write | None] = {start: None}  # by handler, the write that has called it
    waiting, seen = deque([start]), set[_Kind]()
    while waiting:
        number = waiting.popleft()
        for kind in handlers[number].writes:
            if number != start and kind in handlers[start].called_by:
                steps, at = [_Write(number, kind)], before[number]
                while at is not None:
                    steps.append(at)
                    at = before[at.handler]
                return tuple(reversed(steps))
            if kind in seen:
                continue
            seen.add(kind)
            for following in called.get(kind, ()):
                if following not in before:
                    before[following] = _Write(number, kind)
                    waiting.append(following)
    return ()


def _report(findings: Findings, handlers: Sequence[_Handler], cycle: Sequence[_Write]) -> None:
    first = handlers[cycle[0].handler]
    following = [*cycle[1:], cycle[0]]
    steps = ", which ".join(
        f"writes {kind} objects, which call {handlers[after.handler].name}"
        for (_, (_, kind)), after in zip(cycle, following, strict=True)
    )
    place = first.writes[cycle[0].kind]
    message = f"{dotted(place)}: {first.name} {steps}: a cycle, without an end if they disagree"
    advice = "let one handler write both, or let each write nothing when nothing has to change"
    findings.add(codes.WRITE_CYCLE, Location(place), message, suggestion=advice, severity="warning")


def _map_to(watch: Mapping[str, Json]) -> Mapping[str, Json]:
    found = watch.get("mapTo")
    return found if isinstance(found, dict) else {}


def _kind(item: Mapping[str, Json]) -> _Kind:
    return str(item.get("apiVersion")).rpartition("/")[0], str(item.get("kind"))
