"""Views of many objects at once: what a lister gives."""

import operator
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import cast, overload

from declctl.objects import ObjectView, Record


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
