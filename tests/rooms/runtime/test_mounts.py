"""Mounted bundles: every settled content is read once, with manifest and handlers of one revision."""

import random
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from declctl.errors import ManifestErrors
from declctl.kit import files as reader
from declctl.manifest.model import WatchFiles
from declctl.runtime.checking.inputs import InputFiles, Inputs
from declctl.testing import BundleDir, ConfigMapDir
from tests.rooms.runtime.watching import Watched

_SWAPS = 50
_PAUSES = [
    0.1,
    0.2,
    0.3,
    0.7,
    1.5,
    4.0,
]  # seconds between two swaps; the last is enough for any content to settle
_MANIFEST = """
apiVersion: declctl.dev/v1alpha1
kind: Controller
metadata: {{name: revision-{0}}}
spec:
  resources: [{{name: pods, apiVersion: v1, kind: Pod}}]
  handlers: [{{name: h, resourceRef: {{name: pods}}, entryPoint: "handlers:h"}}]
"""


def _files(revision: int) -> Mapping[str, str]:
    return {
        "manifest.yaml": _MANIFEST.format(revision),
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
    manifest = f"{_MANIFEST.format(0)}{_WITH_SECRET}"
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
