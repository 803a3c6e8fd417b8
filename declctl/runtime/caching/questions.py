"""What foreign code of a staged generation is asked about all cached objects: in threads, under a deadline.

It has never run here. While it computes, or hangs, the loop goes on. What changes meanwhile is asked about
again; for the last few objects, which would go on changing, their caches take in nothing for a moment. At
the commit nothing is left to ask.
"""

import asyncio
import threading
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from typing import Protocol

from declctl.errors import ReloadRefused
from declctl.kit.stacks import foreign_place
from declctl.runtime.caching.managed_informer import Index, ManagedInformer, asked_last, exchangeable
from declctl.runtime.threads import in_thread

BATCH = 1000  # objects that a thread is asked about at once; to take in the answers takes about 0.5 ms
_MOST_BATCHES = 10  # of what has changed meanwhile; then caches are held, so that it comes to an end
_LONGEST_HOLD = 1.0  # seconds


class Question(Protocol):
    """What foreign code has to be asked about all objects of some caches. Used on the machinery loop."""

    @property
    def caches(self) -> Sequence[ManagedInformer]:
        """Whose objects these are."""
        ...

    @property
    def stale(self) -> int:
        """How many objects there are about which it has not been asked as they are now."""
        ...

    async def ask_some(self) -> None:
        """Ask in a thread about at most BATCH of them. Cancelling leaves the thread behind."""
        ...

    def refusal(self, why: str) -> ReloadRefused:
        """What to raise where it does not come to an end; `why` ends a sentence about it."""
        ...


async def ask(questions: Iterable[Question], *, timeout: float) -> None:
    """Ask about all that is cached; little is left that has changed meanwhile.

    Raises ReloadRefused after `timeout` seconds in all, and what `ask_some` raises.
    """
    question: Question | None = None
    try:
        async with asyncio.timeout(timeout):
            for question in questions:
                late = 0  # batches of what has changed meanwhile
                while question.stale and late < _MOST_BATCHES:
                    late += question.stale < BATCH
                    await question.ask_some()
    except TimeoutError as error:
        assert question is not None
        raise question.refusal(f"took longer than {timeout:g} s") from error


async def ask_the_rest(questions: Sequence[Question]) -> None:
    """Ask about all that is left, while the caches take in nothing: until the next turn of the loop.

    So whoever commits in this turn, does so with nothing stale. Raises as `ask` does, after a second.
    """
    question: Question | None = None
    with ExitStack() as held:
        for cached in dict.fromkeys(c for question in questions if question.stale for c in question.caches):
            held.enter_context(cached.informer.held())
        try:
            async with asyncio.timeout(_LONGEST_HOLD):
                for question in questions:
                    while question.stale:
                        await question.ask_some()
        except TimeoutError as error:
            assert question is not None
            why = f"is slower than objects change: for the last of them {_LONGEST_HOLD:g} s were too short"
            raise question.refusal(why) from error


class StagedIndex:
    """An index over a cache that lives: built by a thread, kept current until the commit, then `publish`ed.

    `resource` is the name of the resource that it is declared for.
    """

    def __init__(self, cached: ManagedInformer, index: Index, *, resource: str) -> None:
        self.caches = (cached,)
        self.internal = index.internal
        self._what = f"the index {index.name} of {resource}"
        self._build = cached.informer.build_index(index.internal, exchangeable(index.function))
        self._thread: int | None = None  # of the last question
        self._place = ""  # where in foreign code that was when nobody waited for it any longer

    @property
    def stale(self) -> int:
        """How many objects are not in it as they are now."""
        return self._build.stale

    async def ask_some(self) -> None:
        """Index some of them. Cancelling gives the index up."""
        unasked = self._build.unasked(BATCH)

        def ask() -> Sequence[str | tuple[str, ...]]:
            self._thread = threading.get_ident()
            return self._build.ask(unasked)

        try:
            values = await in_thread(ask, name="declctl-index", what=self._what)
        except asyncio.CancelledError:
            self._place = foreign_place(self._thread)
            self._build.give_up()
            raise
        self._build.enter(unasked, values)

    def refusal(self, why: str) -> ReloadRefused:
        """IndexTimeout, with the function and the object that it was asked about last."""
        return ReloadRefused("IndexTimeout", f"{self._what} {why}{asked_last(self._build.at, self._place)}")

    def publish(self) -> None:
        """Let it be read, at the commit. Nothing is computed where nothing is stale."""
        self._build.finish()
