"""make, for somebody who has just cloned the repository."""

import re
import shutil
import subprocess

import pytest
from markdown import ROOT

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="no make on the PATH")


def _make(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(["make", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)


def test_bare_make_lists_every_target() -> None:
    """Without arguments it changes nothing, and names every target with what it is for."""
    text = (ROOT / "Makefile").read_text("utf-8")
    targets = re.search(r"^\.PHONY: (.*)$", text, re.MULTILINE)
    assert targets is not None
    listed = dict(re.findall(r"^ +make (\S+) +(\S.*)$", _make().stdout, re.MULTILINE))
    assert set(listed) == set(targets[1].split())


def test_without_a_new_python_it_says_what_is_needed() -> None:
    """On a machine with an old Python the message names the version and the way out."""
    done = _make("RUNS=.venv/.never-made", "PYTHON=", ".venv/.never-made")
    assert done.returncode != 0
    assert "Python 3.11 or newer" in done.stderr
    assert "make PYTHON=" in done.stderr
