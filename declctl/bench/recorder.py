"""`declctl run` with a record of each handler call: `python -m declctl.bench.recorder FILE run …`.

Only the handler functions differ from `declctl`: a wrapper reads the change and the memo before and after
each call, and appends a line to FILE. This takes some microseconds for each call.
"""

import functools
import os
import runpy
import signal
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from declctl.hooks.calls import EventTarget, Implementation
from declctl.hooks.registry import PluginRegistry
from declctl.objects import Change
from declctl.runtime.handling.context import Context

_ENCODER = msgspec.json.Encoder()
Write = Callable[[bytes], object]


class RecordedCall(msgspec.Struct, array_like=True, frozen=True):
    """One call of one hook implementation for one change.

    `process` is the process id, `version` the object's resource version. `initial`: the change was part of a
    first sync. `received` is the time at which the process received the change, in seconds since the epoch;
    `began` is the beginning of the call, in monotonic seconds. `memo` and `memo_after`: the memo of the
    object had values before and after the call; None if the handler takes no `ctx`.
    """

    process: int
    generation: int
    handler: str
    type: str
    resource: str
    key: str
    uid: str
    version: int
    initial: bool
    received: float
    began: float
    failed: bool
    memo: bool | None = None
    memo_after: bool | None = None


_DECODER = msgspec.json.Decoder(RecordedCall)


def line(call: RecordedCall) -> bytes:
    """The call as a line."""
    return _ENCODER.encode(call) + b"\n"


class CallLog:
    """The calls in a file to which other processes append."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.all: list[RecordedCall] = []
        self._offset = 0
        path.touch()

    def read(self) -> list[RecordedCall]:
        """The calls since the last `read`."""
        with self.path.open("rb") as file:
            file.seek(self._offset)
            # The file is read from the last position, as it has a line for each call.
            data = file.read()
        whole, _, _ = data.rpartition(b"\n")  # the last line may be half written
        if not whole:
            return []
        self._offset += len(whole) + 1
        new = [_DECODER.decode(text) for text in whole.split(b"\n")]
        self.all += new
        return new


def observed(implementation: Implementation, write: Write) -> Implementation:
    """Wrap an implementation: each call is recorded when it has ended, also by an exception."""
    function, takes = implementation.function, implementation.parameters
    remembers = "ctx" in takes

    @functools.wraps(function)
    def call(**given: Any) -> Any:
        with _written(given["change"], given["ctx"], remembers, write):
            return function(**{name: given[name] for name in takes})

    @functools.wraps(function)
    async def call_async(**given: Any) -> Any:
        with _written(given["change"], given["ctx"], remembers, write):
            return await function(**{name: given[name] for name in takes})

    parameters = tuple(dict.fromkeys((*takes, "change", "ctx")))
    return replace(
        implementation, function=call_async if implementation.is_async else call, parameters=parameters
    )


@contextmanager
def _written(change: Change, ctx: Context, remembers: bool, write: Write) -> Generator[None]:
    # Reading the memo would make one, so it is not read for handlers without `ctx`.
    memo = bool(ctx.memo) if remembers else None
    began, failed = time.monotonic(), True
    try:
        yield
        failed = False
    finally:
        version = change.obj.resource_version
        call = RecordedCall(
            process=os.getpid(),
            generation=change.generation,
            handler=ctx.handler,
            type=str(change.type),
            resource=change.resource,
            key=str(change.key),
            uid=change.obj.uid,
            version=int(version) if version.isdecimal() else 0,
            initial=change.initial,
            received=change.received,
            began=began,
            failed=failed,
            memo=memo,
            memo_after=bool(ctx.memo) if remembers else None,
        )
        write(line(call))


def observe(write: Write) -> None:
    """Wrap all handlers that this process registers from now on."""
    plain = PluginRegistry.target

    def target(self: PluginRegistry, name: str) -> EventTarget:
        return EventTarget(tuple(observed(each, write) for each in plain(self, name).implementations))

    PluginRegistry.target = target


def _end_with_parent() -> None:
    """End this process when its parent ends: standard input is a pipe without data that ends then."""
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def main() -> None:
    """Run `declctl` with all arguments but the first, which is the file for the calls."""
    path = sys.argv.pop(1)
    threading.Thread(target=_end_with_parent, name="parent", daemon=True).start()
    # Each line is appended in one write, from any thread.
    file = os.open(path, os.O_WRONLY | os.O_APPEND)
    observe(functools.partial(os.write, file))
    runpy.run_module("declctl", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
