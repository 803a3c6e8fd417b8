"""A controller under test: calls on its machinery have an end, whenever the controller ends."""

import asyncio
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from declctl.testing import ControllerUnderTest, running

MANIFEST = """
apiVersion: declctl.dev/v1alpha1
kind: Controller
metadata: {name: machinery}
spec:
  resources:
    - {name: pods, apiVersion: v1, kind: Pod}
"""


@pytest.fixture(name="controller")
def _controller():
    with running(MANIFEST) as controller:
        yield controller


async def _nothing() -> str:
    return "done"


def test_a_call_that_waits_while_the_controller_ends_says_so(controller: ControllerUnderTest) -> None:
    """A test that asks in a thread and ends the controller meanwhile reads why there is no answer."""
    begun = threading.Event()

    async def forever() -> None:
        begun.set()
        await asyncio.Event().wait()

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(controller.on_machinery, forever(), 30)
        assert begun.wait(10)
        assert controller.stop() == 0
        with pytest.raises(RuntimeError, match=r"the controller end(s|ed)"):
            waiting.result(10)
    # A process may end by itself, as one does that has lost its lease, just before somebody stops it.
    controller.runtime.stop()


@pytest.mark.parametrize(
    ("is_late", "said"),
    [
        # The loop closes with the call in its queue: the caller does not wait for its whole timeout.
        (False, "the controller ended before it could do"),
        # The loop closes just before the call reaches it: no word of event loops, no coroutine left over.
        (True, r"^the controller has ended$"),
    ],
)
def test_a_call_as_the_loop_closes_says_so(
    controller: ControllerUnderTest, monkeypatch: pytest.MonkeyPatch, is_late: bool, said: str
) -> None:
    """The loop closes just before the call reaches it: no word of event loops, no coroutine left over."""
    schedule = asyncio.run_coroutine_threadsafe

    def closing(*call: Any) -> Future[str]:
        patch.undo()  # the end of the sandbox uses the same function
        controller.stop()
        return schedule(*call) if is_late else Future()

    assert controller.on_machinery(_nothing(), 10) == "done"
    with monkeypatch.context() as patch:
        patch.setattr(asyncio, "run_coroutine_threadsafe", closing)
        with pytest.raises(RuntimeError, match=said):
            controller.on_machinery(_nothing(), 3600)


def test_a_call_that_takes_too_long_is_a_timeout(controller: ControllerUnderTest) -> None:
    """A limit stays a limit while the controller runs; an error of the call comes as it is."""

    async def fail() -> None:
        raise TimeoutError("its own")

    with pytest.raises(TimeoutError, match=r"^$"):
        controller.on_machinery(asyncio.sleep(3600), 0.01)
    with pytest.raises(TimeoutError, match="its own"):
        controller.on_machinery(fail(), 10)


def test_a_busy_controller_is_not_idle(controller: ControllerUnderTest) -> None:
    """Its loop does not answer in time: that is the AssertionError of a wait, as for any other reason."""
    go = threading.Event()
    loop = controller.on_machinery(_loop(), 5)
    loop.call_soon_threadsafe(go.wait)
    try:
        with pytest.raises(AssertionError, match=r"not within 0\.1 s: all caches have seen version"):
            controller.wait_idle(0.1)
    finally:
        go.set()
    controller.wait_idle()


async def _loop() -> asyncio.AbstractEventLoop:
    return asyncio.get_running_loop()
