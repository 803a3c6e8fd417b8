"""The asynchronous side of the gate, apart from the rest: a child process that only imports needs no loop."""

import types
from collections.abc import Awaitable, Coroutine, Generator, Mapping
from typing import Any, NoReturn

from declctl.hooks.calling import Implementation, failed
from declctl.kit.callbacks import must_propagate


async def call_async(implementation: Implementation, arguments: Mapping[str, object]) -> Any:
    """The same for an asynchronous implementation; cancelling it from outside passes.

    Whatever it raises is a failure. A CancelledError that nobody outside has asked for, a
    KeyboardInterrupt outside of the main thread, or a class of its own that is no Exception would end the
    caller's task, or the whole loop, if they were let through.
    """
    return await _guarded(implementation, _called(implementation, arguments))


def begin_async(implementation: Implementation, arguments: Mapping[str, object]) -> Awaitable[Any] | None:
    """Call an asynchronous implementation, as far as its first wait.

    Returns what is left of it, to be awaited at once and in the same task; None if it had nothing to
    wait for, which has cost no more than a call. Raises as `call_async` does.
    """
    called = _called(implementation, arguments)
    if type(called) is not types.CoroutineType:
        return _guarded(implementation, called)
    try:
        waits_for = called.send(None)
    except StopIteration:
        return None
    except BaseException as error:  # noqa: BLE001 - it is raised again, as it is or as a failure
        _raise(implementation, error)
    return _guarded(implementation, _resumed(called, waits_for))


def _called(implementation: Implementation, arguments: Mapping[str, object]) -> Awaitable[Any]:
    try:
        return implementation.function(**{name: arguments[name] for name in implementation.parameters})
    except BaseException as error:  # noqa: BLE001 - as above
        _raise(implementation, error)


async def _guarded(implementation: Implementation, called: Awaitable[Any]) -> Any:
    try:
        return await called
    except BaseException as error:  # noqa: BLE001 - as above
        _raise(implementation, error)


def _raise(implementation: Implementation, error: BaseException) -> NoReturn:
    if must_propagate(error):
        raise error
    raise failed(implementation, error) from error


@types.coroutine
def _resumed(begun: Coroutine[Any, Any, Any], waits_for: Any) -> Generator[Any, Any, Any]:
    """Drive a coroutine that has begun and waits: what it waits for goes to the loop, and back (PEP 380)."""
    while True:
        try:
            sent = yield waits_for
        except BaseException as thrown:  # noqa: BLE001 - whatever the loop throws is the coroutine's business
            step, value = begun.throw, thrown
        else:
            step, value = begun.send, sent
        try:
            waits_for = step(value)
        except StopIteration as end:
            return end.value
