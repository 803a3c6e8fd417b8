"""Edits that change what is read without a change of a file that was read: each is noticed."""

import shutil
from collections.abc import Callable

import pytest

from declctl.manifest.model import WatchFiles
from declctl.runtime.checking import inputs
from declctl.runtime.checking.inputs import InputFiles
from declctl.testing import BundleDir
from tests.rooms.runtime.watching import Watched

MANIFEST = """
apiVersion: declctl.dev/v1alpha1
kind: Controller
metadata: {name: looked-for}
spec:
  resources: [{name: pods, apiVersion: v1, kind: Pod}]
  handlers: [{name: h, resourceRef: {name: pods}, entryPoint: "handlers.pods:h"}]
"""
OPTIONAL = "try:\n    import extra.rules\nexcept ImportError: ...\n"
Steps = list[Callable[[], object]]


def _files(imports: str) -> dict[str, str]:
    return {"manifest.yaml": MANIFEST, "handlers/pods.py": f"{imports}\ndef h(change): ...\n"}


def _optional_folder_first(b: BundleDir) -> Steps:
    extra = b.path / "extra"
    return [
        extra.mkdir,
        lambda: b.write("extra/rules.py", "X = 1\n"),
        lambda: b.write("extra/rules.py", "X = 2\n"),
    ]


def _deep_folders_first(b: BundleDir) -> Steps:
    rules = b.path / "extra" / "rules"
    return [rules.parent.mkdir, rules.mkdir, lambda: b.write("extra/rules/__init__.py", "X = 1\n")]


def _folder_of_an_installed_name_first(b: BundleDir) -> Steps:
    folder = b.path / "yaml"
    return [folder.mkdir, lambda: b.write("yaml/__init__.py", "X = 1\n"), lambda: shutil.rmtree(folder)]


def _all_goes_but_folders(b: BundleDir) -> Steps:
    b.write("extra/rules.py", "X = 1\n")
    paths = [b.path / "handlers" / "pods.py", b.path / "extra" / "rules.py"]
    return [
        lambda: [path.unlink() for path in paths],
        lambda: b.write("handlers/pods.py", f"{OPTIONAL}def h(change): ...\n"),
        lambda: b.write("extra/rules.py", "X = 2\n"),
    ]


def _folder_becomes_a_file_again(b: BundleDir) -> Steps:
    path = b.path / "handlers" / "pods.py"
    return [
        lambda: (path.unlink(), path.mkdir()),
        lambda: (path.rmdir(), path.write_text("def h(change): 1\n")),
    ]


def _folder_with_the_name_of_a_module(b: BundleDir) -> Steps:
    path = b.path / "extra.py"
    return [path.mkdir, lambda: (path.rmdir(), path.write_text("X = 1\n")), path.unlink]


def _file_becomes_a_folder(b: BundleDir) -> Steps:
    path = b.path / "extra"
    return [
        lambda: path.write_text("notes"),
        lambda: (path.unlink(), b.write("extra/rules.py", "X = 1\n")),
        lambda: (shutil.rmtree(path), path.write_text("notes")),
        lambda: (path.unlink(), b.write("extra/rules.py", "X = 2\n")),
    ]


def _package_module_package(b: BundleDir) -> Steps:
    folder, module = b.path / "extra", b.path / "extra.py"
    return [
        lambda: b.write("extra/__init__.py", "X = 1\n"),
        lambda: (shutil.rmtree(folder), module.write_text("X = 2\n")),
        lambda: (module.unlink(), b.write("extra/__init__.py", "X = 3\n")),
        lambda: b.write("extra/rules.py", "X = 4\n"),
    ]


def _package_renamed(b: BundleDir) -> Steps:
    b.write("extra/rules.py", "X = 1\n")
    extra, other = b.path / "extra", b.path / "other"
    return [
        lambda: extra.rename(other),
        lambda: b.write("other/rules.py", "X = 2\n"),
        lambda: other.rename(extra),
    ]


def _link_that_leads_somewhere_at_last(b: BundleDir) -> Steps:
    (b.path / "extra").mkdir()
    (b.path / "extra" / "rules.py").symlink_to(b.path / "shared.py")
    return [lambda: b.write("shared.py", "X = 1\n"), (b.path / "shared.py").unlink]


SEQUENCES = (
    _optional_folder_first,
    _deep_folders_first,
    _folder_of_an_installed_name_first,
    _all_goes_but_folders,
    _folder_becomes_a_file_again,
    _folder_with_the_name_of_a_module,
    _file_becomes_a_folder,
    _package_module_package,
    _package_renamed,
    _link_that_leads_somewhere_at_last,
)


@pytest.mark.guarantee("G24")
@pytest.mark.parametrize("watch", [WatchFiles.AUTO, WatchFiles.POLL])
@pytest.mark.parametrize("sequence", SEQUENCES)
def test_what_was_looked_for_is_noticed_when_it_comes_and_goes(
    sequence, watch, tmp_path, monkeypatch
) -> None:
    """Folders first and modules later, modules that come back: each step is told once it has settled."""
    monkeypatch.setattr("declctl.runtime.reloading.files.SAFETY_POLL_SECONDS", 60.0)
    imports = "import yaml\n" if sequence is _folder_of_an_installed_name_first else OPTIONAL
    bundle = BundleDir(tmp_path / "bundle", _files(imports))
    steps, watched = sequence(bundle), Watched(bundle.path, watch=watch)

    async def scenario() -> None:
        for number, step in enumerate(steps):
            step()
            await watched.noticed()
            await watched.pass_time(4.0)
            assert watched.last == InputFiles(str(bundle.path)).digest(), f"step {number}"

    watched.run(scenario)


def test_files_that_nothing_has_happened_to_are_not_read_into_a_bundle_again(tmp_path, monkeypatch) -> None:
    """Every five seconds somebody looks: sources are parsed when something has changed, and not else."""
    bundle = BundleDir(tmp_path / "bundle", _files(OPTIONAL))
    reads: list[object] = []
    closure = inputs.closure
    monkeypatch.setattr(inputs, "closure", lambda *a, **how: (reads.append(a), closure(*a, **how))[1])
    files = InputFiles(str(bundle.path))
    first = files.digest()
    assert [files.digest() for _ in range(5)] == [first] * 5
    assert len(reads) == 1
    bundle.write("extra.py", "")
    assert files.digest() != first
    assert len(reads) == 2
