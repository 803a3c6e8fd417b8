"""Checks a streaming list by a LIST at the same version (client-go's consistencydetector).

Where they differ, client-go ends the process. Here the keys that differ are logged, and everything is listed
anew.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing

from declctl.decoding import Known
from declctl.errors import ApiError, Expired, InvalidRequest
from declctl.informer.reflector.faults import Inconsistent
from declctl.informer.reflector.options import ExponentialBackoff
from declctl.informer.reflector.pager import ListPager
from declctl.informer.reflector.statistics import Figures
from declctl.informer.source import Source
from declctl.kit import Clock
from declctl.objects import ListOptions, Record

_ATTEMPTS = 5
_SHOWN = 10  # keys that a message names
_log = logging.getLogger("declctl.informer")
_Identity = tuple[str, str]


class ConsistencyDetector:
    """Compares a streaming list with a LIST at exactly its version, beside the watch that goes on.

    `difference` is what the last comparison found, until `close` or the next `begin`; `on_difference` is
    called with it. A LIST that fails is repeated, up to five times in all. If all fail, or if the version has
    expired, nothing is compared, and that is no error.
    """

    def __init__(
        self, source: Source, figures: Figures, on_difference: Callable[[Inconsistent], None], *, clock: Clock
    ) -> None:
        self.difference: Inconsistent | None = None
        self._source = source
        self._figures = figures
        self._on_difference = on_difference
        self._clock = clock
        self._checking: asyncio.Task[None] | None = None

    async def begin(self, records: Sequence[Record], version: str, *, known: Known) -> None:
        """Check what a streaming list brought, in a task of its own; what was being checked is given up."""
        await self.close()
        if version in ("", "0"):
            return  # there is nothing to be exact about
        brought = {record.key: (record.uid, record.resource_version) for record in records}
        self._checking = asyncio.create_task(self._check(brought, version, known), name="consistency check")

    async def close(self) -> None:
        """Give up what is being checked."""
        self.difference = None
        checking, self._checking = self._checking, None
        if checking is not None:
            checking.cancel()
            await asyncio.wait([checking])

    async def _check(self, brought: Mapping[str, _Identity], version: str, known: Known) -> None:
        projection = self._source.projection
        listed = await self._listed(version, known)
        if listed is None or self._source.projection is not projection:
            return  # another transform may leave out other objects
        self._figures.checks += 1
        keys = sorted(key for key in brought.keys() | listed.keys() if brought.get(key) != listed.get(key))
        if not keys:
            return
        self._figures.inconsistencies += 1
        more = f" and {len(keys) - _SHOWN} more" if len(keys) > _SHOWN else ""
        told = f"{', '.join(keys[:_SHOWN])}{more}"
        self.difference = Inconsistent(
            f"the streaming list differs from a LIST at its version {version} in {told}"
        )
        _log.error("%s", self._figures.told(self.difference))
        self._on_difference(self.difference)

    async def _listed(self, version: str, known: Known) -> Mapping[str, _Identity] | None:
        """What a LIST has at that version; None if it can't be had."""
        exactly = ListOptions(resource_version=version, resource_version_match="Exact")
        pager = ListPager(lambda options: self._source.list(options, known=known), buffer=0)
        backoff = ExponentialBackoff(self._clock, first=1.0)
        for _ in range(_ATTEMPTS):
            found: dict[str, _Identity] = {}
            try:
                async with aclosing(pager.pages(exactly)) as pages:
                    async for page in pages:
                        found.update((r.key, (r.uid, r.resource_version)) for r in page.records)
            except (Expired, InvalidRequest) as fault:
                _log.info("%s; it can't be compared", self._figures.told(fault))
                return None
            except ApiError as fault:
                await self._clock.sleep(backoff.seconds(fault))
            else:
                return found
        _log.info(
            "%s", self._figures.told(Inconsistent("the streaming list was not compared: every LIST failed"))
        )
        return None
