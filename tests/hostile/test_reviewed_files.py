"""With a list of allowed digests, an author of the files runs nothing that the digest does not cover."""

import sys
import zipfile
from contextlib import closing
from pathlib import Path

import pytest

from declctl.errors import ReloadRefused
from declctl.hooks.bundle import closure
from declctl.hooks.loader import GenerationNamespace
from declctl.runtime.checking.allowed_digests import require_reviewed, require_search_path
from declctl.runtime.checking.inputs import InputFiles, Inputs
from declctl.testing import BundleDir
from tests.hostile.bounds import bounded
from tests.hostile.conftest import MANIFEST

REVIEWED = "import importlib\ndef h(name): return importlib.import_module(name, __package__)\n"


def plant(file: Path) -> None:
    """A module that ends the process which imports it, or a zip file with one."""
    file.parent.mkdir(exist_ok=True)
    file.write_text("raise SystemExit")
    if file.suffix == ".zip":
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("planted.py", "raise SystemExit")


# What an author adds beside the manifest, the path that Python searches, and what the reviewed code imports.
@pytest.mark.parametrize(
    ("file", "path", "wanted"),
    [
        ("planted.py", "", "planted"),
        ("planted/__init__.py", "../app/.", "planted"),
        ("planted/inner.py", "../link", "planted.inner"),
        ("planted.py", "..", "app.planted"),
        ("__init__.py", "..", "app"),
        ("planted/__init__.py", "lib", ".planted"),
        ("planted.zip", "planted.zip", "planted"),
    ],
)
def test_no_path_leads_to_a_file_that_nobody_has_reviewed(bundle: BundleDir, monkeypatch, file, path, wanted):
    """`sys.path` of a reviewed file, `PYTHONPATH`, `python -m declctl`, and names that are computed."""
    (bundle.path / "handlers.py").write_text(REVIEWED)
    (bundle.path.parent / "link").symlink_to(bundle.path)
    plant(bundle.path / file)
    monkeypatch.setattr(sys, "path", [str(bundle.path / path), *sys.path])
    # Without a list the path leads there, but from the bundle itself.
    for is_reviewed, raised in ((False, (SystemExit, ImportError)[path == "lib"]), (True, ImportError)):
        for name in ("app", "planted"):
            sys.modules.pop(name, None)
        found = closure(bundle.path, ["handlers"], is_reviewed=is_reviewed)
        with bounded(seconds=2, megabytes=20), closing(GenerationNamespace(1, found)) as generation:
            run = generation.resolve("handlers:h")
            with pytest.raises(raised):
                run(wanted)


def test_a_start_is_refused_where_python_searches_the_folder(bundle: BundleDir, monkeypatch) -> None:
    """Python imports before declctl can say no: `cd DIR && python -m declctl run`, `PYTHONPATH`."""
    require_search_path(bundle.path)
    monkeypatch.chdir(bundle.path)
    for entry in ("", str(bundle.path / "lib"), "/proc/self/cwd"):
        monkeypatch.setattr(sys, "path", [entry, "/usr"])
        with pytest.raises(ReloadRefused, match="Python looks for modules"):
            require_search_path(bundle.path)


def test_files_beside_the_manifest_are_in_the_digest_or_refused(bundle: BundleDir) -> None:
    """The URL of a webhook is reviewed as the manifest is; its token, which lies elsewhere, is not."""
    url, token, allowed = bundle.path / "url", bundle.path.parent / "token", bundle.path.parent / "digests"
    plugin = f"{{name: webhook, configFrom: [{{name: url, file: url}}, {{name: token, file: {token}}}]}}"

    def read(its_url: str, its_token: str, admin: str = "{}") -> Inputs:
        url.write_text(its_url)
        token.write_text(its_token)
        (bundle.path / "manifest.yaml").write_text(f"{MANIFEST}  plugins: [{plugin}]\n  admin: {admin}\n")
        return InputFiles(str(bundle.path)).read()

    ours = read("ours", "1")
    assert read("ours", "2").bundle_digest == ours.bundle_digest != read("theirs", "2").bundle_digest
    allowed.write_text(ours.bundle_digest)
    require_reviewed(ours, [str(allowed), None])
    files = ("{tokenFile: url}", "{tls: {certFile: a, keyFile: /b}}")
    for list_, admin in ((url, "{}"), *((allowed, each) for each in files)):
        with pytest.raises(ReloadRefused, match="lies in the folder of the manifest"):
            require_reviewed(read("ours", "1", admin), [str(list_)])
