"""From the moment that handlers are known to move until they do: what they will hear is kept current.

`follow` compares all that is cached; from then on each change is compared as it comes. `until_ready`
returns in a turn of the loop in which nothing is left to compare: a commit in that turn is consistent.
"""

import asyncio
from collections.abc import Iterable, Sequence

from declctl.errors import ReloadRefused
from declctl.kit import Clock
from declctl.runtime.caching.questions import Question, ask, ask_the_rest
from declctl.runtime.handling.moving import Move
from declctl.runtime.handling.placing import Slot
from declctl.runtime.handling.refiltering import Refilter

_CATCH_UP_SECONDS = 2.0
_CHECK = 0.005


async def follow(moves: Sequence[Move], *, timeout: float) -> None:
    """Compare all that is cached.

    Raises ReloadRefused where a filter raises, or all of them take longer than `timeout` seconds.
    """
    for move in moves:
        for _ in move.begin():
            await asyncio.sleep(0)
    await ask(_refilters(moves), timeout=timeout)


async def until_ready(
    moves: Sequence[Move],
    slots: Iterable[Slot],
    indexes: Sequence[Question] = (),
    *,
    clock: Clock,
    timeout: float,
) -> None:
    """Return when handlers may be moved, all is known that they have to hear, and `indexes` are complete.

    None may be moved into its past: new caches have to catch up, for two seconds at most, as a server may
    lag far behind. None of these `slots` may still be hearing of what was in its caches when it came: that
    is waited for, for `timeout` seconds. Raises ReloadRefused as `follow` does.
    """
    slots, questions = tuple(slots), (*indexes, *_refilters(moves))
    began = clock.monotonic()
    while True:
        waited = clock.monotonic() - began
        joining = next((slot for slot in slots if slot.is_joining), None)
        if joining is not None and waited >= timeout:
            message = f"{joining.handler.name} has not heard of all objects yet, after {timeout:g} s"
            raise ReloadRefused("NotSynced", message)
        if joining is not None or (waited < _CATCH_UP_SECONDS and any(move.is_behind for move in moves)):
            await clock.sleep(_CHECK)
        elif any(question.stale for question in questions):
            await ask(questions, timeout=timeout)
            await ask_the_rest(questions)
            # Nothing has come in meanwhile: unless a cache is behind, this is the moment.
            if waited >= _CATCH_UP_SECONDS or not any(move.is_behind for move in moves):
                return
        else:
            return


def _refilters(moves: Sequence[Move]) -> Sequence[Refilter]:
    return [move for move in moves if isinstance(move, Refilter)]
