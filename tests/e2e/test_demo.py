"""The first minute: `make demo`. The one of the README is in test_tutorial."""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from processes import environment
from waiting import until

from tests.written import WrittenLines

ROOT = Path(__file__).parents[2]


class Demo:
    """The demo in a copy of the examples, so that its handler can be edited."""

    def __init__(self, folder: Path) -> None:
        shutil.copytree(ROOT / "examples", folder / "examples")
        self.folder = folder
        self.handlers = folder / "examples" / "01-hello" / "handlers.py"
        self._written = WrittenLines()
        self.process = subprocess.Popen(
            [sys.executable, str(folder / "examples" / "demo.py")],
            stdout=self._written.file,
            stderr=subprocess.STDOUT,
            env=environment(),
            start_new_session=True,
        )

    @property
    def lines(self) -> list[str]:
        """What it has printed so far."""
        return self._written.read()

    def saw(self, pattern: str) -> bool:
        """Whether a line matches."""
        return any(re.search(pattern, line) for line in self.lines)


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[Demo]:
    """It runs, and is gone after the test whatever happened."""
    running = Demo(tmp_path)
    yield running
    if running.process.poll() is None:
        running.process.terminate()
        running.process.wait(60)
    print("\n".join(running.lines[-100:]))  # pytest shows it beside a failure


def test_the_demo_moves_reacts_to_an_edit_and_ends(demo: Demo) -> None:
    """Events in the first seconds, a file to edit, a reload without a LIST; Ctrl-C ends both processes."""
    until("a pod is told", lambda: demo.saw(r"^(Added|Modified|Deleted) pod (demo|default)/\w"), seconds=60)
    assert demo.saw(r"edit examples/01-hello/handlers\.py")
    text = demo.handlers.read_text("utf-8")
    demo.handlers.write_text(text.replace("} pod {", "} POD {"), "utf-8")
    until("the edit is told", lambda: demo.saw(r"generation 2: .*0 LIST"), seconds=60)
    until("the new words are used", lambda: demo.saw(r"^(Added|Modified|Deleted) POD "), seconds=60)
    os.killpg(demo.process.pid, signal.SIGINT)  # what a terminal does for Ctrl-C
    assert demo.process.wait(60) == 0
    assert not demo.saw("Traceback")
    assert not (demo.folder / ".demo").exists()
