"""Indices: from a value to the objects that have it. This is where an event is indexed.

A bucket holds the records themselves, so that a query is one copy, which another thread can take while the
loop writes. `IndexBuild` fills an index over a store that is full and keeps changing, without holding up the
loop.
"""

import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import NamedTuple, cast

from declctl.errors import CacheError
from declctl.kit.callbacks import must_propagate, refuse_async
from declctl.kit.text import exception_text
from declctl.objects import FieldPath, Layout, ObjectView, Record, decompressed, field_view

_TOGETHER = 100  # objects whose frames are decompressed at once

IndexFunc = Callable[[Record], Iterable[str]]
AnyIndexFunc = IndexFunc | Callable[[ObjectView], Iterable[str]]  # of a record, or of an object
Values = str | tuple[str, ...]  # each once; most objects have one, for which no tuple is kept
_OURS = f"{Path(__file__).parents[2]}/"  # where the files of this package are
NAMESPACE_INDEX = "namespace"
"""The name under which listers look for `namespace_index()` (client-go's NamespaceIndex)."""


@dataclass(frozen=True, slots=True)
class FieldIndex:
    """Indexes by the scalars at a field path; reads the projection where the path is projected."""

    path: FieldPath

    def __call__(self, record: Record) -> tuple[str, ...]:
        """The values of a record."""
        match self.path.steps:
            case ("metadata", "labels", str(label)):
                value = record.labels.get(label)
                return () if value is None else (value,)
            case _:
                return record.field(self.path)


def field_index(path: str) -> FieldIndex:
    """An index by field path, such as `spec.nodeName`; raises FieldPathError."""
    return FieldIndex(FieldPath.parse(path))


def namespace_index() -> FieldIndex:
    """An index by namespace; that of a cluster-scoped object is the empty string.

    A store that has it as NAMESPACE_INDEX lists a namespace without looking at the others
    (client-go's MetaNamespaceIndexFunc).
    """
    return field_index("metadata.namespace")


@dataclass(slots=True)
class FunctionIndex:
    """Indexes by a function of the object, of which only the fields that the function reads are decoded.

    That costs some ten microseconds for each object. None counts as no values. `function` may be exchanged
    for another that does the same.
    """

    function: Callable[[ObjectView], Iterable[str] | None]

    def __call__(self, record: Record) -> Iterable[str]:
        """The values of a record."""
        return self.of_view(field_view(record))

    def of_view(self, view: ObjectView) -> Iterable[str]:
        """The values of the object that a view reads."""
        values = self.function(view)
        return () if values is None else values


def function_index(function: Callable[[ObjectView], Iterable[str] | None]) -> FunctionIndex:
    """An index by a function of the object that gives its values."""
    return FunctionIndex(function)


class _NotStrings(CacheError):
    """An index function gave something else than strings."""


def refuse_no_index(name: str, function: object) -> None:
    """Raise TypeError if an index has no plain function: asked for it, it would stay empty."""
    if isinstance(function, str):
        raise TypeError(
            f"the index {name!r} is a text, not a function: for the field of that path write "
            f"field_index({function!r})"
        )
    if not callable(function):
        raise TypeError(
            f"the index {name!r} is a {type(function).__name__}, not a function of an object: "
            'give one, or field_index("spec.nodeName") for a field'
        )
    refuse_async(function, f"the function of the index {name!r}")


def values_of(function: IndexFunc, record: Record) -> tuple[str, ...]:
    """The values of a record by an index function, each once.

    Raises CacheError where they are no list of strings, and what the function raises.
    """
    return _each(_texts(function(record), record))


def _each(values: Values) -> tuple[str, ...]:
    return (values,) if isinstance(values, str) else values


def _texts(found: Iterable[object], of: Record) -> Values:
    if type(found) is list and len(found) == 1 and type(found[0]) is str:
        return found[0]  # what most functions give
    if isinstance(found, str):
        raise _NotStrings(f"on {of.key} an index function gave the string {found!r}, not a list of strings")
    values = tuple(dict.fromkeys(found))
    texts = tuple(value for value in values if isinstance(value, str))
    if len(texts) != len(values):
        raise _NotStrings(f"on {of.key} an index function gave {values!r}, which are not all strings")
    return texts[0] if len(texts) == 1 else texts


