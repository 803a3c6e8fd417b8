"""The commit: between two deltas, without user code, files, network or waiting, whatever is edited."""

import sys
import threading
from types import FrameType
from typing import Any

import pytest

from declctl.testing import until

_HANDLERS = 200
_LARGER = 400  # objects more, in a larger cache
_CODE = """
import declctl
VERSION = {version}
def tell(change): return VERSION
async def other(change): return VERSION
def passes(obj): return VERSION > 0
def by_a(obj): return [obj["data"]["a"]]

class Classy:
    @declctl.hookimpl
    def declctl_event(self, change): return VERSION
"""
_ENTRIES = ("handlers:tell", "handlers:other", "handlers:Classy")
_FILTER = "filter: {entryPoint: 'handlers:passes'}"
_BUILTINS = frozenset({"open", "connect", "recv", "recv_into", "sendall", "getaddrinfo", "sleep", "exec"})
_WAITS = {"threading": frozenset({"wait", "join"}), "importlib._bootstrap": frozenset({"_find_and_load"})}


class Probe:
    """Sees every call that a commit makes, by wrapping the reloader's."""

    def __init__(self, reloader: Any) -> None:
        self.commits = 0
        self.calls = 0
        self.user_code: list[str] = []
        self.waiting: list[str] = []
        self._commit = reloader.commit
        reloader.commit = self

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        self.commits += 1
        assert threading.current_thread().name == "declctl-machinery"
        before = sys.getprofile()
        sys.setprofile(self._see)
        try:
            return self._commit(*arguments, **options)
        finally:
            sys.setprofile(before)

    def _see(self, frame: FrameType, event: str, what: Any) -> None:
        self.calls += 1
        module, name = str(frame.f_globals.get("__name__", "")), frame.f_code.co_qualname
        if event == "call" and module.startswith("_declctl_gen.g"):
            self.user_code.append(name)
        elif event == "call" and frame.f_code.co_name in _WAITS.get(module, ()):
            self.waiting.append(f"{name} of {module}")
        elif event == "c_call" and what.__name__ in _BUILTINS:
            self.waiting.append(f"{what.__name__} from {name}")


class StepCounter:
    """Counts the lines that a commit runs through; a loop counts at each turn."""

    def __init__(self, reloader: Any) -> None:
        self.count = 0
        self._commit = reloader.commit
        reloader.commit = self

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        before = sys.gettrace()
        sys.settrace(self._step)
        try:
            return self._commit(*arguments, **options)
        finally:
            sys.settrace(before)

    def _step(self, frame: FrameType, event: str, what: Any) -> Any:
        self.count += event == "line"
        return self._step


def _write(
    rig, version: int, handlers: int, *, scope: str = "", index: str = "", filters: bool = True
) -> None:
    rig.resources = [f"- {{name: maps, apiVersion: v1, kind: ConfigMap{scope}{index}}}"]
    rig.handlers = []
    for number in range(handlers):
        rest = _FILTER if filters and (number + version) % 7 == 0 else ""
        rig.handler(f"h{number}", entry=_ENTRIES[number % 3], rest=rest)
    rig.write(_CODE.format(version=version))


_INDEX = ", indexers: [{name: a, entryPoint: 'handlers:by_a'}]"


def _probed(rig, config_map, edits: list[dict[str, Any]]) -> Probe:
    """What happened in the commits of these edits, over a cache that is not empty."""
    _write(rig, 1, _HANDLERS)
    controller = rig.run(objects=[config_map(f"m{n}", a=str(n)) for n in range(5)])
    controller.wait_idle(60)
    probe = Probe(controller.runtime.parts.reloader)
    for version, edit in enumerate(edits, 2):
        _write(rig, version, **{"handlers": _HANDLERS, **edit})
        outcome = controller.reload()
        assert outcome.result == "Applied", outcome.line
        controller.wait_idle(60)
    assert probe.commits == len(edits)
    assert probe.calls > _HANDLERS  # it has seen something
    return probe


@pytest.mark.thorough
@pytest.mark.guarantee("G7")
def test_a_commit_calls_no_user_code_and_waits_for_nothing(rig, config_map) -> None:
    """200 handlers get new code, filters, indexes, periods and namespaces, some come and go."""
    edits: list[dict[str, Any]] = [
        {},
        {"index": _INDEX},
        {"index": _INDEX, "scope": ", resyncPeriod: 10m"},
        {"scope": ", namespaces: [default, other]"},
        {"scope": ", labelSelector: 'a!=b'"},
        {"handlers": _HANDLERS - 10},
        {"handlers": _HANDLERS + 10},  # they hear the cache from workers of their own
    ]
    probe = _probed(rig, config_map, edits)
    assert probe.user_code == []
    assert probe.waiting == []


def _steps(rig, config_map, edit: dict[str, Any], *, objects: int) -> int:
    """How many lines of code the commit of an edit runs through, over so many objects that stay in scope."""
    _write(rig, 1, 9, filters=False)
    controller = rig.run(objects=[config_map(f"m{n}", a=str(n)) for n in range(objects)])
    controller.wait_idle(60)
    steps = StepCounter(controller.runtime.parts.reloader)
    _write(rig, 2, 9, filters=False, **edit)
    assert controller.reload().result == "Applied"
    controller.wait_idle(60)
    controller.stop()
    return steps.count


@pytest.mark.thorough
@pytest.mark.guarantee("G7", "G15")
@pytest.mark.parametrize(
    "edit",
    [
        {},
        {"index": _INDEX},
        {"scope": ", resyncPeriod: 10m"},
        {"scope": ", namespaces: [default]"},
        {"scope": ", labelSelector: 'a!=b'"},
    ],
    ids=str,
)
def test_a_commit_does_not_grow_with_the_cache(rig, config_map, edit) -> None:
    """New code, index, period, or a scope without differences: as many steps over 405 objects as over 5."""
    few = _steps(rig, config_map, edit, objects=5)
    assert _steps(rig, config_map, edit, objects=5 + _LARGER) - few < _LARGER / 2  # finalizers run anywhere


def _workers() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("declctl-handler-")}


@pytest.mark.guarantee("G6", "G7")
def test_a_system_without_threads_refuses_new_handlers(rig, config_map, monkeypatch) -> None:
    """Workers are made before the commit, which cannot fail: where there are none, nothing changes."""
    _write(rig, 1, 3)
    controller = rig.run(objects=[config_map("m", a="1")])
    controller.wait_idle()
    before = _workers()
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "declctl-handler-h6":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    _write(rig, 2, 7)
    outcome = controller.reload()
    assert (outcome.result, outcome.reason) == ("Refused", "NoThreads")
    assert "can't start new thread" in outcome.message
    assert outcome.advice is not None
    retry = controller.status().reload_retry
    assert retry is not None  # no file is at fault: it is tried again by itself
    assert retry.reason == "NoThreads"
    controller.sandbox.patch("ConfigMap", "m", {"data": {"a": "2"}})
    controller.wait_idle()
    assert controller.handler("h0").delivered == 2
    until("no new worker is left", lambda: _workers() == before)
    monkeypatch.undo()
    assert controller.reload().result == "Applied"
    controller.wait_idle()
    assert controller.handler("h6").delivered == 1
