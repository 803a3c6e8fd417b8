"""A controller under test: calls on its machinery have an end, whenever the controller ends."""

import asyncio
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from declctl.errors import ManifestErrors
from declctl.testing import BundleDir, ControllerUnderTest, running, until
from declctl.testing import controller as under_test

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


def test_a_busy_controller_is_not_idle(controller: ControllerUnderTest, monkeypatch: Any) -> None:
    """Its loop does not answer in time: that is the AssertionError of a wait, as for any other reason."""
    go = threading.Event()
    loop = controller.on_machinery(_loop(), 5)
    loop.call_soon_threadsafe(go.wait)
    monkeypatch.setattr(under_test, "LOOK_SECONDS", 0.1)
    try:
        with pytest.raises(AssertionError, match=r"^not idle within 0\.1 s: its machinery loop has not"):
            controller.wait_idle(0.1)
    finally:
        go.set()
    controller.wait_idle()


def test_a_wait_that_fails_names_what_is_not_done_and_its_last_error(tmp_path: Path) -> None:
    """The test reads which key of which handler is left, and why; a cache that lacks objects, too."""
    handler = "{name: fails, resourceRef: {name: pods}, entryPoint: 'a:f', retry: {initialBackoff: 1m}}"
    files = {"manifest.yaml": f"{MANIFEST}  handlers: [{handler}]\n", "a.py": "def f(change): 1 / 0\n"}
    pod = {"apiVersion": "v1", "kind": "Pod"}
    with running(BundleDir(tmp_path, files).path, objects=[{**pod, "metadata": {"name": "a"}}]) as controller:
        until(
            "it backs off",
            lambda: controller.handler("fails").retried and not controller.handler("fails").running,
        )
        controller.sandbox.faults.silence("pods")
        controller.sandbox.create({**pod, "metadata": {"name": "b"}})
        left = r"^not idle within 0 s: fails has 1 change left \(default/a: ZeroDiv.*; pods has seen version "
        with pytest.raises(AssertionError, match=left) as failed:
            controller.wait_idle(0.0)
        assert "; fails default/a is BackingOff (failed attempts: 1, ZeroDivisionError)" in str(failed.value)


def test_a_fault_of_the_manifest_is_its_one_line() -> None:
    """A test with a typo in its manifest reads the typo, and not how declctl has come to it."""
    with pytest.raises(ManifestErrors, match=r"manifest\.yaml:\d+:\d+: error DCL") as failed:
        running(MANIFEST.replace("apiVersion: v1,", "apiversion: v1,")).start()
    assert len([entry for entry in failed.traceback if not entry.ishidden(failed)]) == 1
    assert failed.value.__suppress_context__


async def _loop() -> asyncio.AbstractEventLoop:
    return asyncio.get_running_loop()
