"""A plugin of version 1.0 of the hook specification goes on working, as it was written."""

import hashlib
import importlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from declctl.testing import until

FROZEN = Path(__file__).parents[1] / "frozen" / "frozen_plugin_1_0.py"
DIGEST = "4047a2fb3d59bd06bf691288f988ab319489db3370edff6c91d7415827239c18"
MANIFEST = """
apiVersion: declctl.dev/v1alpha1
kind: Controller
metadata: {name: frozen}
spec:
  plugins: [{name: frozen, version: ">=1", config: {prefix: "seen: "}}]
  resources: [{name: maps, apiVersion: v1, kind: ConfigMap}]
  handlers:
    - {name: events, resourceRef: {name: maps}, pluginRef: {name: frozen}}
    - name: keys
      mode: Reconcile
      resourceRef: {name: maps}
      pluginRef: {name: frozen}
      finalizer: frozen.example.dev/keys
"""


@pytest.fixture
def frozen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The plugin is installed, for this process and its children."""
    info = tmp_path / "site" / "declctl_frozen-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: declctl-frozen\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[declctl]\nfrozen = {FROZEN.stem}\n")
    for folder in (str(FROZEN.parent), str(info.parent)):
        monkeypatch.syspath_prepend(folder)
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join([folder, os.environ.get("PYTHONPATH", "")]))
    importlib.invalidate_caches()
    yield
    sys.modules.pop(FROZEN.stem, None)


def _seen() -> list[tuple]:
    module: ModuleType = sys.modules[FROZEN.stem]
    return list(module.seen)


def test_nobody_has_edited_it() -> None:
    """An edit would hide what a change of declctl breaks for plugins that nobody edits."""
    assert hashlib.sha256(FROZEN.read_bytes()).hexdigest() == DIGEST


@pytest.mark.thorough
def test_an_old_plugin_gets_every_call_as_it_was_specified(
    frozen, bundle_dir, controller, config_map
) -> None:
    """Life cycle, transform, index, events, keys with a finalizer, a reload, and the end."""
    runs = controller(bundle_dir.write("manifest.yaml", MANIFEST), objects=[config_map("a", x="1")])
    runs.wait_ready()
    until("the finalizer is added and the key is handled", lambda: runs.handler("keys").succeeded >= 2)
    runs.sandbox.patch("ConfigMap", "a", {"data": {"x": "2"}})
    until("the change is handled", lambda: ("modified", "1", "2", "events", False) in _seen())
    assert runs.reload(force=True).result == "Applied"
    runs.sandbox.delete("ConfigMap", "a", "default")
    until(
        "it is gone",
        lambda: ("finalize", "a", True) in _seen() and ("deleted", "default/a", False) in _seen(),
    )
    assert runs.stop() == 0
    seen = _seen()
    for expected in [
        ("startup", 1, "seen: "),
        ("prepare", 1),
        ("added", "a", True, "maps", "INITIAL"),
        ("event", "Added", "default/a", True, True),
        ("event", "Modified", "default/a", False, True),
        ("reconcile", "default/a", "default", "a", True, True),
        ("reload", "Applied", 2, "Applied"),
    ]:
        assert expected in seen, f"{expected} is not in {seen}"
    assert [row[0] for row in seen[-2:]] == ["shutdown", "teardown"]
    assert {row[0] for row in seen} >= {"startup", "prepare", "event", "added", "finalize", "deleted"}
    assert runs.log.of("events")[0].event == "seen: Added"
    assert [(h.failed, h.retried) for h in runs.status().handlers] == [(0, 0), (0, 0)]
