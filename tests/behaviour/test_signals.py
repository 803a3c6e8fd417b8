"""Signals that come at a bad moment."""

import signal
import threading

from declctl.runtime import runtime as process
from declctl.runtime.runtime import RunOptions, Runtime
from declctl.testing import Logged
from declctl.transport import Client


class _LogWithLock(Logged):
    """A log with a lock, as a screen has it; SIGTERM comes while the line about the machinery is written."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self.released = threading.Event()

    def info(self, event, **fields) -> None:
        """Write a line."""
        assert self._lock.acquire(timeout=10), f"a deadlock over {event!r}"
        super().info(event, **fields)
        self._lock.release()

    def error(self, event, **fields) -> None:
        """Write a line, during which the signal comes."""
        with self._lock:
            super().error(event, **fields)
            signal.raise_signal(signal.SIGTERM)
        self.released.set()


def test_a_signal_in_the_middle_of_a_log_line_stops_the_process(rig, sandbox, monkeypatch) -> None:
    """Python runs the signal's handler in the main thread, which has the lock of the log at that moment."""
    monkeypatch.setattr(process, "LOOK_SECONDS", 0.05)  # so that five looks do not take five seconds
    rig.handler("tell")
    log = _LogWithLock()
    runtime = Runtime(
        RunOptions(str(rig.write("def tell(change): pass\n"))),
        connect=lambda: Client.from_kubeconfig_dict(sandbox.kubeconfig()),
        log=log,
    )

    def block() -> None:
        runtime.machinery.loop.call_soon_threadsafe(log.released.wait, 30)

    starts = threading.Timer(0.5, block)
    starts.start()
    assert runtime.run() == 0
    assert log.find("stopping: running calls may finish") is not None
    assert log.events("info").count("stopping: running calls may finish; once more to end at once") == 1
