"""Foreign code in a thread of its own, awaited.

An executor's threads are few, and Python waits for them when it ends. Foreign code may never
return: it gets a daemon thread, which keeps neither the next call nor the end of the process
waiting.
"""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")

# Whoever starts a thread waits until it runs, which no loop must.
_STARTER = ThreadPoolExecutor(1, thread_name_prefix="declctl-starter")


def start_thread(call: Callable[[], object], *, name: str) -> None:
    """Run `call` in a daemon thread that nobody waits for; from a loop, which does not wait for its start."""
    thread = threading.Thread(target=call, name=name, daemon=True)
    asyncio.get_running_loop().run_in_executor(_STARTER, thread.start)


async def in_thread(call: Callable[[], T], *, name: str) -> T:
    """What `call` returns or raises. Cancelling stops the wait and leaves the thread behind."""
    loop = asyncio.get_running_loop()
    result: asyncio.Future[T] = loop.create_future()

    def run() -> None:
        try:
            value = call()
        except BaseException as error:  # noqa: BLE001 - foreign code: raised again where it is awaited
            tell(result.set_exception, error)
        else:
            tell(result.set_result, value)

    def tell(how: Callable[..., None], what: object) -> None:
        with suppress(RuntimeError):  # the loop has been closed: nobody waits any longer
            loop.call_soon_threadsafe(lambda: None if result.done() else how(what))

    await loop.run_in_executor(_STARTER, threading.Thread(target=run, name=name, daemon=True).start)
    return await result
