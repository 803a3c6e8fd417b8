"""ProcessorListener: a handler with its own buffer and pace."""

import asyncio
import functools
import threading
from typing import Any

import pytest

from declctl.informer import DeletedFinalStateUnknown, ProcessorListener, ResourceEventHandlerFuncs
from declctl.objects import ChangeReason, ChangeType, Notification, ObjectView
from tests.rooms.informer.shapes import record
from tests.unreadable import Unreadable

SOON = 5.0  # seconds after which a test that waits for another thread gives up


class Diary:
    """A handler that writes down what it is called with, and where."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.threads: set[int] = set()

    def on_add(self, obj: ObjectView, is_in_initial_list: bool) -> None:
        self.write(f"{'there is' if is_in_initial_list else 'added'} {obj.name} {obj.resource_version}")

    def on_update(self, old: ObjectView, new: ObjectView) -> None:
        self.write(f"{new.name} from {old.resource_version} to {new.resource_version}")

    def on_delete(self, obj: ObjectView | DeletedFinalStateUnknown) -> None:
        if isinstance(obj, DeletedFinalStateUnknown):
            self.write(f"{obj.key} is gone, last seen at {obj.obj.resource_version}")
        else:
            self.write(f"deleted {obj.name} {obj.resource_version}")

    def write(self, line: str) -> None:
        self.lines.append(line)
        self.threads.add(threading.get_ident())


class AsyncDiary(Diary):
    async def on_add(self, obj: ObjectView, is_in_initial_list: bool) -> None:
        await asyncio.sleep(0)
        super().on_add(obj, is_in_initial_list)


def added(name: str, version: int = 1, *, initial: bool = False) -> Notification:
    reason = ChangeReason.INITIAL if initial else ChangeReason.WATCH
    return Notification(ChangeType.ADDED, record(name, version), initial=initial, reason=reason)


async def done_with(listener: ProcessorListener) -> None:
    listener.initial_complete()
    await listener.synced.wait()


@pytest.mark.client_go(199, "Tombstones", "Core guarantee", "Per-handler sequencing")
@pytest.mark.parametrize("kind", [Diary, AsyncDiary])
async def test_a_handler_is_called_with_what_happened_in_its_order(clock, kind):
    """Each change arrives in its form: adds with whether they are initial, updates with both states.

    An asynchronous handler runs on the loop, and may use what belongs to it.
    """
    diary = kind()
    before, after = record("a", 1), record("a", 2)
    listener = ProcessorListener(diary, clock=clock)
    listener.add_all([added("a", initial=True), Notification(ChangeType.MODIFIED, after, before)])
    listener.add_all([Notification(ChangeType.RESYNC, after), added("b")])
    listener.add_all([Notification(ChangeType.DELETED, record("a", 3))])
    listener.add_all([Notification(ChangeType.DELETED, record("b"), final_state_unknown=True)])
    await done_with(listener)
    assert diary.lines == [
        "there is a 1",
        "a from 1 to 2",
        "a from 2 to 2",
        "added b 1",
        "deleted a 3",
        "demo/b is gone, last seen at 1",
    ]
    assert (diary.threads == {threading.get_ident()}) is (kind is AsyncDiary)


async def test_async_functions_are_awaited_however_they_are_wrapped(clock):
    """A lambda or a partial that gives a coroutine is waited for, not forgotten."""
    seen: list[str] = []

    async def note(word: str, obj: ObjectView) -> None:
        await asyncio.sleep(0)
        seen.append(f"{word} {obj.name}")

    handlers = [
        ResourceEventHandlerFuncs(add=lambda obj, initial: note("lambda", obj)),
        ResourceEventHandlerFuncs(delete=functools.partial(note, "partial")),
    ]
    for handler in handlers:
        listener = ProcessorListener(handler, clock=clock)
        listener.add_all([added("a"), Notification(ChangeType.DELETED, record("a"))])
        await done_with(listener)
    assert seen == ["lambda a", "partial a"]


class Odd(BaseException):
    """What test tools and other frameworks derive from."""


@pytest.mark.client_go(195, "Handler panics", "Handler names", "HasSynced (handler)")
@pytest.mark.parametrize("fault", [ValueError, SystemExit, asyncio.CancelledError, Odd, Unreadable])
@pytest.mark.parametrize("asynchronous", [False, True, None], ids=["def", "async def", "def for a coroutine"])
async def test_a_handler_that_raises_is_called_again(clock, caplog, fault, asynchronous):
    """A fault in a handler is logged and counted, and the next change is delivered (client-go 195).

    Also one that can't be read: it is logged without its text, and ends no worker.
    """
    seen: list[str] = []

    def fail(obj: ObjectView, initial: bool) -> None:
        seen.append(obj.name)
        if obj.name == "bad":
            raise fault("no")

    async def fail_async(obj: ObjectView, initial: bool) -> None:
        fail(obj, initial)

    def hidden(obj: ObjectView, initial: bool) -> Any:
        return fail_async(obj, initial)

    add: Any = {False: fail, True: fail_async, None: hidden}[asynchronous]
    listener = ProcessorListener(ResourceEventHandlerFuncs(add=add), clock=clock, name="guard")
    listener.add_all([added("bad", initial=True), added("good")])
    await done_with(listener)
    figures = listener.statistics()
    assert seen == ["bad", "good"]
    assert (figures.delivered, figures.failed, figures.synced) == (2, 1, True)
    assert "guard failed on Added demo/bad" in caplog.text
