"""Listers: the read-only API of the cache, for handlers and other user code (client-go's listers)."""

import operator
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from itertools import chain
from types import GenericAlias
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, cast, overload

from declctl.errors import NotSynced, UnknownIndex, UnknownNamespace
from declctl.informer.stores.indices import IndexFunc
from declctl.informer.stores.thread_safe_store import Indexer
from declctl.objects import LabelSelector, ObjectKey, ObjectView, Record
from declctl.objects.record import View_co

O = TypeVar("O", bound=ObjectView)  # noqa: E741 - a class of objects, as View_co


class Views(Sequence[View_co]):
    """A sequence of objects as they were at one moment. It compares, concatenates and prints as a list does.

    Each access makes a new view, so that objects which are not read cost almost nothing. Two accesses to one
    position return two views that decode independently: keep the first one to decode once. `list(views)` is a
    list that the caller may change. From any thread.
    """

    __slots__ = ("_kind", "_records")

    def __init__(self, records: Sequence[Record], kind: type[View_co] | None = None) -> None:
        """`records` must not be changed after this; `kind` is the class of the views."""
        self._records = records
        self._kind = _plain(kind)

    @overload
    def __getitem__(self, at: int) -> View_co: ...
    @overload
    def __getitem__(self, at: slice) -> "Views[View_co]": ...
    def __getitem__(self, at: int | slice) -> "View_co | Views[View_co]":
        if isinstance(at, slice):
            return Views(self._records[at], self._kind)
        return self._kind(self._records[at])

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[View_co]:
        return map(self._kind, self._records)

    def __reversed__(self) -> Iterator[View_co]:
        return map(self._kind, reversed(self._records))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Views | list):  # type: ignore[reportUnknownMemberType] - of any class
            return NotImplemented
        theirs = cast("Sequence[object]", other)
        return len(self) == len(theirs) and all(map(operator.eq, self, theirs))

    __hash__ = None  # pyright: ignore[reportAssignmentType] - as lists have none

    def __add__(self, others: Iterable[O]) -> list[View_co | O]:
        return [*self, *others]

    def __repr__(self) -> str:
        return repr(list(self))


def _plain(kind: type[O] | None) -> type[O]:
    """A class of views; ObjectView for None."""
    return cast("type[O]", ObjectView) if kind is None else kind


def views_of(parts: Sequence[Sequence[Record]], view: type[O]) -> Views[O]:
    """The objects of several stores, one store after the other. A single list is not copied."""
    return Views(parts[0] if len(parts) == 1 else list(chain.from_iterable(parts)), view)


Keys = list[ObjectKey]
Selector = LabelSelector | str | Mapping[str, Any]
"""A label selector: kubectl's text; metav1's matchLabels and matchExpressions; or a mapping of labels."""


class SyncState(Protocol):
    """The sync of a store, which an informer or a controller fills. From any thread."""

    @property
    def name(self) -> str:
        """The resource that is listed and watched, for messages."""
        ...

    @property
    def has_synced(self) -> bool:
        """Whether the first list is in the store. Once true it stays true."""
        ...

    def why_not_synced(self) -> str:
        """Why the first list is not in the store; empty if it is."""
        ...


class RecordReader(Protocol):
    """The reads of a store, or of a snapshot of one; `IndexedRecords` says what each returns."""

    def get_by_key(self, key: str) -> Record | None:
        """The record of a key; None if there is none."""
        ...

    def list_keys(self) -> Sequence[str]:
        """Every key."""
        ...

    def list_by_namespace(self, namespace: str) -> Sequence[Record]:
        """The records of a namespace."""
        ...

    def by_index(self, name: str, value: str) -> Sequence[Record]:
        """The records with a value in an index; raises UnknownIndex."""
        ...

    def list_index_func_values(self, name: str) -> Sequence[str]:
        """Every value of an index; raises UnknownIndex."""
        ...

    def get_indexers(self) -> Mapping[str, IndexFunc]:
        """The index functions by name."""
        ...

    def __len__(self) -> int: ...
    def __contains__(self, key: object) -> bool: ...

    def list(self) -> Sequence[Record]:
        """Every record."""
        ...


