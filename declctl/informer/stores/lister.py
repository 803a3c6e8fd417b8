"""Listers: read-only views of the store, as handlers read it."""

import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Protocol, cast, overload

from declctl.errors import NotSynced, UnknownIndex
from declctl.informer.stores.thread_safe_store import Indexer
from declctl.objects import LabelSelector, ObjectKey, ObjectView, Record


class Views(Sequence[ObjectView]):
    """Objects in a row, as they were at one moment; compared, joined and printed as a list of them is.

    A view is made when it is asked for, so that thousands which nobody looks at cost next to nothing.
    Who asks twice for the same one gets two, which share nothing: keep the first to decode once.
    `list(views)` is a list of one's own, to be changed. May be used from any thread.
    """

    __slots__ = ("_records",)

    def __init__(self, records: Sequence[Record]) -> None:
        """`records` must not change any more."""
        self._records = records

    @overload
    def __getitem__(self, at: int) -> ObjectView: ...
    @overload
    def __getitem__(self, at: slice) -> "Views": ...
    def __getitem__(self, at: int | slice) -> "ObjectView | Views":
        if isinstance(at, slice):
            return Views(self._records[at])
        return ObjectView(self._records[at])

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[ObjectView]:
        return map(ObjectView, self._records)

    def __reversed__(self) -> Iterator[ObjectView]:
        return map(ObjectView, reversed(self._records))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Views | list):
            return NotImplemented
        theirs = cast("Sequence[object]", other)
        return len(self) == len(theirs) and all(map(operator.eq, self, theirs))

    __hash__ = None  # pyright: ignore[reportAssignmentType] - as lists have none

    def __add__(self, others: Iterable[ObjectView]) -> list[ObjectView]:
        return [*self, *others]

    def __repr__(self) -> str:
        return repr(list(self))


def views_of(parts: Sequence[Sequence[Record]]) -> Views:
    """The objects of several stores in a row; those of one are not copied again."""
    return Views(parts[0] if len(parts) == 1 else list(chain.from_iterable(parts)))


Keys = list[ObjectKey]
Selector = LabelSelector | str | Mapping[str, Any]
"""kubectl's text, metav1's matchLabels and matchExpressions, or labels that have to be equal."""


class SyncState(Protocol):
    """What fills a store, such as an informer. Asked from any thread."""

    @property
    def name(self) -> str:
        """What it lists and watches, for messages."""
        ...

    @property
    def has_synced(self) -> bool:
        """Whether the first list is in the store. Once true it stays true."""
        ...

    def why_not_synced(self) -> str:
        """Why it is not; empty if it is."""
        ...


class Lister:
    """One resource, over one store or several (a resource in several namespaces). Safe from any thread.

    A store that has not synced yet lacks objects that the cluster has. Until each of `filled_by` has
    synced, every read raises NotSynced, which names the resource (`name`) and says why; `has_synced` does
    not raise. From then on every read succeeds, through outages and relists too, with the newest
    state that is known. Without `filled_by` nothing is known of the stores, and they are read as they are.

    What it gives of one store is complete at one moment, and stays as it was then. Views are made for
    the caller, those of `list` and `by_index` when they are asked for, and decode nothing until they are
    read. `index_names` maps the names that callers know to those in the store, for a generation that
    defines an index in its own way; without it they are the same.
    """

    def __init__(
        self,
        indexers: Sequence[Indexer],
        *,
        index_names: Mapping[str, str] | None = None,
        name: str = "",
        filled_by: Sequence[SyncState] = (),
    ) -> None:
        self.name = name
        self._indexers = tuple(indexers)
        self._index_names = index_names
        self._unsynced = tuple(filled_by)  # those that had not synced at the last look

    @property
    def has_synced(self) -> bool:
        """Whether the first list is in, of every namespace that is read."""
        if self._unsynced:
            # What has synced stays so: once all have, a read asks nothing any longer.
            self._unsynced = tuple(state for state in self._unsynced if not state.has_synced)
        return not self._unsynced

    def get(self, key: str) -> ObjectView | None:
        """The object of a key (`namespace/name`, or `name`); None if it isn't there."""
        if self._unsynced:
            self._require_sync()
        for indexer in self._indexers:
            record = indexer.get_by_key(key)
            if record is not None:
                return ObjectView(record)
        return None

    def list(self, *, namespace: str | None = None, selector: Selector | None = None) -> Views:
        """Every object, or those in a namespace, or those whose labels are selected.

        A store with `namespace_index()` as NAMESPACE_INDEX lists a namespace by it; else each object
        is looked at. A selector that is empty selects everything and looks at nothing.
        """
        if self._unsynced:
            self._require_sync()
        wanted = _selector(selector)
        found = [i.list_by_namespace(namespace) if namespace else i.list() for i in self._indexers]
        if wanted is not None and wanted.requirements:
            found = [[record for record in part if wanted.matches(record.labels)] for part in found]
        return views_of(found)

    def by_index(self, name: str, value: str) -> Views:
        """The objects that have a value in an index; raises UnknownIndex."""
        if self._unsynced:
            self._require_sync()
        internal = self._internal(name)
        return views_of([indexer.by_index(internal, value) for indexer in self._indexers])

    def index_values(self, name: str) -> Sequence[str]:
        """Every value of an index, each once; raises UnknownIndex."""
        if self._unsynced:
            self._require_sync()
        internal = self._internal(name)
        # Several namespaces may have the same value.
        return list(dict.fromkeys(v for i in self._indexers for v in i.list_index_func_values(internal)))

    def keys(self) -> Keys:
        """Every key."""
        if self._unsynced:
            self._require_sync()
        return [ObjectKey(key) for indexer in self._indexers for key in indexer.list_keys()]

    def index_names(self) -> Sequence[str]:
        """The indexes that can be asked for."""
        if self._index_names is not None:
            return sorted(self._index_names)
        return sorted({name for indexer in self._indexers for name in indexer.get_indexers()})

    def __len__(self) -> int:
        if self._unsynced:
            self._require_sync()
        return sum(len(indexer) for indexer in self._indexers)

    def __contains__(self, key: object) -> bool:
        if self._unsynced:
            self._require_sync()
        return any(key in indexer for indexer in self._indexers)

    def _require_sync(self) -> None:
        if self.has_synced:
            return
        # One of them may sync while it is asked: then it has nothing to say.
        why = "; ".join(filter(None, (state.why_not_synced() for state in self._unsynced)))
        name = self.name or ", ".join(state.name for state in self._unsynced)
        raise NotSynced(
            f"{name} has not synced ({why or 'just now'}): what its cache lacks may be in the cluster",
            resource=name,
            why=why,
        )

    def _internal(self, name: str) -> str:
        if self._index_names is None:
            return name
        if name not in self._index_names:
            known = ", ".join(self.index_names()) or "none"
            raise UnknownIndex(f"there is no index {name!r}; there are: {known}")
        return self._index_names[name]


def _selector(selector: Selector | None) -> LabelSelector | None:
    if selector is None or isinstance(selector, LabelSelector):
        return selector
    if isinstance(selector, str):
        return LabelSelector.parse(selector)
    if selector.keys() & {"matchLabels", "matchExpressions"}:
        return LabelSelector.from_mapping(selector)
    return LabelSelector.from_mapping({"matchLabels": selector})
