"""The retirement of a generation: drain its changes, tear down and free its code, release its informers.

Python frees code without references. A thread, a task, a logging handler or a registration that a module has
left behind may refer to the code for ever: then it goes on running, and its memory stays. `find_holders`
searches for such references in a thread, after a full collection, and only if the code is still alive then.
"""

import asyncio
import ctypes
import gc
import logging
import signal
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from types import (
    CellType,
    CoroutineType,
    FrameType,
    FunctionType,
    GeneratorType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
)
from typing import Any

import msgspec

from declctl.hooks.calls import describe, without_prefix
from declctl.hooks.loader import CodeTrace
from declctl.kit import Clock
from declctl.kit.callbacks import frames_of_threads
from declctl.manifest.model import CacheMode, ReloadSpec
from declctl.runtime.caching.managed_informer import ResourceRequirement
from declctl.runtime.checking.loaded_code import Registrations
from declctl.runtime.handling.slots import DrainingEpoch, DrainRemainder, Slots
from declctl.runtime.log import Log
from declctl.runtime.reloading.generation import Generation, OldGeneration, PluginLifetimes, RuntimeServices
from declctl.runtime.scheduling.schedules import Schedules
from declctl.runtime.threads import in_thread

SWEEP_SECONDS = 0.5  # from a retirement to its sweep, which later retirements may share
SWEEP_INTERVAL = 60.0  # between two sweeps if many objects are cached decoded
_MOST_WAITING = 3  # retired generations, which may have much memory, before a sweep does not wait
_UNKNOWN = "something that was not found"
FEW_DECODED = 1000  # decoded objects: a full collection stops all threads for about 25 µs for each
_MOST = 5  # holders that are named
_CONTAINERS = (dict, list, tuple, set, frozenset, CellType, staticmethod, classmethod, property)
_NO_HOLDERS = (
    FrameType,
    GetSetDescriptorType,
    MemberDescriptorType,
)  # of classes, and calls under way
_HOOKS = ((sys, "excepthook"), (sys, "unraisablehook"), (threading, "excepthook"))


class RetiredCode(msgspec.Struct, frozen=True):
    """The code of a generation that was retired or refused, and that may still be alive."""

    generation: int
    refused: bool
    trace: CodeTrace
    registrations: Registrations

    @property
    def is_alive(self) -> bool:
        """Whether a function or a class of it is left, or a logging handler on the root logger."""
        return self.trace.is_alive or bool(self.registrations.attached)


def find_holders(
    code: RetiredCode, loops: Sequence[asyncio.AbstractEventLoop], *, everywhere: bool
) -> tuple[str, ...]:
    """The holders of the code of a generation, in words, five at most; empty if none is found. In a thread.

    Searches threads, tasks of `loops`, logging, signals and other modules first: some 10 ms. If none of these
    holds the code, `everywhere` searches all objects of the process: a second for a million of them, during
    which other threads run.
    """
    prefix = code.trace.prefix
    found = [
        *_threads(prefix),
        *_tasks(prefix, loops),
        *_logging(prefix, code.registrations.attached),
        *_signals(prefix),
        *_modules(prefix),
    ]
    if not found and code.trace.is_alive and code.registrations.at_exit:
        found = ["a function registered with atexit"]
    # Last, as it takes long, and the names of types help less than the holders above.
    if not found and code.trace.is_alive and everywhere:
        found = _referrers(prefix)
    if len(found) > _MOST:
        found = [*found[:_MOST], f"{len(found) - _MOST} more"]
    return tuple(dict.fromkeys(found))


def _threads(prefix: str) -> Iterator[str]:
    # A thread that runs a function of the code holds it by its stack.
    frames = frames_of_threads()
    for thread in threading.enumerate():
        place = _place(frames.get(thread.ident or 0), prefix)
        if not place:
            # The target that it will call: fields of threading.Thread and threading.Timer.
            given = [vars(thread).get(name) for name in ("_target", "function")]
            own = [value for value in (*given, thread) if _is_of(value, prefix)]
            place = _named(own[0]) if own else ""
        if place:
            yield f"thread {thread.name} ({place})"
    del frames


