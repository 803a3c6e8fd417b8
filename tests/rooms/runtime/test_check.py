"""A check: every fault at once, each at its place, whatever the imported code does."""

import sys
import threading

import pytest

from declctl.errors import ManifestErrors
from declctl.hooks import parser
from declctl.runtime.checking import inputs
from declctl.runtime.checking.check import check, import_aside, read_files
from declctl.runtime.checking.inputs import InputFiles
from declctl.runtime.checking.preflight import Preflight
from declctl.runtime.checking.preflight_pool import Ending
from declctl.testing import BundleDir
from tests.children import SLOW_IN_CHILD, share_children


@pytest.fixture(autouse=True)
def _children_are_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    """What children are forked from has loaded before: a limit on an import is one on the import alone."""
    share_children(monkeypatch)


SEGFAULT = "import ctypes, faulthandler\nfaulthandler.disable()\nctypes.string_at(0)\n"
SEGFAULT_THAT_FAULTHANDLER_SEES = "import ctypes\n\nctypes.string_at(0)\n"
ENDLESS_WITH_THE_LOCK = "import ctypes\n\nwhile True:\n    ctypes.PyDLL(None).pause()\n"
ENDLESS_IN_A_LIBRARY = """\
import http.client, socket
silent = socket.socketpair()
http.client.HTTPResponse(silent[0]).begin()
"""
INDEXES = """\
import declctl
@declctl.hookimpl
def declctl_event(change): ...
@declctl.hookimpl
def declctl_indexers(): return {}
"""
BAD = {
    "missing module": ("handler:notify", None, "DCL040", "manifest.yaml", 8),
    "missing attribute": (None, "def notfy(change): ...\n", "DCL041", "manifest.yaml", 8),
    "syntax error": (None, "x = 1\ndef notify(change:\n", "DCL042", "handlers.py", 2),
    "import raises": (None, "x = 1\n\nraise OSError('no disk')\n", "DCL043", "handlers.py", 3),
    "sys.exit": (None, "import sys\nsys.exit('bye')\n", "DCL044", "handlers.py", 2),
    "os._exit": (None, "import os\nos._exit(0)\n", "DCL044", "manifest.yaml", 8),
    "segfault": (None, SEGFAULT, "DCL044", "manifest.yaml", 8),
    "segfault that faulthandler sees": (None, SEGFAULT_THAT_FAULTHANDLER_SEES, "DCL044", "handlers.py", 3),
    "endless": (None, "x = 1\nwhile True: pass\n", "DCL045", "handlers.py", 2),
    "endless with the lock": (None, ENDLESS_WITH_THE_LOCK, "DCL045", "handlers.py", 4),
    "endless in a library": (None, ENDLESS_IN_A_LIBRARY, "DCL045", "handlers.py", 3),
    "unknown parameter": (None, "def notify(chnage): ...\n", "DCL046", "handlers.py", 1),
    "no hook": ("handlers", "x = 1\n", "DCL047", "manifest.yaml", 8),
    "no function": (None, "notify = 5\n", "DCL048", "manifest.yaml", 8),
    "indexes that are no mapping": ("handlers", INDEXES.format("[1]"), "DCL049", "manifest.yaml", 8),
    "an index that is no function": ("handlers", INDEXES.format("{'it': 1}"), "DCL049", "manifest.yaml", 8),
    "an index without a name": ("handlers", INDEXES.format("{1: str}"), "DCL049", "manifest.yaml", 8),
}


def _write(bundle: BundleDir, seconds: int = 20) -> str:
    text = bundle.path.joinpath("manifest.yaml").read_text()
    return str(bundle.write("manifest.yaml", f"{text}  reload: {{preflightTimeout: {seconds}s}}\n"))


def test_what_is_right_has_no_diagnostics(bundle) -> None:
    """A good manifest with good handlers: nothing is said, and what will run is there."""
    checked = check(str(bundle.path))
    assert checked.diagnostics == ()
    assert list(checked.inputs.bundle.files) == ["handlers.py"]
    assert [entry.name for entry in checked.declaration.entries] == ["notify"]


