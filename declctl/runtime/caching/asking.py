"""What was asked of the server while a generation was staged, beside what was planned to be asked."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from declctl.informer import InformerStatistics, SharedIndexInformer


@dataclass(frozen=True, slots=True)
class Asked:
    """LISTs and WATCHes of all caches since a generation was prepared, and in words what was not planned.

    Planned are one LIST and one WATCH for each new cache, and none for those that live on, but what they were
    asked to list.
    """

    lists: int = 0
    watches: int = 0
    unplanned: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Asking:
    """The figures of the caches that lived when a generation was prepared."""

    before: Mapping[SharedIndexInformer, InformerStatistics] = field(
        default_factory=dict[SharedIndexInformer, InformerStatistics]
    )

    @classmethod
    def begin(cls, living: Iterable[SharedIndexInformer]) -> "Asking":
        """Look at what lives on."""
        return cls({informer: informer.statistics() for informer in living})

    def until_now(self, informers: Iterable[SharedIndexInformer]) -> Asked:
        """What was asked since; `informers` are those that there are now."""
        lists, watches, unplanned = 0, 0, list[str]()
        for informer in informers:
            figures, before = informer.statistics(), self.before.get(informer)
            then = _counts(before) if before is not None else (0, 0)
            more = tuple(now - earlier for now, earlier in zip(_counts(figures), then, strict=True))
            lists, watches = lists + more[0], watches + more[1]
            planned = (0, 0) if before is not None else _of_a_first_list(figures)
            if _relists_requested(figures) > (_relists_requested(before) if before is not None else 0):
                planned = more
            unplanned += (f"{informer.name}: {what}" for what in _differences(more, planned))
        return Asked(lists, watches, tuple(unplanned))


def _counts(figures: InformerStatistics) -> tuple[int, int]:
    return figures.lists, figures.watches


def _relists_requested(figures: InformerStatistics) -> int:
    return figures.reflector.relists_requested


def _of_a_first_list(figures: InformerStatistics) -> tuple[int, int]:
    """One LIST and one WATCH, which may be one request; a server that can't do that has refused one before.

    A kind that the server does not have is asked for until it appears.
    """
    if figures.missing:
        return _counts(figures)
    refused = not figures.reflector.streams and figures.watches > 1
    return 1, 1 + refused


def _differences(found: tuple[int, ...], planned: tuple[int, ...]) -> Iterator[str]:
    for name, count, expected in zip(("LIST", "WATCH"), found, planned, strict=True):
        if count != expected:
            yield f"{count} {name} instead of {expected}"
