"""The installed plugin that runs in a storm."""

from pathlib import Path

_CODE = """
import declctl
from blackboard import tell

@declctl.hookimpl
def declctl_event(change):
    tell("storm", "installed", str(change.type), change.obj.uid, int(change.obj["data"]["seq"]),
         change.generation, change.generation, change.initial)
"""


def install(site: Path) -> None:
    """Make a folder one in which the plugin `stormy` is installed, whose module is `dc_stormy`."""
    info = site / "dc_stormy-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: dc-stormy\nVersion: 1.0\n", "utf-8")
    (info / "entry_points.txt").write_text("[declctl]\nstormy = dc_stormy\n", "utf-8")
    (site / "dc_stormy.py").write_text(_CODE, "utf-8")