@pytest.mark.parametrize("what", BAD)
def test_each_fault_has_its_code_and_its_place(what, bundle) -> None:
    """Whatever the import does, the person reads where and what, and the host survives."""
    new, code, number, file, line = BAD[what]
    if new is not None:
        bundle.edit("manifest.yaml", "handlers:notify", new)
    if code is not None:
        bundle.write("handlers.py", code)
    (fault,) = check(_write(bundle, 2 if "endless" in what else 20)).errors
    assert fault.code == number, fault
    assert (fault.file.rsplit("/", 1)[-1], fault.line) == (file, line), fault
    assert "handlers" not in sys.modules


def test_noise_and_threads_of_an_import_do_not_disturb(bundle) -> None:
    """A handler file that prints, starts threads and leaves children is checked like any other.

    An import that raises with a message of a megabyte: the message has an end.
    """
    bundle.write(
        "handlers.py",
        "import threading, sys, time\n"
        "print('{\"faults\": [1]}'); print('x' * 100000); sys.stderr.write('y' * 100000)\n"
        "threading.Thread(target=time.sleep, args=(60,)).start()\n"
        "def notify(change): ...\n",
    )
    before = threading.active_count()
    checked = check(_write(bundle))
    assert not checked.errors
    assert [warning.code for warning in checked.diagnostics] == ["DCL092"]  # the thread
    assert threading.active_count() <= before + 1
    bundle.write("handlers.py", "raise ValueError('z' * 1_000_000)\n")
    (fault,) = check(str(bundle.path)).errors
    assert fault.code == "DCL043"
    assert len(fault.message) < 5000


def test_all_faults_come_at_once(bundle) -> None:
    """Two handlers are wrong in two ways: both are told, in the order of the text."""
    line = '    - {name: second, resourceRef: {name: pods}, entryPoint: "missing:x"}\n'
    bundle.edit("manifest.yaml", "  handlers:\n", f"  handlers:\n{line}")
    bundle.write("handlers.py", "def notfy(change): ...\n")
    assert [(d.code, d.line) for d in check(str(bundle.path)).errors] == [("DCL040", 8), ("DCL041", 9)]


def test_a_module_that_two_others_import_has_its_fault_once(bundle) -> None:
    """Its place is the same, whichever of them was imported."""
    line = '    - {name: second, resourceRef: {name: pods}, entryPoint: "models:notify"}\n'
    bundle.edit("manifest.yaml", "  handlers:\n", f"  handlers:\n{line}")
    bundle.write("models.py", "raise TypeError('a required field follows optional ones')\n")
    bundle.write("handlers.py", "from models import notify\n")
    (fault,) = check(str(bundle.path)).errors
    assert (fault.code, fault.file.rsplit("/", 1)[-1], fault.line) == ("DCL043", "models.py", 1)


def test_a_plugin_that_is_not_installed_is_told_where_it_is_listed(bundle) -> None:
    bundle.edit("manifest.yaml", "spec:\n", "spec:\n  plugins:\n    - {name: nobody-has-this}\n")
    (fault,) = check(str(bundle.path)).errors
    assert (fault.code, fault.line) == ("DCL080", 6)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("file: secret/token", "secret/token is not there"),
        ("env: DECLCTL_TEST_NOT_SET", "DECLCTL_TEST_NOT_SET is not set"),
    ],
)
def test_a_config_value_that_is_not_there_is_told(source, words, bundle) -> None:
    """A plugin's config comes from a file or variable that isn't there: told at that line."""
    entry = f"spec:\n  plugins:\n    - name: p\n      configFrom:\n        - {{name: token, {source}}}\n"
    bundle.edit("manifest.yaml", "spec:\n", entry)
    fault = next(d for d in check(str(bundle.path)).errors if d.code == "DCL082")
    assert fault.line == 8
    assert words in fault.message


