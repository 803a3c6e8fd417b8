"""`explain` and `schema`."""

import json
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from declctl.manifest.codes import CODES
from declctl.runtime.reasons import CONDITIONS, REASONS

ROOT = Path(__file__).parents[3]


def test_explain_shows_type_default_and_fields(declctl: Callable):
    """A field is explained with its type, whether a reload changes it, and the fields below it."""
    ended = declctl("explain", "spec.handlers.retry")
    assert ended.status == 0
    assert ended.out.startswith("spec.handlers.retry  <mapping>\n")
    assert "Changes: live, by a reload" in ended.out
    assert "\n  maxAttempts     whole number  " in ended.out


def test_explain_shows_a_default_as_it_is_written(declctl: Callable):
    """Defaults are shown as a person writes them."""
    assert "Default: 64Mi" in declctl("explain", "spec.handlers.bufferBytes").out


def test_explain_says_what_needs_a_restart(declctl: Callable):
    """Who edits admin.bindAddress is told that a reload won't do."""
    assert "need a new process" in declctl("explain", "spec.admin.bindAddress").out


def test_explain_of_an_unknown_field_suggests_one(declctl: Callable):
    """A misspelled path ends with 2 and names the field that is meant."""
    ended = declctl("explain", "spec.handlers.retri")
    assert ended.status == 2
    assert 'did you mean "retry"?' in ended.err


@pytest.mark.parametrize("code", ["DCL074", "dcl074"])
def test_explain_of_a_code_says_what_to_do_without_the_repository(declctl: Callable, code: str):
    """Who has installed declctl with pip reads here what docs/errors.md says of a code."""
    ended = declctl("explain", code)
    assert (ended.status, ended.err) == (0, "")
    assert ended.out == (
        "DCL074\n"
        "\n"
        "`sharding` is not done yet by this version.\n"
        "\n"
        "    sharding: {replicas: 3}\n"
        "\n"
        "Meanwhile: run one process for each group of namespaces.\n"
    )


@pytest.mark.parametrize("code", sorted(CODES))
def test_every_code_is_explained(declctl: Callable, code: str):
    """Each code has its meaning and its advice, and no marks of Markdown outside of code."""
    ended = declctl("explain", code)
    assert CODES[code] in ended.out
    assert "\nDo: " in ended.out or "\nMeanwhile: " in ended.out
    assert not {"**", "```", "]("} & {mark for mark in ("**", "```", "](") if mark in ended.out}


@pytest.mark.parametrize("reason", [*{each.name: None for each in REASONS}])
def test_every_reason_is_explained(declctl: Callable, reason: str):
    """What `status` shows at a condition can be looked up, with what to do."""
    ended = declctl("explain", reason)
    assert ended.status == 0
    for each in REASONS:
        if each.name == reason:
            assert each.meaning in ended.out
            assert f"Do: {each.advice}" in ended.out
    assert declctl("explain", reason.lower()).out == ended.out


def test_a_condition_is_explained_with_all_of_its_reasons(declctl: Callable):
    """The answer to a red condition begins with what it is about."""
    ended = declctl("explain", "Degraded")
    assert ended.out.startswith(f"Degraded  <condition>\n\n  {CONDITIONS['Degraded']}\n")
    # `AsExpected` is a reason of two conditions.
    assert {each.name for each in REASONS if f"\n{each.name}  <Degraded" in ended.out} == {
        each.name for each in REASONS if each.condition == "Degraded"
    }


@pytest.mark.parametrize(
    ("written", "said"),
    [("CacheLag", 'did you mean "CacheLags"?\n'), ("Xyzzy", "conditions are Ready, Reloaded, Degraded")],
)
def test_explain_of_an_unknown_reason_says_what_there_is(declctl: Callable, written: str, said: str):
    """A mistyped reason ends with 2."""
    ended = declctl("explain", written)
    assert ended.status == 2
    assert said in ended.err


def test_explain_of_an_unknown_code_says_which_codes_there_are(declctl: Callable):
    """A mistyped code ends with 2 and shows its neighbours; one without neighbours shows the range."""
    ended = declctl("explain", "DCL019")
    assert ended.status == 2
    beginning = "declctl: There is no code DCL019; did you mean DCL017? Else, the codes near it are DCL010, "
    assert ended.err.startswith(beginning)
    far = declctl("explain", "DCL999")
    assert far.status == 2
    assert "did you mean DCL098? Else, codes are DCL000 to DCL1" in far.err


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("DCL12", "DCL012"),
        ("dcl-012", "DCL012"),
        ("DCL0012", "DCL012"),
        ("DCL202", "DCL102"),
        ("DCL057", "DCL056"),
        ("DCL103", "DCL102"),
        ("DCL999999", "DCL098"),
    ],
)
def test_a_mistyped_code_leads_to_the_nearest(declctl: Callable, written: str, meant: str):
    """The same number written in another way, one wrong digit, or the next number."""
    ended = declctl("explain", written)
    assert ended.status == 2
    assert f"did you mean {meant}?" in ended.err


def test_the_wheel_has_the_page_that_explain_reads(tmp_path: Path):
    """`pip install` brings the text of docs/errors.md; the checkout is not needed."""
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path],
        cwd=ROOT,
        check=True,
        capture_output=True,
        timeout=60,
    )
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as packed:
        assert packed.read("declctl/errors.md") == (ROOT / "docs" / "errors.md").read_bytes()
        assert packed.read("_declctl_gen.py") == (ROOT / "_declctl_gen.py").read_bytes()


@pytest.mark.parametrize("arguments", [[], ["--kind", "Controller"], ["--kind", "ControllerTest"]])
def test_schema_is_one_json_document(declctl: Callable, arguments: list[str]):
    """The schema can be piped into an editor or a validator."""
    ended = declctl("schema", *arguments)
    assert ended.status == 0
    assert json.loads(ended.out)["$schema"].startswith("https://json-schema.org/")
    assert ended.err == ""


def test_an_unknown_kind_is_a_usage_error(declctl: Callable):
    """`--kind Controler` ends with 2 and names the kind that is meant."""
    ended = declctl("schema", "--kind", "Controler")
    assert ended.status == 2
    assert "Controller" in ended.err