class CacheReader(Generic[View_co]):
    """The reads that a lister and a snapshot share. From any thread.

    A result has the state of each store at one moment, and does not change later. Nothing is decoded before a
    view is read.
    """

    if not TYPE_CHECKING:
        __class_getitem__ = classmethod(GenericAlias)  # as of `typed.Object`

    def __init__(
        self,
        stores: Sequence[RecordReader],
        *,
        index_names: Mapping[str, str] | None,
        name: str,
        filled_by: Sequence[SyncState] = (),
        namespaces: Collection[str] | None = None,
        view: type[View_co] | None = None,
    ) -> None:
        self.name = name
        self.view = _plain(view)
        self._namespaces = namespaces  # of which objects may be cached; None for any
        self._readers = tuple(stores)
        self._index_names = index_names
        self._unsynced = tuple(filled_by)  # those that had not synced when they were last checked

    @property
    def has_synced(self) -> bool:
        """Whether the first list of every store is in the cache."""
        if self._unsynced:
            # A sync is final. Once all have synced, this is one look at an empty tuple.
            self._unsynced = tuple(state for state in self._unsynced if not state.has_synced)
        return not self._unsynced

    def get(self, key: str) -> View_co | None:
        """The object of a key (`namespace/name`, or `name`); None if it is not cached.

        Raises NotSynced, and UnknownNamespace for a namespace that is not watched.
        """
        if self._unsynced:
            self._require_sync()
        for store in self._readers:
            record = store.get_by_key(key)
            if record is not None:
                return self.view(record)
        self._require_namespace(key.rpartition("/")[0])
        return None

    def list(self, *, namespace: str | None = None, selector: Selector | None = None) -> Views[View_co]:
        """All objects, or those of a namespace, or those whose labels match a selector.

        A namespace is looked up in the index NAMESPACE_INDEX if that is `namespace_index()`; otherwise all
        keys are compared. An empty selector matches every object. Raises NotSynced, UnknownNamespace for a
        namespace that is not watched, and ValueError for a selector that can't be parsed.
        """
        if self._unsynced:
            self._require_sync()
        if namespace:
            self._require_namespace(namespace)
        wanted = _selector(selector)
        found = [store.list_by_namespace(namespace) if namespace else store.list() for store in self._readers]
        if wanted is not None and wanted.requirements:
            found = [[record for record in part if wanted.matches(record.labels)] for part in found]
        return views_of(found, self.view)

    def by_index(self, name: str, value: str) -> Views[View_co]:
        """The objects with a value in an index (client-go's ByIndex). Raises UnknownIndex and NotSynced.

        The values of an index are texts, also those of a number in a field. Raises TypeError for any other:
        nothing would be found.
        """
        if not isinstance(value, str):  # type: ignore[reportUnnecessaryIsInstance] - of a user's code
            raise TypeError(
                f"the values of an index are texts: write by_index({name!r}, {str(value)!r}) instead of "
                f"{value!r}"
            )
        if self._unsynced:
            self._require_sync()
        internal = self._internal(name)
        return views_of([store.by_index(internal, value) for store in self._readers], self.view)

    def index_values(self, name: str) -> Sequence[str]:
        """Every value of an index, each once (ListIndexFuncValues). Raises UnknownIndex and NotSynced."""
        if self._unsynced:
            self._require_sync()
        internal = self._internal(name)
        # Several namespaces may have the same value.
        return list(
            dict.fromkeys(v for store in self._readers for v in store.list_index_func_values(internal))
        )

    def keys(self) -> Keys:
        """The keys of all objects. Raises NotSynced."""
        if self._unsynced:
            self._require_sync()
        return [ObjectKey(key) for store in self._readers for key in store.list_keys()]

    def index_names(self) -> Sequence[str]:
        """The names that `by_index` and `index_values` accept, sorted."""
        if self._index_names is not None:
            return sorted(self._index_names)
        return sorted({name for store in self._readers for name in store.get_indexers()})

    def __len__(self) -> int:
        if self._unsynced:
            self._require_sync()
        return sum(len(store) for store in self._readers)

    def __contains__(self, key: object) -> bool:
        if self._unsynced:
            self._require_sync()
        found = any(key in store for store in self._readers)
        if not found and isinstance(key, str):
            self._require_namespace(key.rpartition("/")[0])
        return found

    def _require_sync(self) -> None:
        if self.has_synced:
            return
        # An informer that syncs just now gives an empty reason.
        why = "; ".join(filter(None, (state.why_not_synced() for state in self._unsynced)))
        name = self.name or ", ".join(state.name for state in self._unsynced)
        raise NotSynced(
            f"{name} has not synced ({why or 'just now'}): what its cache lacks may be in the cluster",
            resource=name,
            why=why,
        )

    def _require_namespace(self, namespace: str) -> None:
        # A key without a namespace names no object that the cluster could have.
        if namespace and self._namespaces is not None and namespace not in self._namespaces:
            watched = ", ".join(sorted(self._namespaces))
            raise UnknownNamespace(
                f"{self.name} is not watched in the namespace {namespace!r}: what its cache lacks may be in "
                f"the cluster; the manifest has the namespaces {watched}"
            )

    def _internal(self, name: str) -> str:
        if self._index_names is None:
            return name
        if name not in self._index_names:
            known = ", ".join(self.index_names()) or "none"
            raise UnknownIndex(f"there is no index {name!r}; there are: {known}")
        return self._index_names[name]