def _tasks(prefix: str, loops: Iterable[asyncio.AbstractEventLoop]) -> Iterator[str]:
    for loop in loops:
        for task in asyncio.all_tasks(loop):
            waits: Any = task.get_coro()
            # Follow the awaits inwards: the outer coroutine is often a library's, the inner one the user's.
            while type(waits) is CoroutineType:
                place = _place(waits.cr_frame, prefix, outer=False)
                if place:
                    yield f"task {task.get_name()} ({place})"
                    break
                waits = waits.cr_await


def _logging(prefix: str, attached: Sequence[logging.Handler]) -> Iterator[str]:
    root = logging.getLogger()
    for handler in attached:
        yield f"logging handler {type(handler).__name__} on the root logger"
    loggers = [each for each in tuple(root.manager.loggerDict.values()) if isinstance(each, logging.Logger)]
    for logger in (root, *loggers):
        name = "the root logger" if logger is root else f"logger {logger.name}"
        for each in tuple(logger.filters):
            if _is_of(each, prefix):
                yield f"logging filter {_named(each)} on {name}"
        for handler in tuple(logger.handlers):
            parts = (handler, handler.formatter, *handler.filters)
            if handler not in attached and any(_is_of(part, prefix) for part in parts):
                yield f"logging handler {type(handler).__name__} on {name}"


def _signals(prefix: str) -> Iterator[str]:
    for number in signal.valid_signals():
        with suppress(ValueError):  # a signal that Python has no name for
            if _is_of(signal.getsignal(number), prefix):
                yield f"signal handler {_named(signal.getsignal(number))} for {signal.Signals(number).name}"
    for module, name in _HOOKS:
        if _is_of(getattr(module, name), prefix):
            yield f"{module.__name__}.{name}"


def _modules(prefix: str) -> Iterator[str]:
    """Attributes of other modules that the generation has set."""
    for name, module in tuple(sys.modules.items()):
        if not name.startswith(prefix) and type(module) is ModuleType:
            for attribute, value in tuple(vars(module).items()):
                if _is_of(value, prefix):
                    yield f"{without_prefix(name)}.{attribute} ({_named(value)})"


def _referrers(prefix: str) -> list[str]:
    """The types of all other objects that refer to functions, classes and instances of the generation.

    For a container, its owner is named. Written in Python, as `gc.get_referrers` lets no other thread run.
    """
    everything = gc.get_objects()
    own = {id(each) for each in everything if _is_of(each, prefix) or _is_namespace(each, prefix)}
    first = [each for each in everything if id(each) not in own and _refers(each, own)]
    # The name of a dict or a list does not help a user: the object that owns it does.
    containers = {id(each) for each in first if _is_a(each, _CONTAINERS)}
    ours = {id(everything), id(first)}
    owners = [e for e in everything if id(e) not in own | containers | ours and _refers(e, containers)]
    del everything
    named = [_named(each) for each in (*first, *owners) if not _is_a(each, _CONTAINERS)]
    return list(dict.fromkeys(f"a reference in {name}" for name in named))


def _refers(each: object, to: set[int]) -> bool:
    return not _is_a(each, _NO_HOLDERS) and any(id(other) in to for other in gc.get_referents(each))


def _is_a(each: object, kinds: tuple[type, ...]) -> bool:
    """As isinstance, which reads `__class__`: that may run user code, and raises for a dead proxy."""
    return issubclass(type(each), kinds)


def _is_namespace(each: object, prefix: str) -> bool:
    """Whether it is a module of the generation, or the dict of one."""
    if type(each) is ModuleType:
        each = vars(each)
    return type(each) is dict and _begins(each.get("__name__"), prefix) and "__loader__" in each


