"""The two walks of the architecture page: an event and an edit meet the files that it names, in that order.

Both run for real, against an API server in memory, while a profile function notes which file is at work.
"""

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import declctl
from declctl.testing import ControllerUnderTest, running, until

PACKAGE = Path(declctl.__file__).parent
PAGE = (PACKAGE.parent / "ARCHITECTURE.md").read_text()
MANIFEST = """
apiVersion: declctl.dev/v1alpha1
kind: Controller
metadata: {name: walk}
spec:
  resources:
    - {name: pods, apiVersion: v1, kind: Pod}
  handlers:
    - {name: greet, resourceRef: {name: pods}, entryPoint: "handlers:on_pod"}
"""
POD = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web", "namespace": "default"}}


def walk(title: str) -> list[str]:
    """The files of the line under a heading of the page."""
    section = PAGE.split(f"## {title}\n")[1].strip().split("\n\n")[0]
    return re.findall(r"`(\w+\.py)`", section)


class Trace:
    """The files of declctl in which a function was called while the trace was on, one after the other."""

    def __init__(self) -> None:
        self.files: list[str] = []
        self.is_on = False

    def __call__(self, frame: FrameType, event: str, arg: object) -> None:
        """What Python calls for each function, in all threads that begin while it is set."""
        if self.is_on and event == "call" and frame.f_code.co_filename.startswith(str(PACKAGE)):
            self.files.append(Path(frame.f_code.co_filename).name)

    def has_in_order(self, files: list[str]) -> bool:
        """Whether the files were visited in this order, with others between them."""
        visits = iter(self.files)
        return all(name in visits for name in files)


@contextmanager
def traced(folder: Path, handlers: str, **options: Any) -> Iterator[tuple[ControllerUnderTest, Trace]]:
    """A controller at rest, all of whose threads are traced."""
    trace = Trace()
    before = threading.getprofile()
    (folder / "handlers.py").write_text(handlers)
    (folder / "manifest.yaml").write_text(MANIFEST)
    threading.setprofile(trace)
    try:
        with running(folder / "manifest.yaml", objects=[POD], **options) as controller:
            controller.wait_idle()
            yield controller, trace
    finally:
        trace.is_on = False
        threading.setprofile(before)


def test_an_event_walks_as_the_page_says(tmp_path: Path) -> None:
    """From the socket to the hook, an event meets the files that the page names, one after the other."""
    stations = walk("The walk of one watch event")
    assert 8 <= len(set(stations)) == len(stations) <= 12
    with traced(tmp_path, "def on_pod(change, ctx): ...\n") as (controller, trace):
        trace.is_on = True
        controller.sandbox.patch("Pod", "web", {"metadata": {"labels": {"colour": "blue"}}})
        controller.wait_idle()
        trace.is_on = False
    assert trace.has_in_order(stations)
    assert not trace.has_in_order(stations[::-1])  # a walk that is not straight is found out


def test_an_edit_walks_as_the_page_says(tmp_path: Path) -> None:
    """From the file to the report, an edit meets the files that the page names, one after the other."""
    steps = walk("The walk of one edit")
    assert 6 <= len(set(steps)) == len(steps) <= 10
    with traced(tmp_path, "def on_pod(change, ctx): ...\n", watch=True) as (controller, trace):
        trace.is_on = True
        (tmp_path / "handlers.py").write_text("def on_pod(change, ctx): ctx.log.info('new')\n")
        until("the edit is reported", lambda: trace.has_in_order(steps))
        assert controller.status().generation == 2