class Index:
    """One index. Written by the loop, read by any thread.

    A function that raises, or returns something that is no string, keeps that object out of the
    index; it is counted, and the last fault is kept in words, with the line where it was raised.
    """

    def __init__(self, function: IndexFunc) -> None:
        self.function = function
        self.faults = 0
        self.last_fault: str | None = None
        self._buckets: dict[str, dict[str, Record]] = {}
        # The values by which a key stands in the buckets, unless they can be read out of its record's
        # projection again: a function that is asked twice may answer twice.
        self._given: dict[str, Values] = {}
        self._path = function.path if isinstance(function, FieldIndex) else None
        self._layout: Layout | None = None  # the last one looked at, and where the path stands in it
        self._position: int | None = None

    def put(self, key: str, record: Record, before: Record | None) -> None:
        """Let the record be found under its values, and `before`, its last state, no longer."""
        layout, at = self._layout, self._position
        if (
            at is not None
            and record.layout is layout
            and (before is None or before.layout is layout)
            and not self._given
        ):
            # The common case, for which nothing is made: one projected value, now and before.
            value = record.values[at]
            last = None if before is None else before.values[at]
            if type(value) is str and (last is None or type(last) is str):
                bucket = self._buckets.get(value)
                if bucket is None:
                    self._buckets[value] = {key: record}
                else:
                    bucket[key] = record
                if last is not None and last != value:
                    self._leave(key, (last,))
                return
        held = () if before is None else self._held(key, before)
        values = _each(self._values(key, record))
        self._enter(key, record, values)
        if held != values:
            self._leave(key, [value for value in held if value not in values])

    def answers(self, records: Sequence[Record]) -> Iterator[Values]:
        """The values of many records, each as it is asked for; nothing is put into the index.

        Faults are counted. One thread at a time may use it.
        """
        if not isinstance(self.function, FunctionIndex):
            return map(self._asked, records)
        # Frames are decompressed together, which takes a fifth less time than one by one.
        return map(self._asked, records, map(field_view, records, decompressed(records)))

    def enter(self, key: str, record: Record, values: Values) -> None:
        """Let a record be found under values that the function gave; its key is not in the index yet."""
        self._given[key] = values
        self._enter(key, record, _each(values))

    def put_new(self, records: Mapping[str, Record]) -> None:
        """Let records be found under their values, by keys that are not in the index yet."""
        layout, at, buckets = self._layout, self._position, self._buckets
        for key, record in records.items():
            if at is not None and record.layout is layout:
                value = record.values[at]
                if type(value) is str:
                    bucket = buckets.get(value)
                    if bucket is None:
                        buckets[value] = {key: record}
                    else:
                        bucket[key] = record
                    continue
            self.put(key, record, None)
            layout, at = self._layout, self._position

    def remove(self, key: str, record: Record) -> None:
        """Let the record be found no longer."""
        self._leave(key, self._held(key, record))
        self._given.pop(key, None)

    def records(self, value: str) -> list[Record]:
        """The records that have the value."""
        bucket = self._buckets.get(value)
        return list(bucket.values()) if bucket is not None else []

    def keys(self, value: str) -> list[str]:
        """Their keys."""
        bucket = self._buckets.get(value)
        return list(bucket) if bucket is not None else []

    def values(self) -> list[str]:
        """Every value that some object has."""
        return list(self._buckets)

    def _values(self, key: str, record: Record) -> Values:
        if self._path is not None and self._projects(record):
            if self._given:
                self._given.pop(key, None)
            return self._projected(record)
        values = self._given[key] = self._asked(record)
        return values

    def _held(self, key: str, record: Record) -> tuple[str, ...]:
        if self._path is not None and self._projects(record):
            return _each(self._projected(record))
        return _each(self._given.get(key, ()))

    def _projects(self, record: Record) -> bool:
        if record.layout is not self._layout:
            self._layout = record.layout
            self._position = None if self._path is None else record.layout.positions.get(self._path)
        return self._position is not None

    def _projected(self, record: Record) -> Values:
        assert self._position is not None
        value = record.values[self._position]
        return () if value is None else value

    def _asked(self, record: Record, view: ObjectView | None = None) -> Values:
        """What the function gives for a record; `view` is what a FunctionIndex reads, if it is at hand."""
        function = self.function
        try:
            if view is not None and isinstance(function, FunctionIndex):
                return _texts(function.of_view(view), record)
            return _texts(function(record), record)
        except _NotStrings as error:
            return self._fault(str(error))
        except BaseException as error:  # the user's function
            if must_propagate(error):
                raise
            text = exception_text(error)
            return self._fault(f"{type(error).__name__} on {record.key}{_place(error)}: {text}")

    def _fault(self, message: str) -> tuple[str, ...]:
        self.faults += 1
        self.last_fault = message
        return ()

    def _enter(self, key: str, record: Record, values: Sequence[str]) -> None:
        buckets = self._buckets
        for value in values:
            bucket = buckets.get(value)
            if bucket is None:
                buckets[value] = {key: record}
            else:
                bucket[key] = record

    def _leave(self, key: str, values: Sequence[str]) -> None:
        for value in values:
            bucket = self._buckets.get(value)
            if bucket is not None:
                bucket.pop(key, None)
                if not bucket:
                    del self._buckets[value]  # empty buckets would pile up (client-go 80)