def _is_of(value: Any, prefix: str) -> bool:
    """Whether it is a function or a class of the generation, or an instance of one. Calls no user code."""
    kind = type(value)
    if kind is partial:
        return _is_of(value.func, prefix)
    if kind is MethodType:
        return _is_of(value.__func__, prefix) or _is_of(value.__self__, prefix)
    if kind is FunctionType:
        return _begins(value.__globals__.get("__name__"), prefix)
    of_class = value if issubclass(kind, type) else kind
    # Not by `of_class.__dict__`, which a metaclass of user code may define.
    return _begins(type.__getattribute__(of_class, "__dict__").get("__module__"), prefix)


def _begins(name: object, prefix: str) -> bool:
    return type(name) is str and name.startswith(f"{prefix}.")


def _place(frame: FrameType | None, prefix: str, *, outer: bool = True) -> str:
    """The innermost line of the generation in a stack, such as `poll at handlers.py:7`; empty for none."""
    while frame is not None:
        if _begins(frame.f_globals.get("__name__"), prefix):
            code = frame.f_code
            return f"{code.co_qualname} at {code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back if outer else None
    return ""


def _named(value: Any) -> str:
    """The name of a function or a class, else the name of the object's class."""
    kind = type(value)
    if kind is partial:
        return _named(value.func)
    if kind is MethodType:
        return _named(value.__func__)
    if kind in (CoroutineType, GeneratorType):
        return str(value.__qualname__)
    if kind is FunctionType:
        module, name = value.__module__, value.__qualname__
    else:
        of_class = value if issubclass(kind, type) else kind
        module = type.__getattribute__(of_class, "__module__")
        name = type.__getattribute__(of_class, "__qualname__")
    module = without_prefix(module) if type(module) is str else ""
    return f"{module}.{name}" if module not in ("", "builtins") else str(name)


