"""What keeps the code of a retired generation alive: a thread, a task, a logging handler, some reference.

Python frees code when nothing refers to it any longer. What a module has started or registered may refer to
it for ever: such code goes on running, and its memory stays. All of it is looked for in a thread, after a
full collection, and only where a generation is still alive then.
"""

import asyncio
import gc
import logging
import signal
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
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

from declctl.hooks.faults import without_prefix
from declctl.hooks.loading import CodeTrace
from declctl.runtime.checking.registrations import Registrations

_MOST = 5  # holders that are named
_CONTAINERS = (dict, list, tuple, set, frozenset, CellType, staticmethod, classmethod, property)
_NO_HOLDERS = (
    FrameType,
    GetSetDescriptorType,
    MemberDescriptorType,
)  # of classes, and calls under way
_HOOKS = ((sys, "excepthook"), (sys, "unraisablehook"), (threading, "excepthook"))


class RetiredCode(msgspec.Struct, frozen=True):
    """The code of a generation that was retired, or refused, which may be alive all the same."""

    generation: int
    refused: bool
    trace: CodeTrace
    registrations: Registrations

    @property
    def is_alive(self) -> bool:
        """Whether anything of it is left: a function, a class with methods, or what it has attached."""
        return self.trace.is_alive or bool(self.registrations.attached)


class OldGeneration(msgspec.Struct, frozen=True):
    """A generation that was replaced, or refused, and is alive, and what holds it."""

    generation: int
    holders: tuple[str, ...]
    refused: bool = False

    def document(self) -> dict[str, Any]:
        """As JSON has it."""
        return {"generation": self.generation, "refused": self.refused, "heldBy": list(self.holders)}


def find_holders(
    code: RetiredCode, loops: Sequence[asyncio.AbstractEventLoop], *, everywhere: bool
) -> tuple[str, ...]:
    """Who holds the code of a generation, five at most; none where none is found. In a thread.

    Threads, tasks of `loops`, logging, signals and other modules are looked at first: some 10 ms. If it is
    none of these, and `everywhere`, all objects of the process are: a second for a million of them, in which
    other threads run.
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
    if not found and code.trace.is_alive and everywhere:
        found = _referrers(prefix)
    if len(found) > _MOST:
        found = [*found[:_MOST], f"{len(found) - _MOST} more"]
    return tuple(dict.fromkeys(found))


def _threads(prefix: str) -> Iterator[str]:
    frames = sys._current_frames()  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
    for thread in threading.enumerate():
        place = _place(frames.get(thread.ident or 0), prefix)
        if not place:
            # What it was given, and not what it has: the fields of threading.Thread and threading.Timer.
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
        with suppress(ValueError):  # of the system's own
            if _is_of(signal.getsignal(number), prefix):
                yield f"signal handler {_named(signal.getsignal(number))} for {signal.Signals(number).name}"
    for module, name in _HOOKS:
        if _is_of(getattr(module, name), prefix):
            yield f"{module.__name__}.{name}"


def _modules(prefix: str) -> Iterator[str]:
    """What somebody has put into a module that is not the generation's."""
    for name, module in tuple(sys.modules.items()):
        if not name.startswith(prefix) and type(module) is ModuleType:
            for attribute, value in tuple(vars(module).items()):
                if _is_of(value, prefix):
                    yield f"{without_prefix(name)}.{attribute} ({_named(value)})"


def _referrers(prefix: str) -> list[str]:
    """What else refers to functions, classes and instances of the generation: the types of these objects.

    Of a container its owner is told. In Python, and not by `gc.get_referrers`, which lets no other thread run
    until it has looked at everything.
    """
    everything = gc.get_objects()
    own = {id(each) for each in everything if _is_of(each, prefix) or _is_namespace(each, prefix)}
    first = [each for each in everything if id(each) not in own and _refers(each, own)]
    containers = {id(each) for each in first if _is_a(each, _CONTAINERS)}
    ours = {id(everything), id(first)}
    owners = [e for e in everything if id(e) not in own | containers | ours and _refers(e, containers)]
    del everything
    named = [_named(each) for each in (*first, *owners) if not _is_a(each, _CONTAINERS)]
    return list(dict.fromkeys(f"a reference in {name}" for name in named))


def _refers(each: object, to: set[int]) -> bool:
    return not _is_a(each, _NO_HOLDERS) and any(id(other) in to for other in gc.get_referents(each))


def _is_a(each: object, kinds: tuple[type, ...]) -> bool:
    """As isinstance, which asks the object for its `__class__`: foreign code, and a dead proxy raises."""
    return issubclass(type(each), kinds)


def _is_namespace(each: object, prefix: str) -> bool:
    """Whether it is a module of the generation, or what such a module consists of."""
    if type(each) is ModuleType:
        each = vars(each)
    return type(each) is dict and _begins(each.get("__name__"), prefix) and "__loader__" in each


def _is_of(value: Any, prefix: str) -> bool:
    """Whether it is a function or a class of the generation, or an instance of one. Calls no foreign code."""
    kind = type(value)
    if kind is partial:
        return _is_of(value.func, prefix)
    if kind is MethodType:
        return _is_of(value.__func__, prefix) or _is_of(value.__self__, prefix)
    if kind is FunctionType:
        return _begins(value.__globals__.get("__name__"), prefix)
    of_class = value if issubclass(kind, type) else kind
    # Not by `of_class.__dict__`, which asks a metaclass, and so foreign code.
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
    """A function or a class by its name, anything else by its class."""
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
