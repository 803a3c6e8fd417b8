"""Trackers of the first sync, and lazy values."""

import asyncio
import itertools
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from declctl.errors import CacheError
from declctl.informer import AsyncTracker, Lazy, SingleFileTracker

SOON = 10.0  # seconds after which a test that waits for another thread gives up


def single() -> tuple[SingleFileTracker, Callable[[], None], Callable[[], None]]:
    tracker = SingleFileTracker("single")
    return tracker, tracker.start, tracker.finished


def by_key() -> tuple[AsyncTracker[str], Callable[[], None], Callable[[], None]]:
    tracker = AsyncTracker[str]("by key")
    begun, ended = itertools.count(), itertools.count()
    return tracker, lambda: tracker.start(f"k{next(begun)}"), lambda: tracker.finished(f"k{next(ended)}")


@pytest.mark.client_go(205, 208, "synctrack")
@pytest.mark.parametrize("made", [single, by_key])
@pytest.mark.parametrize(
    ("steps", "synced"),
    [
        *((steps, False) for steps in ("", "s", "sf", "su", "ssfu", "ssuf")),
        *((steps, True) for steps in ("u", "us", "usf", "suf", "sfu", "ssfuf", "ssuff")),
    ],
)
def test_it_has_synced_when_upstream_has_and_no_work_is_left(made, steps, synced):
    """Started, finished and upstream in every order: both have to be there; once synced it stays so."""
    tracker, start, finish = made()
    does = {"s": start, "f": finish, "u": tracker.upstream_has_synced}
    for step in steps:
        does[step]()
    assert tracker.has_synced is synced
    assert tracker.synced.is_open is synced


@pytest.mark.client_go(205, 208)
def test_keys_may_be_finished_in_any_order_and_twice():
    """Work by key: starting a key again is the same work, an unknown key is nothing.

    A count below zero would hide work that is still under way: it is a fault of the caller.
    """
    with pytest.raises(CacheError, match="pods: more work"):
        SingleFileTracker("pods").finished()
    tracker = AsyncTracker[str]()
    for key in ("a", "b", "a"):
        tracker.start(key)
    tracker.upstream_has_synced()
    tracker.finished("never started")
    tracker.finished("b")
    tracker.finished("b")
    assert not tracker.has_synced
    tracker.finished("a")
    assert tracker.has_synced


@pytest.mark.client_go("synctrack")
async def test_threads_work_and_a_loop_waits():
    """Workers in threads finish what the loop started: the latch opens on the loop, once."""
    loop = asyncio.get_running_loop()
    tracker, opened = AsyncTracker[int](loop=loop), []
    tracker.synced.on_open(lambda: opened.append(threading.get_ident()))
    for key in range(100):
        tracker.start(key)
    tracker.upstream_has_synced()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(tracker.finished, range(100)))
    await asyncio.wait_for(tracker.synced.wait(), SOON)
    assert opened == [threading.get_ident()]


@pytest.mark.client_go(209, "synctrack")
def test_nobody_gets_a_value_from_before_his_own_change():
    """Ten threads change, notify and ask: each gets its own change or a newer one."""
    counter, lock = itertools.count(1), threading.Lock()
    newest = [0]

    def change() -> int:
        with lock:
            newest[0] = next(counter)
            return newest[0]

    lazy = Lazy(lambda: newest[0])

    def work(_: int) -> bool:
        fresh = True
        for _ in range(200):
            mine = change()
            lazy.notify()
            fresh = fresh and lazy.get() >= mine
        return fresh

    with ThreadPoolExecutor(10) as pool:
        assert all(pool.map(work, range(10)))


@pytest.mark.client_go(209, 211)
def test_all_who_ask_at_once_share_one_evaluation():
    """Ten that ask while it is computed wait for that one; nobody queues up for one of his own."""
    evaluations, begun, go_on = [], threading.Event(), threading.Event()

    def evaluate() -> str:
        evaluations.append(1)
        begun.set()
        assert go_on.wait(SOON)
        return "value"

    lazy = Lazy(evaluate)
    with ThreadPoolExecutor(10) as pool:
        asked = [pool.submit(lazy.get) for _ in range(10)]
        assert begun.wait(SOON)
        go_on.set()
        assert [one.result(SOON) for one in asked] == ["value"] * 10
    assert lazy.get() == "value"
    assert len(evaluations) == 1


@pytest.mark.client_go(209, 210)
@pytest.mark.parametrize("first_to_end", ["A", "B"])
def test_an_overtaken_evaluation_is_not_kept(first_to_end):
    """A is being computed, something changes, B is computed beside it: B is kept, whoever ends first."""
    gates = {"A": threading.Event(), "B": threading.Event()}
    begun = {"A": threading.Event(), "B": threading.Event()}
    names = iter("ABC")

    def evaluate() -> str:
        name = next(names)
        begun[name].set()
        assert gates[name].wait(SOON)
        return name

    lazy = Lazy(evaluate)
    with ThreadPoolExecutor(2) as pool:
        asked = {"A": pool.submit(lazy.get)}
        assert begun["A"].wait(SOON)
        lazy.notify()
        asked["B"] = pool.submit(lazy.get)
        assert begun["B"].wait(SOON)
        for name in (first_to_end, "B" if first_to_end == "A" else "A"):
            gates[name].set()
            assert asked[name].result(SOON) == name
    assert lazy.get() == "B"
    assert next(names) == "C", "there was no third evaluation"


@pytest.mark.client_go(211)
def test_an_error_is_not_kept():
    """Whoever asked gets it; the next who asks has another try. None is a value like any other."""
    answers: list[str | Exception | None] = [None, "value", ValueError("not now")]

    def evaluate() -> str | None:
        answer = answers.pop()
        if isinstance(answer, Exception):
            raise answer
        return answer

    lazy = Lazy(evaluate)
    with pytest.raises(ValueError, match="not now"):
        lazy.get()
    assert lazy.get() == lazy.get() == "value"
    lazy.notify()
    assert lazy.get() is lazy.get() is None
    assert answers == []
