"""Indices: from a value to the objects that have it.

A bucket holds records and not keys, so that a query is one copy. Another thread can make that copy while the
loop writes. `IndexBuild` fills a new index over a full store that keeps changing, in slices that do not block
the loop.
"""

import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, repeat, takewhile
from pathlib import Path
from typing import Any, NamedTuple, cast

import msgspec

from declctl.errors import CacheError
from declctl.kit.callbacks import must_propagate, refuse_async
from declctl.kit.text import exception_text
from declctl.objects import FieldPath, Layout, ObjectView, Record, decompressed, field_view

_TOGETHER = 100  # objects whose frames are decompressed at once

IndexFunc = Callable[[Record], Iterable[str]]
"""The values of a record in an index."""
AnyIndexFunc = IndexFunc | Callable[[ObjectView], Iterable[str]]
"""A FieldIndex, a FunctionIndex, or a function that returns the values of an object (IndexFunc)."""
Values = str | tuple[str, ...]  # each once; a string alone is one value, as most objects have
Each = Callable[[Iterable[Record]], Iterable[Record]]  # wraps the records for which a function is called
_OURS = f"{Path(__file__).parents[2]}/"  # the folder of this package
NAMESPACE_INDEX = "namespace"
"""The name under which listers look for `namespace_index()` (client-go's NamespaceIndex)."""


class FieldIndex(msgspec.Struct, frozen=True):
    """Indexes by the scalars at a field path. A projected path is read without decoding the object."""

    path: FieldPath

    def __call__(self, record: Record) -> tuple[str, ...]:
        """The values of a record. Decodes the object if the path is not projected."""
        match self.path.steps:
            case ("metadata", "labels", str(label)):
                value = record.labels.get(label)
                return () if value is None else (value,)
            case _:
                return record.field(self.path)


def field_index(path: str) -> FieldIndex:
    """An index by the scalars at a field path, such as `spec.nodeName` or `spec.containers[*].image`.

    Its values are strings, such as `true` or `3`; a missing field has none. If it is added before the
    informer runs, the path is projected, and no object is decoded for the index. Raises FieldPathError for a
    text that is no path. From any thread.
    """
    return FieldIndex(FieldPath.parse(path))


def namespace_index() -> FieldIndex:
    """An index by namespace (client-go's MetaNamespaceIndexFunc). Cluster-scoped objects have the value "".

    With this index as NAMESPACE_INDEX, listing a namespace does not look at objects of other namespaces. From
    any thread.
    """
    return field_index("metadata.namespace")


@dataclass(slots=True)
class FunctionIndex:
    """Indexes by a function of the object.

    Only the fields that the function reads are decoded, in some 10 µs for each object. A function that
    returns None gives no values. `function` may be replaced by another one with the same results, as a reload
    does.
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
    """An index by a function of an object that returns its values; None counts as no values.

    The function is called on the informer's loop. From any thread.
    """
    return FunctionIndex(function)


class _NotStrings(CacheError):
    """An index function returned values that are not strings."""


def refuse_no_index(name: str, function: object) -> None:
    """Raise TypeError unless `function` is a plain function; with any other the index would stay empty."""
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

    Raises CacheError if they are no list of strings, and the exceptions of the function.
    """
    return _each(_texts(function(record), record))


def _each(values: Values) -> tuple[str, ...]:
    return (values,) if isinstance(values, str) else values


def _texts(found: Iterable[object], of: Record) -> Values:
    if type(found) is list and len(found) == 1 and type(found[0]) is str:
        return found[0]  # the common case
    if isinstance(found, str):
        raise _NotStrings(f"on {of.key} an index function gave the string {found!r}, not a list of strings")
    values = tuple(dict.fromkeys(found))
    texts = tuple(value for value in values if isinstance(value, str))
    if len(texts) != len(values):
        raise _NotStrings(f"on {of.key} an index function gave {values!r}, which are not all strings")
    return texts[0] if len(texts) == 1 else texts


