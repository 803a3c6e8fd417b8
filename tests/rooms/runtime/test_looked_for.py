"""Edits that change what is read without a change of a file that was read: each is noticed.

More of them, and the folders in which they are noticed: `LookedFor` of the properties.
"""

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


def _link_that_leads_somewhere_at_last(b: BundleDir) -> Steps:
    (b.path / "extra").mkdir()
    (b.path / "extra" / "rules.py").symlink_to(b.path / "shared.py")
    return [lambda: b.write("shared.py", "X = 1\n"), (b.path / "shared.py").unlink]


SEQUENCES = (_all_goes_but_folders, _folder_becomes_a_file_again, _link_that_leads_somewhere_at_last)


@pytest.mark.guarantee("G24")
@pytest.mark.parametrize("watch", [WatchFiles.AUTO, WatchFiles.POLL])
@pytest.mark.parametrize("sequence", SEQUENCES)
def test_what_was_looked_for_is_noticed_when_it_comes_and_goes(
    sequence, watch, tmp_path, monkeypatch
) -> None:
    """Folders first and modules later, modules that come back: each step is told once it has settled."""
    monkeypatch.setattr("declctl.runtime.reloading.files.SAFETY_POLL_SECONDS", 60.0)
    bundle = BundleDir(tmp_path / "bundle", _files(OPTIONAL))
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
