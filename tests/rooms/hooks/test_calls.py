"""The gate: whatever user code does, the host gets a result or one error."""

import asyncio
import contextvars
import gc
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from declctl.errors import HandlerFailed
from declctl.hooks.calls import (
    Implementation,
    begin_async,
    call,
    call_async,
    identity_text,
    readable_traceback,
)

GIVEN = {"change": "change", "obj": "obj", "old": "old", "ctx": "ctx"}


def implementation(function, *parameters, is_async=False):
    """An implementation of declctl_event."""
    return Implementation("declctl_event", "pods", function, parameters, is_async)


def test_only_what_is_taken_is_given():
    """Arguments go by name, and the result comes back."""
    made = implementation(lambda ctx, obj: (obj, ctx), "ctx", "obj")
    assert call(made, GIVEN) == ("obj", "ctx")


@pytest.mark.parametrize(
    "error", [ValueError("no"), SystemExit(3), GeneratorExit(), asyncio.CancelledError()]
)
def test_whatever_is_raised_is_one_error(error):
    """sys.exit in a handler fails the change and ends nothing."""

    def raising():
        raise error

    with pytest.raises(HandlerFailed, match="declctl_event of pods raised") as caught:
        call(implementation(raising), GIVEN)
    assert caught.value.__cause__ is error


def test_only_a_persons_ctrl_c_passes():
    """In a worker it is a failure: only the main thread hears of a person."""

    def pressed():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        call(implementation(pressed), GIVEN)
    with ThreadPoolExecutor(1) as workers, pytest.raises(HandlerFailed):
        workers.submit(call, implementation(pressed), GIVEN).result()


def test_a_call_that_can_not_be_told_or_awaited_is_a_failure():
    """An exception's __str__ is user code, too; a decorator that hides `async` must not look done."""

    class Broken(Exception):
        def __str__(self):
            raise RuntimeError

    def raising():
        raise Broken

    with pytest.raises(HandlerFailed, match=r"raised Broken: \(its text can't be shown\)"):
        call(implementation(raising), GIVEN)

    async def on_pod():
        return None

    def decorated():
        return on_pod()

    with pytest.raises(HandlerFailed, match="async def"):
        call(implementation(decorated), GIVEN)


class Odd(BaseException):
    """What test tools and other frameworks derive from."""


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(3), Odd(), asyncio.CancelledError()])
def test_an_asynchronous_raise_is_one_error(waits, error):
    """SystemExit in a coroutine does not end the loop, before a wait or after it."""

    async def raising():
        if waits:
            await asyncio.sleep(0)
        raise error

    with pytest.raises(HandlerFailed) as caught:
        asyncio.run(call_async(implementation(raising, is_async=True), GIVEN))
    assert caught.value.__cause__ is error


def test_a_signature_that_does_not_fit_is_a_failure():
    """User code that can't even be called is told as user code that raised."""

    async def needs_more(change, more):
        raise AssertionError(more)

    one = Implementation("declctl_event", "p", needs_more, ("change",), is_async=True)
    with pytest.raises(HandlerFailed, match="missing 1 required positional argument"):
        asyncio.run(call_async(one, GIVEN))


def test_who_has_nothing_to_wait_for_is_over_at_once():
    """That costs a call, not a turn of the loop."""
    heard = []

    async def handler(change):
        heard.append(change)

    assert begin_async(implementation(handler, "change", is_async=True), GIVEN) == (None, None)
    assert heard == [GIVEN["change"]]


def test_who_waits_gets_what_he_waits_for():
    """Results, exceptions, an inner timeout and context variables are those of an ordinary await."""
    seen = []
    variable = contextvars.ContextVar("variable")

    async def handler():
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        variable.set("mine")
        answer, fault = loop.create_future(), loop.create_future()
        loop.call_soon(answer.set_result, 42)
        loop.call_soon(fault.set_exception, OSError("gone"))
        seen.append(await answer)
        with pytest.raises(OSError, match="gone"):
            await fault
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await loop.create_future()
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.sleep(0))
        seen.append((variable.get(), asyncio.current_task() is task))
        return "done"

    assert asyncio.run(call_async(implementation(handler, is_async=True), GIVEN)) == "done"
    assert seen == [42, ("mine", True)]


def test_what_a_decorator_makes_awaitable_is_awaited():
    """Not every asynchronous function gives a coroutine."""
    heard = []

    class Later:
        def __await__(self):
            yield from asyncio.sleep(0).__await__()
            heard.append("later")

    asyncio.run(call_async(implementation(Later, is_async=True), GIVEN))
    assert heard == ["later"]


