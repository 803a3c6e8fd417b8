"""The watchdog of the machinery: what it says of a function that does not give the loop back."""

import threading

from declctl.kit import LoopThread
from declctl.runtime.watchdog import Watchdog
from declctl.testing import until


def test_what_blocks_the_machinery_is_named_once_and_its_end_is_told(log) -> None:
    """The line of user code, how often, and for how long; a loop that answers late is not blocked."""
    machinery = LoopThread("declctl-machinery").start()
    watchdog = Watchdog(machinery, log)
    gate, asked = threading.Event(), threading.Event()

    def index_function() -> None:
        asked.set()
        gate.wait(30)

    machinery.loop.call_soon_threadsafe(index_function)
    assert asked.wait(20)
    for _ in range(5):
        watchdog.look()
    assert (watchdog.seconds, log.events("error")) == (0.0, [])
    for _ in range(3):
        watchdog.look()
    (told,) = log.events("error")
    assert told.startswith(f"the machinery has been blocked for 5 s at {__file__}:")
    assert " in index_function" in told
    assert (watchdog.status.blocked, watchdog.status.last_seconds) == (1, 7.0)
    gate.set()
    until("it goes on", lambda: (watchdog.look(), not watchdog.seconds)[1])
    assert "goes on: it was blocked for" in log.events("warning")[0]
    assert watchdog.status.last_place.endswith(" in index_function")
    assert machinery.stop()


def test_a_machinery_that_answers_is_not_mentioned(log) -> None:
    """Nothing is counted or told."""
    machinery = LoopThread("declctl-machinery").start()
    watchdog = Watchdog(machinery, log)
    for _ in range(20):
        watchdog.look()
        answered = threading.Event()
        machinery.loop.call_soon_threadsafe(answered.set)
        assert answered.wait(20)
    assert (watchdog.status.blocked, log.events("error"), log.events("warning")) == (0, [], [])
    assert machinery.stop()


def test_what_blocked_it_the_last_time_is_not_blamed_for_the_next(log) -> None:
    """Nothing of anybody's code can be seen: then no line is named, and not that of the time before."""
    machinery = LoopThread("declctl-machinery").start()
    watchdog = Watchdog(machinery, log)
    gates = [threading.Event(), threading.Event()]

    def index_function() -> None:
        gates[0].wait(30)

    for gate, blocks in zip(gates, (index_function, gates[1].wait), strict=True):
        machinery.loop.call_soon_threadsafe(blocks)
        until("it is blocked", lambda: (watchdog.look(), watchdog.seconds)[1])
        gate.set()
        until("it goes on", lambda: (watchdog.look(), not watchdog.seconds)[1])
    assert (watchdog.status.blocked, watchdog.status.last_place) == (2, "")
    assert [" at " in told.partition(":")[0] for told in log.events("error")] == [True, False]
    assert machinery.stop()
