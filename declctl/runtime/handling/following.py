"""From the moment that handlers are known to move until they do: what they will hear is kept current.

`follow` compares all that is cached; from then on each change is compared as it comes. `until_ready`
returns in a turn of the loop in which nothing is left to compare: a commit in that turn is consistent.
"""

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import ExitStack

from declctl.errors import ReloadRefused
from declctl.kit import Clock
from declctl.runtime.caching.informer_pool import ManagedInformer
from declctl.runtime.caching.questions import Question, ask, ask_the_rest
from declctl.runtime.handling.freshness import FreshnessProof, Gap
from declctl.runtime.handling.moving import Move
from declctl.runtime.handling.placing import Slot
from declctl.runtime.handling.refiltering import Refilter

_CHECK = 0.005  # seconds between two looks
_CATCH_UP_SECONDS = 2.0  # that caches have to catch up by themselves
_LONGEST_HOLD = 1.0  # seconds


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
    proofs: Sequence[FreshnessProof],
    slots: Iterable[Slot],
    indexes: Sequence[Question] = (),
    *,
    clock: Clock,
    timeout: float,
) -> None:
    """Return when handlers may be moved, all is known that they have to hear, and `indexes` are complete.

    None may be moved into its past: the `proofs` have to succeed. None of these `slots` may still be hearing
    of what was in its caches when it came. Both is waited for, for `timeout` seconds. Raises ReloadRefused
    as `follow` does, and CacheLags.
    """
    slots, questions = tuple(slots), (*indexes, *_refilters(moves))
    began = clock.monotonic()
    chase = _Chase(clock)
    while True:
        waited = clock.monotonic() - began
        joining = next((slot for slot in slots if slot.is_joining), None)
        gap = _first_gap(proofs)
        if joining is None and gap is None:
            if any(question.stale for question in questions):
                await ask(questions, timeout=timeout)
                await ask_the_rest(questions)
            if _first_gap(proofs) is None:
                return  # nothing has come in meanwhile: this is the moment
        elif waited >= timeout:
            if gap is not None:
                raise gap.refusal(timeout)
            assert joining is not None
            message = f"{joining.handler.name} has not heard of all objects yet, after {timeout:g} s"
            raise ReloadRefused("NotSynced", message)
        elif joining is None and gap is not None and chase.is_endless(gap):
            await ask(questions, timeout=timeout)
            if await _caught_up_while_held(proofs, questions, clock=clock):
                return
            chase.begin_anew()
        else:
            await clock.sleep(_CHECK)


class _Chase:
    """How caches catch up with others that go on. Where one does not by itself, it is listed.

    It may never end: while one is listed, more is heard, or objects change faster than it takes them in.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._began = clock.monotonic()
        self._late: Gap | None = None  # the first that there was after two seconds
        self._requested: dict[ManagedInformer, float] = {}  # when a list was requested last

    def begin_anew(self) -> None:
        """Let caches catch up by themselves once more."""
        self._began, self._late = self._clock.monotonic(), None

    def request_relist(self, gap: Gap) -> None:
        """Have the cache listed, which is enough as a rule: it is done every two seconds at most."""
        now = self._clock.monotonic()
        if now - self._requested.get(gap.target, float("-inf")) >= _CATCH_UP_SECONDS:
            self._requested[gap.target] = now
            gap.target.informer.request_relist()

    def is_endless(self, gap: Gap) -> bool:
        """Whether caches have closed an older gap, and there is this one now."""
        if not gap.key:
            self.request_relist(gap)
        elif self._clock.monotonic() - self._began >= _CATCH_UP_SECONDS:
            if self._late is not None and self._late.is_closed:
                return True
            self._late = self._late or gap
            self.request_relist(self._late)
        return False


async def _caught_up_while_held(
    proofs: Sequence[FreshnessProof], questions: Sequence[Question], *, clock: Clock
) -> bool:
    """Let caches catch up while those that they follow take in nothing: until the next turn of the loop.

    Returns whether they have caught up, after a second at most.
    """
    began = clock.monotonic()
    targets = {proof.target for proof in proofs}
    with ExitStack() as held:
        for source in dict.fromkeys(source for proof in proofs for source in proof.sources):
            if source not in targets:
                held.enter_context(source.informer.held())
        for proof in proofs:
            if (gap := proof.gap) is not None:
                gap.target.informer.request_relist()
        while _first_gap(proofs) is not None:
            if clock.monotonic() - began >= _LONGEST_HOLD:
                return False
            await clock.sleep(_CHECK)
        if any(question.stale for question in questions):
            await ask_the_rest(questions)
        return _first_gap(proofs) is None


def _first_gap(proofs: Iterable[FreshnessProof]) -> Gap | None:
    return next((gap for proof in proofs if (gap := proof.gap) is not None), None)


def _refilters(moves: Sequence[Move]) -> Sequence[Refilter]:
    return [move for move in moves if isinstance(move, Refilter)]