def _place(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    # The first frames are ours: they call the function. So may the last be: of the object that it reads.
    theirs = [frame for frame in frames if not frame.filename.startswith(_OURS)]
    return f" at {theirs[-1].filename}:{theirs[-1].lineno}" if theirs else ""


class StaleObjects(NamedTuple):
    """Objects of which an index function has to be asked, as the store had them at that moment."""

    keys: Sequence[str]
    records: Sequence[Record]


class IndexBuild:
    """An index under way. It can be read once it is finished.

    To ask the index function and to put its answers into the index are two steps, so that a thread can ask a
    function that is not trusted yet, while the loop goes on writing the store.

    `step` builds it on the loop, a slice at a time. Where the function must not run on the loop, a thread
    asks it: `unasked` gives objects to `ask`, `enter` takes the answers, and when nothing is `stale`,
    `finish` lets the index be read. Any thread may call `ask`, one at a time; all else is for
    the loop.
    """

    def __init__(self, known: Mapping[str, Record], *, index: Index, finish: Callable[[], None]) -> None:
        self._known = known  # what the store holds: live
        self._index = index
        self._finish = finish
        self._by_field = isinstance(index.function, FieldIndex)
        # Keys of stored objects whose present state is not in the index; no state of them is.
        self._stale: dict[str, None] = dict.fromkeys(known)
        self._given_up = False

    @property
    def stale(self) -> int:
        """How many objects are not in the index as they are now."""
        return len(self._stale)

    def step(self, budget: int) -> bool:
        """Index at most `budget` more objects; True when all are in, and the index can be read."""
        stale_objects = self.stale_objects(budget)
        if self._by_field:
            self._index.put_new(dict(zip(*stale_objects, strict=True)))
            for key in stale_objects.keys:
                del self._stale[key]
        else:
            self.enter(stale_objects, self.ask(stale_objects))
        if self._stale:
            return False
        self.finish()
        return True

    def stale_objects(self, most: int) -> StaleObjects:
        """At most so many of the objects that are stale."""
        keys = tuple(islice(self._stale, most))
        return StaleObjects(keys, [self._known[key] for key in keys])

    def ask(
        self, stale_objects: StaleObjects, *, each: Callable[[Iterable[str]], Iterable[str]] = iter
    ) -> Sequence[Values]:
        """The values of these objects, in their order; no more of them once the build is given up.

        An object on which the function fails has no values; that is counted. `each` is given the keys, and
        gives them back one by one, each before the function is called with its object; it may end early.
        """
        found: list[Values] = []
        for start in range(0, len(stale_objects.keys), _TOGETHER):
            part = slice(start, start + _TOGETHER)
            answers = self._index.answers(stale_objects.records[part])
            for _ in each(stale_objects.keys[part]):
                if self._given_up:
                    return found
                found.append(next(answers))
        return found

    def enter(self, stale_objects: StaleObjects, values: Sequence[Values]) -> None:
        """Index those objects that are still in the state in which the function was asked of them."""
        known, stale, enter = self._known, self._stale, self._index.enter
        for key, record, each in zip(*stale_objects, values, strict=False):
            if known.get(key) is record and key in stale:
                enter(key, record, each)
                del stale[key]

    def give_up(self) -> None:
        """Do no more of it: a thread that asks stops after the object that it is at."""
        self._given_up = True
        self._stale.clear()

    def finish(self) -> None:
        """Let the index be read. Calls the function of what is stale, and not where nothing is."""
        if self._stale:
            self.step(len(self._stale))
        else:
            self._finish()

    def put(self, key: str, record: Record, before: Record | None) -> None:
        """A record was put, `before` is its last state."""
        if self._by_field and key not in self._stale:
            self._index.put(key, record, before)  # which calls nobody's function
            return
        if before is not None and key not in self._stale:
            self._index.remove(key, before)
        self._stale[key] = None

    def put_new(self, records: Mapping[str, Record]) -> None:
        """Records were put under keys that were not there."""
        if self._by_field:
            self._index.put_new(records)
        else:
            self._stale.update(dict.fromkeys(records))

    def remove(self, key: str, record: Record) -> None:
        """A record was taken out."""
        if key in self._stale:
            del self._stale[key]
        else:
            self._index.remove(key, record)


def index_functions(indexers: Mapping[str, AnyIndexFunc]) -> dict[str, IndexFunc]:
    """Plain functions take an object; field and function indexes take a record already.

    Raises TypeError, which names the index, for what is no function, and for an asynchronous one.
    """
    for name, function in indexers.items():
        refuse_no_index(name, function)
    return {
        name: function
        if isinstance(function, FieldIndex | FunctionIndex)
        else function_index(cast("Callable[[ObjectView], Iterable[str]]", function))
        for name, function in indexers.items()
    }
