"""What the source says without an import: what no reload undoes, and which methods of ctx it uses."""

import sys

import pytest

from declctl.hooks.bundle import Bundle, closure
from declctl.hooks.lint import lint, ordinary_modules
from declctl.hooks.loader import GenerationNamespace
from declctl.hooks.usage import keywords_used, methods_used
from declctl.testing import BundleDir
from tests.rooms.hooks.conftest import bundle_of, without_mark

HEAD = """\
import atexit, logging, os, signal, socket, sys, threading
import prometheus_client as prom
import requests
"""

FOUND = {
    "a metric": ("from prometheus_client import Counter\nC = §Counter('a', 'b')", "DCL090"),
    "a metric by its module": ("C = §prom.Gauge('a', 'b')", "DCL090"),
    "a metric in the registry that all share": ("C = §prom.Info('a', 'b', registry=prom.REGISTRY)", "DCL090"),
    "a metric of a class": ("class Handler:\n    seen = §prom.Histogram('a', 'b')", "DCL090"),
    "a collector": ("§prom.REGISTRY.register(object())", "DCL090"),
    "a metrics server": ("§prom.start_http_server(9100)", "DCL091"),
    "a socket": ("s = socket.socket()\n§s.bind(('', 1))", "DCL091"),
    "a server": ("from http.server import HTTPServer\nserver = §HTTPServer(('', 1), None)", "DCL091"),
    "a thread": ("§threading.Thread(target=print).start()", "DCL092"),
    "a thread with a name": ("t = threading.Thread(target=print)\nif t:\n    §t.start()", "DCL092"),
    "a thread of a class of its own": ("class T(threading.Thread): ...\n§T().start()", "DCL092"),
    "a loop": ("import asyncio\n§asyncio.run(main())", "DCL092"),
    "the environment": ("§os.environ['A'] = 'b'", "DCL093"),
    "the environment by a method": ("from os import environ\n§environ.update(A='b')", "DCL093"),
    "a line with other letters": ("x = 'äöü'; §os.environ['A'] = 'b'", "DCL093"),
    "the path": ("§sys.path.insert(0, 'lib')", "DCL093"),
    "the path as a whole": ("§sys.path += ['lib']", "DCL093"),
    "the folder": ("try:\n    §os.chdir('/tmp')\nexcept OSError: ...", "DCL093"),
    "a signal": ("§signal.signal(signal.SIGTERM, print)", "DCL093"),
    "an exit function": ("@§atexit.register\ndef end(): ...", "DCL093"),
    "the logging": ("§logging.basicConfig()", "DCL093"),
    "a handler of the root logger": ("§logging.getLogger().addHandler(None)", "DCL093"),
    "a patch": ("§requests.get = print", "DCL093"),
    "a patch of a class": ("§requests.Session.get = print", "DCL093"),
    "a patch by its name": ("§setattr(requests, 'get', print)", "DCL093"),
    "a function that is called": ("def setup():\n    §os.umask(0)\nsetup()", "DCL093"),
    "a function that is called twice": ("def setup():\n    §os.umask(0)\nsetup()\nsetup()", "DCL093"),
}

LOOKED_UP = {
    "a file by its place": (
        "import importlib.util as u\ndef f(): §u.spec_from_file_location('a', 'a.py')",
        "DCL094",
    ),
    "a file that is run": ("import runpy\nNAMES = §runpy.run_path('a.py')", "DCL094"),
    "a module by its name": (
        "from importlib import import_module\ndef f(): §import_module('helper')",
        "DCL095",
    ),
    "data by a name": ("import pkgutil\nX = §pkgutil.get_data('helper', 'x')", "DCL095"),
    "resources by a name": ("from importlib import resources\nX = §resources.files('helper')", "DCL095"),
    "a patch by a name": (
        "from unittest import mock\ndef f():\n    with §mock.patch('helper.X', 1): ...",
        "DCL095",
    ),
    "a module that is imported": ("def f(): return §sys.modules['helper'].X", "DCL095"),
}

