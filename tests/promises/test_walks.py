"""The walks of the architecture page: an event, a key and an edit go by the calls that its trees draw.

Each runs for real, against an API server in memory, while a profile function notes the calls.
"""

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from declctl.testing import running, until

PACKAGE = Path(__file__).resolve().parents[2] / "declctl"
PAGE = (PACKAGE.parent / "ARCHITECTURE.md").read_text()
MANIFEST = """{apiVersion: declctl.dev/v1alpha1, kind: Controller, metadata: {name: w}, spec: {
  resources: [{name: pods, apiVersion: v1, kind: Pod, indexers: [{name: a, fieldPath: metadata.name}]}],
  handlers: [{name: greet, resourceRef: {name: pods}, entryPoint: "handlers:on_pod", %s}]}}"""
FILTERED, RECONCILER = MANIFEST % "filter: {labelSelector: team}", MANIFEST % "mode: Reconcile"
ISOLATED = MANIFEST % "mode: Reconcile, isolation: {mode: Process, maxCalls: 1}"
ON_POD = "def on_pod(change, ctx): ..."
RECONCILE = """
def on_pod(request, ctx):
    if request.obj.labels["team"] == "blue":
        ctx.sync.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "made"}})
        if request.attempt == 1:
            raise RuntimeError
"""
POD = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web", "labels": {"team": "red"}}}
BLUE = {"metadata": {"labels": {"team": "blue"}}}
Place = tuple[str, str]  # file and function


def walk(title: str) -> list[tuple[Place, int | None]]:
    """The functions of a tree, each with the number of the line that calls it; None behind `⇢`."""
    lines: list[tuple[Place, int | None]] = []
    branch: list[int] = []
    for text in PAGE.split(f"## {title}\n")[1].split("```")[1].strip().split("\n"):
        indent, later, name, file = re.match(r"( *)(⇢ )?([\w.<>]+)(?: +([\w/]+\.py))?", text).groups()
        branch = branch[: len(indent) // 2]
        place = file or lines[branch[-1]][0][0], name
        lines.append((place, branch[-1] if branch and not later else None))
        branch.append(len(lines) - 1)
    return lines


class Trace:
    """The calls of the functions of a tree, each with its caller, in their order."""

    def __init__(self, lines: list[tuple[Place, int | None]]) -> None:
        self._lines = lines
        self._names = {name for (_, name), _ in lines}
        self.calls: list[tuple[object, object]] = []

    def __call__(self, frame: FrameType, event: str, arg: object) -> None:
        """What Python calls for each function, in all threads that begin while it is set."""
        if event == "call" and frame.f_code.co_qualname in self._names:
            caller = frame.f_back
            while caller and (_place(caller) is None or caller.f_code.co_name.startswith("<")):
                caller = caller.f_back
            self.calls.append((_place(frame), caller and _place(caller)))

    def missing(self) -> list[Place]:
        """The functions that were not called by the line above, after the line of the same depth before."""
        at, missing = dict[int | None, int](), list[Place]()
        for number, (place, above) in enumerate(self._lines):
            at[number] = at.get(above, 0)
            if above is not None:
                call = place, self._lines[above][0]
                if call in self.calls[at[above] :]:
                    at[number] = at[above] = self.calls.index(call, at[above]) + 1
                else:
                    missing.append(place)
        return missing


def _place(frame: FrameType) -> Place | None:
    """File and function of a frame; None for code that is not of the package."""
    file = Path(frame.f_code.co_filename)
    return (str(file.relative_to(PACKAGE)), frame.f_code.co_qualname) if PACKAGE in file.parents else None


@contextmanager
def traced(folder: Path, title: str, manifest: str, code: str, **options: Any) -> Iterator[Any]:
    """A controller whose threads are traced; at the end, every line of the tree has to be called."""
    trace, before = Trace(walk(title)), threading.getprofile()
    (folder / "handlers.py").write_text(code)
    (folder / "manifest.yaml").write_text(manifest)
    threading.setprofile(trace)
    try:
        with running(folder / "manifest.yaml", objects=[POD], **options) as controller:
            controller.wait_idle()
            trace.calls.clear()
            yield controller
    finally:
        threading.setprofile(before)
    assert trace.missing() == []


def test_an_event_walks_as_the_page_says(tmp_path: Path) -> None:
    """From the socket to the hook, and to the end of its call."""
    with traced(tmp_path, "The walk of one watch event", FILTERED, ON_POD) as controller:
        controller.sandbox.patch("Pod", "web", BLUE)
        controller.wait_idle()


def test_a_key_walks_as_the_page_says(tmp_path: Path) -> None:
    """From the change to the write, and to the retry of the call that has failed after it."""
    with traced(tmp_path, "The walk of one key", RECONCILER, RECONCILE) as controller:
        controller.sandbox.patch("Pod", "web", BLUE)
        until("it has failed", lambda: controller.status().handlers[0].retried)
        controller.advance(2.0)


def test_an_isolated_call_walks_as_the_page_says(tmp_path: Path) -> None:
    """From the hook of the worker to a new process, its questions, and its end."""
    with traced(tmp_path, "The walk of one isolated call", ISOLATED, RECONCILE) as controller:
        controller.sandbox.patch("Pod", "web", BLUE)
        until("it has failed", lambda: controller.status().handlers[0].retried)


def test_an_edit_walks_as_the_page_says(tmp_path: Path) -> None:
    """From the file to the commit, its report, and the retirement of the code before."""
    with traced(tmp_path, "The walk of one edit", FILTERED, ON_POD, watch=True) as controller:
        (tmp_path / "handlers.py").write_text(f"{ON_POD}  # edited")
        until("it is committed", lambda: controller.status().generation == 2)
        until("the old code is retired", lambda: controller.status().generations_alive == 1)
