"""Plugins and handlers that hang, crash, end the process or leave others behind when they are imported."""

import json
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from typer.testing import CliRunner

from declctl.cli.app import app
from declctl.runtime.checking.check import check
from declctl.runtime.checking.preflight import list_plugins
from declctl.runtime.checking.preflight_pool import PreflightPool
from declctl.testing import BundleDir, until
from tests.children import descendants
from tests.hostile.bounds import bounded
from tests.storm import plugin

GOOD = "import declctl\n\n@declctl.hookimpl\ndef declctl_event(change):\n    return None\n"
BAD = {
    "hangs": ("while True: pass\n", "took longer than"),
    "sleeps": ("import time\ntime.sleep(10_000)\n", "took longer than"),
    "exits": ("import os\nos._exit(7)\n", "ended the process (exit status 7)"),
    "crashes": ("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n", "ended the process (signal 11)"),
    "closes": ("import os\nos.closerange(0, 1000)\nos._exit(0)\n", "ended the process (exit status 0)"),
    "recurses": ("def f(): f()\nf()\n", "RecursionError"),
}


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Puts a package with one plugin on the path, of this process and its children."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    return partial(plugin.install, tmp_path)


def test_plugins_that_hang_crash_or_exit_are_lines_of_the_list(install) -> None:
    """Each bad plugin costs its own line; those after it are listed; nothing of it is imported here."""
    for name, (source, _) in BAD.items():
        install(name, source)
    install("zz_good", GOOD)
    children = PreflightPool()
    before = descendants()
    with bounded(seconds=100, megabytes=60):
        try:
            listed = {each.name: each for each in list_plugins(children.begin, seconds=2.0)}
        finally:
            children.close()
    for name, (_, words) in BAD.items():
        assert listed[name].state == "Quarantined", name
        assert words in str(listed[name].reason), name
    assert listed["zz_good"].state == "Ready"
    assert listed["zz_good"].hooks == ("declctl_event",)
    assert not [name for name in sys.modules if name.startswith("dc_")]
    until("nothing is left", lambda: descendants() <= before)


def test_the_command_outlives_a_plugin_that_ends_the_process(install) -> None:
    """`declctl plugins list` with a plugin that calls os._exit: exit status 0, and a line for it."""
    install("exits", BAD["exits"][0])
    ended = CliRunner().invoke(app, ["plugins", "list", "-o", "json"])
    assert ended.exit_code == 0
    (found,) = [each for each in json.loads(ended.stdout) if each["name"] == "exits"]
    assert found["state"] == "Quarantined"


def test_a_thousand_plugins_are_listed(install) -> None:
    """A line for each, with one process for all."""
    for number in range(1000):
        install(f"p{number}", "# nothing")
    children = PreflightPool()
    with bounded(seconds=100, megabytes=100):
        try:
            listed = list_plugins(children.begin)
        finally:
            children.close()
    assert len([each for each in listed if each.distribution.startswith("dc-p")]) == 1000


ORPHANING = """
import os, signal, time
if not os.fork():
    os.setsid()
    for _ in range(3):
        if not os.fork():
            os.setsid()
            if os.fork():
                os._exit(0)
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            with open({sign!r}, "a") as sign:
                sign.write(f"{{os.getpid()}}\\n")
            time.sleep(10_000)
    os._exit(0)
while len(open({sign!r}).readlines()) < 3:
    time.sleep(0.01)
def h(change): ...
"""


@pytest.mark.parametrize("end", ["", "while True: pass\n", "os._exit(0)\n", "raise OSError\n"])
def test_what_an_import_cuts_loose_is_ended_with_it(end: str, bundle: BundleDir, tmp_path: Path) -> None:
    """Daemons that an import starts in sessions of their own do not outlive it, however it ends."""
    sign = tmp_path / "daemons"
    sign.touch()
    bundle.edit("manifest.yaml", "spec:\n", "spec:\n  reload: {preflightTimeout: 5s}\n")
    bundle.write("handlers.py", ORPHANING.format(sign=str(sign)) + end)
    with bounded(seconds=60, megabytes=60):
        errors = check(str(bundle.path)).errors
    assert bool(errors) == bool(end), errors
    daemons = [int(pid) for pid in sign.read_text().split()]
    assert len(daemons) >= 3  # an import that raises is begun again
    try:
        until("they are gone", lambda: not any(map(_lives, daemons)))
    finally:
        for pid in daemons:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
