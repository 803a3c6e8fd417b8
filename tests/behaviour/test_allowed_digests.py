"""Only reviewed files run: a list of digests outside of the bundle decides, before any code is imported."""

import sys
from pathlib import Path

import pytest

from declctl.errors import ManifestErrors, ReloadRefused
from declctl.runtime.checking.allowed_digests import require_allowed
from declctl.runtime.checking.inputs import InputFiles
from declctl.testing import until

TELL = """
from pathlib import Path
from blackboard import tell as note
Path({mark!r}).touch()
def tell(change):
    note({who!r}, str(change.key))
"""


class Reviews:
    """A controller whose code leaves a mark when it is imported, and the list of what was reviewed."""

    def __init__(self, rig, tmp_path: Path) -> None:
        self.rig = rig
        self.list = tmp_path / "allowed" / "digests"
        self.list.parent.mkdir()
        self.list.write_text("# nothing yet\n")
        self._marks = tmp_path / "marks"
        self._marks.mkdir()
        rig.reload_policy = f"allowedDigests: {self.list}"
        rig.handler("tell")

    def code(self, who: str) -> str:
        return TELL.format(who=who, mark=str(self._marks / who))

    def write(self, who: str) -> str:
        """Write the code of `who`; return the digest, as a reviewer computes it."""
        path = self.rig.write(self.code(who))
        return InputFiles(str(path)).read().bundle_digest

    def allow(self, *digests: str) -> None:
        self.list.write_text("".join(f"{digest}  # reviewed\n" for digest in digests))

    def is_imported(self, who: str) -> bool:
        """Whether the code of `who` has been imported, here or in a child process."""
        return (self._marks / who).exists()


@pytest.fixture
def reviews(rig, tmp_path) -> Reviews:
    return Reviews(rig, tmp_path)


def test_the_digest_is_the_same_wherever_the_files_are(reviews, tmp_path) -> None:
    digest = reviews.write("first")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for file in Path(reviews.rig.folder.path).iterdir():
        if file.is_file():
            (elsewhere / file.name.replace("manifest", "pod-guard")).write_bytes(file.read_bytes())
    (manifest,) = elsewhere.glob("*.yaml")
    assert InputFiles(str(manifest)).read().bundle_digest == digest
    assert InputFiles(str(elsewhere)).read().bundle_digest == digest
    assert reviews.write("second") != digest


def test_files_that_nobody_has_reviewed_do_not_start(reviews) -> None:
    digest = reviews.write("first")
    with pytest.raises(ReloadRefused, match=f"{digest}, is not in {reviews.list}: let somebody review"):
        reviews.rig.run(reviews.code("first"))
    assert not reviews.is_imported("first")


def test_reviewed_code_imports_nothing_that_was_added_beside_it(reviews, monkeypatch) -> None:
    """Neither in the child process nor in that of the controller, which starts on no such path."""
    folder = reviews.rig.folder.path
    code = f"import sys, importlib\nsys.path.insert(0, {str(folder)!r})\nimportlib.import_module('planted')\n"
    monkeypatch.setattr("sys.path", list(sys.path))
    for preflight in ("On", "Off"):
        reviews.rig.reload_policy = f"allowedDigests: {reviews.list}, preflight: {preflight}"
        reviews.rig.write(code)
        (folder / "planted.py").write_text(reviews.code("planted"))
        reviews.allow(InputFiles(str(folder)).read().bundle_digest)
        with pytest.raises((ManifestErrors, ReloadRefused), match=r"planted\.py is not imported as planted"):
            reviews.rig.run(code)
    with pytest.raises(ReloadRefused, match="Python looks for modules"):
        reviews.rig.run(code)
    assert not reviews.is_imported("planted")


def test_an_edit_waits_for_its_review(reviews, config_map, monkeypatch) -> None:
    """It is refused before its import, named in the status, and tried again when the list has it."""
    monkeypatch.setattr("declctl.runtime.reloading.attempts.FIRST_RETRY_SECONDS", 0.05)
    reviews.rig.reload_policy += ", probationPeriod: 1h"
    first = reviews.write("first")
    reviews.allow(first)
    controller = reviews.rig.run(reviews.code("first"), objects=[config_map("one")])
    second = reviews.write("second")
    outcome = controller.reload()
    assert (str(outcome.result), outcome.reason) == ("Refused", "DigestNotAllowed")
    assert second in outcome.message
    assert str(reviews.list) in outcome.message
    assert not reviews.is_imported("second")
    controller.sandbox.create(config_map("two"))
    until("the first code goes on", lambda: ("first", "default/two") in reviews.rig.told())
    reviews.allow(second)
    until("the second code runs", lambda: controller.status().generation == 2)
    assert reviews.is_imported("second")
    # A rollback runs older code, which has to be in the list like any other: its review was withdrawn.
    assert reviews.rig.roll_back().reason == "DigestNotAllowed"
    assert controller.status().generation == 2


def test_a_list_that_is_left_out_or_can_not_be_read_allows_nothing(reviews) -> None:
    """An edit without the list is refused by the list of what runs; the fault of a list is told."""
    first = reviews.write("first")
    reviews.allow(first)
    controller = reviews.rig.run(reviews.code("first"))
    second = reviews.write("second")

    def refused(words: str = "") -> None:
        outcome = controller.reload()
        assert outcome.reason == "DigestNotAllowed"
        assert words in outcome.message

    reviews.list.write_text(f"{second}\nsha256:{second}\n")
    refused(f"{reviews.list}:2: this is no digest")
    for end in "\u2028\x85\x0c\r":  # a comment ends with its line alone
        reviews.list.write_text(f"# a title{end}{second}\r\n", newline="")
        refused("is not in")
    reviews.list.unlink()
    refused("can't be read")
    reviews.list.mkdir()
    refused("can't be read")
    reviews.list.rmdir()
    reviews.allow(first)
    reviews.rig.reload_policy = "watch: Auto"
    reviews.write("second")
    refused()
    assert not reviews.is_imported("second")
    with pytest.raises(ReloadRefused, match="an empty name"):  # `--allowed-digests "$LIST"` without it
        require_allowed(first, [""])