@pytest.mark.parametrize(
    ("index", "advice"),
    [
        ("byNodes", 'did you mean "byNode"? Otherwise add it to the indexers of pods in spec.resources'),
        ("other", "add it to the indexers of pods in spec.resources"),
    ],
)
def test_a_mapping_by_an_index_that_is_not_there_is_told(index, advice, bundle) -> None:
    """Of the handler's own resource: indexes of the manifest and of hooks count."""
    indexers = "indexers: [{name: byNode, fieldPath: spec.nodeName}]"
    nodes = "    - {name: nodes, apiVersion: v1, kind: Node}\n"
    bundle.edit("manifest.yaml", "kind: Pod}\n", f"kind: Pod, {indexers}}}\n{nodes}")
    watch = f"mode: Reconcile, watches: [{{resourceRef: {{name: nodes}}, mapTo: {{index: {index}}}}}]"
    bundle.edit("manifest.yaml", 'entryPoint: "handlers:notify"', f'entryPoint: "handlers:notify", {watch}')
    bundle.write("handlers.py", "def notify(request): ...\n")
    (fault,) = check(str(bundle.path)).errors
    assert (fault.code, fault.line) == ("DCL020", 9)
    assert fault.message == f"there is no index {index!r} of pods"
    assert fault.suggestion == advice
    bundle.edit("manifest.yaml", f"index: {index}", "index: byNode")
    assert not check(str(bundle.path)).errors


def test_a_handler_file_that_cannot_be_read_is_told(bundle) -> None:
    """A handler package holds a broken link: a fault, not a traceback."""
    bundle.remove("handlers.py")
    (bundle.path / "handlers.py").symlink_to("gone.py")
    assert check(str(bundle.path)).errors[0].code in ("DCL000", "DCL040")


def test_a_folder_that_never_rests_is_a_fault(tmp_path, bundle, monkeypatch) -> None:
    """A link that moves at every read is somebody's mistake: told, and given up after a few attempts."""
    places = iter(range(1000))
    monkeypatch.setattr(inputs.InputFiles, "real_folder", lambda self: bundle.path / str(next(places)))
    (fault,) = check(str(bundle.path)).errors
    assert fault.code == "DCL000"
    assert "changed while it was read" in fault.message


FILTERS = {
    "asynchronous": ("async def wanted(obj): return True\n", "DCL048", "handlers.py", 2),
    "a generator": ("def wanted(obj): yield True\n", "DCL048", "handlers.py", 2),
    "two parameters": ("def wanted(obj, old): return True\n", "DCL046", "handlers.py", 2),
    "no parameter": ("def wanted(): return True\n", "DCL046", "handlers.py", 2),
    "by name only": ("def wanted(*, obj): return True\n", "DCL046", "handlers.py", 2),
    "a class": ("class wanted: ...\n", "DCL048", "manifest.yaml", 9),
    "a number": ("wanted = 5\n", "DCL048", "manifest.yaml", 9),
    "missing": ("wnated = 5\n", "DCL041", "manifest.yaml", 9),
    "one parameter": ("def wanted(obj): return True\n",),
    "any name": ("def wanted(pod, /, *rest, x=1): ...\n",),
    "a builtin": ("wanted = len\n",),
}


@pytest.mark.parametrize("what", FILTERS)
def test_a_filter_that_cannot_be_asked_is_a_fault(what, bundle) -> None:
    """Found when the file is loaded, not at the first change. Any function of one object can be asked."""
    code, *place = FILTERS[what]
    bundle.write("handlers.py", f"def notify(change): ...\n{code}")
    bundle.edit("manifest.yaml", 'notify"}', 'notify",\n       filter: {entryPoint: "handlers:wanted"}}')
    faults = check(_write(bundle)).diagnostics
    found = [(fault.code, fault.file.rsplit("/", 1)[-1], fault.line) for fault in faults]
    assert found == ([tuple(place)] if place else [])


