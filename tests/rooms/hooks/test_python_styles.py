"""What Python code does elsewhere it does in a bundle, too; or the error says what to write instead."""

import py_compile
import shutil
from importlib.machinery import EXTENSION_SUFFIXES

import msgspec
import pytest

from declctl.errors import EntryPointError
from declctl.hooks.bundle import closure
from declctl.hooks.loader import GenerationNamespace
from declctl.testing import BundleDir


@pytest.fixture(name="folder")
def _folder(tmp_path):
    return BundleDir(tmp_path)


@pytest.fixture(name="load")
def _load(folder):
    """Makes a generation of what is in the folder."""
    made = []

    def load(*modules, files=()):
        for name, text in dict(files).items():
            folder.write(name, text)
        made.append(GenerationNamespace(900, closure(folder.path, modules)))
        return made[-1]

    yield load
    for namespace in made:
        namespace.close()


DATA = {
    "importlib.resources": "from importlib import resources\nread = lambda: {}.read_text()",
    "pkgutil": "import pkgutil\nread = lambda: pkgutil.get_data(__package__, 'words.txt').decode()",
    "__file__": "from pathlib import Path\nread = lambda: Path(__file__).with_name('words.txt').read_text()",
    "a template loader": (
        "import sys\nfrom pathlib import Path\n"
        "folder = sys.modules[__package__].__spec__.submodule_search_locations[0]\n"
        "read = lambda: Path(folder, 'words.txt').read_text()"
    ),
}


@pytest.mark.parametrize("where", ["app/", "namespace/", ""])
@pytest.mark.parametrize("how", DATA)
def test_a_file_beside_a_module_can_be_read(load, where, how):
    """In a package, in a folder without a front, and beside the manifest."""
    if how == "pkgutil" and where != "app/":
        pytest.skip("Python itself has it for packages with a front alone")
    files = {"app/__init__.py": "", f"{where}words.txt": "hello"}
    text = DATA[how].replace("{}", "resources.files(__package__).joinpath('words.txt')")
    name = f"{where}handlers".replace("/", ".")
    assert load(name, files={**files, f"{where}handlers.py": text}).module(name).read() == "hello"


DISCOVERY = {
    "iter_modules": (
        "[importlib.import_module(f'.{m.name}', __name__) for m in pkgutil.iter_modules(__path__)]"
    ),
    "iter_modules of the folder": (
        "[importlib.import_module('.' + m.name, __package__)"
        " for m in pkgutil.iter_modules([os.path.dirname(__file__)])]"
    ),
    "walk_packages": (
        "[importlib.import_module(m.name) for m in pkgutil.walk_packages(__path__, __name__ + '.')]"
    ),
    "glob": (
        "[importlib.import_module('.' + os.path.basename(f)[:-3], __name__)"
        " for f in sorted(glob.glob(os.path.dirname(__file__) + '/[a-z]*.py'))]"
    ),
}


@pytest.mark.parametrize("how", DISCOVERY)
def test_plugins_in_a_folder_are_discovered(load, how):
    """Each generation has the modules that were there, as its own."""
    front = f"import glob, importlib, os, pkgutil\nFOUND = {DISCOVERY[how]}\n"
    files = {"plugins/__init__.py": front, "plugins/a.py": "X = 1", "plugins/b.py": "X = 2"}
    old = load("plugins", files=files)
    assert [module.X for module in old.module("plugins").FOUND] == [1, 2]
    new = load("plugins", files={"plugins/a.py": "X = 3", "plugins/c.py": "X = 4"})
    assert [module.X for module in new.module("plugins").FOUND] == [3, 2, 4]
    assert [module.X for module in old.module("plugins").FOUND] == [1, 2]


def test_what_was_not_read_is_never_loaded_behind_the_back(load, folder):
    """A module that came after the bundle was read is neither watched nor of one moment: it is refused."""
    files = {
        "plugins/__init__.py": "import importlib\nload = lambda n: importlib.import_module('.' + n, __name__)"
    }
    package = load("plugins", files=files).module("plugins")
    folder.write("plugins/late.py", "X = 1")
    with pytest.raises(ModuleNotFoundError, match=r"late\.py is not part of the bundle"):
        package.load("late")
    assert not list(folder.path.rglob("*.pyc"))


@pytest.mark.parametrize("text", ["importlib.import_module('.helper', __package__)", "__import__('helper')"])
def test_a_name_in_a_call_is_an_import(load, text):
    """The module is read, though no import statement names it."""
    files = {"handlers.py": f"import importlib\nX = {text}.X", "helper.py": "X = 1"}
    assert load("handlers", files=files).module("handlers").X == 1


@pytest.mark.parametrize("text", ["importlib.import_module('helper')", "importlib.resources.files('helper')"])
def test_an_absolute_name_in_a_text_says_what_to_write(load, text):
    """Python's own functions know no generation: the advice is not to install what is there."""
    files = {"handlers.py": f"import importlib.resources\nimport helper\nX = {text}", "helper.py": "X = 1"}
    with pytest.raises(EntryPointError) as caught:
        load("handlers", files=files).module("handlers")
    assert caught.value.suggestion is not None
    assert 'import_module(".helper", __package__)' in caught.value.suggestion


@pytest.mark.guarantee("G5")
def test_what_is_put_into_builtins_is_the_generations_own(load):
    """All modules of one generation see it, no other generation, and nobody else."""
    import builtins

    helper = "import builtins\nbuiltins.shared_word = '{}'\ndef late(): builtins.later_word = '{}'"
    handlers = (
        "import helper\nfrom builtins import len as size\nWORD = shared_word\ndef later(): return later_word"
    )
    old = load("handlers", files={"handlers.py": handlers, "helper.py": helper.replace("{}", "old")})
    new_files = {"helper.py": helper.replace("{}", "new")}
    before = old.module("handlers")
    after = load("handlers", files=new_files).module("handlers")
    before.helper.late()
    assert (before.WORD, before.later(), after.WORD, before.size("ab")) == ("old", "old", "new", 2)
    with pytest.raises(NameError):
        after.later()
    assert not hasattr(builtins, "shared_word")