class Index:
    """One index. Written by the loop, read by any thread.

    An object on which the function raises, or returns values that are no strings, is left out of the index.
    """

    def __init__(self, function: IndexFunc) -> None:
        self.function = function
        self.faults = 0  # calls of the function that failed
        self.last_fault: str | None = None  # a sentence with the object and the line of the last failure
        self._buckets: dict[str, dict[str, Record]] = {}  # by value: the records by key; no bucket is empty
        # The values under which a key is in the buckets. Projected values are read from the record again, and
        # are not kept here. A function may return other values when it is called again.
        self._given: dict[str, Values] = {}
        self._path = function.path if isinstance(function, FieldIndex) else None
        self._layout: Layout | None = None  # of the last record
        self._position: int | None = None  # of the path in that layout; None if it is not projected there

    def put(self, key: str, record: Record, before: Record | None) -> None:
        """Index a record, in the place of `before`, the last state of the same object."""
        layout, at = self._layout, self._position
        if (
            at is not None
            and record.layout is layout
            and (before is None or before.layout is layout)
            and not self._given
        ):
            # The common case, without an allocation: one projected value, now and before.
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
        held = () if before is None else self.held(key, before)
        values = _each(self._values(key, record))
        self._enter(key, record, values)
        if held != values:
            self._leave(key, [value for value in held if value not in values])

    def compute(self, records: Sequence[Record], *, each: Each = iter) -> Iterator[Values]:
        """The values of many records. Each record's function call is made when its values are read.

        `each` is that of `IndexBuild.compute`. The buckets stay as they are; faults are counted. From one
        thread at a time.
        """
        function = self.function
        if not isinstance(function, FunctionIndex):
            return map(self._values_by, repeat(function), records, each(records))
        # Frames are decompressed together, which takes a fifth less time than one by one.
        views = map(field_view, records, decompressed(records))
        return map(self._values_by, repeat(function.of_view), views, each(records))

    def enter(self, key: str, record: Record, values: Values) -> None:
        """Index a record under values that the function has returned. Its key must not be in the index."""
        self._given[key] = values
        self._enter(key, record, _each(values))

    def put_new(self, records: Mapping[str, Record]) -> None:
        """Index records whose keys are not in the index."""
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
        """Remove a record from the index."""
        self._leave(key, self.held(key, record))
        self._given.pop(key, None)

    def held(self, key: str, record: Record) -> tuple[str, ...]:
        """The values under which a stored record is in the index. On the loop."""
        if self._path is not None and self._projects(record):
            return _each(self._projected(record))
        return _each(self._given.get(key, ()))

    def bucket(self, value: str) -> dict[str, Record]:
        """A new mapping of the records with a value, by key."""
        bucket = self._buckets.get(value)
        return dict(bucket) if bucket is not None else {}

    def records(self, value: str) -> list[Record]:
        """A new list of the records with a value."""
        bucket = self._buckets.get(value)
        return list(bucket.values()) if bucket is not None else []

    def keys(self, value: str) -> list[str]:
        """A new list of the keys with a value."""
        bucket = self._buckets.get(value)
        return list(bucket) if bucket is not None else []

    def values(self) -> list[str]:
        """A new list of all values."""
        return list(self._buckets)

    def _values(self, key: str, record: Record) -> Values:
        if self._path is not None and self._projects(record):
            if self._given:
                self._given.pop(key, None)
            return self._projected(record)
        values = self._given[key] = self._values_by(self.function, record, record)
        return values

    def _projects(self, record: Record) -> bool:
        if record.layout is not self._layout:
            self._layout = record.layout
            self._position = None if self._path is None else record.layout.positions.get(self._path)
        return self._position is not None

    def _projected(self, record: Record) -> Values:
        assert self._position is not None
        value = record.values[self._position]
        return () if value is None else value

    def _values_by(
        self, function: Callable[[Any], Iterable[object]], argument: Any, record: Record
    ) -> Values:
        """The values that `function(argument)` returns for a record; none if it fails, which is counted."""
        try:
            return _texts(function(argument), record)
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
                    del self._buckets[value]  # otherwise empty buckets would accumulate (client-go 80)


def _place(error: BaseException) -> str:
    """The line of user code where an exception was raised, as part of a sentence; empty if there is none."""
    frames = traceback.extract_tb(error.__traceback__)
    # The first frames are of this package, which calls the function. The last may be, too: a view was read.
    theirs = [frame for frame in frames if not frame.filename.startswith(_OURS)]
    return f" at {theirs[-1].filename}:{theirs[-1].lineno}" if theirs else ""


class StaleObjects(NamedTuple):
    """Some objects that are not indexed yet, in the state in which the store had them."""

    keys: Sequence[str]
    records: Sequence[Record]  # in the order of `keys`


