"""A child: it is forked from the process that has imported the code, and calls the hooks of one handler.

One call after the other, in its main thread; `async def` hooks on a loop of the child, which rests between
calls. The child ends when its socket is closed.
"""

import asyncio
import ctypes
import json
import logging
import os
import signal
import socket
import sys
import traceback
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, cast

import structlog
from msgspec.structs import replace

from declctl.errors import HandlerFailed
from declctl.hooks.calls import Implementation, call, call_async
from declctl.objects import Change, ObjectView, Request, Requeue, view_as
from declctl.runtime.checking.loaded_code import LoadedCode
from declctl.runtime.handling.context import (
    ClusterAccess,
    Context,
    HandlerEnvironment,
    Listers,
    Memo,
    Snapshots,
)
from declctl.runtime.isolation.child.channel import CallChannel, ParentChannel
from declctl.runtime.isolation.child.context import (
    CacheOfParent,
    ClientsOfParent,
    ClusterOfParent,
    ParentLog,
    snapshot_of_parent,
    time_of_parent,
)
from declctl.runtime.isolation.protocol import (
    Begin,
    Call,
    Done,
    Raised,
    Ready,
    failure_of,
    memo_text,
)
from declctl.writes import CallScope

_PR_SET_PDEATHSIG = 1
_FIRST_TO_END = b"1000"  # oom_score_adj: if memory is short, the kernel ends a child before its parent


class Child:
    """The calls of one handler in this process."""

    def __init__(self, channel: ParentChannel, begin: Begin, code: LoadedCode) -> None:
        self._channel = channel
        self._begin = begin
        self._code = code
        self._hooks = code.targets[begin.handler].implementations
        self._loop: asyncio.AbstractEventLoop | None = None
        self._clients = ClientsOfParent(channel)
        self._log = send_logs(channel)
        self._not_awaited: set[str] = set()  # writes that the log has named

    def run(self) -> None:
        """Call hooks until the parent closes the socket. Raises OSError and EOFError then."""
        self._channel.send(Ready(os.getpid()))
        while True:
            call = self._channel.next()
            assert isinstance(call, Call)
            ended = self._answer(call)
            try:
                self._channel.send(ended)
            except (ValueError, OverflowError) as fault:  # what the hook has left can't be sent
                self._channel.send(Raised(failure_of(fault)))

    def _answer(self, message: Call) -> Done | Raised:
        if message.level != self._channel.level:
            self._channel.level = message.level
            logging.getLogger().setLevel(message.level)  # slow: it looks at every logger
        channel = self._channel.open(message.number)
        memo = _CallMemo(channel)
        try:
            view = self._code.view_of(self._begin.resource)
            result = self._call(channel, memo, self._hooks[message.hook], _arguments(message, view))
            if result is None or isinstance(result, Requeue):
                return Done(None if result is None else float(result.after), "", memo.changed())
            return Done(None, type(result).__name__, memo.changed())
        except BaseException as error:  # noqa: BLE001 - user code: the parent decides what follows
            cause = error.__cause__ if isinstance(error, HandlerFailed) and error.__cause__ else error
            changed = None
            with suppress(TypeError):  # this failure, or the reason of another one
                changed = memo.changed()
            return Raised(failure_of(cause), changed)
        finally:
            self._channel.close()
            for stream in (sys.stdout, sys.stderr):  # a process that is ended flushes nothing
                with suppress(Exception):
                    stream.flush()

    def _call(
        self, channel: CallChannel, memo: "_CallMemo", hook: Implementation, arguments: dict[str, object]
    ) -> Any:
        begin, view_of = self._begin, self._code.view_of
        subject = cast("Change | Request", arguments.get("change") or arguments["request"])
        request_id = subject.id if isinstance(subject, Request) else ""
        # All of it is of this call: whatever outlives the call gets no further answer.
        environment = HandlerEnvironment(
            begin.handler,
            begin.generation,
            Listers(
                {
                    name: cast("Any", CacheOfParent(channel, ("lister", name), name, view_of(name)))
                    for name in begin.resources
                }
            ),
            self._code.configs.get(begin.handler, {}),
            cast("ClusterAccess", ClusterOfParent(channel, self._clients)),
            self._log,
            partial(time_of_parent, channel),
            begin.dry_run,
            not_awaited=self._not_awaited,
        )
        arguments["ctx"] = Context(
            environment,
            memo.read,
            CallScope(str(subject.key), subject.obj, request_id),
            Snapshots({name: snapshot_of_parent(channel, name, view_of(name)) for name in begin.snapshots}),
        )
        if not hook.is_async:
            return call(hook, arguments)
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            asyncio.set_event_loop(self._loop)
        return self._loop.run_until_complete(call_async(hook, arguments))


