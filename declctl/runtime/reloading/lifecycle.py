"""Life-cycle hooks.

Called one after the other, off the machinery loop, each within a time limit.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping

import msgspec

from declctl.hooks.awaiting import call_async
from declctl.hooks.calling import Implementation, call
from declctl.hooks.faults import told_with_place
from declctl.kit import LoopThread
from declctl.runtime.log import Log
from declctl.runtime.threads import in_thread

_CANCELLED_SECONDS = 5.0


class Failed(msgspec.Struct, frozen=True):
    """A life-cycle hook that raised or took too long."""

    hook: str
    plugin: str
    error: BaseException

    def __str__(self) -> str:
        if self.error.__cause__ is None:
            return str(self.error)
        return f"{self.hook} of {self.plugin} raised {told_with_place(self.error.__cause__)}"


class Lifecycle:
    """Calls hooks for the runtime.

    Synchronous ones in a thread, asynchronous ones on the `loop` of their generation.
    """

    def __init__(self, log: Log) -> None:
        self._log = log

    async def call_each(
        self,
        implementations: Iterable[Implementation],
        arguments: Callable[[Implementation], Mapping[str, object]],
        *,
        loop: LoopThread,
        timeout: float,
    ) -> list[Failed]:
        """Call all of them, in their order.

        One that fails doesn't keep the others from being called.
        """
        failed: list[Failed] = []
        for implementation in implementations:
            try:
                await self.call(implementation, arguments(implementation), loop=loop, timeout=timeout)
            except Exception as error:  # noqa: BLE001 - foreign code: told, and left to the caller to judge
                failed.append(Failed(implementation.hook, implementation.plugin, error))
        for failure in failed:
            self._log.error(str(failure), hook=failure.hook, plugin=failure.plugin)
        return failed

    async def call(
        self,
        implementation: Implementation,
        arguments: Mapping[str, object],
        *,
        loop: LoopThread,
        timeout: float,
    ) -> object:
        """Call one; returns what it returns. Raises HandlerFailed, or TimeoutError after `timeout` seconds.

        An asynchronous hook is not called while its loop is blocked: that is a TimeoutError at once. A
        synchronous hook that takes too long can't be stopped: its thread is left behind. Whoever is cancelled
        waits for it, for 5 seconds at most: what undoes a hook should not run beside it.
        """
        what = f"{implementation.hook} of {implementation.plugin}"
        if implementation.is_async and loop.is_blocked:
            raise TimeoutError(f"{what} was not called: another `async def` blocks the loop that it runs on")
        work = asyncio.ensure_future(self._work(implementation, arguments, loop))
        try:
            done, _ = await asyncio.wait([work], timeout=timeout)
        except asyncio.CancelledError:
            if implementation.is_async:
                work.cancel()
            await asyncio.wait([work], timeout=_CANCELLED_SECONDS)
            raise
        finally:
            work.cancel()
            work.add_done_callback(_looked_at)
        if not done:
            raise TimeoutError(f"{what} took longer than {timeout:g} s")
        return work.result()

    async def _work(
        self, implementation: Implementation, arguments: Mapping[str, object], loop: LoopThread
    ) -> object:
        if implementation.is_async:
            return await asyncio.wrap_future(loop.submit(call_async(implementation, arguments)))
        name = f"declctl-{implementation.hook}"
        return await in_thread(
            lambda: call(implementation, arguments),
            name=name,
            what=f"{implementation.hook} of {implementation.plugin}",
        )


def _looked_at(work: asyncio.Future[object]) -> None:
    """What a hook raises after its time is over is nobody's business."""
    if not work.cancelled():
        work.exception()
