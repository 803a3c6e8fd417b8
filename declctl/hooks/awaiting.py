"""The asynchronous side of the gate, apart from the rest: a child process that only imports needs no loop."""

import asyncio
from collections.abc import Mapping
from typing import Any

from declctl.hooks.calling import Implementation, failed


async def call_async(implementation: Implementation, arguments: Mapping[str, object]) -> Any:
    """The same for an asynchronous implementation; cancelling it from outside passes.

    A CancelledError that nobody outside has asked for is a failure like any other: let through, it
    would end the caller's task without a word.
    """
    try:
        return await implementation.function(**{name: arguments[name] for name in implementation.parameters})
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise failed(implementation, error) from error
    except (Exception, SystemExit, GeneratorExit) as error:
        raise failed(implementation, error) from error
