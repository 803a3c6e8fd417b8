"""Which files belong to a generation, and to each module of it."""

import pytest

from declctl.hooks import bundle
from declctl.hooks.bundle import Bundle, closure, reached
from declctl.kit.files import Lookups


@pytest.fixture(name="folder")
def _folder(tmp_path):
    def make(files):
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path

    return make


PACKAGE = {
    "h/__init__.py": "",
    "h/a.py": "from .deep import b",
    "h/c.py": "",
    "h/deep/b.py": "from .. import c",
}
BESIDE = dict.fromkeys(["h/scratch.py", "h/deep/other.py", "h/tests/test_a.py"], "import h.a")
# A module that only a computed name reaches has its imports in memory, too, and its packages whole.
WHOLE = {
    "a.py": "import h, other.x\n__import__(h.NAME)",
    "h/__init__.py": "",
    "h/late.py": "import rules",
    "other/x.py": "",
    "other/y.py": "",
    "rules.py": "",
}

# The entry points, the files that are read, and other files of the folder.
READ = {
    "what an import names": ("pods", {"pods.py": "import rules", "rules.py": ""}, {"unrelated.py": ""}),
    "sources only": ("pods", {"pods.py": ""}, {"notes.txt": ""}),
    "late imports, in circles": (
        "a",
        {"a.py": "def f():\n    from b import x", "b.py": "import c.d", "c/d.py": "import a"},
        {},
    ),
    "a relative import of a neighbour": ("a", {"a.py": "from . import b", "b.py": ""}, {}),
    # A module of a package that nothing imports, such as its tests, causes no reload.
    "of a package what is imported": ("h.a", PACKAGE, BESIDE),
    "what a package imports that is read whole": ("a", WHOLE, {"unrelated.py": ""}),
    # An entry point that is one letter off: those that are there can be named in the advice.
    "the neighbours of what is not there": ("h.pod", {"h/__init__.py": "", "h/pods.py": ""}, {}),
    # They are told when they are imported, with their place.
    "what is no Python": ("a", {"a.py": "import b", "b.py": "def f(:"}, {}),
    "zero bytes": ("a", {"a.py": "import b", "b.py": "x = 1\0"}, {}),
    "nesting without end": ("a", {"a.py": "import b", "b.py": "(" * 5000 + ")" * 5000}, {}),
    # An installed package, `__main__` and `sys` are nobody's handler files. A mere folder does not hide them.
    "nothing of an installed package": ("installed.package", {}, {}),
    "no folder of an installed package": ("pods", {"pods.py": "import yaml"}, {"yaml/script.py": ""}),
    "no folder of a module of Python": (
        "a",
        {"a.py": "import __main__, sys"},
        {"__main__/x.py": "", "sys/x.py": ""},
    ),
    # As Python has it; a folder without a front does not come before the module.
    "a package before a module of its name": ("a", {"a/__init__.py": ""}, {"a.py": ""}),
    "a module before a folder of its name": ("b", {"b.py": ""}, {"b/c.py": ""}),
    "a module of its package before one beside it": (
        "pk",
        {"pk/__init__.py": "from . import json\nfrom .json import x", "pk/json.py": ""},
        {"json.py": ""},
    ),
    "a sibling of the package if an import climbs out": (
        "pk.pods",
        {"pk/__init__.py": "", "pk/pods.py": "from .. import rules", "rules.py": ""},
        {},
    ),
}


@pytest.mark.parametrize("what", READ)
def test_only_what_entry_points_reach_is_read(folder, what):
    entry, files, others = READ[what]
    assert list(closure(folder(files | others), [entry]).files) == sorted(files)


@pytest.mark.parametrize(
    "source",
    [
        "import importlib\ndef f(name): return importlib.import_module(f'{__package__}.{name}')",
        "from importlib import import_module as load",
        "import importlib.util as u",
        "x = __import__('h.' + 'a')",
        "import pkgutil",
        "import sys\nsys.modules['x']",
        "exec('import h.deep')",
        "from . import *",
        "from h import *",
        "__path__.append('x')",
    ],
)
def test_a_package_that_imports_by_computed_names_is_read_whole(folder, source):
    """What it imports can't be known: all is there; hidden folders and caches are left out."""
    names = ["h/a.py", "h/deep/b.py", "h/.hidden/c.py", "h/__pycache__/d.py", "h/data.json"]
    root = folder({"h/__init__.py": source, **dict.fromkeys(names, "")})
    assert list(closure(root, ["h.a"]).files) == ["h/__init__.py", "h/a.py", "h/deep/b.py"]


def test_files_are_known_by_the_folder_that_people_gave(folder):
    """Faults name the path that was typed; modules are listed by dotted names, for suggestions."""
    bundle = closure(folder({"a.py": "x"}), ["a"], display="examples/hello/")
    assert bundle.display("a.py") == "examples/hello/a.py"
    assert Bundle(".", {}).display("a.py") == "a.py"
    assert bundle.source("examples/hello/a.py") == "x"
    assert bundle.source("a.py") is None
    assert Bundle("", {"h/__init__.py": b"", "h/a.py": b""}).modules == ("h", "h.a")


