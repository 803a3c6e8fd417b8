"""The loops for asynchronous hooks: one, until a hook blocks it.

A hook that computes for ever, or that waits without `await`, blocks the thread of its loop, and a thread
can't be stopped. The next generation gets another loop. Loaded code stays on its loop, because sessions,
locks and queues that it has made belong to that loop.
"""

import asyncio
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress

import msgspec

from declctl.errors import ReloadRefused
from declctl.kit import LoopThread
from declctl.kit.callbacks import user_code_place
from declctl.runtime.log import Log

LOOK_SECONDS = 1.0  # between two looks at each loop
ANSWER_SECONDS = 5.0  # a loop that does not answer in this time counts as blocked


class BlockedLoop(msgspec.Struct, frozen=True):
    """A loop that is blocked by a hook."""

    task: str  # the name of the task that runs on it; empty if not known
    place: str  # the line of user code; empty if not known
    newest: bool  # no other loop was made since

    def __str__(self) -> str:
        what = " at ".join(filter(None, (self.task, self.place))) or "an `async def`"
        if not self.newest:
            return f"{what} still blocks the loop of an old generation; the new one has another loop"
        return (
            f"{what} blocks the loop of `async def` hooks: none of them is called until it gives the loop "
            "back. An edit gives them another loop; await what takes long, call it by asyncio.to_thread, or "
            "write `def`"
        )


class HandlerLoops:
    """All loops for handlers: the newest for the next generation, the others for older ones.

    Used on the machinery loop, except `start` and `stop`. A `given` loop has the place of the first one; its
    owner starts and ends it.
    """

    def __init__(self, *, log: Log, given: LoopThread | None = None) -> None:
        self._log = log
        self._given = given
        self._made = 1  # loops in all, for the names of their threads
        self._loops = [given or LoopThread("declctl-handlers")]  # the newest is the last
        self._reported: set[LoopThread] = set()  # loops that the log has called blocked

    @property
    def newest(self) -> LoopThread:
        """The loop for the next generation, unless it is blocked."""
        return self._loops[-1]

    def all(self) -> Sequence[asyncio.AbstractEventLoop]:
        """The asyncio loops."""
        return [loop.loop for loop in self._loops]

    def start(self) -> None:
        """Start the first loop."""
        if self._given is None:
            self.newest.start()

    def stop(self, timeout: float = 5.0) -> None:
        """End all loops, each within `timeout` seconds; the thread of a blocked one ends with the process."""
        for loop in self._loops:
            if loop is not self._given:
                loop.stop(0.0 if loop.is_blocked else timeout)

    async def responsive(self) -> LoopThread:
        """A loop that answers: the newest or, if that is blocked, a new one.

        Raises ReloadRefused (NoThreads) if the system has no thread or file descriptor left for it.
        """
        newest = self.newest
        if await _answers(newest):
            return newest
        # A thread can't be stopped: loaded code keeps its loop, and new code gets another one.
        self._made += 1
        try:
            other = LoopThread(f"declctl-handlers-{self._made}")
            await asyncio.to_thread(other.start)  # the start of a thread blocks its starter
        except (RuntimeError, OSError) as error:
            message = f"the loop of `async def` hooks is blocked, and there can't be another one: {error}"
            raise ReloadRefused("NoThreads", message) from error
        self._loops.append(other)
        return other

    def keep(self, used: Collection[LoopThread]) -> None:
        """End the loops that are not in `used`, except the newest."""
        for loop in self._loops[:-1]:
            if loop not in used and loop is not self._given:
                self._loops.remove(loop)
                self._reported.discard(loop)
                # Without a wait: a blocked loop would delay the reload that has replaced it.
                loop.stop(0.0)

    def blocked(self) -> list[BlockedLoop]:
        """The blocked loops, with the hooks that block them."""
        return [self._described(loop) for loop in self._loops if loop.is_blocked]

    async def watch(self, on_blocked: Callable[[], None]) -> None:
        """Look at each loop once a second, until cancelled; `on_blocked` is called while one is blocked.

        It uses real time, also if the process has another clock: a hook blocks its loop in real time.
        """
        while True:
            for loop in self._loops:
                loop.look()
            self._report()
            # A blocked loop can't run the timeouts of its own calls, so `on_blocked` does.
            if self._reported:
                on_blocked()
            await asyncio.sleep(LOOK_SECONDS)

    def _report(self) -> None:
        for loop in self._loops:
            if loop.is_blocked and loop not in self._reported:
                self._reported.add(loop)
                self._log.warning(str(self._described(loop)))
        for loop in [loop for loop in self._reported if not loop.is_blocked]:
            self._reported.discard(loop)
            self._log.info(f"{loop.name} is not blocked any longer")

    def _described(self, loop: LoopThread) -> BlockedLoop:
        task = asyncio.current_task(loop.loop)
        name = "" if task is None or task.get_name().startswith("Task-") else task.get_name()
        return BlockedLoop(name, user_code_place(loop.thread), newest=loop is self.newest)


async def _answers(asked: LoopThread) -> bool:
    """Whether a loop is free within a few seconds; at once for one that is known to be blocked."""
    if asked.is_blocked:
        return False
    here, answered = asyncio.get_running_loop(), asyncio.Event()

    def answer() -> None:
        with suppress(RuntimeError):  # this loop has been closed: the answer comes too late
            here.call_soon_threadsafe(answered.set)

    asked.loop.call_soon_threadsafe(answer)
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            await answered.wait()
    except TimeoutError:
        return False
    return True