def test_what_other_code_puts_into_builtins_is_told(load, monkeypatch):
    """`gettext.install` and the like: the advice names what to do."""
    import builtins

    monkeypatch.setattr(builtins, "_", None, raising=False)
    del builtins._
    text = "import gettext\ngettext.install('app')\nX = _('hello')\n"
    try:
        with pytest.raises(EntryPointError) as caught:
            load("handlers", files={"handlers.py": text}).module("handlers")
    finally:
        builtins._ = None
    assert caught.value.line == 3
    assert "other code has put _ into Python's builtins" in str(caught.value.suggestion)


@pytest.fixture(name="compiled")
def _compiled(folder):
    """Puts a compiled module into the folder, without its source."""

    def put(name, kind):
        if kind == "bytecode":
            source = folder.write(f"{name}.py", "X = 1")
            py_compile.compile(str(source), cfile=str(source.with_suffix(".pyc")))
            source.unlink()
        else:
            (folder.path / f"{name}{EXTENSION_SUFFIXES[0]}").parent.mkdir(exist_ok=True)
            shutil.copy(msgspec._core.__file__, folder.path / f"{name}{EXTENSION_SUFFIXES[0]}")

    return put


@pytest.mark.parametrize("kind", ["bytecode", "extension"])
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("fast", "import fast"),
        ("fast", "from . import fast"),
        ("app/fast", "import app.fast"),
        ("app/fast", "from app import fast"),
    ],
)
def test_a_compiled_module_beside_the_manifest_is_named(load, compiled, name, text, kind):
    """It can't be reloaded, and it is there: nobody is told to create it."""
    compiled(name, kind)
    with pytest.raises(
        EntryPointError, match="is not part of the bundle: a bundle has sources only"
    ) as caught:
        load("handlers", "app.other", files={"handlers.py": f"X = 1\n{text}", "app/other.py": ""}).module(
            "handlers"
        )
    assert (caught.value.line, caught.value.code) == (2, "DCL043")
    assert "install the package that has fast" in str(caught.value.suggestion)


def test_a_compiled_module_as_an_entry_point_is_named(load, compiled):
    """The same where the manifest names it."""
    compiled("fast", "extension")
    with pytest.raises(EntryPointError, match="a bundle has sources only") as caught:
        load("fast").resolve("fast:work")
    assert caught.value.code == "DCL040"


def test_what_is_optional_may_be_missing(load):
    text = "try:\n    import fast\nexcept ImportError:\n    fast = None\n"
    assert load("handlers", files={"handlers.py": text}).module("handlers").fast is None


EVERYDAY = {
    "a script's guard": "if __name__ == '__main__':\n    raise SystemExit(1)\nOK = True",
    "the future": "from __future__ import annotations\ndef f(x: NotThere): ...\nOK = True",
    "a circle of imports": "import helper\ndef f(): return helper.handlers.WORD\nWORD = 1\nOK = f() == 1",
    "a namespace package": "import parts.words\nOK = parts.words.WORD == 1",
    "reload": "import importlib, helper\nOK = importlib.reload(helper).WORD == 1",
    "its own module": "import sys\nsetattr(sys.modules[__name__], 'OK', True)",
    "a patch of an object": (
        "from unittest import mock\nimport helper\n"
        "with mock.patch.object(helper, 'WORD', 2):\n    OK = helper.WORD == 2"
    ),
    "an enum": "import copy, enum\nclass E(enum.Enum):\n    A = 1\nOK = copy.deepcopy(E.A) is E.A",
    "a named tuple": (
        "import collections, pickle\nP = collections.namedtuple('P', 'a b')\n"
        "OK = pickle.loads(pickle.dumps(P(1, 2))) == P(1, 2)"
    ),
    "its source": "import inspect\ndef f(): return 5\nOK = inspect.getsource(f) == 'def f(): return 5\\n'",
    "a doctest": (
        "import doctest, sys\ndef f():\n    '''\n    >>> f()\n    5\n    '''\n    return 5\n"
        "OK = doctest.testmod(sys.modules[__name__]) == (0, 1)"
    ),
    "a lazy attribute": "import helper\nOK = helper.lazy == 'lazy'",
    "the version of a package": "import importlib.metadata\nOK = bool(importlib.metadata.version('pluggy'))",
    "a warning": (
        "import warnings\nwith warnings.catch_warnings(record=True) as seen:\n"
        "    warnings.simplefilter('always')\n    warnings.warn('x')\nOK = len(seen) == 1"
    ),
    "code in a text": "exec('import helper; OK = helper.WORD == 1')",
    "types of another module": (
        "import typing\nfrom helper import Word\nclass C:\n    x: 'Word'\n"
        "OK = typing.get_type_hints(C)['x'] is Word"
    ),
}
HELPER = (
    "import handlers\nWORD = 1\nclass Word: ...\n"
    "def __getattr__(name):\n    if name == 'lazy': return name\n    raise AttributeError(name)\n"
)


@pytest.mark.parametrize("style", EVERYDAY)
def test_everyday_python_is_what_it_is_elsewhere(load, style):
    """In each generation, the second as the first."""
    files = {"handlers.py": EVERYDAY[style], "helper.py": HELPER, "parts/words.py": "WORD = 1"}
    assert load("handlers", "helper", files=files).module("handlers").OK
    assert load("handlers", "helper", files=files).module("handlers").OK