class _CallMemo:
    """The memo of one call: it is read at its first use, and sent back if the call has changed it."""

    def __init__(self, channel: CallChannel) -> None:
        self._channel = channel
        self._memo: Memo | None = None
        self._before = ""

    def read(self) -> Memo:
        """The memo."""
        if self._memo is None:
            memo = Memo()
            self._before = self._channel.ask("memo")
            memo.update(json.loads(self._before))
            self._memo = memo
        return self._memo

    def changed(self) -> str | None:
        """The memo as JSON, if the call has changed it. Raises TypeError if it is not JSON-like any more."""
        if self._memo is None:
            return None
        copied = Memo()
        copied.update(self._memo)  # the call may have changed a list of it
        text = memo_text(copied)
        return None if text == self._before else text


def _arguments(call: Call, view: type[ObjectView]) -> dict[str, object]:
    """What the hook is called with; its objects are views of a class."""
    change, request = call.change, call.request
    if change is None:
        if request is not None:
            states = (request.obj, request.previous)
            obj, previous = (None if each is None else view_as(each, view) for each in states)
            request = replace(request, obj=obj, previous=previous)
        return {"request": request}
    old = None if change.old is None else view_as(change.old, view)
    change = replace(change, obj=view_as(change.obj, view), old=old)
    return {"change": change, "obj": change.obj, "old": change.old}


class _ModuleLogs(logging.Handler):
    """Sends the records of the logging module to the parent."""

    def __init__(self, channel: ParentChannel) -> None:
        super().__init__()
        self._channel = channel

    def emit(self, record: logging.LogRecord) -> None:
        """Send one record."""
        try:
            fields = {name: value for name, value in vars(record).items() if name not in _OF_RECORDS}
            if record.exc_info:
                fields["traceback"] = logging.Formatter().formatException(record.exc_info)
            level = record.levelname.lower()
            ParentLog(self._channel, record.name).tell(level, record.getMessage(), fields)
        except Exception:  # noqa: BLE001 - arguments that a library formats wrongly
            self.handleError(record)


_LEVELS = logging.getLevelNamesMapping()
_OF_RECORDS = {*vars(logging.makeLogRecord({})), "message", "asctime"}


def send_logs(channel: ParentChannel) -> Any:
    """Send lines of structlog and of the logging module to the parent; returns the logger of `ctx.log`."""
    log = ParentLog(channel)

    def send(_logger: object, level: str, entry: Any) -> Any:
        if _LEVELS.get(level.upper(), logging.INFO) < channel.level:
            raise structlog.DropEvent
        fields = dict(entry)
        log.tell(level, fields.pop("event", ""), fields)
        raise structlog.DropEvent

    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.StackInfoRenderer(),
            structlog.processors.format_exc_info,
            send,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG),
        cache_logger_on_first_use=False,
    )
    root = logging.getLogger()
    root.handlers[:] = [_ModuleLogs(channel)]
    root.setLevel(logging.INFO)
    return structlog.get_logger()


def serve(talk: socket.socket, code: LoadedCode) -> None:
    """Be a child of this process: call the hooks of the handler that the parent names, until it is gone."""
    _end_with_parent()
    channel = ParentChannel(talk)
    try:
        begin = channel.next()
        assert isinstance(begin, Begin)
        Child(channel, begin, code).run()
    except (EOFError, OSError):
        return  # the parent is gone, or needs this child no more
    except BaseException:
        traceback.print_exc()  # a fault of declctl: the parent sees the exit status alone
        raise


def _end_with_parent() -> None:
    """End with the process that this one was forked from, whatever runs; and before others, of no memory."""
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        with suppress(OSError):
            Path("/proc/self/oom_score_adj").write_bytes(_FIRST_TO_END)