class IndexBuild:
    """An index that is being filled. It can be read when the build is finished.

    On the loop, `step` fills it in slices. A function that must not run on the loop, such as one of a staged
    generation, is called in a thread: `stale_objects` returns objects, `compute` calls the function for them
    in the thread, and `enter` puts the values into the index. When `stale` is 0, `finish` lets the index be
    read.

    `compute` may be called by any thread, one at a time; all other methods belong to the loop.
    """

    def __init__(self, known: Mapping[str, Record], *, index: Index, finish: Callable[[], None]) -> None:
        self._known = known  # the records of the store, which change meanwhile
        self._index = index
        self._finish = finish  # publishes the index in the store
        self._by_field = isinstance(index.function, FieldIndex)  # no user code runs for its values
        # Keys of stored objects that are not in the index. No older state of them is in it either.
        self._stale: dict[str, None] = dict.fromkeys(known)
        self._given_up = False  # written by the loop, read by the thread of `compute`

    @property
    def stale(self) -> int:
        """The number of objects that are not indexed in their present state."""
        return len(self._stale)

    def step(self, budget: int) -> bool:
        """Index at most `budget` more objects; returns True when the index is finished."""
        stale_objects = self.stale_objects(budget)
        if self._by_field:
            self._index.put_new(dict(zip(*stale_objects, strict=True)))
            for key in stale_objects.keys:
                del self._stale[key]
        else:
            self.enter(stale_objects, self.compute(stale_objects))
        if self._stale:
            return False
        self.finish()
        return True

    def stale_objects(self, most: int) -> StaleObjects:
        """At most `most` of the objects that are not indexed."""
        keys = tuple(islice(self._stale, most))
        return StaleObjects(keys, [self._known[key] for key in keys])

    def compute(self, stale_objects: StaleObjects, *, each: Each = iter) -> Sequence[Values]:
        """Call the function for these objects; returns their values, in order.

        An object on which the function fails has no values; the failure is counted. `each` wraps the iterable
        of records. It sees each record just before the function is called with its object, and may end early.
        After `give_up`, the result ends early, too.
        """
        found: list[Values] = []
        records = stale_objects.records

        def until_given_up(part: Iterable[Record]) -> Iterable[Record]:
            return each(takewhile(lambda _: not self._given_up, part))

        for start in range(0, len(records), _TOGETHER):
            if len(found) < start:
                break  # it has ended early
            found += self._index.compute(records[start : start + _TOGETHER], each=until_given_up)
        return found

    def enter(self, stale_objects: StaleObjects, values: Sequence[Values]) -> None:
        """Index those of the objects that have not changed since `stale_objects` returned them."""
        known, stale, enter = self._known, self._stale, self._index.enter
        for key, record, each in zip(*stale_objects, values, strict=False):
            if known.get(key) is record and key in stale:
                enter(key, record, each)
                del stale[key]

    def give_up(self) -> None:
        """End the build. A thread within `compute` stops after its present object."""
        self._given_up = True
        self._stale.clear()

    def finish(self) -> None:
        """Let the index be read. Objects that are not indexed yet are indexed first, on the loop."""
        if self._stale:
            self.step(len(self._stale))
        else:
            self._finish()

    def put(self, key: str, record: Record, before: Record | None) -> None:
        """Note that a record was stored, in the place of `before`."""
        if self._by_field and key not in self._stale:
            self._index.put(key, record, before)  # a field index calls no user code
            return
        if before is not None and key not in self._stale:
            self._index.remove(key, before)
        self._stale[key] = None

    def put_new(self, records: Mapping[str, Record]) -> None:
        """Note that records were stored under new keys."""
        if self._by_field:
            self._index.put_new(records)
        else:
            self._stale.update(dict.fromkeys(records))

    def remove(self, key: str, record: Record) -> None:
        """Note that a record was removed."""
        if key in self._stale:
            del self._stale[key]
        else:
            self._index.remove(key, record)


def index_functions(indexers: Mapping[str, AnyIndexFunc]) -> dict[str, IndexFunc]:
    """The same indexers, as functions of a record.

    Raises TypeError, which names the index, for a value that is no function, and for an asynchronous
    function.
    """
    for name, function in indexers.items():
        refuse_no_index(name, function)
    return {
        name: function
        if isinstance(function, FieldIndex | FunctionIndex)
        else function_index(cast("Callable[[ObjectView], Iterable[str]]", function))
        for name, function in indexers.items()
    }
