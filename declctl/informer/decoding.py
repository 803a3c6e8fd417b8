"""What was decoded for an informer, by one projection after the other."""

import weakref
from collections.abc import Sequence
from dataclasses import replace

from declctl.decoding import Projection, ProjectionStatistics
from declctl.informer.source import Source


class Decoding:
    """The figures of a source's projections, together: no count of them ever goes back.

    `exchange` is for one thread, `statistics` for any.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._former: tuple[_Former, ...] = ()

    def exchange(self, projection: Projection) -> None:
        """Let the source decode with another projection from now on.

        The one before finishes the LIST that is under way, and is heard until it has.
        """
        before = self._source.projection
        others = [former for former in self._former if not former.is_of(before)]
        gone = [former for former in others if former.is_gone]
        alive = [former for former in others if former not in gone]
        ended = [_Former(_together([former.statistics() for former in gone]))] if gone else []
        self._former = (*ended, *alive, _Former(before.statistics(), before))
        self._source.projection = projection

    def statistics(self) -> ProjectionStatistics:
        """What was decoded so far; the frames are those of the present projection."""
        former, current = self._former, self._source.projection
        # The last of them is the present one for a moment, while they are exchanged.
        figures = [each.statistics() for each in former if not each.is_of(current)]
        return _together([*figures, current.statistics()])


class _Former:
    """A projection that was replaced, or what is left of some: their figures.

    It is not kept alive for them: it may hold the code of a generation that is to be forgotten.
    """

    def __init__(self, figures: ProjectionStatistics, projection: Projection | None = None) -> None:
        self._figures = figures
        self._projection = None if projection is None else weakref.ref(projection)

    @property
    def is_gone(self) -> bool:
        return self._projection is None or self._projection() is None

    def is_of(self, projection: Projection) -> bool:
        return self._projection is not None and self._projection() is projection

    def statistics(self) -> ProjectionStatistics:
        projection = None if self._projection is None else self._projection()
        if projection is not None:
            self._figures = projection.statistics()
        return self._figures


def _together(figures: Sequence[ProjectionStatistics]) -> ProjectionStatistics:
    """The sums; the frames are those of the last one, and so is the fault where it has one."""
    return replace(
        figures[-1],
        objects=sum(each.objects for each in figures),
        decoded_whole=sum(each.decoded_whole for each in figures),
        dropped=sum(each.dropped for each in figures),
        failed=sum(each.failed for each in figures),
        last_fault=next((each.last_fault for each in reversed(figures) if each.last_fault), None),
    )
