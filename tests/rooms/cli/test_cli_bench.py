"""`declctl bench reload`: what it takes, what it runs, and how it shows what was measured."""

import io
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from declctl.bench.controller import BenchFiles
from declctl.bench.reload import Comparison, ReloadCost
from declctl.cli import bench as measuring
from declctl.errors import DeclctlError
from tests.rooms.cli.conftest import MANIFEST as shared  # noqa: N811

RESTART = ReloadCost(
    lists=1, watches=2, added_again=20_000, retries=80, retries_lost=80, memos=300, memos_lost=300,
    effect=1.4712345678, changes=1_376, undelivered=168, longest_wait=2.5,
)  # fmt: skip
RELOAD = ReloadCost(
    lists=0, watches=0, added_again=0, retries=80, retries_lost=0, memos=0, memos_lost=0,
    effect=0.44, changes=184, undelivered=0, longest_wait=0.0361,
)  # fmt: skip
MANIFEST = shared.replace("name: c}", "name: shop}").replace("name: h,", "name: tell,").replace(":f", ":tell")


@pytest.fixture(name="measured")
def _measured(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """What the measuring, which is not done, was asked for."""
    measured = SimpleNamespace(bundle=None)

    def compare(
        bundle: BenchFiles, samples: Sequence[Any], *, objects: int, tell: Callable[[str], object]
    ) -> Comparison:
        measured.bundle, measured.samples, measured.objects = bundle, samples, objects
        measured.on_sigterm = signal.getsignal(signal.SIGTERM)
        tell("it is measured")
        return Comparison(objects, len(bundle.plan.handlers), RESTART, RELOAD)

    monkeypatch.setattr(measuring, "compare", compare)
    return measured


@pytest.fixture(name="shop")
def _shop(folder: Path) -> Path:
    """A manifest of somebody's, with a handler."""
    (folder / "manifest.yaml").write_text(MANIFEST)
    (folder / "handlers.py").write_text("def tell(change): pass\n")
    return folder


def test_both_ways_stand_side_by_side(declctl, folder, measured):
    """The table is what was asked for; what is being done is told beside it."""
    ended = declctl("bench", "reload")
    assert (ended.status, ended.err) == (0, "it is measured\n")
    assert ended.lines == [
        "one edit, 5,000 objects, 4 handlers, changes all the time",
        "",
        "                                         RESTART        RELOAD",
        "LISTs asked of the API server            1              0",
        "WATCHes asked of the API server          2              0",
        "objects delivered again (Added)          20,000         0",
        "retries lost                             80 of 80       0 of 80",
        "memos lost                               300 of 300     none to lose",
        "changes that were never delivered        168 of 1,376   0 of 184",
        "until the edited code receives changes   1.47 s         0.44 s",
        "longest wait of a change meanwhile       2.50 s         36 ms",
    ]


def test_json_is_one_document(declctl, folder, measured):
    """The same for programs, in seconds. Nothing is read of the current folder, and nothing written there."""
    document = declctl.done("bench", "reload", "--objects", "20", "--handlers", "7", "-o", "json").document
    names = ("lists", "watches", "addedAgain", "retries", "retriesLost", "memos", "memosLost", "changes")
    names += ("changesUndelivered", "secondsToEffect", "longestWaitSeconds")
    restart = (1, 2, 20_000, 80, 80, 300, 300, 1_376, 168, 1.471235, 2.5)
    reload = (0, 0, 0, 80, 0, 0, 0, 184, 0, 0.44, 0.0361)
    ways = {
        "restart": dict(zip(names, restart, strict=True)),
        "reload": dict(zip(names, reload, strict=True)),
    }
    assert document == {"manifest": None, "objects": 20, "handlers": 7, **ways}
    assert (len(measured.bundle.plan.handlers), measured.objects) == (7, 20)
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("named", ["manifest.yaml", "."])
def test_somebodys_own_manifest_is_copied(declctl, shop, measured, named):
    """A file, or the folder that holds it; with the objects that its handlers are written for."""
    (shop / "samples.yaml").write_text("apiVersion: v1\nkind: Pod\nmetadata: {name: web}\n")
    options = ("--manifest", named, "--samples", "samples.yaml", "-o", "json")
    assert declctl.done("bench", "reload", *options).document["manifest"] == named
    assert measured.bundle.plan.name == "shop"
    assert set(measured.bundle.files) == {"manifest.yaml", "handlers.py"}
    assert [sample["metadata"]["name"] for sample in measured.samples] == ["web"]


def test_a_manifest_may_come_from_standard_input(declctl, shop, measured, monkeypatch):
    """Its handlers stand in the current folder then, as for `declctl run`."""
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(MANIFEST.encode())))
    declctl.done("bench", "reload", "--manifest", "-")
    assert set(measured.bundle.files) == {"manifest.yaml", "handlers.py"}


def test_sigterm_is_an_interrupt_meanwhile(declctl, folder, measured):
    """So that what was started ends, and nothing is left behind; afterwards it is what it was."""
    before = signal.getsignal(signal.SIGTERM)
    declctl("bench", "reload")
    assert measured.on_sigterm is signal.default_int_handler
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--manifest manifest.yaml --handlers 3", "--handlers is for the manifest that bench has"),
        ("--objects 0", "--objects"),
        ("--handlers none", "--handlers"),
        ("--samples nowhere.yaml", "nowhere.yaml: no such file"),
    ],
)
def test_wrong_usage_is_told(declctl, shop, measured, arguments, words):
    """With 2, and before anything is measured."""
    assert words in declctl.refused("bench", "reload", *arguments.split())
    assert measured.bundle is None


def test_what_can_not_be_run_or_edited_is_not_measured(declctl, shop, measured):
    """Faults are shown as `validate` shows them; of installed handlers alone, there is nothing to compare."""
    (shop / "manifest.yaml").write_text(MANIFEST.replace("handlers:tell", "inspect:isgeneratorfunction"))
    assert "there is nothing to edit" in declctl.refused("bench", "reload", "--manifest", ".")
    (shop / "manifest.yaml").write_text(MANIFEST)
    (shop / "handlers.py").write_text("def tel(change): pass\n")
    said = declctl.refused("bench", "reload", "--manifest", "manifest.yaml", status=1)
    assert "manifest.yaml:6:" in said
    assert measured.bundle is None


def test_what_could_not_be_measured_is_told(declctl, folder, monkeypatch):
    def fail(*_: Any, **__: Any) -> Comparison:
        raise DeclctlError("no handler hears of it")

    monkeypatch.setattr(measuring, "compare", fail)
    assert declctl.refused("bench", "reload", status=1) == "declctl: no handler hears of it\n"
    # There may be more to measure one day.
    assert "reload" in declctl.done("bench", "--help").out