class Retirement:
    """Retires generations, and looks whether their code is freed. Used on the machinery loop."""

    def __init__(
        self,
        services: RuntimeServices,
        lifetimes: PluginLifetimes,
        slots: Slots,
        schedules: Schedules,
        *,
        clock: Clock,
        log: Log,
    ) -> None:
        self.unretired: dict[int, Generation] = {}  # committed and not retired, by number; the reloader adds
        self._retired: dict[str, RetiredCode] = {}  # by prefix of its modules: code that may be alive
        self._retained: dict[str, OldGeneration] = {}  # by the same prefix: the holders of the last sweep
        self._seen_alive: set[str] = set()  # by the same prefix: found alive by one sweep
        self._services = services
        self._lifetimes = lifetimes
        self._slots = slots
        self._schedules = schedules
        self._clock = clock
        self._log = log
        self._tasks: set[asyncio.Task[None]] = set()  # one for each generation that is being retired
        self._sweeping: asyncio.Task[None] | None = None  # the next sweep, until it begins
        self._sweep_due = 0.0  # on the clock: that of `_sweeping`
        self._sweeps: set[asyncio.Task[None]] = set()  # under way, or waiting for `_one_sweep`
        self._one_sweep = asyncio.Lock()  # at a time
        self._swept_at = float("-inf")  # on the clock: the last sweep

    def begin(
        self,
        old: Generation,
        policy: ReloadSpec,
        ended: Sequence[DrainingEpoch],
        released: asyncio.Event | None,
    ) -> None:
        """Begin to drain and retire a replaced generation; its teardown waits for `released`, if given."""
        task = asyncio.get_running_loop().create_task(self._retire(old, policy, ended, released))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def wait_until_retired(self) -> None:
        """Wait until every replaced generation is retired."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def cancel(self) -> None:
        """Cancel retirements and sweeps: the process ends."""
        tasks = (*self._tasks, *self._sweeps)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def end(self, generation: Generation, *, timeout: float, linger: float) -> None:
        """End a generation, committed or not: tear down what no other one uses, and close its code.

        Each hook has `timeout` seconds. Informers linger for `linger` seconds.
        """
        was_last = await self._lifetimes.leave(generation, timeout=lambda: timeout)
        if (isolated := generation.isolated) is not None:
            close = partial(isolated.close, "its generation has ended")
            await in_thread(close, name="declctl-isolation")
        # Only committed generations are alive; the others were refused while they were staged.
        refused = self.unretired.get(generation.number) is not generation
        if not refused:
            del self.unretired[generation.number]
        self._services.caches.drop_indexes(generation.requirements, self._requirements())
        self._services.caches.release(generation.requirements, linger=linger)
        # A loop that only this generation used is not needed any more.
        self._services.loops.keep({other.loop for other in self._lifetimes.all()})
        if was_last:
            loaded_code = generation.loaded_code
            await self._services.metrics.retire(loaded_code)
            trace = loaded_code.trace()
            self._retired[trace.prefix] = RetiredCode(
                generation.number, refused, trace, loaded_code.registrations
            )
            loaded_code.close()
            # A full collection stops all threads: with many decoded objects several reloads share one.
            waiting = len(self._retired.keys() - self._retained.keys() - self._seen_alive)
            since = self._clock.monotonic() - self._swept_at
            self._sweep_in(sweep_delay(self._decoded(), since, waiting=waiting))

    async def _retire(
        self,
        old: Generation,
        policy: ReloadSpec,
        ended: Sequence[DrainingEpoch],
        released: asyncio.Event | None,
    ) -> None:
        began = self._clock.monotonic()
        late = await self._slots.drain(ended, policy=policy.drain_policy, timeout=policy.drain_timeout)
        took = self._clock.monotonic() - began
        for left in late:
            self._log.warning(_undrained(left, old.number, took), handler=left.handler)
        if not late:
            self._log.info(f"generation {old.number} drained in {took * 1000:.0f} ms")
        # Calls that `drainTimeout` did not wait for still use the old code: its teardown comes after them.
        await self._slots.finished(ended)
        await self._schedules.finished(old.number)
        if released is not None:  # the probation of the next generation may commit this one again
            await released.wait()
        await self.end(old, timeout=policy.drain_timeout, linger=policy.informer_linger)

    @property
    def retained(self) -> Sequence[OldGeneration]:
        """The retired generations whose code is still alive."""
        return [old for prefix, old in self._retained.items() if self._retired[prefix].is_alive]

    def _sweep_in(self, delay: float) -> None:
        """Sweep after `delay` seconds, unless an earlier sweep is due."""
        due = self._clock.monotonic() + delay
        if self._sweeping is not None:
            if self._sweep_due <= due:
                return
            self._sweeping.cancel()
        self._sweep_due = due
        self._sweeping = asyncio.get_running_loop().create_task(self._sweep_after(delay))
        self._sweeps.add(self._sweeping)
        self._sweeping.add_done_callback(self._sweeps.discard)

    async def _sweep_after(self, delay: float) -> None:
        await self._clock.sleep(delay)
        self._sweeping = None
        self._swept_at = self._clock.monotonic()
        await self._swept()

    async def _swept(self) -> None:
        """Free code without references, and find the holders of the rest; repeat that after a minute.

        Code that is alive for the first time may be in use for a moment, by a call that is just ending: the
        next sweep comes soon, and only then it counts as retained.
        """
        async with self._one_sweep:
            retired, before, loops = tuple(self._retired.values()), self._retained, self._services.loops.all()
            seen_before = self._seen_alive | before.keys()
            everywhere = self._decoded() <= FEW_DECODED

            def sweep() -> tuple[dict[str, OldGeneration], set[str]]:
                give_memory_back()
                alive = {code.trace.prefix: code for code in retired if code.is_alive}
                found = {
                    prefix: _retained(code, before, loops, everywhere)
                    for prefix, code in alive.items()
                    if prefix in seen_before
                }
                return found, alive.keys() - seen_before

            try:
                retained, seen_alive = await in_thread(sweep, name="memory sweep")
            except Exception as fault:  # noqa: BLE001 - logged; the next sweep tries again
                self._log.warning(
                    "what keeps the code of retired generations alive can't be found out: "
                    f"{describe(fault)}; it is tried again in {SWEEP_INTERVAL:g} s"
                )
                self._sweep_in(SWEEP_INTERVAL)
                return
            for code in retired:
                if code.trace.prefix not in retained.keys() | seen_alive:
                    del self._retired[code.trace.prefix]
            self._retained, self._seen_alive = retained, seen_alive
        for prefix, old in retained.items():
            if prefix not in before:
                ended = "refused" if old.refused else "retired"
                self._log.warning(
                    f"the code of generation {old.generation} is alive, though it was {ended}: "
                    f"{', '.join(old.held_by)}; end it in declctl_teardown",
                    generation=old.generation,
                )
        if seen_alive:
            self._sweep_in(sweep_delay(self._decoded(), since_last=0.0))
        elif retained:
            self._sweep_in(SWEEP_INTERVAL)

    def _decoded(self) -> int:
        """The number of objects that are cached decoded (`mode: Objects`)."""
        return sum(
            len(cached.informer.indexer)
            for cached in self._services.caches.all()
            if cached.identity.watch.cache is CacheMode.OBJECTS
        )

    def _requirements(self) -> list[ResourceRequirement]:
        """The requirements of the active generation, and of those that drain."""
        return [each for generation in self.unretired.values() for each in generation.requirements]


def _retained(
    code: RetiredCode,
    known: Mapping[str, OldGeneration],
    loops: Sequence[asyncio.AbstractEventLoop],
    everywhere: bool,
) -> OldGeneration:
    """The present holders of a generation's code. Only the first search covers all objects: it is slow."""
    before = known.get(code.trace.prefix)
    holders = find_holders(code, loops, everywhere=everywhere and before is None)
    known_holders = before.held_by if before is not None else (_UNKNOWN,)
    return OldGeneration(code.generation, holders or known_holders, code.refused)


