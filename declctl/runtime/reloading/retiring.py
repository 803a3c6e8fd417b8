"""Retire: what an old generation has queued is dealt with, then what nobody else uses is let go."""

import asyncio
import gc
from collections.abc import Callable, Mapping, Sequence

from declctl.hooks.faults import told
from declctl.kit import Clock
from declctl.manifest.model import CacheMode, ReloadSpec
from declctl.runtime.caching.informer_pool import ResourceRequirement
from declctl.runtime.handling.slots import Ended, Slots, Undrained
from declctl.runtime.log import Log
from declctl.runtime.reloading.generation import Generation, RuntimeServices
from declctl.runtime.reloading.holders import OldGeneration, RetiredCode, find_holders
from declctl.runtime.reloading.plugin_lifetimes import PluginLifetimes
from declctl.runtime.reloading.trial import Kept
from declctl.runtime.threads import in_thread

_SWEEP_SECONDS = 0.5  # after code is forgotten; what else is forgotten meanwhile is swept with it
_SWEEP_INTERVAL = 60.0  # seconds between two sweeps, where more than a few objects are cached decoded
_MOST_WAITING = 3  # retired generations, which may hold much memory, that wait for such a sweep
_UNKNOWN = "something that was not found"
_FEW = 1000  # decoded objects: a full collection stops all threads for about 25 µs for each of them


class Retiring:
    """The generations that were committed, by their numbers, and the end of those that were replaced.

    Used on the machinery loop.
    """

    def __init__(
        self, around: RuntimeServices, owners: PluginLifetimes, slots: Slots, *, clock: Clock, log: Log
    ) -> None:
        self.alive: dict[int, Generation] = {}  # committed and not retired
        # By the prefix of their modules: those that no sweep has found gone, and those that it found alive.
        self._retired: dict[str, RetiredCode] = {}
        self._held: dict[str, OldGeneration] = {}
        self._around = around
        self._owners = owners
        self._slots = slots
        self._clock = clock
        self._log = log
        self._tasks: set[asyncio.Task[None]] = set()
        self._sweeping: asyncio.TimerHandle | None = None
        self._sweeps: set[asyncio.Task[None]] = set()
        self._one_sweep = asyncio.Lock()  # at a time
        self._swept_at = float("-inf")  # on the clock: the last sweep

    def begin(self, old: Generation, policy: ReloadSpec, ended: Sequence[Ended], kept: Kept | None) -> None:
        """Retire a generation that was replaced; where it is `kept`, not before that is released."""
        task = asyncio.get_running_loop().create_task(self._retire(old, policy, ended, kept))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def drained(self) -> None:
        """Return when every generation that was replaced has been retired."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def cancel(self) -> None:
        """Leave undone what is not done: the process ends."""
        if self._sweeping is not None:
            self._sweeping.cancel()
        tasks = (*self._tasks, *self._sweeps)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def let_go(self, generation: Generation, *, timeout: float, linger: float) -> None:
        """End a generation, committed or not: what nobody else uses is torn down, and its code forgotten.

        Hooks have `timeout` seconds, informers linger for `linger` seconds.
        """
        was_last = await self._owners.leave(generation, timeout=timeout)
        refused = self.alive.get(generation.number) is not generation
        if not refused:
            del self.alive[generation.number]
        self._around.caches.drop_indexes(generation.wanted, self._still_wanted())
        self._around.caches.release(generation.wanted, linger=linger)
        self._around.loops.keep({other.loop for other in self._owners.all()})
        if was_last:
            foreign = generation.foreign
            trace = foreign.trace()
            self._retired[trace.prefix] = RetiredCode(
                generation.number, refused, trace, foreign.registrations
            )
            foreign.close()
            waiting = len(self._retired.keys() - self._held.keys())
            since = self._clock.monotonic() - self._swept_at
            self._sweep_in(sweep_delay(self._decoded(), since, waiting=waiting))

    async def _retire(
        self, old: Generation, policy: ReloadSpec, ended: Sequence[Ended], kept: Kept | None
    ) -> None:
        began = self._clock.monotonic()
        late = await self._slots.drain(ended, policy=policy.drain_policy, timeout=policy.drain_timeout)
        took = self._clock.monotonic() - began
        for left in late:
            self._log.warning(_undrained(left, old.number, took), handler=left.handler)
        if not late:
            self._log.info(f"generation {old.number} drained in {took * 1000:.0f} ms")
        await self._slots.finished(ended)
        if kept is not None:
            await kept.released.wait()
        await self.let_go(old, timeout=policy.drain_timeout, linger=policy.informer_linger)

    @property
    def held(self) -> Sequence[OldGeneration]:
        """The generations that were retired and whose code is alive all the same."""
        return [old for prefix, old in self._held.items() if self._retired[prefix].is_alive]

    def _sweep_in(self, delay: float) -> None:
        """Sweep in so many seconds, unless it is done sooner anyway."""
        loop = asyncio.get_running_loop()
        if self._sweeping is not None:
            if self._sweeping.when() <= loop.time() + delay:
                return
            self._sweeping.cancel()
        self._sweeping = loop.call_later(delay, self._sweep)

    def _sweep(self) -> None:
        self._sweeping = None
        self._swept_at = self._clock.monotonic()
        task = asyncio.get_running_loop().create_task(self._swept())
        self._sweeps.add(task)
        task.add_done_callback(self._sweeps.discard)

    async def _swept(self) -> None:
        """Free what nobody refers to, and find out who refers to the rest; again a minute later."""
        async with self._one_sweep:
            retired, before, loops = tuple(self._retired.values()), self._held, self._around.loops.all()
            everywhere = self._decoded() <= _FEW

            def sweep() -> dict[str, OldGeneration]:
                give_memory_back()
                alive = [code for code in retired if code.is_alive]
                return {code.trace.prefix: _held(code, before, loops, everywhere) for code in alive}

            try:
                held = await in_thread(sweep, name="memory sweep")
            except Exception as fault:  # noqa: BLE001 - told; the next sweep finds what this one has not
                self._log.warning(
                    f"what keeps the code of retired generations alive can't be found out: {told(fault)}; "
                    f"it is tried again in {_SWEEP_INTERVAL:g} s"
                )
                self._sweep_in(_SWEEP_INTERVAL)
                return
            for code in retired:
                if code.trace.prefix not in held:
                    del self._retired[code.trace.prefix]
            self._held = held
        for prefix, old in held.items():
            if prefix not in before:
                ended = "refused" if old.refused else "retired"
                self._log.warning(
                    f"the code of generation {old.generation} is alive, though it was {ended}: "
                    f"{', '.join(old.holders)}; end it in declctl_teardown",
                    generation=old.generation,
                )
        if held:
            self._sweep_in(_SWEEP_INTERVAL)

    def _decoded(self) -> int:
        """How many objects are cached decoded (`mode: Objects`)."""
        return sum(
            len(cached.informer.indexer)
            for cached in self._around.caches.all()
            if cached.identity.watch.cache is CacheMode.OBJECTS
        )

    def _still_wanted(self) -> list[ResourceRequirement]:
        """What every generation reads that hasn't been retired: the active one, and those that drain."""
        return [wanted for generation in self.alive.values() for wanted in generation.wanted]


