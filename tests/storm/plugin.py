"""Installed plugins of tests, such as the one that runs in a storm."""

from pathlib import Path

_CODE = """
import declctl
from blackboard import tell

@declctl.hookimpl
def declctl_event(change):
    tell("storm", "installed", str(change.type), change.obj.uid, int(change.obj["data"]["seq"]),
         change.generation, change.generation, change.initial)
"""


def install(site: Path, name: str = "stormy", code: str = _CODE) -> None:
    """Make a folder one in which a plugin is installed."""
    module = f"dc_{name}"
    info = site / f"{module}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: dc-{name}\nVersion: 1.0\n", "utf-8")
    (info / "entry_points.txt").write_text(f"[declctl]\n{name} = {module}\n", "utf-8")
    (site / f"{module}.py").write_text(code, "utf-8")
