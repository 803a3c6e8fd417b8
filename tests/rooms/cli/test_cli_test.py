"""`declctl test`: what is played, what is printed, and the exit status."""

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from tests.rooms.cli.conftest import Command

HEAD = "apiVersion: declctl.dev/v1alpha1\nkind: ControllerTest\nmetadata: {name: %s}\nspec: {steps: [%s]}\n"
MANIFEST = """\
apiVersion: declctl.dev/v1alpha1
kind: Controller
metadata: {name: c}
spec:
  resources: [{name: pods, apiVersion: v1, kind: Pod}]
  handlers: [{name: h, resourceRef: {name: pods}, entryPoint: "handlers:f"}]
"""
PASSES = HEAD % ("nothing-is-there", "{expect: [{absent: {kind: Pod}}]}")
FAILS = HEAD % ("a-pod-is-told", "{apply: {apiVersion: v1, kind: Pod, metadata: {name: a}}, expect: [%s]}")
FAILS %= "{calls: {handler: h, count: 2}}"


@pytest.fixture(name="bundle")
def _bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a manifest, and two documents below it: one passes, and one does not."""
    (tmp_path / "manifest.yaml").write_text(MANIFEST)
    (tmp_path / "handlers.py").write_text("def f(change):\n    print('called for', change.key)\n")
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "both.yaml").write_text(f"{PASSES}---\n{FAILS}")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_each_document_has_a_line_and_a_failure_its_place(declctl: Command, bundle: Path) -> None:
    """Without a path those of the current folder; what handlers print is shown where a test has failed."""
    ended = declctl("test")
    assert ended.status == 1
    (ok, failed, *below) = [line.partition(" (")[0] for line in ended.lines]
    assert (ok, failed) == (
        "ok      tests/both.yaml nothing-is-there",
        "FAILED  tests/both.yaml a-pod-is-told",
    )
    assert below == [
        "  tests/both.yaml:9:91: expected 2 calls of h in this step, found 1",
        "    default/a: succeeded, Added Watch",
        "  printed: called for default/a",
        "1 passed, 1 failed",
    ]
    assert declctl("test", "-k", "nothing").status == declctl("test", "tests", "-k", "not a-pod").status == 0
    assert "None of the 2 tests" in declctl.refused("test", "-k", "nothing", "-k", "not there")


@pytest.mark.parametrize(
    ("right", "wrong", "line"),
    [("ControllerTest", "ControlerTest", 2), ("declctl.dev", "declctl.dve", 1)],
)
def test_a_document_of_a_misspelt_kind_is_a_fault_told_once(
    declctl: Command, bundle: Path, right: str, wrong: str, line: int
) -> None:
    """Beside the manifest it is no second Controller, and the documents that are right keep theirs."""
    (bundle / "other.yaml").write_text(
        (HEAD % ("o", "{expect: [{absent: {kind: Pod}}]}")).replace(right, wrong)
    )
    for ended in (declctl("test"), declctl("validate", ".")):
        assert (ended.status != 0, ended.err.count("error DCL")) == (True, 1), ended.err
        assert f"other.yaml:{line}:" in ended.err
        assert f'"{right}' in ended.err


def test_reports_have_each_test(declctl: Command, bundle: Path) -> None:
    """For programs, and for the page of a CI system."""
    ended = declctl("test", "-o", "json", "--junit", "report.xml", "-j", "2")
    assert [one["outcome"] for one in ended.document["tests"]] == ["passed", "failed"]
    (suite,) = ET.parse("report.xml").getroot()
    assert (suite.get("tests"), suite.get("failures"), suite.get("name")) == ("2", "1", "tests/both.yaml")
    first, second = suite
    assert (first.get("name"), len(first)) == ("nothing-is-there", 0)
    (failure,) = second
    assert failure.get("message") == "expected 2 calls of h in this step, found 1 (0 failed)"
    assert "tests/both.yaml:9:91" in (failure.text or "")


def test_bad_input_is_never_a_pass(declctl: Command, bundle: Path) -> None:
    """A fault in one document, no document, and options that have no effect."""
    (bundle / "tests" / "bad.yaml").write_text(PASSES.replace("kind: Pod", "kind: Pood"))
    ended = declctl("test")
    assert (ended.status, ended.out) == (2, "")
    assert "tests/bad.yaml:4:42: error DCL020: " in ended.err
    assert 'did you mean "Pod"?' in ended.err
    (fault,) = declctl("test", "-o", "json").document["faults"]
    assert (fault["code"], fault["line"], fault["column"]) == ("DCL020", 4, 42)
    # What declctl validate says of the manifest includes its documents.
    assert "tests/bad.yaml:4:42: error DCL020" in declctl("validate", ".").err
    (bundle / "tests" / "bad.yaml").unlink()
    assert declctl("validate", ".").status == 0
    (bundle / "tests" / "both.yaml").unlink()
    assert "No document of kind ControllerTest" in declctl.refused("test")
    assert "nowhere: no such file" in declctl.refused("test", "nowhere")
    assert "add --cluster" in declctl.refused("test", "--timeout", "3s")
    assert "there is no such folder" in declctl.refused("test", "--junit", "no/folder.xml")


def test_the_fields_of_a_document_are_explained(declctl: Command) -> None:
    """As those of a manifest."""
    shown = declctl.done("explain", "ControllerTest.spec.steps").out
    assert "advance" in shown
    assert "Changes:" not in shown, "nothing runs a test until its reload"
    assert "did you mean" in declctl.refused("explain", "ControllerTest.spec.step")
