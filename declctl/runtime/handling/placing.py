"""Where handlers are, where the next generation puts them, and what takes them there."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from declctl.informer import Registration
from declctl.runtime.caching.informer_pool import ManagedInformer
from declctl.runtime.handling.freshness import FreshnessProof
from declctl.runtime.handling.handler import Binding, Handler
from declctl.runtime.handling.moving import Move
from declctl.runtime.handling.refiltering import Refilter, may_differ
from declctl.runtime.handling.worker_pools import WorkerPool

Shared = dict[tuple[tuple[ManagedInformer, ...], tuple[ManagedInformer, ...]], Move]
"""Moves by the caches that are left and those that are come to."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a generation puts a handler: its binding, and the informers it listens to."""

    binding: Binding
    informers: Sequence[ManagedInformer]


@dataclass(eq=False)
class Slot:
    """A handler, its workers, and its registrations with informers."""

    handler: Handler
    workers: WorkerPool
    registrations: dict[ManagedInformer, Registration] = field(
        default_factory=dict[ManagedInformer, Registration]
    )

    def hears_kind_of(self, place: Place) -> bool:
        """Whether objects of the caches there are what those of its own are."""
        return {c.identity.group_kind for c in self.registrations} == {
            c.identity.group_kind for c in place.informers
        }

    @property
    def has_heard_all(self) -> bool:
        """Whether it was told all that its caches held first."""
        return all(registration.given.is_open for registration in self.registrations.values())

    @property
    def is_joining(self) -> bool:
        """Whether it has still to hear of what was in a cache when it came to it."""
        return any(registration.is_joining for registration in self.registrations.values())


@dataclass(frozen=True, slots=True)
class Transfer:
    """A handler that goes to other caches, or hears of other objects of the same.

    It leaves those that are `gone`. Of those that `come` it hears what `move` says, and then what
    happens; the `missing` tell it all that they hold, when they are filled.
    """

    slot: Slot
    place: Place
    gone: Sequence[ManagedInformer]
    come: Sequence[ManagedInformer]
    missing: Sequence[ManagedInformer]
    move: Move | None


@dataclass(frozen=True, slots=True)
class Ended:
    """A slot's epoch that a commit has ended, to be drained.

    `closing` says that the handler is gone.
    """

    slot: Slot
    epoch: int
    closing: bool


@dataclass(frozen=True, slots=True)
class Undrained:
    """What a handler was not through with when an old generation was waited for no longer.

    `waiting` changes waited: they went to the new code, or were dropped where the handler was `removed`.
    `running` calls had not returned.
    """

    handler: str
    waiting: int
    running: int
    removed: bool


@dataclass(frozen=True, slots=True)
class Prepared:
    """What a commit takes over: made aside, so that it is short, and dropped if it comes to nothing.

    `table` has all slots as they will be. Of those, `fresh` are new, and `staying` expect new bindings: some
    take other changes than before (`taking`), some get other workers (`pools`) or another resync period
    (`retimed`, seconds). `leaving` are not in it. `ended` are the epochs of all that were there before; the
    backlog of those that are `stranded` goes to the new code at once, as the old code can't be called.
    `proofs` are what `transfers` wait for.
    """

    table: Mapping[str, Slot]
    fresh: Sequence[tuple[Slot, Place]]
    staying: Sequence[Slot]
    taking: Sequence[tuple[Slot, Binding]]
    pools: Sequence[tuple[Slot, WorkerPool]]
    retimed: Sequence[tuple[Slot, float]]
    transfers: Sequence[Transfer]
    leaving: Sequence[Slot]
    ended: Sequence[Ended]
    stranded: Sequence[Ended]
    proofs: Sequence[FreshnessProof]

    @property
    def moves(self) -> Sequence[Move]:
        """Each move once."""
        return tuple(dict.fromkeys(t.move for t in self.transfers if t.move is not None))

    @property
    def new_pools(self) -> Sequence[WorkerPool]:
        """All workers that were made for it."""
        return (*(slot.workers for slot, _ in self.fresh), *(workers for _, workers in self.pools))


def transfer_of(
    slot: Slot,
    place: Place,
    *,
    same_code: bool,
    shared: Shared,
) -> Transfer | None:
    """Where a handler has to go, if anywhere; those that leave the same caches for the same share a move."""
    before, old, new = tuple(slot.registrations), slot.handler.binding.filter, place.binding.filter
    if _begins_anew(slot, place):
        # Its changes were dropped meanwhile: it hears all that is there, as a handler that is added.
        return Transfer(slot, place, gone=before, come=(), missing=tuple(place.informers), move=None)
    gone = tuple(cached for cached in before if cached not in place.informers)
    added = tuple(cached for cached in place.informers if cached not in slot.registrations)
    come = tuple(cached for cached in added if cached.informer.has_synced)
    missing = tuple(cached for cached in added if cached not in come)
    move: Move | None = None
    if may_differ(old, new, same_code=same_code):
        after = [cached for cached in place.informers if cached not in missing]
        move = Refilter(slot.handler.name, old, new, before=before, after=after)
    elif gone or come:
        move = shared.setdefault((gone, come), Move(gone, come))
    return Transfer(slot, place, gone, come, missing, move) if move is not None or missing else None


def proofs_of(kept: Iterable[tuple[Slot, Place]]) -> Sequence[FreshnessProof]:
    """What has to be proven before these handlers may go where they are put: one proof for each way there."""
    ways: dict[tuple[tuple[ManagedInformer, ...], ManagedInformer], list[str]] = {}
    for slot, place in kept:
        before = tuple(slot.registrations)
        if before and not _begins_anew(slot, place):
            for cached in place.informers:
                if cached not in slot.registrations:
                    ways.setdefault((before, cached), []).append(slot.handler.name)
    return [FreshnessProof(names, before, cached) for (before, cached), names in ways.items()]


def _begins_anew(slot: Slot, place: Place) -> bool:
    """Whether a handler was disabled, so that it has heard of nothing."""
    return bool(slot.handler.binding.target.disabled) and not place.binding.target.disabled
