"""Worker pools: how many changes are worked on at once, and of which keys."""

import asyncio
import threading

import pytest

from declctl.kit.worker_pool import AsyncWorkerPool, ThreadWorkerPool
from declctl.manifest.model import QueueSpec, RetrySpec
from declctl.objects import ChangeType
from tests.rooms.runtime.conftest import SOON, BrokenLog

KINDS = (ChangeType.ADDED, ChangeType.MODIFIED, ChangeType.DELETED)


class Watched:
    """A handler that notes what runs at once, and holds each call until the gate opens."""

    def __init__(self, expected: int) -> None:
        self.gate = threading.Event()
        self.crowded = threading.Event()  # as many run at once as are expected
        self.running: list[str] = []
        self.most = 0
        self.twice = False
        self.heard: list[tuple[str, str]] = []
        self.finished = threading.Event()  # four keys with three changes each were heard
        self._expected = expected
        self._lock = threading.Lock()

    def begin(self, change) -> None:
        with self._lock:
            self.twice = self.twice or change.obj.name in self.running
            self.running.append(change.obj.name)
            self.most = max(self.most, len(self.running))
            if len(self.running) == self._expected:
                self.crowded.set()

    def end(self, change) -> None:
        with self._lock:
            self.running.remove(change.obj.name)
            self.heard.append((change.obj.name, str(change.type)))
            if len(self.heard) == 12:
                self.finished.set()

    def handle(self, change) -> None:
        self.begin(change)
        assert self.gate.wait(SOON)
        self.end(change)

    async def handle_async(self, change) -> None:
        self.begin(change)
        while not self.gate.is_set():
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        self.end(change)


def nothing() -> None:
    """No other pool waits for a worker to leave."""


def threads(slot, *, size: int, **more) -> ThreadWorkerPool:
    pool = {"recover": slot.recover, "name": "threads", "size": size, "on_left": nothing}
    return ThreadWorkerPool(slot.queue, slot.work, **pool, **more)


def tasks(bench, slot, *, size: int) -> AsyncWorkerPool:
    pool = {"recover": slot.recover, "name": "tasks", "size": size, "on_left": nothing}
    return AsyncWorkerPool(slot.queue, slot.work_async, loop=bench.loop.loop, **pool)


def worked(bench, added, *, asynchronous: bool, size: int, expected: int) -> Watched:
    """Four keys with three changes each, worked by a pool of that size."""
    watched = Watched(expected)
    slot = bench.slot(
        watched.handle_async if asynchronous else watched.handle, queue=QueueSpec(concurrency=size)
    )
    workers = tasks(bench, slot, size=size) if asynchronous else threads(slot, size=size)
    slot.wake = workers.wake
    workers.start()
    for kind in KINDS:
        slot.add_all([added(name, kind) for name in "abcd"])
    assert watched.crowded.wait(SOON)
    watched.gate.set()
    assert watched.finished.wait(SOON)
    workers.dismiss()
    return watched


@pytest.mark.client_go(318, "Controller")
@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("size", [1, 3, 8])
def test_as_many_at_once_as_allowed_and_never_two_of_one_key(bench, added, asynchronous, size):
    """As far as there are keys; the changes of one key stay in order, and with `concurrency: 1` all do."""
    watched = worked(bench, added, asynchronous=asynchronous, size=size, expected=min(size, 4))
    assert watched.most == min(size, 4)
    assert not watched.twice
    if size == 1:
        assert watched.heard == [(n, kind) for kind in ("Added", "Modified", "Deleted") for n in "abcd"]
    for name in "abcd":
        assert [kind for heard, kind in watched.heard if heard == name] == ["Added", "Modified", "Deleted"]


def test_threads_rest_until_they_are_woken(bench, added):
    """They are made while a reload is staged: until its commit, what waits is the work of those before."""
    watched = Watched(1)
    watched.gate.set()
    slot = bench.slot(watched.handle)
    workers = threads(slot, size=2)
    slot.add_all([added(name, kind) for kind in KINDS for name in "abcd"])
    workers.start()
    assert slot.queue.statistics().taken == 0
    workers.wake()
    assert watched.finished.wait(SOON)
    workers.dismiss()


class _Dismissing(threading.Event):
    """An event of a pool that is dismissed as a worker clears it."""

    def clear(self) -> None:
        self.dismiss()
        super().clear()


def _started(workers: ThreadWorkerPool) -> set[threading.Thread]:
    before = set(threading.enumerate())
    workers.start()
    return set(threading.enumerate()) - before


def _have_left(threads) -> bool:
    for thread in threads:
        thread.join(SOON)
    return not any(thread.is_alive() for thread in threads)


def test_threads_that_never_had_to_work_leave(bench):
    """A reload that is refused leaves nothing behind, whenever its threads come to know it."""
    workers = threads(bench.slot(print), size=3)
    made = _started(workers)
    assert len(made) == 3
    workers.dismiss()
    assert _have_left(made)


def test_a_thread_that_is_about_to_sleep_leaves_at_once(bench):
    """A worker that is dismissed as it clears its wake-up does not sleep the longest wait before it knows."""
    ready = _Dismissing()
    workers = threads(bench.slot(print), size=1, ready=ready)
    ready.dismiss = workers.dismiss
    made = _started(workers)
    workers.wake()
    assert _have_left(made)


def test_a_crew_that_is_not_complete_is_none(bench, monkeypatch):
    """Where the system has no thread left, those that were started are let go, and the fault is told."""
    workers, started = threads(bench.slot(print), size=3), []
    start = threading.Thread.start

    def refuse(thread):
        if len(started) == 2:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(RuntimeError):
        workers.start()
    assert _have_left(started)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_fault_of_our_own_ends_one_call_and_is_shown(bench, added, clock, log, asynchronous):
    """The change is delivered again, the next one as well, and log and status name the fault."""
    heard, finished, failed = [], threading.Event(), threading.Event()

    def handle(change) -> None:
        heard.append(change.obj.name)
        if heard.count("a") == 1 and change.obj.name == "a":
            raise ValueError("no")
        if len(heard) == 2:
            failed.set()
        if len(heard) == 3:
            finished.set()

    async def handle_async(change) -> None:
        handle(change)

    bench.log = BrokenLog(log, "error", times=1)
    slot = bench.slot(handle_async if asynchronous else handle)
    workers = tasks(bench, slot, size=1) if asynchronous else threads(slot, size=1)
    slot.wake = workers.wake
    workers.start()
    slot.add_all([added("a"), added("b")])
    assert failed.wait(SOON)
    figures = slot.statistics()
    assert figures.retried == 1
    assert figures.last_error == "default/a: internal fault of declctl: OSError: no space left on device"
    clock.set(60.0)
    workers.wake()
    assert finished.wait(SOON)
    workers.dismiss()
    assert heard == ["a", "b", "a"]
    line = log.find("the call for default/a has ended by an internal fault of declctl")
    assert "FailureLog" in line.fields["traceback"] or "invocations.py" in line.fields["traceback"]


def test_a_fault_of_our_own_is_no_attempt(bench, clock, log):
    """With `maxAttempts: 2` a handler may fail twice, whatever goes wrong in declctl before."""
    calls = []

    def fail(change) -> None:
        raise ValueError(calls.append(change.key))

    bench.log = BrokenLog(log, "error", times=1)
    slot = bench.slot(fail, adds="a", retry=RetrySpec(max_attempts=2))
    while (item := slot.queue.take()) is not None:
        try:
            slot.work(item)
        except OSError as fault:
            slot.recover(item, fault)
        clock.set(600.0)
    assert (len(calls), slot.statistics().failed) == (3, 1)
