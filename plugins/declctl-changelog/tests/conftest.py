"""The plugin, importable and found by its entry point whether it is installed or not."""

import importlib
import os
import sys
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest

_PROJECT = Path(__file__).parent.parent
sys.path.insert(0, str(_PROJECT / "src"))


@pytest.fixture(autouse=True, scope="module")
def _installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What `pip install -e .` would write, for this process and its children."""
    if any(entry.name == "changelog" for entry in metadata.entry_points(group="declctl")):
        yield
        return
    project = tomllib.loads((_PROJECT / "pyproject.toml").read_text("utf-8"))["project"]
    site = tmp_path_factory.mktemp("site")
    info = site / f"declctl_changelog-{project['version']}.dist-info"
    info.mkdir()
    head = f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    (info / "METADATA").write_text(head, "utf-8")
    entries = "".join(f"{name} = {value}\n" for name, value in project["entry-points"]["declctl"].items())
    (info / "entry_points.txt").write_text(f"[declctl]\n{entries}", "utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(site))
        paths = [str(site), str(_PROJECT / "src"), os.environ.get("PYTHONPATH", "")]
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
        importlib.invalidate_caches()
        yield
