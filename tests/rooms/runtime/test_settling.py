"""Settling: however files are saved or mounted, one reload is asked for, with the whole of them."""

import asyncio
import os
import random
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from declctl.errors import ManifestErrors
from declctl.kit import ManualClock
from declctl.kit import files as reader
from declctl.manifest.model import WatchFiles
from declctl.runtime.checking.inputs import InputFiles, Inputs
from declctl.runtime.reloading.files import FileChanges
from declctl.testing import BundleDir, ConfigMapDir
from tests.rooms.runtime.watching import Watched, inline

MANIFEST = """
apiVersion: declctl.dev/v1alpha1
kind: Controller
metadata: {{name: revision-{0}}}
spec:
  resources: [{{name: pods, apiVersion: v1, kind: Pod}}]
  handlers: [{{name: h, resourceRef: {{name: pods}}, entryPoint: "handlers:h"}}]
"""
OLD = "from parts import one, two\ndef h(change): ...\n"
NEW = f"{OLD}VERSION = 2\n"


class Bundle(Watched):
    """A bundle in a folder, with a package of its own."""

    def __init__(self, folder: Path) -> None:
        parts = {"parts/__init__.py": "", "parts/one.py": "X = 1\n", "parts/two.py": "X = 1\n"}
        self.bundle = BundleDir(folder, {"manifest.yaml": MANIFEST.format(0), "handlers.py": OLD, **parts})
        self.path = folder
        self.handlers = folder / "handlers.py"
        super().__init__(folder, [folder, folder / "parts"])


@pytest.fixture
def watched(tmp_path: Path) -> Bundle:
    return Bundle(tmp_path / "bundle")


def _rename_over(w: Bundle) -> list[Callable[[], object]]:
    aside = w.path / ".handlers.py.tmp"
    return [lambda: aside.write_text(NEW), lambda: aside.replace(w.handlers)]