def test_a_cancellation_of_its_own_is_a_failure():
    """A handler that awaits a task which it has cancelled fails; the worker that called it lives on."""

    async def handler():
        task = asyncio.ensure_future(asyncio.sleep(60))
        task.cancel()
        await task

    with pytest.raises(HandlerFailed, match="CancelledError"):
        asyncio.run(call_async(implementation(handler, is_async=True), GIVEN))


async def test_a_cancellation_from_outside_passes():
    """A timeout or a shutdown ends the call itself."""
    entered = asyncio.Event()

    async def handler():
        entered.set()
        await asyncio.Event().wait()

    task = asyncio.ensure_future(call_async(implementation(handler, is_async=True), GIVEN))
    await entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_a_traceback_begins_with_the_persons_own_code(listening):
    """No line of the host stands above what the person wrote; the same for `async def`."""
    source = "def inner():\n    raise ValueError('no')\n\ndef on_pod(obj):\n    inner()\n"
    text = readable_traceback(_failure(listening, {"pods.py": source}))
    # Versions underline differently.
    files = [line for line in text.splitlines() if line.startswith("  File ")]
    assert files == ['  File "app/pods.py", line 5, in on_pod', '  File "app/pods.py", line 2, in inner']
    assert "    raise ValueError('no')" in text
    assert text.endswith("ValueError: no\n")
    _, (target,) = listening({"pods.py": "async def on_pod(obj):\n    1 / 0\n"}, "pods:on_pod")
    with pytest.raises(HandlerFailed) as caught:
        asyncio.run(call_async(target.implementations[0], GIVEN))
    assert readable_traceback(caught.value).splitlines()[1] == '  File "app/pods.py", line 2, in on_pod'


def test_a_traceback_shows_the_lines_that_were_run_with_their_causes(generation, listening):
    """Code of an old generation as it was; `raise … from …` and groups; a raise in the call itself, too."""
    failure = _failure(listening, {"pods.py": "def on_pod(obj):\n    old_code()\n"})
    generation({"pods.py": "def on_pod(obj):\n    brand_new()\n"}).module("pods")
    assert "    old_code()" in readable_traceback(failure)
    source = """
        def on_pod(obj):
            try:
                {}["x"]
            except KeyError as error:
                raise ExceptionGroup("two", [ValueError("one")]) from error
    """
    text = readable_traceback(_failure(listening, {"pods.py": source}))
    assert '{}["x"]' in text
    assert "ValueError: one" in text
    with pytest.raises(HandlerFailed) as caught:
        call(implementation(lambda: None, "obj"), GIVEN)
    assert "TypeError" in readable_traceback(caught.value)


def test_a_traceback_ends_with_the_persons_own_code_if_declctl_raises_on_purpose(listening):
    """How declctl has found it helps nobody; of a fault that is not meant, each line may."""
    source = """
        from declctl.objects.resource import meta_namespace_key
        def on_pod(obj):
            try:
                meta_namespace_key({"kind": "Pod"})
            except Exception as error:
                raise ValueError("no") from error
    """
    text = readable_traceback(_failure(listening, {"pods.py": source}))
    files = [line for line in text.splitlines() if line.startswith("  File ")]
    assert files == ['  File "app/pods.py", line 4, in on_pod', '  File "app/pods.py", line 6, in on_pod']
    assert text.startswith("Traceback")
    assert "NoKey" in text
    assert "KeyError" not in text
    source = "from declctl.objects.resource import name_of\ndef on_pod(obj):\n    name_of(None)\n"
    assert "in name_of" in readable_traceback(_failure(listening, {"pods.py": source}))


def test_the_gate_costs_next_to_nothing():
    """Fifty thousand changes a second do not wait for it: a call passes few functions, and no `inspect`."""
    made, passed = implementation(lambda obj, ctx: None, "obj", "ctx"), []

    def note(frame, event, _) -> None:
        if event == "call":
            passed.append(frame.f_code.co_qualname)

    gc.disable()  # a collection calls what others have registered
    sys.setprofile(note)
    try:
        call(made, GIVEN)
    finally:
        sys.setprofile(None)
        gc.enable()
    assert len(passed) <= 5, passed


def test_an_implementation_has_the_same_identity_in_each_process() -> None:
    """The module of an entry point that is a function has another private name in each generation."""
    names = [
        identity_text(
            Implementation("declctl_finalize", f"_declctl_gen.g{number}.handlers", print, (), False)
        )
        for number in (0, 7)
    ]
    assert names == ["declctl_finalize of handlers: print"] * 2


def _failure(listening, files):
    _, (target,) = listening(files, "pods:on_pod")
    with pytest.raises(HandlerFailed) as caught:
        call(target.implementations[0], GIVEN)
    return caught.value
