"""The transform of a cache that fills for a staged generation: it runs in a thread, not on the loop."""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Generic, TypeVar

from declctl.decoding import Transform
from declctl.errors import ReloadRefused
from declctl.kit.stacks import foreign_place
from declctl.objects import KubeObject
from declctl.objects.key import key_of
from declctl.objects.reading import mapping
from declctl.runtime.threads import in_thread

T = TypeVar("T")


class _GivenUp(BaseException):
    """Ends a thread that nobody waits for, before the next object. No `except Exception` stops it."""


class _Work(Generic[T]):
    """One piece of work for a thread. `done` is called where it has begun, when it is over."""

    def __init__(
        self, work: Callable[[], T], *, begins: Callable[[], None], done: Callable[[], None]
    ) -> None:
        self._work, self._begins, self._done = work, begins, done
        self._deciding = threading.Lock()
        self._has_begun = False
        self.given_up = False

    def __call__(self) -> T:
        with self._deciding:
            if self.given_up:
                raise _GivenUp
            self._has_begun = True
        self._begins()
        try:
            return self._work()
        finally:
            self._done()

    def give_up(self) -> bool:
        """Nobody waits for it any longer; returns whether it has not begun, so that it never will."""
        with self._deciding:
            self.given_up = True
            return not self._has_begun


class StagedTransform:
    """The transform of a cache that fills for a staged generation: what it is asked for runs in a thread.

    It is called in the place of `transform`, within `run`. What runs was given up where nobody waits for it
    any longer: then it ends after the object that it is at, and touches nothing.
    """

    def __init__(self, transform: Transform, *, what: str) -> None:
        self._transform = transform
        self._what = what
        self._turn = asyncio.Lock()  # a thread that was left behind has it until it returns
        self._thread: int | None = None  # the one that runs, or was left behind
        self._current: _Work[Any] | None = None  # what has the turn
        self._at = ""  # the key of the object that was transformed last

    def __call__(self, obj: KubeObject) -> KubeObject | None:
        """What the transform makes of an object."""
        metadata = mapping(obj.get("metadata"))
        self._at = key_of(metadata.get("namespace"), str(metadata.get("name")))
        self._go_on()
        try:
            return self._transform(obj)
        finally:
            self._go_on()

    async def run(self, work: Callable[[], T]) -> T:
        """What `work` returns or raises, in a thread. One after the other: a decoder is for one thread."""
        await self._turn.acquire()
        done = partial(self._over, asyncio.get_running_loop())
        asked = self._current = _Work(work, begins=self._begun, done=done)
        try:
            return await in_thread(asked, name="declctl-transform", what=self._what)
        except BaseException:
            if asked.give_up():  # there was no thread for it
                self._turn.release()
            raise

    @property
    def is_running(self) -> bool:
        """Whether a thread runs it now."""
        return self._turn.locked()

    def refusal(self, why: str) -> ReloadRefused:
        """TransformTimeout, with the function and the object that it was asked about last."""
        place = foreign_place(self._thread)
        return ReloadRefused("TransformTimeout", f"{self._what} {why}{asked_last(self._at, place)}")

    def _begun(self) -> None:
        self._thread = threading.get_ident()

    def _over(self, loop: asyncio.AbstractEventLoop) -> None:
        self._thread = None
        with suppress(RuntimeError):  # the loop has been closed: nobody waits for the turn any longer
            loop.call_soon_threadsafe(self._turn.release)

    def _go_on(self) -> None:
        if self._current is not None and self._current.given_up:
            raise _GivenUp


def asked_last(key: str, place: str) -> str:
    """The end of a sentence about foreign code: the object that it was asked about last, and where it is."""
    return "".join([f"; it was asked about {key} last" if key else "", f", at {place}" if place else ""])
