"""Controllers over a sandbox in this process, whose files and servers behave as badly as they can."""

from pathlib import Path

import pytest

from declctl.testing import BundleDir
from tests.behaviour.conftest import (
    _config_map,
    _nothing_is_left_behind,
    board,
    bundle_dir,
    configmap_dir,
    controller,
    rig,
    sandbox,
)

MANIFEST = """
apiVersion: declctl.dev/v1alpha1
kind: Controller
metadata: {name: hostile}
spec:
  resources: [{name: pods, apiVersion: v1, kind: Pod}]
  handlers: [{name: h, resourceRef: {name: pods}, entryPoint: "handlers:h"}]
"""


@pytest.fixture
def bundle(tmp_path: Path) -> BundleDir:
    """A manifest with one handler, `handlers:h`."""
    return BundleDir(tmp_path / "app", {"manifest.yaml": MANIFEST, "handlers.py": "def h(change): ...\n"})


__all__ = [
    "_config_map",
    "_nothing_is_left_behind",
    "board",
    "bundle",
    "bundle_dir",
    "configmap_dir",
    "controller",
    "rig",
    "sandbox",
]  # fixtures, for every test here