FINE = {
    "a relative name": "import importlib\nX = importlib.import_module('.helper', __package__)",
    "the name of another module": "import importlib\nX = importlib.import_module('json'), sys.modules['os']",
    "the module itself": "import importlib.resources, helper\nX = importlib.resources.files(helper)",
    "a metric of its own registry": "C = prom.Counter('a', 'b', registry=prom.CollectorRegistry())",
    "a metric of no registry": "C = prom.Counter('a', 'b', registry=None)",
    "a Counter of collections": "from collections import Counter\nC = Counter('a')",
    "a function that is not called": "def later():\n    os.environ['A'] = 'b'\n    prom.Counter('a', 'b')",
    "a method": "class H:\n    def on(self): threading.Thread(target=print).start()",
    "a script": "if __name__ == '__main__':\n    logging.basicConfig()",
    "types": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    sys.path.append('x')",
    "the module's own logger": "log = logging.getLogger(__name__)\nlog.addHandler(None)",
    "builtins, of which each generation has its own": "import builtins\nbuiltins.word = 1",
    "an attribute of an instance": "session = requests.Session()\nsession.verify = False",
    "an attribute of a class of its own": "class S(requests.Session): ...\nS.verify = False",
    "an attribute of another module of the bundle": "import helper\nhelper.WORD = 1",
    "reading": "A = os.environ['A'] if 'A' in os.environ else os.environ.get('B')\nP = sys.path[0]",
    "what is meant": "os.environ['A'] = 'b'  # noqa: DCL093",
    "a syntax error": "os.environ['A'] = ",
}


@pytest.mark.parametrize("what", LOOKED_UP)
def test_what_is_looked_up_past_the_bundle_is_found(what):
    """At import or later: it fails then, or its edits are not noticed."""
    text, code = LOOKED_UP[what]
    source, place = without_mark(f"import sys\n{text}")
    (found,) = lint(bundle_of({"handlers.py": source, "helper.py": ""}))
    assert (found.code, found.line, found.column) == (code, *place)


@pytest.mark.parametrize("what", FOUND)
def test_an_import_that_no_reload_undoes_is_found(what):
    """With file, line, column, and what to do."""
    text, code = FOUND[what]
    source, place = without_mark(HEAD + text)
    (found,) = lint(bundle_of({"handlers.py": source}))
    assert (found.file, found.line, found.column, found.code) == ("app/handlers.py", *place, code)
    assert found.message.startswith("at import, this ")
    assert found.suggestion


@pytest.mark.parametrize("what", FINE)
def test_what_only_defines_things_is_fine(what):
    """A warning of what does no harm would teach people to overlook warnings."""
    assert lint(bundle_of({"handlers.py": HEAD + FINE[what], "helper.py": "WORD = 0"})) == []


def test_a_large_source_is_not_parsed_here():
    """It would hold up the import; what it defines is mostly data."""
    assert lint(Bundle("app", {"a.py": b"import os\nos.umask(0)\n" + b"x = 1\n" * 20_000})) == []


@pytest.fixture(name="beside")
def _beside(tmp_path, monkeypatch):
    """A bundle whose handlers import `outsider` by way of sys.path, which is put back."""
    folder = BundleDir(tmp_path / "bundle")
    before = set(sys.modules)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield folder
    for name in set(sys.modules) - before:
        if name.startswith("outsider"):
            del sys.modules[name]


def _imported(folder):
    bundle = closure(folder.path, ["handlers"])
    known = set(sys.modules)
    namespace = GenerationNamespace(901, bundle)
    try:
        namespace.module("handlers")
        return ordinary_modules(bundle, known)
    finally:
        namespace.close()


def test_a_helper_that_is_imported_past_the_bundle_is_found(beside):
    """Nobody would notice its edits; the statement that imports it is shown."""
    beside.write("lib/outsider.py", "X = 1")
    beside.write(
        "handlers.py",
        "import sys, os\nsys.path.insert(0, os.path.join(os.path.dirname(__file__), 'lib'))\n"
        "if True:\n    from outsider import X\n",
    )
    (found,) = _imported(beside)
    assert (found.code, found.file) == ("DCL094", str(beside.path / "handlers.py"))
    assert (found.line, found.column) == (4, 5)
    assert "lib/outsider.py is imported past the bundle, as outsider" in found.message


def test_a_helper_of_a_helper_is_found_at_its_own_file(beside):
    """No statement of the bundle names it."""
    beside.write("lib/outsider.py", "import outsider2")
    beside.write("lib/outsider2.py", "X = 1")
    beside.write(
        "handlers.py", f"import sys\nsys.path.insert(0, {str(beside.path / 'lib')!r})\nimport outsider"
    )
    found = {each.file.rpartition("/")[2]: each.line for each in _imported(beside)}
    assert found == {"handlers.py": 3, "outsider2.py": 1}


