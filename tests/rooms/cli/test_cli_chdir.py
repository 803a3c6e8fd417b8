"""Handlers that change the working folder of the process: what was named on the command line stays named."""

from pathlib import Path

import pytest

from declctl.sandbox import SandboxThread
from tests.rooms.cli.running import MANIFEST, Running, config_map

pytestmark = pytest.mark.thorough  # processes run in several folders

HANDLERS = """\
import os
from pathlib import Path
def tell(change):
    os.chdir("/")
    print({version}, change.key.name, Path(__file__).is_absolute())
"""


@pytest.fixture(name="start")
def _start(tmp_path: Path, sandbox: SandboxThread, begin, monkeypatch: pytest.MonkeyPatch):
    """Starts it, in a folder that has `app/` and `kubeconfig`."""
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "handlers.py").write_text(HANDLERS.format(version=1))
    monkeypatch.delenv("KUBECONFIG", raising=False)

    def start(manifest: str, *options: str, watch: str) -> Running:
        (tmp_path / "app" / "manifest.yaml").write_text(MANIFEST.format(name="first", watch=watch))
        running = begin(manifest, "--kubeconfig", "kubeconfig", *options, "--admin", "127.0.0.1:0")
        running.wait_for("maps synced")
        return running

    return start


@pytest.mark.parametrize("watch", ["Auto", "Poll"])
@pytest.mark.parametrize("manifest", ["app/manifest.yaml", "app"])
def test_edits_are_seen_and_applied_wherever_the_process_stands(start, sandbox, tmp_path, manifest, watch):
    """After `os.chdir("/")` in a handler the next edits count, and messages show paths as they were typed."""
    running = start(manifest, watch=watch)
    sandbox.create(config_map("one"))
    running.wait_for("1 one True")
    (tmp_path / "app" / "handlers.py").write_text("def tell(change): 1 +\n")
    running.wait_for("generation 1 goes on: app/handlers.py:1:")
    (tmp_path / "app" / "handlers.py").write_text(HANDLERS.format(version=2))
    running.wait_for("generation 2")
    sandbox.create(config_map("two"))
    running.wait_for("2 two True")
    assert running.stop() == 0


def test_a_process_that_starts_again_stands_where_it_was_started(start, sandbox, tmp_path):
    """`--exec-on-restart` with relative paths, after `os.chdir("/")` in a handler."""
    running = start("app/manifest.yaml", "--exec-on-restart", watch="Auto")
    sandbox.create(config_map("one"))
    running.wait_for("1 one True")
    (tmp_path / "app" / "manifest.yaml").write_text(MANIFEST.format(name="second", watch="Auto"))
    running.wait_for("maps synced", 2)
    running.wait_for("1 one True", 2)
    assert running.stop() == 0
