"""What imports of handler files do that their sources don't show: it is seen as it happens.

A helper in another module, or a library, may open a port, start a thread or register a metric for the file
that calls it at import. This is for the child of a pre-flight alone: what listens here can't be removed.
"""

import inspect
import sys
import threading
from collections.abc import Callable
from importlib.util import find_spec
from types import FrameType
from typing import Any

from declctl.hooks.bundle import Bundle
from declctl.hooks.finding import BundleFinder
from declctl.hooks.lint import ACTIVITY, METRIC, PORT, PROCESS_STATE, Finding, finding_at

_EVENTS = {
    "socket.bind": (PORT, "socket.bind"),
    "os.chdir": (PROCESS_STATE, "changes the current folder of the process"),
    "os.putenv": (PROCESS_STATE, "changes the environment of the process"),
    "os.unsetenv": (PROCESS_STATE, "changes the environment of the process"),
}


class ImportAudit:
    """Writes down what the modules of a bundle do from now on, until `end`. One for each process."""

    def __init__(self, bundle: Bundle) -> None:
        self._bundle = bundle
        self._found: list[Finding] = []
        self._listens = True
        sys.addaudithook(self._hear)
        self._hear_of_threads()
        if any(b"prometheus" in source for source in bundle.files.values()):
            self._hear_of_metrics()

    def end(self, known: list[Finding]) -> list[Finding]:
        """What was found beside the known ones; what happens later is not written down."""
        self._listens = False
        return [one for one in self._found if not any(each.covers(one) for each in known)]

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self._listens and event in _EVENTS and not (event == "socket.bind" and _is_nobodys(*arguments)):
            code, what = _EVENTS[event]
            self._write_down(code, what, inspect.currentframe())

    def _hear_of_threads(self) -> None:
        start = threading.Thread.start

        def heard(thread: threading.Thread) -> None:
            start(thread)
            if self._listens:
                self._write_down(ACTIVITY, "starts a thread, one more at each edit", inspect.currentframe())

        setattr(threading.Thread, "start", heard)  # noqa: B010 - only here is it meant to be another one

    def _hear_of_metrics(self) -> None:
        if find_spec("prometheus_client") is None:
            return
        from prometheus_client.registry import REGISTRY, CollectorRegistry

        register: Callable[[CollectorRegistry, Any], None] = CollectorRegistry.register

        def heard(registry: CollectorRegistry, collector: Any) -> None:
            register(registry, collector)
            if self._listens and registry is REGISTRY:
                self._write_down(METRIC, type(collector).__name__, inspect.currentframe())

        setattr(CollectorRegistry, "register", heard)  # noqa: B010 - as above

    def _write_down(self, code: str, what: str, frame: FrameType | None) -> None:
        """At the innermost line of the bundle; what a library does when it is imported is done once."""
        while frame is not None and "importlib._bootstrap" not in frame.f_code.co_filename:
            if isinstance(frame.f_globals.get("__loader__"), BundleFinder):
                file, line = frame.f_code.co_filename, frame.f_lineno
                found = finding_at(self._bundle, file, line, code, what)
                if found is not None and found not in self._found:
                    self._found.append(found)
                return
            frame = frame.f_back


def _is_nobodys(_: object, address: object) -> bool:
    """Whether it takes nothing from others: a port that the system chooses, or an address of another kind."""
    if isinstance(address, tuple):
        return len(address) < 2 or not isinstance(address[0], str) or address[1] == 0
    return not address
