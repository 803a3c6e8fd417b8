"""Looking at a bundle again and again, against a reader that has never looked before, and against Python."""

import os
import shutil
import tempfile
from importlib.machinery import FileFinder, SourceFileLoader
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from declctl.hooks.bundle import Bundle
from declctl.runtime.checking.inputs import InputFiles

MANIFEST = """
apiVersion: declctl.dev/v1alpha1
kind: Controller
metadata: {name: looked-for}
spec:
  resources: [{name: pods, apiVersion: v1, kind: Pod}]
  handlers: [{name: h, resourceRef: {name: pods}, entryPoint: "h:on_pod"}]
"""

# What h.py may be, and the modules that Python then looks for beside it. `yaml` is installed, too.
HANDLERS = {
    "import a": ["a"],
    "import a.b.c": ["a.b.c"],
    "from a import b": ["a.b"],
    "from a.b import c": ["a.b.c"],
    "try:\n    import yaml\nexcept ImportError: ...": ["yaml"],
    "from yaml import b": ["yaml.b"],
    "from a import *": ["a"],
    "import importlib, a\nimportlib.import_module(a.NAME)": ["a"],
    "": [],
}
PLACES = [
    *["a", "a.py", "a/__init__.py", "a/b", "a/b.py", "a/b/__init__.py", "a/b/c.py", "a/b/c"],
    *["yaml", "yaml.py", "yaml/__init__.py", "yaml/b.py"],
    *["elsewhere/a", "elsewhere/a/b.py", "elsewhere/a.py"],
]
place = st.sampled_from(PLACES)


class LookedFor(RuleBasedStateMachine):
    """Files are made, removed, moved and linked; after each step somebody looks who has looked before."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="looked-for-"))
        self.handler = ""
        (self.root / "manifest.yaml").write_text(MANIFEST)
        self.files = InputFiles(str(self.root))
        self.version = 0
        self.before: tuple[str, dict[Path, object], frozenset[Path]] | None = None  # digest, tree, folders

    @initialize(handler=st.sampled_from(sorted(HANDLERS)))
    def begin(self, handler: str) -> None:
        self.edit(handler)

    @rule(handler=st.sampled_from(sorted(HANDLERS)))
    def edit(self, handler: str) -> None:
        self.handler = handler
        (self.root / "h.py").write_text(f"{handler}\ndef on_pod(change): ...\n")

    @rule(place=place)
    def write(self, place: str) -> None:
        self.version += 1
        path = self.made_room(place)
        path.write_text(f"VERSION = {self.version}\n")

    @rule(place=place)
    def make_folder(self, place: str) -> None:
        self.made_room(place).mkdir()

    @rule(place=place)
    def remove(self, place: str) -> None:
        self.removed(self.root / place)

    @rule(place=place, to=place)
    def move(self, place: str, to: str) -> None:
        if to.startswith(f"{place}/") or place.startswith(f"{to}/") or to == place:
            return
        if os.path.lexists(self.root / place):
            to_path = self.made_room(to)
            if os.path.lexists(self.root / place):  # it may have been in the way
                (self.root / place).rename(to_path)

    @rule(place=place.filter(lambda name: name.endswith(".py")), to=place)
    def link(self, place: str, to: str) -> None:
        self.made_room(place).symlink_to(self.root / to)

    def made_room(self, place: str) -> Path:
        """The path of a place at which there is nothing, in a folder."""
        path = self.root / place
        for above in [*reversed(path.parents)]:
            if above.is_relative_to(self.root) and not (above.is_dir() and not above.is_symlink()):
                self.removed(above)
                above.mkdir()
        self.removed(path)
        return path

    def removed(self, path: Path) -> None:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif os.path.lexists(path):
            path.unlink()

    @invariant()
    def who_looks_again_sees_and_hears_what_one_sees_who_looks_first(self) -> None:
        digest, tree, fresh = self.files.digest(), tree_of(self.root), InputFiles(str(self.root))
        assert digest == fresh.digest(), (self.handler, sorted(tree))
        if self.before is not None and digest != self.before[0] and not any(map(Path.is_symlink, tree)):
            _, tree_before, folders = self.before
            changed = {path for path, _ in tree.items() ^ tree_before.items()}
            assert not folders.isdisjoint(path.parent for path in changed), (changed, folders)
        self.before = digest, tree, frozenset(self.files.look_for_folders())
        if not digest.startswith("unreadable"):
            self.has_what_python_would_read(fresh.read().bundle)

    def has_what_python_would_read(self, bundle: Bundle) -> None:
        for module in HANDLERS[self.handler]:
            for path in read_by_python(self.root, module):
                assert bundle.files.get(path.relative_to(self.root).as_posix()) == path.read_bytes()

    def teardown(self) -> None:
        shutil.rmtree(self.root)


def tree_of(root: Path) -> dict[Path, object]:
    """Everything below a folder: the text of files, where links lead, None for folders."""
    return {
        path: path.readlink() if path.is_symlink() else None if path.is_dir() else path.read_text()
        for path in root.rglob("*")
    }


def read_by_python(root: Path, module: str) -> list[Path]:
    """The files that `import module` reads below `root`, if it is the first of `sys.path`."""
    found: list[Path] = []
    folders = [str(root)]
    for part in module.split("."):
        spec = next(
            filter(None, (FileFinder(f, (SourceFileLoader, [".py"])).find_spec(part) for f in folders)), None
        )
        if spec is None or (spec.origin is None and part == "yaml"):
            break
        if spec.origin is not None:
            found.append(Path(spec.origin))
        folders = list(spec.submodule_search_locations or [])
    return found


TestLookedFor = LookedFor.TestCase
TestLookedFor.settings = settings(max_examples=20, stateful_step_count=15)