@pytest.mark.parametrize("root", ["", ".", "app", "app/"])
def test_a_source_is_found_without_a_look_at_the_others(root):
    """It is asked for of each module that is imported or examined, and there may be thousands of them."""

    class Files(dict):
        def __iter__(self):
            raise AssertionError("all files are looked at")

        items = keys = values = __iter__

    bundle = Bundle(root, Files({"p/a.py": b"x"}))
    assert bundle.source(bundle.display("p/a.py")) == "x"
    assert bundle.source(bundle.display("p/b.py")) is None


def test_what_has_not_changed_is_not_parsed_again(folder, monkeypatch):
    """To parse a source keeps events waiting; one that is new is seen all the same."""
    parsed = []
    scan = bundle.scan
    monkeypatch.setattr(bundle, "scan", lambda source: parsed.append(source) or scan(source))
    root = folder({"pods.py": "import rules  # known by nobody yet", "rules.py": "# nor is this"})
    first = closure(root, ["pods"])
    assert len(parsed) == 2
    assert closure(root, ["pods"]) == first
    assert len(parsed) == 2
    folder({"pods.py": "X = 'of a new version'"})
    assert list(closure(root, ["pods"]).files) == ["pods.py"]
    assert len(parsed) == 3


def test_what_is_around_the_folder_is_not_watched(folder):
    """A bundle below /tmp is not looked at whenever somebody makes a file there."""
    root = folder({"a.py": "from . import *\nimport b.c", "b/c.py": ""})
    lookups = Lookups()
    closure(root, ["a"], lookups=lookups)
    assert lookups.folders() == [root, root / "b"]


FILES = {
    "app/__init__.py": b"from . import shared",
    "app/shared.py": b"",
    "app/pods.py": b"from .parts.deep import thing\nimport helper",
    "app/jobs.py": b"from app.pods import x",
    "app/late.py": b"def f():\n    from ..sibling import y",
    "app/parts/deep.py": b"from .. import jobless",
    "helper.py": b"import json",
    "sibling.py": b"import helper",
    "broken.py": b"def (",
    "loop.py": b"import loop",
}


@pytest.mark.parametrize(
    ("module", "found"),
    [
        ("app.pods", {"app/__init__.py", "app/shared.py", "app/pods.py", "app/parts/deep.py", "helper.py"}),
        ("app.shared", {"app/__init__.py", "app/shared.py"}),
        ("helper", {"helper.py"}),
        ("sibling", {"sibling.py", "helper.py"}),
        ("app.late", {"app/__init__.py", "app/shared.py", "app/late.py", "sibling.py", "helper.py"}),
        ("broken", {"broken.py"}),
        ("loop", {"loop.py"}),
        ("elsewhere", set()),
    ],
)
@pytest.mark.guarantee("G20")
def test_a_module_is_made_of_what_it_imports(module: str, found: set[str]):
    """Its own file, the packages around it, and what these import; nothing of its neighbours."""
    assert set(reached(Bundle(".", FILES), module)) == found


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import app\napp.shared.x()", {"app/__init__.py", "app/shared.py"}),
        ("import app\napp.late.f()", {"app/late.py", "sibling.py", "helper.py"}),
        ("from app import *", {"app/pods.py", "app/jobs.py", "app/late.py", "app/parts/deep.py"}),
        ("import importlib", {*FILES}),
        ("__import__(name)", {*FILES}),
    ],
)
@pytest.mark.guarantee("G20")
def test_a_module_is_made_of_what_it_may_find(source: str, found: set[str]):
    """Attributes of packages are its modules; what it imports by computed names may be anything."""
    files = {**FILES, "mine.py": source.encode()}
    assert set(reached(Bundle(".", files), "mine")) >= {"mine.py", *found}


def test_what_a_module_is_made_of_takes_one_look_at_all_files():
    """Not one for each import: of two thousand modules that took seconds, at each edit."""
    looks = 0

    class Files(dict):
        def __iter__(self):
            nonlocal looks
            looks += 1
            return super().__iter__()

    count = 20
    modules = {f"p/m{n}.py": f"from p import m{(n + 1) % count}\nimport os".encode() for n in range(count)}
    found = reached(Bundle("", Files({"p/__init__.py": b"", **modules})), "p.m0")
    assert len(found) == count + 1
    assert looks <= 1


@pytest.mark.parametrize("name", ["a", "a.b", "a.b.c", "m", "a.m", "", "ab"])
def test_the_packages_of_a_bundle_are_those_that_it_has(name):
    bundle = Bundle("", dict.fromkeys(["m.py", "a/b/c/x.py", "a/m.py"], b""))
    assert (name in bundle.packages) == bundle.has_package(name)