def _undrained(left: DrainRemainder, generation: int, seconds: float) -> str:
    """The log line of a handler that was not drained in time."""
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
        f"{left.handler} was removed before all its changes were handled: {changes} dropped after "
        f"{seconds:.1f} s{still}. `declctl plan --against running` shows beforehand what waits; a longer "
        "spec.reload.drainTimeout lets it finish"
    )


def sweep_delay(decoded: int, since_last: float, *, waiting: int = 1) -> float:
    """The seconds until the next sweep.

    - `decoded`: the number of decoded objects in caches. With many of them, a sweep pauses the process, so
      there is one a minute at most.
    - `since_last`: seconds since the last sweep.
    - `waiting`: generations that were retired since. With three of them the sweep does not wait: code of
      100 MB that is edited again and again must not fill the memory.
    """
    if decoded <= FEW_DECODED or waiting >= _MOST_WAITING:
        return SWEEP_SECONDS
    return max(SWEEP_SECONDS, SWEEP_INTERVAL - since_last)


def give_memory_back() -> None:
    """Free closed code, and return free memory to the system. Called in a thread.

    A module and its functions refer to each other, so that only a full collection frees them. Python makes
    one when a quarter more objects have survived than at the last one, which may be many reloads later. It
    visits every container of the process while no other thread runs: 2 to 4 ms with 100,000 cached frames,
    half a second with 20,000 decoded pods. It also runs finalizers of user code.

    The freed memory lies between objects in use, and stays resident until glibc trims its heap.
    """
    gc.collect()
    trim_heap()


def trim_heap() -> None:
    """Return free memory to the system, if the C library is glibc. Called in a thread."""
    with suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)
