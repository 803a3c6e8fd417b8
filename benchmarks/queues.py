"""The time that a key spends in a work queue's own code, beside asyncio's queue.

    python benchmarks/queues.py [--keys 100000] [--rounds 5]

No key fails, and the function of the workers does nothing: what is left is the overhead of the queue.
"""

import argparse
import asyncio
import statistics
import sys
import time
from collections.abc import Callable

from harness.text import Table, plain

from declctl import Cause, RateLimitingQueue, run_workers

_CAUSE = Cause("Modified", "pods", "team-a/web-0", "Watch")
_WORKERS = 8


def by_hand(keys: list[str]) -> None:
    """Adds all keys with their causes, then takes each and marks it as done."""
    queue: RateLimitingQueue[str] = RateLimitingQueue()
    for key in keys:
        queue.add(key, cause=_CAUSE)
    for _ in keys:
        queue.done(queue.get_nowait())


def by_workers(keys: list[str]) -> None:
    """Adds all keys, and lets eight workers take them."""

    async def nothing(_: str) -> None:
        return

    async def run() -> None:
        queue: RateLimitingQueue[str] = RateLimitingQueue()
        for key in keys:
            queue.add(key, cause=_CAUSE)
        queue.shut_down()
        await run_workers(queue, nothing, concurrency=_WORKERS)

    asyncio.run(run())


def by_asyncio(keys: list[str]) -> None:
    """The same with asyncio.Queue, which has no keys, causes, delays or priorities."""

    async def run() -> None:
        queue: asyncio.Queue[str] = asyncio.Queue()
        for key in keys:
            queue.put_nowait(key)
        left = len(keys)

        async def work() -> None:
            nonlocal left
            while left:
                left -= 1
                await queue.get()
                queue.task_done()

        await asyncio.gather(*(work() for _ in range(_WORKERS)))

    asyncio.run(run())


def _microseconds(run: Callable[[list[str]], None], keys: list[str], rounds: int) -> float:
    taken: list[float] = []
    for _ in range(rounds):
        began = time.perf_counter()
        run(keys)
        taken.append(time.perf_counter() - began)
    return statistics.median(taken) / len(keys) * 1e6


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    keys = [f"team-{number % 50}/web-{number}" for number in range(options.keys)]
    rows = [
        (name, f"{_microseconds(run, keys, options.rounds):.1f} µs", bar)
        for name, run, bar in (
            ("add, get and done", by_hand, "at most 10 µs"),
            ("add, and eight workers that do nothing", by_workers, "at most 10 µs"),
            ("asyncio.Queue with eight workers", by_asyncio, ""),
        )
    ]
    table = Table(f"Work queue, {options.keys:,} keys, for each key", ("", "measured", "bar"), rows)
    sys.stdout.write(f"\n{plain(table)}\n")


if __name__ == "__main__":
    main()
