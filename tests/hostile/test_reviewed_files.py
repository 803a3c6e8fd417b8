"""With a list of allowed digests, an author of the files runs nothing that the digest does not cover."""

import py_compile
import sys
import zipfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from declctl.errors import ReloadRefused
from declctl.hooks.bundle import closure
from declctl.hooks.loader import GenerationNamespace
from declctl.runtime.checking.allowed_digests import require_allowed, require_reviewed, require_search_path
from declctl.runtime.checking.inputs import InputFiles, Inputs
from declctl.testing import BundleDir
from tests.hostile.bounds import bounded
from tests.hostile.conftest import MANIFEST

REVIEWED = "import importlib\ndef h(name): return importlib.import_module(name, __package__)\n"
PLANTED = "raise SystemExit('what nobody has reviewed runs')"


def _source(file: str) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        (folder / file).parent.mkdir(exist_ok=True)
        (folder / file).write_text(PLANTED)

    return write


def _bytecode(folder: Path) -> None:
    _source("apart.py")(folder)
    py_compile.compile(str(folder / "apart.py"), str(folder / "planted.pyc"))


def _zip(folder: Path) -> None:
    with zipfile.ZipFile(folder / "z.zip", "w") as archive:
        archive.writestr("planted.py", PLANTED)


def _link(folder: Path) -> None:
    _source("planted.py")(folder)
    (folder.parent / "elsewhere").symlink_to(folder)


# What an author adds beside the manifest, the path that Python searches, and what the reviewed code imports.
@pytest.mark.parametrize(
    ("plant", "path", "wanted"),
    [
        (_source("planted.py"), "", "planted"),
        (_source("planted.py"), "../app/.", "planted"),
        (_source("planted/__init__.py"), "", "planted"),
        (_source("planted/inner.py"), "", "planted.inner"),
        (_source("planted.py"), "..", "app.planted"),
        (_source("__init__.py"), "..", "app"),
        (_source("planted/__init__.py"), None, ".planted"),
        (_bytecode, "", "planted"),
        (_zip, "z.zip", "planted"),
        (_link, "../elsewhere", "planted"),
    ],
)
def test_no_path_leads_to_a_file_that_nobody_has_reviewed(
    bundle: BundleDir, monkeypatch, plant: Callable[[Path], None], path: str | None, wanted: str
) -> None:
    """`sys.path` of a reviewed file, `PYTHONPATH`, `python -m declctl`, and names that are computed."""
    (bundle.path / "handlers.py").write_text(REVIEWED)
    plant(bundle.path)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setattr(sys, "path", [*([] if path is None else [str(bundle.path / path)]), *sys.path])

    def run(*, is_reviewed: bool) -> None:
        found = closure(bundle.path, ["handlers"], is_reviewed=is_reviewed)
        with closing(GenerationNamespace(1, found)) as namespace:
            namespace.resolve("handlers:h")(wanted)

    # Without a list the path leads there, but from the bundle itself.
    with pytest.raises(SystemExit if path is not None else ModuleNotFoundError):
        run(is_reviewed=False)
    for name in ("app", "planted"):
        sys.modules.pop(name, None)
    with bounded(seconds=2, megabytes=20), pytest.raises(ModuleNotFoundError, match=r"covers|bundle"):
        run(is_reviewed=True)


def test_a_start_is_refused_where_python_searches_the_folder(bundle: BundleDir, monkeypatch) -> None:
    """Python imports before declctl can say no: `cd DIR && python -m declctl run`, `PYTHONPATH`."""
    (bundle.path.parent / "link").symlink_to(bundle.path)
    require_search_path(bundle.path)
    for entry in ("", str(bundle.path / "lib"), str(bundle.path.parent / "link")):
        monkeypatch.chdir(bundle.path if entry == "" else bundle.path.parent)
        with monkeypatch.context() as patched, pytest.raises(ReloadRefused, match="Python looks for modules"):
            patched.setattr(sys, "path", [*sys.path, entry])
            require_search_path(bundle.path)


def test_files_beside_the_manifest_are_in_the_digest_or_refused(bundle: BundleDir) -> None:
    """The URL of a webhook is reviewed as the manifest is; its token, which lies elsewhere, is not."""
    secret, list_ = bundle.path.parent / "token", bundle.path / "digests"
    sources = f"[{{name: url, file: url}}, {{name: token, file: {secret}}}]"
    manifest = MANIFEST + f"  plugins: [{{name: webhook, configFrom: {sources}}}]\n"
    (bundle.path / "manifest.yaml").write_text(manifest)
    (bundle.path / "url").write_text("https://of-us.example")
    secret.write_text("first")

    def read() -> Inputs:
        return InputFiles(str(bundle.path)).read()

    reviewed = read()
    secret.write_text("second")
    assert read().bundle_digest == reviewed.bundle_digest
    (bundle.path / "url").write_text("https://of-others.example")
    assert read().bundle_digest != reviewed.bundle_digest
    list_.write_text(f"{read().bundle_digest}\n")
    with pytest.raises(ReloadRefused, match="digests lies in the folder of the manifest"):
        require_reviewed(read(), [str(list_)])
    elsewhere = list_.rename(bundle.path.parent / "digests")
    require_reviewed(read(), [str(elsewhere), None])
    for spec in ("tokenFile: url", f"tls: {{certFile: {secret}, keyFile: ./url}}"):
        (bundle.path / "manifest.yaml").write_text(f"{manifest}  admin: {{{spec}}}\n")
        require_reviewed(read(), [None])
        with pytest.raises(ReloadRefused, match="url lies in the folder of the manifest"):
            require_reviewed(read(), [str(elsewhere)])


@pytest.mark.parametrize("end", ["\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c", "\r"])
def test_a_comment_of_the_list_ends_with_its_line(tmp_path: Path, end: str) -> None:
    """A title that a reviewer copies into a comment allows nothing by itself."""
    digest, list_ = f"sha256:{'0' * 64}", tmp_path / "digests"
    list_.write_bytes(f"# a title{end}{digest}\r\n".encode())
    with pytest.raises(ReloadRefused, match="is not in"):
        require_allowed(digest, [str(list_)])
