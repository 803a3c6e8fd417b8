"""Functions that somebody else wrote: none is asynchronous where nobody awaits, and none ends its caller."""

import asyncio
import functools
import threading
from typing import Any

import pytest

from declctl.kit.callbacks import must_propagate, plain, refuse_async


async def coroutine() -> bool:
    return False


async def events() -> Any:
    yield 1


class Callable:
    async def __call__(self) -> bool:
        return False


@pytest.mark.parametrize("function", [coroutine, events, Callable(), functools.partial(coroutine)])
def test_an_asynchronous_function_is_refused_where_it_is_given(function):
    """Its role stands in the message, and what to write instead."""
    with pytest.raises(TypeError, match="the filter is called where it cannot be awaited: write `def`"):
        refuse_async(function, "the filter")


@pytest.mark.parametrize("function", [print, lambda: None, Callable, functools.partial(print), None])
def test_plain_functions_and_none_are_taken(function):
    """A class is called as a function, too."""
    refuse_async(function, "the filter")


def test_what_does_nothing_until_it_is_awaited_is_no_answer():
    """It would count as true; a coroutine is closed, so that Python does not warn of it besides."""

    async def scenario() -> None:
        future = asyncio.get_running_loop().create_future()
        for result in (coroutine(), events(), future, (n for n in ())):
            with pytest.raises(TypeError, match=r"the filter returned a .*nothing yet"):
                plain(result, "the filter")

    asyncio.run(scenario())


@pytest.mark.parametrize("result", [None, True, False, 0, "", "text", [1]])
def test_anything_else_is_an_answer(result):
    """As Python's `filter` has it."""
    assert plain(result, "the filter") is result


class Odd(BaseException):
    """What test tools and other frameworks derive from."""


def in_a_thread(error: BaseException) -> bool:
    found: list[bool] = []
    thread = threading.Thread(target=lambda: found.append(must_propagate(error)))
    thread.start()
    thread.join()
    return found[0]


def test_only_what_is_meant_for_us_is_let_through():
    """A cancellation of our own task, a person's Ctrl-C, and the end of a coroutine that is closed."""

    async def scenario() -> tuple[list[bool], bool]:
        task = asyncio.current_task()
        assert task is not None
        stray = [must_propagate(e) for e in (asyncio.CancelledError(), SystemExit(), Odd(), GeneratorExit())]
        task.cancel()
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError as error:
            own = must_propagate(error)
            task.uncancel()
        return stray, own

    assert asyncio.run(scenario()) == ([False] * 4, True)
    assert must_propagate(KeyboardInterrupt())
    assert must_propagate(GeneratorExit())
    assert not in_a_thread(KeyboardInterrupt())
    assert not must_propagate(asyncio.CancelledError())
