"""CallLog of handlers, written down while they are made."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from declctl.bench.recorder import CallLog, RecordedCall, line, observed
from declctl.hooks.calls import Implementation, begin_async, call
from declctl.testing import BundleDir, running

MANIFEST = """\
apiVersion: declctl.dev/v1alpha1
kind: Controller
metadata: {name: observed}
spec:
  resources: [{name: maps, apiVersion: v1, kind: ConfigMap}]
  handlers: [{name: tell, resourceRef: {name: maps}, entryPoint: "handlers:tell"}]
"""


class Ctx:
    """What is read of a context."""

    handler = "tell"

    def __init__(self) -> None:
        self.asked = 0
        self.values: dict[str, int] = {}

    @property
    def memo(self) -> dict[str, int]:
        self.asked += 1
        return self.values


class Change:
    """What is read of a change."""

    type, resource, key, generation = "Modified", "maps", "default/a", 3
    initial, received = False, 12.5

    class obj:  # noqa: N801 - it stands for an attribute
        uid, resource_version = "u-1", "17"


def told(function: Any, *takes: str, is_async: bool = False) -> tuple[Implementation, list[bytes]]:
    lines: list[bytes] = []
    plain = Implementation("declctl_event", "handlers:tell", function, takes, is_async)
    return observed(plain, lines.append), lines


def read(lines: list[bytes], folder: Path) -> Sequence[RecordedCall]:
    calls = CallLog(folder / "calls")
    calls.path.write_bytes(b"".join(lines))
    return calls.read()


def test_a_call_gets_what_it_takes_and_is_written_down(tmp_path: Path):
    """The function sees its own arguments only, and what it returns is returned."""
    ctx = Ctx()

    def tell(obj, ctx):
        ctx.values["seen"] = 1
        return obj

    implementation, lines = told(tell, "obj", "ctx")
    given = {"change": Change, "obj": "the object", "old": None, "ctx": ctx}
    assert call(implementation, given) == "the object"
    (found,) = read(lines, tmp_path)
    assert (found.handler, found.type, found.key, found.version) == ("tell", "Modified", "default/a", 17)
    assert (found.generation, found.received, found.failed) == (3, 12.5, False)
    assert (found.memo, found.memo_after) == (False, True)


def test_a_handler_that_can_remember_nothing_gets_no_memo(tmp_path: Path):
    """A memo costs memory for each object, so that measuring must not make any."""
    ctx = Ctx()
    implementation, lines = told(lambda change: None, "change")
    call(implementation, {"change": Change, "ctx": ctx})
    (found,) = read(lines, tmp_path)
    assert (ctx.asked, found.memo) == (0, None)


def test_a_call_that_raises_is_written_down_too(tmp_path: Path):
    """It raises what it raised before."""
    implementation, lines = told(lambda change: {}["team"], "change")
    with pytest.raises(Exception, match="team"):
        call(implementation, {"change": Change, "ctx": Ctx()})
    (found,) = read(lines, tmp_path)
    assert found.failed


async def test_an_asynchronous_call_is_written_down_when_it_has_ended(tmp_path: Path):
    """Not when it begins to wait."""
    gate = asyncio.Event()

    async def tell(change):
        await gate.wait()

    implementation, lines = told(tell, "change", is_async=True)
    rest, _ = begin_async(implementation, {"change": Change, "ctx": Ctx()})
    assert rest is not None
    assert lines == []
    gate.set()
    await rest
    (found,) = read(lines, tmp_path)
    assert not found.failed


def test_a_line_that_is_half_written_is_read_when_it_is_whole(tmp_path: Path):
    """Whoever looks meanwhile sees the whole ones, each once."""
    calls = CallLog(tmp_path / "calls")
    one = RecordedCall(1, 1, "tell", "Added", "maps", "default/a", "u", 5, True, 1.0, 2.0, False)
    text = line(one)
    with calls.path.open("ab", buffering=0) as file:
        file.write(text + text[:9])
        assert (calls.read(), calls.read()) == ([one], [])
        file.write(text[9:])
        assert calls.read() == [one]
    assert calls.all == [one, one]


def test_what_is_observed_in_a_controller_is_every_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from declctl.bench import recorder as module

    plain = module.PluginRegistry.target
    monkeypatch.setattr(module.PluginRegistry, "target", plain)  # put back in the end
    lines: list[bytes] = []
    module.observe(lines.append)
    bundle = BundleDir(tmp_path, {"manifest.yaml": MANIFEST, "handlers.py": "def tell(obj): obj.name"})
    metadata = {"name": "a", "namespace": "default"}
    objects = [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}]
    with running(bundle.path / "manifest.yaml", objects=objects) as controller:
        controller.wait_idle()
        bundle.edit("handlers.py", "obj.name", "obj.key")
        assert controller.reload().result == "Applied"
        controller.sandbox.patch("ConfigMap", "a", {"data": {"k": "v"}})
        controller.wait_idle()
    found = [(c.generation, c.handler, c.type, c.key, c.initial) for c in read(lines, tmp_path)]
    assert found == [(1, "tell", "Added", "default/a", True), (2, "tell", "Modified", "default/a", False)]
