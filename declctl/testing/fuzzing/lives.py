"""Lives: what happens to a few objects, drawn by hypothesis.

A life is a list of steps: objects come from the schema of their kind, are edited and deleted; somebody else
edits and deletes their children; the cluster's controllers write the status of these; writes are refused, or
done without an answer; the controller ends and starts again, or reloads; time passes. Objects have names in
two orders, so that a start meets them in another order than they came.

Each step stands for itself: one that can't happen, as its object is not there, is left out. So hypothesis can
take any of them away.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Final

import msgspec
from hypothesis import strategies as st

from declctl.objects import KubeObject
from declctl.testing.fuzzing.bundle import FuzzedBundle, Primary
from declctl.testing.fuzzing.values import Values, values

MOST_STEPS: Final = 8
CHILD_STATES: Final = ("ready", "waiting", "failed")
_PASSED_OVER: Final = frozenset({"apiVersion", "kind", "metadata", "status"})
_SKIPS: Final = (0, 1, 2, 0, 1, 2, 3, 4, 5)  # writes before one that is refused, or lost: few are likely
_UNTIL_RESTART: Final = 1000  # requests: more than a call makes


class Create(msgspec.Struct, frozen=True, tag=True):
    """A user creates an object; with None as the body, a deleted one as it was."""

    primary: int
    body: Any = None


class Edit(msgspec.Struct, frozen=True, tag=True):
    """A user changes one field of an object; None removes it."""

    primary: int
    path: tuple[str, ...]
    value: Any


class Delete(msgspec.Struct, frozen=True, tag=True):
    """A user deletes an object."""

    primary: int


class ChildEdit(msgspec.Struct, frozen=True, tag=True):
    """Somebody else changes a field of a child that the controller has written, of a kind that is watched."""

    child: int
    field: int


class ChildDelete(msgspec.Struct, frozen=True, tag=True):
    """Somebody else deletes a child of a kind that is watched."""

    child: int


class ChildStatus(msgspec.Struct, frozen=True, tag=True):
    """A controller of the cluster writes the status of a child, or of an object of the surroundings."""

    child: int
    state: str  # of CHILD_STATES


class ServerFault(msgspec.Struct, frozen=True, tag=True):
    """The API server fails, as `POST /sandbox/faults` orders it."""

    order: Mapping[str, Any]


class Restart(msgspec.Struct, frozen=True, tag=True):
    """The controller ends and starts again; faults are over."""


class Reload(msgspec.Struct, frozen=True, tag=True):
    """The controller makes all code anew."""


class Advance(msgspec.Struct, frozen=True, tag=True):
    """Time passes, in seconds."""

    seconds: int


Step = (
    Create | Edit | Delete | ChildEdit | ChildDelete | ChildStatus | ServerFault | Restart | Reload | Advance
)
Life = tuple[Step, ...]


def lives(bundle: FuzzedBundle, *, foreign: bool = True) -> st.SearchStrategy[Life]:
    """Lives of the objects of a bundle; without `foreign`, nobody else edits or deletes children."""
    creates = [_creates(number, each) for number, each in enumerate(bundle.primaries)]
    edits = [_edits(number, each) for number, each in enumerate(bundle.primaries)]
    # `one_of` draws each part equally often, and shrinks towards the first ones.
    fault = _faults()
    others = st.one_of(
        st.builds(ChildDelete, st.integers(0, 2)),
        st.builds(ChildEdit, st.integers(0, 2), st.integers(0, 5)),
    )
    primaries = range(len(creates))
    # What outlives an object shows when the same one comes again.
    again = st.sampled_from([(Delete(number), Create(number)) for number in primaries])
    single = (
        st.one_of(*edits),
        st.one_of(*creates),
        st.sampled_from([Delete(each) for each in primaries]),
        st.just(Delete(0)),
        fault,
        st.builds(ChildStatus, st.integers(0, 2), st.sampled_from(CHILD_STATES)),
        *([others] if foreign else []),
        st.sampled_from([Restart(), Advance(60), Restart(), Reload(), Advance(3600)]),
    )
    steps = st.one_of(*(each.map(lambda step: (step,)) for each in single), again)
    # Without an object nothing happens; but the first one may be created on a bad day.
    return st.builds(
        lambda before, create, after: (*before, create, *chain.from_iterable(after)),
        st.lists(fault, max_size=1),
        creates[0],
        st.lists(steps, max_size=MOST_STEPS - 2),
    )


def _faults() -> st.SearchStrategy[Step]:
    skips = st.sampled_from(_SKIPS)
    # The first answer to a conflict is to try again at once: only several of them reach the handler.
    conflict = st.builds(lambda skip: _fault("refuse", 8, skip, status=409), skips)
    error = st.builds(lambda skip: _fault("refuse", 1, skip, status=500), skips)
    lost = st.builds(lambda skip: _fault("lose", 1, skip), skips)
    crash = st.builds(lambda skip: _fault("refuse", _UNTIL_RESTART, skip, status=503), skips)
    read = st.just(ServerFault({"fault": "refuse", "verb": "get", "status": 500, "times": 1}))
    return st.one_of(error, crash, lost, st.one_of(conflict, read))


def _fault(name: str, times: int, skip: int, **more: int) -> ServerFault:
    order = {"fault": name, "verb": "write", "times": times, **more}
    return ServerFault({**order, "skip": skip} if skip else order)


def _creates(number: int, primary: Primary) -> st.SearchStrategy[Step]:
    return st.builds(Create, st.just(number), _bodies(primary))


def _bodies(primary: Primary) -> Values:
    examples = st.sampled_from(list(primary.examples))
    if primary.schema is None:
        return examples
    example = primary.examples[0]
    drawn = {name: values(each, example.get(name)) for name, each in _fields(primary).items()}
    required = set(primary.schema.get("required") or ()) | {"spec"}
    made = st.fixed_dictionaries(
        {name: each for name, each in drawn.items() if name in required},
        optional={name: each for name, each in drawn.items() if name not in required},
    )
    if "metadata" in example:
        made = made.map(lambda body: {"metadata": example["metadata"], **body})
    # An example that is made up for lack of one need not fit the schema.
    return made | examples if example != {"spec": {}} else made


def _fields(primary: Primary) -> Mapping[str, Mapping[str, Any]]:
    properties: Mapping[str, Mapping[str, Any]] = (primary.schema or {}).get("properties") or {}
    return {name: each for name, each in properties.items() if name not in _PASSED_OVER}


def _edits(number: int, primary: Primary) -> st.SearchStrategy[Step]:
    found: list[st.SearchStrategy[Step]] = []
    example = primary.examples[0]
    for name, schema in _fields(primary).items():
        found += _edits_of(number, (name,), schema, example.get(name))
    if not found:  # no schema: the fields of the examples change
        for path, value in _leaves((), example):
            if others := _others(value):
                found.append(st.builds(Edit, st.just(number), st.just(path), st.sampled_from(others)))
    return st.one_of(*found) if found else st.just(Delete(number))


def _edits_of(
    number: int, path: tuple[str, ...], schema: Mapping[str, Any], example: object
) -> Iterator[st.SearchStrategy[Step]]:
    """The edits of a field, or of the fields in it, to two levels."""
    properties: Mapping[str, Mapping[str, Any]] = schema.get("properties") or {}
    known: KubeObject = example if isinstance(example, dict) else {}
    if properties and len(path) < 3:
        for name, each in properties.items():
            yield from _edits_of(number, (*path, name), each, known.get(name))
            if name not in (schema.get("required") or ()):
                yield st.just(Edit(number, (*path, name), None))
    else:
        yield st.builds(Edit, st.just(number), st.just(path), values(schema, example))


def _leaves(path: tuple[str, ...], value: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    if isinstance(value, dict) and value:
        for name, each in value.items():
            yield from _leaves((*path, name), each)
    elif path:
        yield path, value


def _others(value: object) -> Sequence[Any]:
    match value:
        case bool():
            return [not value]
        case int():
            return [value + 1, 0, None]
        case str():
            return ["b", None] if value != "b" else ["c", None]
        case _:
            return []
