"""`declctl fuzz`: what it prints, and the exit status."""

import re
import sys
from pathlib import Path

import pytest

from tests.rooms.cli.conftest import Command
from tests.rooms.testing.fuzzed import PLANTED


@pytest.fixture(name="bundle")
def _bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An operator that forgets the owner of its child."""
    planted = PLANTED["a child without owner"]
    monkeypatch.chdir(planted.write(tmp_path, planted.faulty))
    return tmp_path


def test_what_is_found_becomes_a_test(declctl: Command, bundle: Path) -> None:
    """The document fails as a test; with a reason, the invariant is not checked."""
    (bundle / "tests").mkdir()
    found = declctl("fuzz", "app", "--runs", "5", "--seed", "1", "-o", "tests/fuzz.yaml")
    assert found.status == 1
    assert "collected: not all is gone with the objects: ConfigMap default/a is there" in found.err
    assert "--seed 1 --runs 5 repeats it.\nwrote tests/fuzz.yaml" in found.err
    text = (bundle / "tests" / "fuzz.yaml").read_text("utf-8")
    assert text.startswith("# collected: not all is gone with the objects: ConfigMap default/a is there")
    assert "\n# Found by `declctl fuzz --seed 1 --runs 5`.\n" in text
    assert re.search(r"name: fuzz-collected-1-[0-9a-f]{6}\n", text)
    assert declctl("test").status == 1
    names = ("collected", "declared", "idempotent")
    allow = [part for name in names for part in ("--allow", f"{name}=it is meant")]
    allowed = declctl("fuzz", "--runs", "2", "--seed", "1", *allow, "-o", "tests/fuzz.yaml")
    assert allowed.status == 0
    assert "nothing found: 2 runs, 2 different lives" in allowed.err
    assert "tests/fuzz.yaml is of an earlier run" in allowed.err
    assert "seed 1, without collected, declared, idempotent" in allowed.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--allow", "collected"], "--allow collected: say why, as in --allow collected="),
        (["--allow", "collect=x"], "'collect': did you mean \"collected\"?"),
        (["other"], "no handler 'other'"),
    ],
)
def test_bad_input_is_a_sentence(arguments: list[str], words: str, declctl: Command, bundle: Path) -> None:
    """Exit status 2, and what to write."""
    ended = declctl("fuzz", *arguments)
    assert ended.status == 2
    assert words in ended.err


def test_without_hypothesis_it_says_what_to_install(
    declctl: Command, bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hypothesis is an extra."""
    for name in [each for each in sys.modules if each.startswith("declctl.testing.fuzzing")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "hypothesis", None)
    ended = declctl("fuzz")
    assert ended.status == 2
    assert "pip install 'declctl[fuzz]'" in ended.err
