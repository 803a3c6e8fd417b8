"""The end of a process that was to run once: a fault is no success."""

import asyncio
from typing import Any

import pytest

from declctl.runtime.runtime import until_done


async def test_a_fault_while_it_is_waited_for_rest_is_raised(log) -> None:
    """`run --once` must not end with exit status 0 because nobody could see whether all was done."""

    class Observer:
        async def at_rest(self) -> None:
            raise LookupError("no figures")

        def failed_handlers(self) -> str:
            return ""

    observer: Any = Observer()
    with pytest.raises(LookupError, match="no figures"):
        await until_done(observer, asyncio.Event(), timeout=20.0, log=log)
