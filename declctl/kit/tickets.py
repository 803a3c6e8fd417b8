"""What stands in lanes: a value on its way, and the figures of all of them."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec

T = TypeVar("T")


class Ticket(msgspec.Struct, Generic[T], eq=False):
    """One pending value on its way. Only `Lanes` changes it; who took it reads it, and may set `retry`.

    `epoch` says before which cut it was added, `attempts` how often it was retried.
    """

    key: str
    value: T
    epoch: int
    weight: int
    added_at: float
    attempts: int = 0
    due: float | None = None  # in back-off until then
    gone: bool = False  # merged away while it waited: its turn is skipped
    passed: bool = False  # its turn came while its key was held: it follows when the key is free
    fixed: bool = False  # seen by a worker: nothing may be merged into it
    overlooked: bool = False  # out, and not waited for any longer
    retry: Any = None  # what its taker remembers until it takes it again; `Lanes` do not look at it
    # The neighbours of its key, none of which is done or gone.
    before: "Ticket[T] | None" = None
    after: "Ticket[T] | None" = None

    def __repr__(self) -> str:
        return f"<Ticket {self.key} of epoch {self.epoch}, {self.attempts} attempts>"


@dataclass(frozen=True, slots=True)
class LanesStatistics:
    """What went through: added = taken + waiting to be taken for the first time + merged + dropped.

    A value is taken once, however often it is retried, and no longer counts as taken once it is dropped.
    """

    added: int
    taken: int
    merged: int
    dropped: int
    waiting: int
    running: int
    backing_off: int
    weight: int


def passed_behind(holder: Ticket[T]) -> Iterator[Ticket[T]]:
    """The tickets of a held key whose turn has come already: they follow when the key is free."""
    ticket = holder.after
    while ticket is not None:
        if ticket.passed:
            yield ticket
        ticket = ticket.after
