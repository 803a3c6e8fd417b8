"""Only reviewed files run: a list of digests outside of the bundle decides, before any code is imported."""

from pathlib import Path

import pytest

from declctl.errors import ReloadRefused
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


def test_an_edit_waits_for_its_review(reviews, config_map) -> None:
    """It is refused before its import, named in the status, and tried again when the list has it."""
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
    reviews.allow(first, second)
    assert str(controller.reload().result) == "Applied"
    assert reviews.is_imported("second")


def test_it_is_tried_again_without_anybody_asking(reviews, monkeypatch) -> None:
    monkeypatch.setattr("declctl.runtime.reloading.attempts.FIRST_RETRY_SECONDS", 0.05)
    first = reviews.write("first")
    reviews.allow(first)
    controller = reviews.rig.run(reviews.code("first"))
    second = reviews.write("second")
    assert controller.reload().reason == "DigestNotAllowed"
    reviews.allow(second)
    until("the second code runs", lambda: controller.status().generation == 2)


def test_an_edit_that_leaves_the_list_out_is_refused_by_the_list_of_what_runs(reviews) -> None:
    reviews.allow(reviews.write("first"))
    controller = reviews.rig.run(reviews.code("first"))
    reviews.rig.reload_policy = "watch: Auto"
    reviews.write("second")
    assert controller.reload().reason == "DigestNotAllowed"
    assert not reviews.is_imported("second")


@pytest.mark.parametrize("fault", ["gone", "no digest", "a folder"])
def test_a_list_that_can_not_be_read_allows_nothing(fault, reviews) -> None:
    first = reviews.write("first")
    reviews.allow(first)
    controller = reviews.rig.run(reviews.code("first"))
    second = reviews.write("second")
    if fault == "no digest":
        reviews.list.write_text(f"{second}\nsha256:{second}\n")
        reason = f"{reviews.list}:2: this is no digest"
    else:
        reviews.list.unlink()
        reason = "can't be read"
    if fault == "a folder":
        reviews.list.mkdir()
    outcome = controller.reload()
    assert outcome.reason == "DigestNotAllowed"
    assert reason in outcome.message


def test_code_whose_review_was_withdrawn_does_not_come_back(reviews) -> None:
    """A rollback runs older code, which has to be in the list like any other."""
    reviews.rig.reload_policy = f"probationPeriod: 1h, allowedDigests: {reviews.list}"
    first = reviews.write("first")
    reviews.allow(first)
    controller = reviews.rig.run(reviews.code("first"))
    second = reviews.write("second")
    reviews.allow(second)
    assert str(controller.reload().result) == "Applied"
    outcome = controller.on_machinery(controller.runtime.rollback(), 30)
    assert outcome.reason == "DigestNotAllowed"
    assert controller.status().generation == 2


def test_an_empty_name_allows_nothing() -> None:
    """`--allowed-digests "$LIST"` without the variable must not run files that nobody has reviewed."""
    with pytest.raises(ReloadRefused, match="an empty name"):
        require_allowed(f"sha256:{'0' * 64}", [""])
    require_allowed(f"sha256:{'0' * 64}", [None])