def _held(
    code: RetiredCode,
    known: Mapping[str, OldGeneration],
    loops: Sequence[asyncio.AbstractEventLoop],
    everywhere: bool,
) -> OldGeneration:
    """Who holds the code of a generation now. All objects are looked at but once for it: that takes long."""
    before = known.get(code.trace.prefix)
    holders = find_holders(code, loops, everywhere=everywhere and before is None)
    known_holders = before.holders if before is not None else (_UNKNOWN,)
    return OldGeneration(code.generation, holders or known_holders, code.refused)


def _undrained(left: Undrained, generation: int, seconds: float) -> str:
    """What a handler was not through with, what became of it, and what to do."""
    changes = "1 change" if left.waiting == 1 else f"{left.waiting:,} changes"
    calls = "1 call" if left.running == 1 else f"{left.running:,} calls"
    still = f"; {calls} still running, not waited for any longer" if left.running else ""
    if not left.removed:
        return (
            f"generation {generation} was not drained in {seconds:.1f} s: {changes} of {left.handler} went "
            f"to the new code{still}"
        )
    if not left.waiting:
        return f"{left.handler} was removed{still}"
    return (
        f"{left.handler} was removed before it was through: {changes} dropped after {seconds:.1f} s{still}. "
        "`declctl plan --against running` says before what waits; a longer spec.reload.drainTimeout lets it "
        "finish"
    )


def sweep_delay(decoded: int, since_last: float, *, waiting: int = 1) -> float:
    """Seconds until the next sweep, with so many decoded objects and so many seconds after the last one.

    `waiting` generations have been retired since: code of 100 MB that is edited again and again must not fill
    the memory.

    Many reloads in a row pause a process that caches many decoded objects once a minute, or once for three.
    """
    if decoded <= _FEW or waiting >= _MOST_WAITING:
        return _SWEEP_SECONDS
    return max(_SWEEP_SECONDS, _SWEEP_INTERVAL - since_last)


def give_memory_back() -> None:
    """Free forgotten code, and give free memory back to the system.

    A module and its functions refer to each other, so that only a full collection frees them. Python makes
    one when a quarter more objects have survived than at the last one, which may be many reloads later. It
    looks at every container of the process while no other thread runs: 2 to 4 ms with 100,000 cached frames,
    half a second with 20,000 decoded pods.

    What is freed lies between objects that are in use, and stays resident until glibc trims its heap. A
    thread calls this: it takes the time of what there is to free, and runs finalizers of users.
    """
    gc.collect()
    trim = _malloc_trim()
    if trim is not None:
        trim(0)


def _malloc_trim() -> Callable[[int], int] | None:
    """The `malloc_trim` of glibc; None with another C library."""
    import ctypes  # late: no start of a process pays for it

    try:
        return ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError, TypeError):
        return None