def test_installed_packages_in_the_folder_are_fine(beside):
    """An environment beside the manifest, as many have it."""
    beside.write(".venv/lib/python3/site-packages/outsider.py", "X = 1")
    site = str(beside.path / ".venv/lib/python3/site-packages")
    beside.write(
        "handlers.py", f"import sys\nsys.path.insert(0, {site!r})\nimport outsider\nfrom . import other"
    )
    beside.write("other.py", "")
    assert _imported(beside) == []


METHODS = {"apply", "apply_set", "record_event", "client"}


def used(source: str, entry_point: str = "handlers", *, hooks: tuple[str, ...] = (), **others: str):
    texts = {"handlers": source, **others}
    files = {f"{name.replace('__', '/')}.py": text.encode() for name, text in texts.items()}
    return methods_used(Bundle("", files), entry_point, METHODS, hooks=hooks)


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("async def f(ctx): await ctx.apply_set([])", {"apply_set"}),
        ("def f(ctx): ctx.sync.apply({})", {"apply"}),
        ("def f(c): g(c.record_event)", {"record_event"}),
        ('def f(c): getattr(c, "record_event")()', {"record_event"}),
        ("def f(ctx): return CoreV1Api(ctx.client)", {"client"}),
        # Names that others have, too, and texts that nobody calls.
        ("frame.apply(print)\nself.client.get()", set()),
        ('"""ctx.apply_set"""  # ctx.record_event', set()),
        ("this is not Python: ctx.apply", set()),
    ],
)
def test_a_method_is_found_where_code_uses_it(source: str, found: set[str]) -> None:
    assert used(source) == found


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("async def f(ctx): await ctx.patch_status(conditions=[], files=1)", {"conditions", "files"}),
        ("def f(ctx): ctx.sync.patch_status([], **more)", {"conditions"}),
        ("def f(ctx): ctx.sync.patch_status(Status(ready=3))", set()),
        ("def f(c): g(c)\ndef g(c): c.patch_status(files=1)\ndef h(c): c.patch_status(no=1)", {"files"}),
        ("from helpers import tell\ndef f(ctx): tell(ctx)", {"told"}),
        ("def f(ctx): ctx.patch(files=1)", set()),
    ],
)
def test_the_fields_of_a_status_are_those_that_calls_name(source: str, found: set[str]) -> None:
    """Where the function leads to them, in its module or another one."""
    files = {"handlers.py": source.encode(), "helpers.py": b"def tell(ctx): ctx.patch_status(told=1)"}
    fields = keywords_used(Bundle("", files), "handlers:f", "patch_status", first="conditions")
    assert fields == found


TWO = """
import helpers

def quiet(obj): print(obj)
def loud(obj, ctx): tell(obj, ctx)
def tell(obj, ctx): ctx.record_event(obj, "R", "m")
class Sets:
    def declctl_event(self, ctx): self.children(ctx)
    def children(self, ctx): ctx.apply_set([])
try:
    made = partial(loud)
except NameError:
    made = Sets()
def far(ctx): helpers.write(ctx)
def declctl_finalize(ctx): ctx.client
"""


@pytest.mark.parametrize(
    ("entry", "found"),
    [
        ("handlers:quiet", set()),
        ("handlers:loud", {"record_event"}),
        ("handlers:Sets", {"apply_set"}),
        ("handlers:made", {"record_event", "apply_set"}),
        ("handlers:far", {"apply"}),
        ("handlers", METHODS),
    ],
)
def test_other_functions_of_the_module_do_not_count(entry: str, found: set[str]) -> None:
    """Two handlers of one file have rights of their own."""
    assert used(TWO, entry, helpers="def write(ctx): ctx.apply({})") == found


def test_hooks_and_late_imports_count_if_they_are_called() -> None:
    """Such as that of a finalizer; installed code is not known."""
    assert used(TWO, "handlers:quiet", hooks=("declctl_finalize",)) == {"client"}
    source = "def f(ctx):\n    from helpers import write\n    write(ctx)\n"
    assert used(source, "handlers:f", helpers="def write(ctx): ctx.apply({})") == {"apply"}
    assert used("", "installed.package:f") is None
