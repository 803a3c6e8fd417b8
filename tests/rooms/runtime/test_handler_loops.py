"""The loops for asynchronous hooks: what is said of one that is blocked, and until when."""

import asyncio
import threading

from declctl.runtime.handling.handler_loops import HandlerLoops


def test_a_blocked_loop_that_nobody_uses_any_longer_is_no_concern(log) -> None:
    """It is left to the end of the process: calls of others are not looked at for its sake."""
    loops, gate, looks = HandlerLoops(log=log), threading.Event(), list[int]()

    async def one_look() -> int:
        """How often calls were looked at in the first of its looks, which comes at once."""
        looks.clear()
        watching = asyncio.ensure_future(loops.watch(lambda: looks.append(1)))
        await asyncio.sleep(0)
        watching.cancel()
        return len(looks)

    async def scenario() -> None:
        loops.start()
        loops.newest.loop.call_soon_threadsafe(gate.wait)
        while not loops.newest.is_blocked:
            loops.newest.look()
        assert await one_look() == 1
        loops.keep({await loops.responsive()})
        assert (await one_look(), loops.blocked()) == (0, [])

    try:
        asyncio.run(scenario())
    finally:
        gate.set()
        loops.stop()