class Lister(CacheReader[View_co]):
    """Reads the cached objects of one resource (client-go's listers). From any thread.

    `Lister[Preview]` is the type of one whose objects are of this class, as `ctx.lister(Preview)` returns it.

    - `indexers`: the stores; several for a resource that is watched in several namespaces.
    - `index_names`: the index in the stores by the name that callers use; None if both are the same. A reload
      may give an index of the manifest another name in the stores.
    - `name`: the resource, for error messages.
    - `filled_by`: the informers that fill the stores. A store that has not synced lacks objects of the
      cluster, so every read raises NotSynced until all of `filled_by` have synced; `has_synced` does not
      raise. After that reads never raise NotSynced: during an outage or a relist they return the newest known
      state. Empty, the default, for stores that are read in any state.
    - `namespaces`: the namespaces that the stores are filled from. A read of another one raises
      UnknownNamespace. None, the default, if every namespace may be read.
    - `view`: the class of the objects that reads return.

    A result has the state of each store at one moment, and does not change later. Two results may have the
    states of two moments: `snapshot` has one for all of its reads. Nothing is decoded before a view is read.
    """

    def __init__(
        self,
        indexers: Sequence[Indexer],
        *,
        index_names: Mapping[str, str] | None = None,
        name: str = "",
        filled_by: Sequence[SyncState] = (),
        namespaces: Collection[str] | None = None,
        view: type[View_co] | None = None,
    ) -> None:
        super().__init__(
            indexers,
            index_names=index_names,
            name=name,
            filled_by=filled_by,
            namespaces=namespaces,
            view=view,
        )
        self._indexers = tuple(indexers)

    def snapshot(self) -> "CacheSnapshot[View_co]":
        """All objects at this moment, for any number of reads. Raises NotSynced.

        It is no copy: it costs a few microseconds, for a cache of any size. NotSynced is also raised while a
        later list is put into the cache, which the watch needs after a long outage.
        """
        return snapshots_of([self])[0]

    def require_snapshot(self) -> None:
        """Raise NotSynced if no snapshot can be taken now."""
        self._require_sync()
        if any(indexer.is_being_replaced for indexer in self._indexers):
            why = "a new list is being put into its cache"
            raise NotSynced(f"{self.name}: {why}", resource=self.name, why=why, is_relisted=True)

    def locks(self) -> Iterator[AbstractContextManager[object]]:
        """The locks that keep the stores as they are. Each store's writer holds its own."""
        return (indexer.lock for indexer in self._indexers)

    def snapshot_now(self) -> "CacheSnapshot[View_co]":
        """As `snapshot`, without a check of the sync."""
        stores = [indexer.snapshot() for indexer in self._indexers]
        return CacheSnapshot(
            stores,
            index_names=self._index_names,
            name=self.name,
            namespaces=self._namespaces,
            view=self.view,
        )


class CacheSnapshot(CacheReader[View_co]):
    """The cached objects of one resource as they were at one moment. From any thread; it never changes.

    It has the reads of a Lister, none of which raises NotSynced. Iteration yields the objects, as `list`
    does, and `in` takes a key. It is no copy: the cache keeps the former states of objects that change, for
    as long as the snapshot is referred to.

    The objects of one watch are in the state that the server had at one moment: a snapshot with a change has
    all changes before it, too. A resource in several namespaces or with several names has several watches.
    Between those, and between resources, the server promises no order.
    """

    def __iter__(self) -> Iterator[View_co]:
        return iter(self.list())

    def __repr__(self) -> str:
        return f"<snapshot of {len(self)} {self.name or 'objects'}>"


def snapshots_of(listers: Sequence[Lister[O]]) -> list[CacheSnapshot[O]]:
    """A snapshot of each lister, all of one moment of this process. Raises NotSynced. From any thread."""
    locks = {id(lock): lock for lister in listers for lock in lister.locks()}
    with ExitStack() as held:
        # In the same order in each thread. A writer holds one lock, and waits for no other.
        for _, lock in sorted(locks.items()):
            held.enter_context(lock)
        for lister in listers:
            lister.require_snapshot()
        return [lister.snapshot_now() for lister in listers]


def _selector(selector: Selector | None) -> LabelSelector | None:
    if selector is None or isinstance(selector, LabelSelector):
        return selector
    if isinstance(selector, str):
        return LabelSelector.parse(selector)
    if selector.keys() & {"matchLabels", "matchExpressions"}:
        return LabelSelector.from_mapping(selector)
    return LabelSelector.from_mapping({"matchLabels": selector})