def _truncate_and_write(w: Bundle) -> list[Callable[[], object]]:
    return [lambda n=n: w.handlers.write_text(NEW[:n]) for n in (0, len(NEW) // 2, len(NEW))]


def _vim(w: Bundle) -> list[Callable[[], object]]:
    swap, backup, probe = w.path / ".handlers.py.swp", w.path / "handlers.py~", w.path / "4913"
    return [
        lambda: swap.write_bytes(b"b0VIM 9.0"),
        probe.touch,
        probe.unlink,
        lambda: w.handlers.rename(backup),
        lambda: w.handlers.write_text(NEW),
        backup.unlink,
        swap.unlink,
    ]


def _emacs(w: Bundle) -> list[Callable[[], object]]:
    lock, auto, backup = w.path / ".#handlers.py", w.path / "#handlers.py#", w.path / "handlers.py~"
    return [
        lambda: lock.symlink_to("somebody@somewhere.1234"),
        lambda: auto.write_text(NEW[:20]),
        lambda: w.handlers.rename(backup),
        lambda: w.handlers.write_text(NEW),
        auto.unlink,
        lock.unlink,
    ]


def _jetbrains(w: Bundle) -> list[Callable[[], object]]:
    new, old = w.path / "handlers.py___jb_tmp___", w.path / "handlers.py___jb_old___"
    return [
        lambda: new.write_text(NEW),
        lambda: w.handlers.rename(old),
        lambda: new.rename(w.handlers),
        old.unlink,
    ]


def _gone_for_a_moment(w: Bundle) -> list[Callable[[], object]]:
    return [w.handlers.unlink, lambda: w.handlers.write_text(NEW)]


SAVES = (_rename_over, _truncate_and_write, _vim, _emacs, _jetbrains, _gone_for_a_moment)


@pytest.mark.guarantee("G24")
@pytest.mark.parametrize("save", SAVES)
def test_one_save_asks_for_one_reload(save, watched) -> None:
    """Swap files, backups, empty and half-written states between are nobody's business."""
    told = watched.saved(*save(watched))
    assert told == [InputFiles(str(watched.path)).read().digest]
    assert watched.handlers.read_text() == NEW


@pytest.mark.parametrize("at_once", [False, True])
def test_many_files_ask_for_one_reload(at_once, watched) -> None:
    """A tool that writes twelve files, 0.1 s apart, or a checkout: what is told is all twelve."""
    names = ", ".join(f"p{n}" for n in range(12))
    steps = [lambda n=n: watched.bundle.write(f"parts/p{n}.py", f"X = {n}\n") for n in range(12)]
    steps.insert(0, lambda: watched.handlers.write_text(f"{OLD}from parts import {names}\n"))
    told = watched.saved(lambda: [step() for step in steps]) if at_once else watched.saved(*steps)
    assert told == [InputFiles(str(watched.path)).read().digest]


def test_touching_and_neighbours_ask_for_nothing(watched) -> None:
    """New times, the same bytes again, permissions, bytecode and files that nobody imports: no reload."""
    cache = watched.path / "__pycache__"
    told = watched.saved(
        lambda: os.utime(watched.handlers),
        lambda: watched.handlers.write_text(OLD),
        lambda: watched.handlers.chmod(0o600),
        cache.mkdir,
        lambda: (cache / "handlers.cpython-311.pyc").write_bytes(b"\0" * 40),
        lambda: (watched.path / "README.md").write_text("read me"),
        lambda: (watched.path / "unrelated.py").write_text("X = 1\n"),
        lambda: (watched.path / "unrelated.yaml").write_text("kind: Service\n"),
        lambda: (watched.path / "parts" / "unrelated.py").write_text("X = 1\n"),
    )
    assert told == []


class _Timeline:
    """A digest that follows a schedule, and a manual clock on which `FileChanges` looks at it."""

    def __init__(self, edits: list[float]) -> None:
        self.clock = ManualClock(start=0.0)
        self._edits = edits
        self.told: list[tuple[float, str]] = []

    def run(self, settle: float, until: float) -> list[tuple[float, str]]:
        changes = FileChanges(
            digest=lambda: str(sum(moment <= self.clock.monotonic() for moment in self._edits)),
            folders=list,
            settle=lambda: settle,
            clock=self.clock,
            last=lambda: self.told[-1][1] if self.told else "0",
            watch=lambda: WatchFiles.POLL,
        )

        async def follow() -> None:
            async for digest in changes:
                self.told.append((self.clock.monotonic(), digest))

        async def scenario() -> None:
            task = asyncio.create_task(follow())
            await self.clock.advance(until)
            task.cancel()
            await asyncio.wait([task])

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(asyncio, "to_thread", inline)
            patch.setattr("declctl.runtime.reloading.files.in_thread", inline)
            asyncio.run(scenario())
        return self.told


@given(
    edits=st.lists(st.floats(0.1, 30.0), max_size=12).map(sorted),
    settle=st.sampled_from([0.0, 0.05, 0.3, 1.0, 1.9, 5.0]),
)
@pytest.mark.guarantee("G24")
def test_whenever_files_are_edited_the_last_state_is_told_and_none_twice(edits, settle) -> None:
    """Edits at any moments: nothing is told twice in a row, the last state is told, and none too late."""
    told = _Timeline(edits).run(settle, 60.0)
    digests = [digest for _, digest in told]
    assert digests == sorted(set(digests), key=int)
    assert (digests or ["0"])[-1] == str(len(edits))
    for number, moment in enumerate(edits, start=1):
        first = min(when for when, digest in told if int(digest) >= number)
        longest = max(2.0, 4 * settle)
        assert first - moment <= 1.0 + longest + 1e-6  # until the next look, and while it settles


@pytest.mark.guarantee("G24")
@pytest.mark.parametrize(
    ("settle", "edits"),
    [(0.3, [1.0, 1.2, 1.4, 1.6, 1.8]), *((long, [1.0, 1.0 + 0.8 * long]) for long in (2.5, 5.0, 60.0))],
)
def test_an_edit_is_told_after_the_quiet_time_and_not_before(settle, edits) -> None:
    """Files that change again within `settle` are told once, when they have been quiet for so long."""
    ((moment, digest),) = _Timeline(edits).run(settle, 10.0 + 3 * settle)
    assert digest == str(len(edits))
    assert edits[-1] + settle <= moment <= edits[-1] + 2 * settle + 1e-6


_SWAPS = 50
# Seconds between two swaps; the last is enough for any content to settle.
_PAUSES = [0.1, 0.2, 0.3, 0.7, 1.5, 4.0]


def _files(revision: int) -> Mapping[str, str]:
    return {
        "manifest.yaml": MANIFEST.format(revision),
        "handlers.py": f"import parts\nREVISION = {revision}\ndef h(change): ...\n",
        "parts.py": f"REVISION = {revision}\n",
    }


def _revisions(inputs: Inputs) -> set[str]:
    """Of the manifest, and of each of the handler files: one, unless what was read is torn."""
    manifest = inputs.loaded.controller.name.removeprefix("revision-")
    files = (
        data.decode().partition("REVISION = ")[2].split("\n")[0] for data in inputs.bundle.files.values()
    )
    return {manifest, *files}


class _Plain:
    """Plain files that are replaced one after the other, as in a checkout, an image or a subPath mount."""

    def __init__(self, folder: Path, files: Mapping[str, str]) -> None:
        self.path = folder
        self._bundle = BundleDir(folder, files)

    def swap(self, files: Mapping[str, str]) -> None:
        for name, text in files.items():
            self._bundle.write(name, text)


LAYOUTS = {
    "a folder": (ConfigMapDir, ""),
    "a file in a folder": (ConfigMapDir, "manifest.yaml"),
    "plain files": (_Plain, "manifest.yaml"),
}


@pytest.mark.guarantee("G24")
@pytest.mark.parametrize("watch", [WatchFiles.AUTO, WatchFiles.POLL])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_settled_content_is_read_once_and_whole(layout, watch, tmp_path) -> None:
    """Fifty swaps at random moments, some back to what was there before."""
    make, name = LAYOUTS[layout]
    moments = random.Random(f"{layout} {watch}")
    mounted = make(tmp_path / "etc", _files(0))
    watched = Watched(mounted.path / name, [mounted.path], watch)
    live = "0"  # the revision that was read last

    async def scenario() -> None:
        nonlocal live
        for _ in range(_SWAPS):
            revision = moments.randrange(6)
            before = len(watched.told)
            mounted.swap(_files(revision))
            await watched.noticed()
            pause = moments.choice(_PAUSES)
            await watched.pass_time(pause)
            told = [_revisions(inputs) for inputs in watched.read[before:]]
            assert all(len(revisions) == 1 for revisions in told)
            if pause == _PAUSES[-1]:
                assert told.count({str(revision)}) == (live != str(revision)), (told, live, revision)
            if told:
                (live,) = told[-1]

    watched.run(scenario)
    assert len(watched.told) > _SWAPS / 5
    assert all(first != second for first, second in zip(watched.told, watched.told[1:], strict=False))


@pytest.mark.guarantee("G24")
def test_a_new_revision_with_the_same_bytes_is_not_read(tmp_path) -> None:
    """The kubelet swaps the link although nothing in the ConfigMap has changed: no attempt."""
    mounted = ConfigMapDir(tmp_path / "etc", _files(0))
    watched = Watched(mounted.path, [mounted.path])
    assert watched.saved(*[lambda: mounted.swap(_files(0))] * 5) == []
    assert watched.saved(lambda: mounted.swap(_files(1))) == [watched.files.read().digest]


class _Meddler:
    """Takes a step each time a file of that name is about to be read, as long as there are any."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        self.steps: list[Callable[[], object]] = []
        read_file = reader.read_file

        def meddled(path: Path, *, most: int) -> bytes:
            if path.name == name and self.steps:
                self.steps.pop(0)()
            return read_file(path, most=most)

        monkeypatch.setattr(reader, "read_file", meddled)


@pytest.mark.guarantee("G24")
@pytest.mark.parametrize("file", ["manifest.yaml", "handlers.py", "parts.py"])
@pytest.mark.parametrize("name", ["", "manifest.yaml"])
def test_a_folder_that_is_swapped_while_it_is_read_is_read_again(name, file, tmp_path, monkeypatch) -> None:
    """What was there is gone before it could be read: that is no fault of what is there now."""
    mounted = ConfigMapDir(tmp_path / "etc", _files(0))
    files = InputFiles(str(mounted.path / name))
    meddler = _Meddler(monkeypatch, file)
    meddler.steps = [lambda: mounted.swap(_files(1)), lambda: mounted.swap(_files(2))]
    assert _revisions(files.read()) == {"2"}
    assert not meddler.steps


@pytest.mark.guarantee("G24")
def test_a_file_that_is_gone_is_not_waited_for(tmp_path) -> None:
    """A manifest that can't be read says so, if nobody swaps anything."""
    mounted = ConfigMapDir(tmp_path / "etc", _files(0))
    files = InputFiles(str(mounted.path / "manifest.yaml"))
    (mounted.path / "..data" / "manifest.yaml").unlink()
    with pytest.raises(ManifestErrors):
        files.read()


@pytest.mark.guarantee("G24")
@pytest.mark.parametrize("other", [_files(1), {**_files(1), "manifest.yaml": "what: [is"}])
def test_what_changes_back_while_it_is_looked_at_has_its_own_digest(other, tmp_path, monkeypatch) -> None:
    """The folder looked like one revision, was read as another, and is the first again."""
    mounted = ConfigMapDir(tmp_path / "etc", _files(0))
    mounted.swap(_files(2))
    files = InputFiles(str(mounted.path))
    digest = files.digest()
    mounted.swap(_files(0))
    wanted = InputFiles(str(mounted.path)).digest()
    meddler = _Meddler(monkeypatch, "manifest.yaml")
    meddler.steps = [lambda: None, lambda: mounted.swap(other)]
    assert files.digest() not in (digest, wanted)
    mounted.swap(_files(0))
    assert files.digest() == wanted


_WITH_SECRET = """  plugins:
    - name: slack
      configFrom: [{name: user, file: ../secret/user}, {name: token, file: ../secret/token}]
"""


@pytest.fixture
def secret(tmp_path: Path) -> ConfigMapDir:
    """A Secret, mounted beside a ConfigMap in `etc` whose manifest names its files."""
    manifest = f"{MANIFEST.format(0)}{_WITH_SECRET}"
    ConfigMapDir(tmp_path / "etc", {**_files(0), "manifest.yaml": manifest})
    return ConfigMapDir(tmp_path / "secret", {"user": "0", "token": "0"})


@pytest.mark.guarantee("G24")
def test_a_secret_beside_the_bundle_is_found_and_followed(secret, tmp_path) -> None:
    """What a config names is from the folder of the manifest, wherever the link of that leads."""
    files = InputFiles(str(tmp_path / "etc" / "manifest.yaml"))
    before = files.digest()
    inputs = files.read()
    assert inputs.config_files == {"../secret/user": b"0", "../secret/token": b"0"}
    assert secret.path.resolve() in [folder.resolve() for folder in files.folders]
    secret.swap({"user": "1", "token": "1"})
    assert files.digest() not in ("", before)


@pytest.mark.guarantee("G24")
@pytest.mark.parametrize("file", ["user", "token"])
def test_the_files_of_a_secret_are_of_one_moment(secret, file, tmp_path, monkeypatch) -> None:
    """A Secret that is rotated while it is read is never half old and half new."""
    files = InputFiles(str(tmp_path / "etc"))
    meddler = _Meddler(monkeypatch, file)
    meddler.steps = [lambda n=n: secret.swap({"user": n, "token": n}) for n in ("1", "2")]
    assert set(files.read().config_files.values()) == {b"2"}
    assert not meddler.steps