def test_a_filter_may_be_in_a_module_that_nothing_else_names(bundle) -> None:
    """Its file is part of the bundle, as those of handlers are, and an edit of it is seen."""
    path = _write(bundle)
    bundle.edit("manifest.yaml", 'notify"}', 'notify", filter: {entryPoint: "wishes:wanted"}}')
    bundle.write("handlers.py", "def notify(change): ...\n")
    bundle.write("wishes.py", "def wanted(obj):\n    return True\n")
    files = InputFiles(path)
    before = files.digest()
    assert check(path).errors == ()
    bundle.write("wishes.py", "def wanted(obj):\n    return False\n")
    assert files.digest() != before


def test_a_manifest_is_checked_again_when_it_or_the_environment_has_changed(bundle, monkeypatch) -> None:
    """Edits of code find it as it was; what `${env:…}` stands for is looked up for each text."""
    loads: list[str] = []
    load = inputs.load
    monkeypatch.setattr(
        inputs, "load", lambda source, **more: loads.append(source.name) or load(source, **more)
    )
    text = bundle.path.joinpath("manifest.yaml").read_text()
    files = InputFiles(str(bundle.path / "manifest.yaml"))
    first = files.read()
    bundle.write("handlers.py", "def notify(change):\n    print('edited')\n")
    second = files.read()
    assert second.code != first.code
    assert second.loaded is first.loaded
    assert len(loads) == 1
    bundle.write("manifest.yaml", text.replace("name: guard", 'name: "${env:GUARD}"'))
    for number, name in enumerate(("one", "two"), 2):
        monkeypatch.setenv("GUARD", name)
        assert files.read().loaded.controller.name == name
        assert len(loads) == number
    bundle.write("manifest.yaml", text + "  nonsense: 1\n")
    for _ in range(2):
        with pytest.raises(ManifestErrors):
            files.read()
    bundle.write("manifest.yaml", text)
    assert files.read().loaded.controller.name == "guard"


class _Child:
    """A child that says this, and ends or is closed."""

    def __init__(self, *said: bytes, closed: bool = False) -> None:
        self._said = said
        self._ending = Ending(0, closed=closed)

    def ask(self, _: bytes, *, limit: float) -> tuple[tuple[bytes, ...], Ending]:
        return self._said, self._ending


@pytest.mark.parametrize("own", [None, 2])
def test_a_source_that_takes_too_long_to_compile_is_told_as_such(bundle: BundleDir, own: int | None):
    """Not the line of Python's library that waits for the compiler: what happens, and what to do."""
    path = _write(bundle, 3)
    stack = [
        ("/usr/lib/python3.11/subprocess.py", 5),
        (parser.__file__, 9),
        ("<frozen importlib._bootstrap>", 1),
    ]
    stack += [] if own is None else [(f"{bundle.path}/handlers.py", own)]
    said = [f'  File "{file}", line {line} in f'.encode() for file, line in stack]
    preflight = Preflight(lambda: _Child(b'{"at":0}', *said, closed=True))
    (fault,) = import_aside(read_files(InputFiles(path)), preflight).errors
    assert fault.code == "DCL045"
    assert "importing it took longer than 3 s; a large source was being compiled" in fault.message
    assert "subprocess.py" not in fault.message
    assert "keep data in files that are not Python" in str(fault.suggestion)
    assert fault.file.endswith("manifest.yaml" if own is None else "handlers.py")


@pytest.mark.parametrize(
    ("report", "seconds"),
    [(b'{"faults":[],"hooks":null,"seconds":20.25}', 20.25), (b'{"faults":[]}', 0.0), (b'{"at":0}', 0.0)],
)
def test_a_check_says_how_long_the_import_took(bundle: BundleDir, report: bytes, seconds: float):
    """The child itself times it, so that the start of a process is not taken for a slow import."""
    checked = read_files(InputFiles(str(bundle.path)))
    preflight = Preflight(lambda: _Child(b'{"at":0}', report))
    assert import_aside(checked, preflight).import_seconds == seconds


def test_the_child_times_the_import(bundle: BundleDir):
    """Here the handler moves the child's clock on. What is not imported takes no time."""
    path = _write(bundle)
    assert check(path, in_child=False).import_seconds == 0
    bundle.write("handlers.py", f"{SLOW_IN_CHILD}def notify(change): ...\n")
    assert check(path).import_seconds >= 20
