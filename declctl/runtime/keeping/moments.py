"""What the loop hands to the thread that writes a state."""

import weakref
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any, NamedTuple

from declctl.informer.informer import SharedIndexInformer
from declctl.informer.queues.real_fifo import Batch
from declctl.objects import Layout, Record
from declctl.runtime.caching.identities import CacheIdentity
from declctl.runtime.caching.kept_objects import KeyState


class WrittenCache:
    """One cache that is kept. The fields below `lost` belong to the thread."""

    def __init__(self, number: int, identity: CacheIdentity, informer: SharedIndexInformer) -> None:
        self.number = number
        self.identity = identity
        self.informer = weakref.ref(informer)
        self.lost = 0  # batches that no file has; counted on the loop
        self.layout: Layout | None = None  # of its records in the file; None: it is not in the file
        self.covered = 0  # the number of lost batches when the file began
        self.dictionaries = 0  # that the file has

    @property
    def is_kept(self) -> bool:
        """Whether the file has it, with all changes so far."""
        return self.layout is not None and self.lost == self.covered

    @property
    def has_synced(self) -> bool:
        """Whether it is there, and has its first list."""
        informer = self.informer()
        return informer is not None and informer.has_synced


class AppliedBatch(NamedTuple):
    """A batch that a cache applies."""

    cache: WrittenCache
    batch: Batch


class CacheMoment(NamedTuple):
    """One cache at one moment."""

    cache: WrittenCache
    lost: int
    layout: Layout
    records: Sequence[Record]
    version: str
    finalizers: Mapping[str, list[str]]


class HandlerMark(NamedTuple):
    """One handler, with its keys of which something has come or gone since the mark before."""

    name: str
    kind: str  # of its objects
    caches: Sequence[WrittenCache]  # that it hears of
    is_known: bool  # its keys say what it has still to do
    whole: bool  # these are all its keys
    states: Mapping[str, KeyState]


class Notes(NamedTuple):
    """What is no handler's."""

    history: Sequence[dict[str, Any]]  # the newest attempts to reload, the oldest first
    memos: Mapping[str, Mapping[str, Any]]  # of plugins and schedules


class Mark(NamedTuple):
    """What all handlers have still to deal with, now that the caches have what was written before."""

    digest: str  # of the files that run
    handlers: Sequence[HandlerMark]
    notes: Notes


class Moment(NamedTuple):
    """All caches and handlers at one moment, with which a file begins."""

    caches: Sequence[CacheMoment]
    mark: Mark


def kept_identity(identity: CacheIdentity) -> str:
    """The identity of a cache, as a file has it."""
    return sha256(repr(identity).encode()).hexdigest()


def kept_kind(group: str, kind: str) -> str:
    """The kind of a handler's objects, as a file has it."""
    return f"{kind}.{group}" if group else kind


def layout_paths(layout: Layout) -> list[str]:
    """The paths of the values that records of a layout have."""
    return [str(path) for path in layout.positions]
