"""Files that hang, have no end, are no files or fill memory: told with their place, and what runs goes on."""

import builtins
import errno
import os
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from declctl.errors import EntryPointError
from declctl.hooks import parser
from declctl.hooks.bundle import closure
from declctl.hooks.loader import GenerationNamespace
from declctl.kit import files as reader
from declctl.kit import memory
from declctl.runtime.checking.check import check
from declctl.runtime.checking.inputs import InputFiles
from declctl.testing import BundleDir, until
from tests.hostile.bounds import bounded

HANDLER = "def h(change): ...\n"


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _socket(path: Path) -> None:
    with closing(socket.socket(socket.AF_UNIX)) as listening:
        here = Path.cwd()
        os.chdir(path.parent)  # the name of a socket has 108 bytes at most
        try:
            listening.bind(path.name)
        finally:
            os.chdir(here)


def _endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


def _huge(path: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 40)


def _loop(path: Path) -> None:
    path.symlink_to(path.name)


# What stands where a file should, and the words that say so.
NO_FILES: dict[str, tuple[Callable[[Path], None], str]] = {
    "a named pipe": (_fifo, "a named pipe, and only regular files are read"),
    "a socket": (_socket, "a socket, and only regular files are read"),
    "a device": (_endless, "a device, and only regular files are read"),
    "a folder": (Path.mkdir, "a folder"),
    "a terabyte": (_huge, "1,099,511,627,776 bytes"),
}


@pytest.mark.parametrize("what", NO_FILES)
def test_only_regular_files_are_read(what: str, tmp_path: Path) -> None:
    """A pipe without a writer, a device without an end: an error with the name of the file, at once."""
    make, words = NO_FILES[what]
    path = tmp_path / "x"
    make(path)
    with bounded(seconds=5, megabytes=20), pytest.raises(OSError, match=words) as raised:
        reader.read_file(path, most=1 << 20)
    assert raised.value.filename == str(path)


@pytest.mark.parametrize("name", ["loop", "nul\0", "x" * 300, "missing"])
def test_names_that_lead_nowhere_are_errors_of_the_system(name: str, tmp_path: Path) -> None:
    """Whatever is wrong with a name is an OSError, which everybody who reads expects."""
    _loop(tmp_path / "loop")
    with pytest.raises(OSError, match="Errno"):
        reader.read_file(tmp_path / name, most=10)


def test_links_to_files_are_followed(tmp_path: Path) -> None:
    """A mounted ConfigMap consists of links."""
    (tmp_path / "file").write_bytes(b"text")
    (tmp_path / "link").symlink_to("file")
    assert reader.read_file(tmp_path / "link", most=4) == b"text"
    with pytest.raises(OSError, match="it has 4 bytes, and the limit is 3"):
        reader.read_file(tmp_path / "link", most=3)


def test_a_file_that_says_it_is_empty_is_read_to_its_end(tmp_path: Path) -> None:
    """Files of /proc have no size: they are read, and never beyond the limit."""
    assert reader.read_file("/proc/self/status", most=1 << 16)
    with pytest.raises(OSError, match="more bytes than 10") as raised:
        reader.read_file("/proc/self/status", most=10)
    assert raised.value.errno == errno.EFBIG


def test_a_file_that_grows_while_it_is_read_ends_at_the_limit(tmp_path: Path, monkeypatch) -> None:
    """A log that somebody writes without end is not followed."""
    path = tmp_path / "log"
    path.write_bytes(b"x" * 100)
    read = os.read

    def growing(descriptor: int, most: int) -> bytes:
        with path.open("ab") as more:
            more.write(b"x" * 100_000)
        return read(descriptor, most)

    monkeypatch.setattr(os, "read", growing)
    with bounded(seconds=10, megabytes=20), pytest.raises(OSError, match="more bytes than 1,000,000"):
        reader.read_file(path, most=1_000_000)


@pytest.mark.parametrize("file", ["manifest.yaml", "handlers.py"])
@pytest.mark.parametrize("what", NO_FILES)
def test_validate_names_what_is_no_file(what: str, file: str, bundle: BundleDir) -> None:
    """`declctl validate` of a bundle with a pipe in the place of a file: DCL000, the file, and what it is."""
    make, words = NO_FILES[what]
    bundle.remove(file)
    make(bundle.path / file)
    # A folder is a manifest, too: then it holds none.
    words = "holds no YAML file" if (what, file) == ("a folder", "manifest.yaml") else words
    with bounded(seconds=10, megabytes=60):
        (fault,) = check(str(bundle.path / "manifest.yaml"), in_child=False).errors
    assert fault.code == "DCL000"
    assert words in fault.message
    assert file in f"{fault.file} {fault.message}"


@pytest.mark.parametrize("what", NO_FILES)
def test_what_is_no_file_beside_the_manifest_is_left_alone(what: str, bundle: BundleDir) -> None:
    """A pipe that nobody names, among YAML files and modules, is none of our business."""
    make, _ = NO_FILES[what]
    if what != "a terabyte":  # of YAML in a folder of manifests: that is told
        make(bundle.path / "other.yaml")
    make(bundle.path / "other.py")
    with bounded(seconds=10, megabytes=60):
        assert not check(str(bundle.path), in_child=False).errors


@pytest.mark.parametrize("what", NO_FILES)
def test_a_config_file_that_is_no_file_is_told_at_its_line(what: str, bundle: BundleDir) -> None:
    """The token of a plugin is a pipe: the line of the manifest, and what it is."""
    make, words = NO_FILES[what]
    source = "spec:\n  plugins:\n    - name: p\n      configFrom: [{name: token, file: token}]\n"
    bundle.edit("manifest.yaml", "spec:\n", source)
    make(bundle.path / "token")
    with bounded(seconds=10, megabytes=60):
        fault = next(d for d in check(str(bundle.path), in_child=False).errors if d.code == "DCL082")
    assert words in fault.message
    assert fault.line == 7


def _deep(package: Path) -> None:
    folder = package
    for _ in range(reader.FOLDER_DEPTH + 2):
        folder = folder / "a"
    folder.mkdir(parents=True)
    (folder / "x.py").touch()


def _many(package: Path) -> None:
    for number in range(reader.BUNDLE_FILES + 1):
        (package / f"m{number}.py").touch()


def _large(package: Path) -> None:
    for number in range(reader.BUNDLE_BYTES // reader.CODE_BYTES + 1):
        (package / f"m{number}.py").write_bytes(b"#" * reader.CODE_BYTES)


@pytest.mark.parametrize(
    ("fill", "words"),
    [(_deep, "levels deep"), (_many, "more than 5,000 files"), (_large, "more than 33,554,432 bytes")],
)
def test_a_package_without_bounds_is_refused(
    fill: Callable[[Path], None], words: str, bundle: BundleDir
) -> None:
    """A package with thousands of files or endless folders: one error that names the limit."""
    bundle.edit("manifest.yaml", "handlers:h", "parts.m:h")
    bundle.write("parts/m.py", f"import importlib\n{HANDLER}")
    fill(bundle.path / "parts")
    with bounded(seconds=30, megabytes=120):
        (fault,) = check(str(bundle.path), in_child=False).errors
    assert words in fault.message


def test_odd_names_in_a_package_are_left_alone(bundle: BundleDir) -> None:
    """Names that are no modules, not UTF-8, or hold a newline; loops of links; files nobody may import."""
    bundle.edit("manifest.yaml", "handlers:h", "parts.m:h")
    bundle.write("parts/m.py", f"import importlib\n{HANDLER}")
    parts = bundle.path / "parts"
    (parts / "a\nERROR forged.py").write_text("x = 1")
    Path(os.fsdecode(os.fsencode(parts) + b"/\xff\xfe.py")).write_text("x = 1")
    (parts / "again").symlink_to(parts)
    (parts / "gone.py").symlink_to("nowhere")
    checked = check(str(bundle.path), in_child=True)
    assert not checked.errors
    assert checked.inputs is not None
    assert list(checked.inputs.bundle.files) == ["parts/m.py"]


def test_a_bundle_in_a_folder_with_an_odd_name_works(bundle: BundleDir, tmp_path: Path) -> None:
    """A folder whose name is not UTF-8 and holds a newline: faults can be printed, and are one line each."""
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/a\xff\nb"))
    bundle.path.rename(folder)
    (folder / "handlers.py").write_text("def h(chnage): ...\n")
    (fault,) = check(str(folder)).errors
    assert fault.code == "DCL046"
    assert str(fault).encode()
    assert "\n" not in str(fault)


def test_a_thousand_other_files_cost_little(bundle: BundleDir) -> None:
    """Modules and YAML of somebody else beside the manifest: they are looked at, and that is all."""
    for number in range(2000):
        (bundle.path / f"other{number}.py").write_text("import os\n" * 100)
    for number in range(500):
        (bundle.path / f"other{number}.yaml").write_text("kind: Pod\nmetadata: {name: x}\n")
    files = InputFiles(str(bundle.path))
    with bounded(seconds=20, megabytes=80):
        assert list(files.read().bundle.files) == ["handlers.py"]
        assert files.digest() == files.read().digest


@pytest.fixture
def hanging(monkeypatch) -> Iterator[Callable[[str], threading.Event]]:
    """Lets reads of a file name hang, as on a network mount, until the event is set."""
    events: list[threading.Event] = []
    read_file = reader.read_file

    def hang(name: str) -> threading.Event:
        go = threading.Event()
        events.append(go)

        def read(path: Path, *, most: int) -> bytes:
            if Path(path).name == name:
                go.wait()
            return read_file(path, most=most)

        monkeypatch.setattr(reader, "read_file", read)
        return go

    yield hang
    for event in events:
        event.set()


@pytest.mark.parametrize("file", ["manifest.yaml", "handlers.py"])
def test_a_read_that_hangs_ends_at_its_deadline(file: str, bundle: BundleDir, hanging) -> None:
    """A network mount is gone: reads fail in time, leave one thread behind, and work again with the mount."""
    files = InputFiles(str(bundle.path), seconds=0.2)
    digest = InputFiles(str(bundle.path)).digest()
    go = hanging(file)
    before = threading.active_count()
    for _ in range(5):
        with pytest.raises(TimeoutError, match=r"0\.2 s") as raised:
            files.read()
        assert raised.value.filename  # of the file or, where that is not known, of the manifest
        assert files.digest().startswith("unreadable: ")
        assert files.look_for_folders() == ()
    until("threads have given up", lambda: threading.active_count() <= before + 1)
    go.set()
    until("it is read again", lambda: files.digest() == digest)


def test_reads_that_have_ended_leave_nothing_behind(tmp_path: Path, monkeypatch) -> None:
    """Neither for files that were read, nor for one whose mount has come back: no lock, and no traceback."""
    monkeypatch.setattr(reader, "READ_SECONDS", 0.05)
    before = reader.unfinished_reads()
    for number in range(50):
        path = tmp_path / str(number)
        path.touch()
        assert reader.read_in_time(path, partial(reader.read_file, path, most=1), name="test-read") == b""
    assert reader.unfinished_reads() == before
    go, file = threading.Event(), tmp_path / "hanging"
    errors: list[TimeoutError] = []
    for _ in range(2):
        with pytest.raises(TimeoutError, match=r"0\.05 s") as caught:
            reader.read_in_time(file, go.wait, name="test-read")
        errors.append(caught.value)
    assert errors[0] is not errors[1]
    assert {error.filename for error in errors} == {str(file)}
    assert reader.unfinished_reads()[1] == before[1] + 1
    (hung,) = (thread for thread in threading.enumerate() if thread.name == "test-read")
    go.set()
    hung.join()
    del caught, errors  # their tracebacks
    assert reader.unfinished_reads() == before
    assert reader.read_in_time(file, go.wait, name="test-read")


def test_a_timeout_of_the_file_system_is_not_taken_for_a_read_that_hangs(tmp_path: Path) -> None:
    """NFS answers so: the next read is tried."""

    def refused() -> None:
        raise TimeoutError(errno.ETIMEDOUT, "Connection timed out")

    with pytest.raises(TimeoutError, match="Connection timed out"):
        reader.read_in_time(tmp_path, refused, name="test-read")
    assert reader.read_in_time(tmp_path, lambda: "read", name="test-read") == "read"


def test_a_controller_ends_while_a_read_hangs(rig, hanging) -> None:
    """SIGTERM is not kept waiting by a reload that reads from a mount that is gone."""
    rig.handler("tell")
    running = rig.run("def tell(change): ...\n", watch=True)
    go = hanging("handlers.py")
    rig.folder.write("handlers.py", "def tell(change): ...\nX = 1\n")
    until("it hangs", lambda: any(thread.name == "declctl-files" for thread in threading.enumerate()))
    with bounded(seconds=15, megabytes=200):
        assert running.stop() == 0
    assert not go.is_set()


@pytest.mark.parametrize("what", NO_FILES)
def test_a_running_controller_outlives_what_is_no_file(what: str, rig, config_map) -> None:
    """A pipe takes the place of a handler file: refused by name; what runs goes on, until it is mended."""
    make, words = NO_FILES[what]
    rig.handler("tell")
    code = "from blackboard import tell as note\ndef tell(change):\n    note(str(change.key))\n"
    running = rig.run(code, watch=True)
    with bounded(seconds=60, megabytes=300):
        rig.folder.remove("handlers.py")
        make(rig.folder.path / "handlers.py")
        until("it is told", lambda: running.condition("Reloaded").status == "False", timeout=30)
        message = running.condition("Reloaded").message
        assert words in message
        assert "handlers.py" in message
        running.sandbox.create(config_map("meanwhile"))
        running.wait_idle()
        assert rig.told("default/meanwhile")
        if stat.S_ISDIR((rig.folder.path / "handlers.py").lstat().st_mode):
            (rig.folder.path / "handlers.py").rmdir()
        rig.folder.write("handlers.py", f"{code}# mended\n")
        until("it is mended", lambda: running.condition("Reloaded").status == "True", timeout=30)
        assert running.stop() == 0


LINES = 250_000
LARGE = {
    "assignments": "x=1\n" * LINES,
    "names": "import os as x\n" + "x\n" * 480_000,
    "a list": f"x=[{'0,' * 490_000}]\n",
}


@pytest.mark.parametrize("what", LARGE)
def test_a_megabyte_of_short_lines_does_not_fill_the_running_process(what: str, rig, config_map) -> None:
    """A handler of 500,000 lines took the process to 980 MB before it was even tried: only a child pays."""
    rig.handler("tell")
    rig.reload_policy = "settle: 20ms, preflightTimeout: 90s, warmTimeout: 90s"
    code = "from blackboard import tell as note\ndef tell(change):\n    note(str(change.key))\n"
    running = rig.run(code)
    with bounded(seconds=110, megabytes=150):
        rig.folder.write("handlers.py", code)
        with (rig.folder.path / "handlers.py").open("a") as file:
            file.write(LARGE[what])
        outcome = running.reload(timeout=100)
    assert outcome.result in ("Applied", "Refused")
    if outcome.result == "Refused":
        # On a slow machine, the limit of time is met before that of memory.
        limits = ("to parse it takes more memory than there is for it", "it is not parsed in time")
        assert any(words in outcome.message for words in limits)
        assert "handlers.py" in outcome.message
    running.sandbox.create(config_map("after"))
    running.wait_idle()
    assert rig.told("default/after")


def test_a_large_file_is_like_any_other(bundle: BundleDir) -> None:
    """Its imports are found, its faults have their line, and what it defines works."""
    filling = "# filling\n" * 10_000
    bundle.write("handlers.py", f"{filling}from parts import one\ndef h(change): return one\n")
    bundle.write("parts.py", f"one = 1\n{filling}")
    checked = check(str(bundle.path))
    assert not checked.errors
    assert checked.inputs is not None
    assert list(checked.inputs.bundle.files) == ["handlers.py", "parts.py"]
    bundle.write("parts.py", f"{filling}one = = 1\n")
    (fault,) = check(str(bundle.path)).errors
    assert (fault.code, fault.line, fault.column) == ("DCL042", 10_001, 7)
    assert fault.file.endswith("parts.py")


def test_a_large_file_that_is_not_parsed_in_time_is_named(
    bundle: BundleDir, tmp_path: Path, monkeypatch
) -> None:
    """One time limit holds for reading and parsing; the file that used it up is named, and what to do."""
    script = tmp_path / "slow.py"
    script.write_text("import time; time.sleep(1000)")
    monkeypatch.setattr(parser, "__file__", str(script))
    monkeypatch.setattr("declctl.runtime.checking.inputs.PARSE_SHARE", 0.01)
    bundle.write("handlers.py", f"{HANDLER}# {'x' * parser.LARGE_BYTES}\n")
    with bounded(seconds=15, megabytes=60):
        (fault,) = check(str(bundle.path), in_child=False).errors
    assert fault.code == "DCL000"
    assert "app/handlers.py: it is not parsed in time" in fault.message
    assert "keep data in files that are not Python" in str(fault.suggestion)


def test_many_files_that_are_not_parsed_in_time_name_the_one_at_hand(bundle: BundleDir) -> None:
    """Small files are parsed in this process: together they have no more time than a large one."""
    with pytest.raises(OSError, match="it is not parsed in time") as raised:
        closure(bundle.path, ["handlers"], until=time.monotonic())
    assert raised.value.filename == str(bundle.path / "handlers.py")


NESTED = {
    "signs": f"x = {'-' * 10_000}1\n",
    "operators": f"x = {'1 + ' * 50_000}1\n",
    "attributes": f"x = a{'.b' * 50_000}\n",
    "calls": f"x = a{'()' * 50_000}\n",
    "branches": "if a: pass\n" + "elif a: pass\n" * 10_000,
}


@pytest.mark.parametrize("size", [0, parser.LARGE_BYTES])
@pytest.mark.parametrize("what", NESTED)
def test_deep_nesting_is_told_as_such(what: str, size: int, bundle: BundleDir) -> None:
    """Python's parser says that it has no memory for a chain of 10,000 signs: the message says what it is."""
    bundle.write("handlers.py", f"{'#' * size}\n{HANDLER}{NESTED[what]}")
    files = InputFiles(str(bundle.path)).read()
    namespace = GenerationNamespace(0, files.bundle)
    try:
        with bounded(seconds=20, megabytes=100), pytest.raises(EntryPointError) as raised:
            namespace.module("handlers")
    finally:
        namespace.close()
    assert (raised.value.code, raised.value.file) == ("DCL042", files.bundle.display("handlers.py"))
    assert "it can't be compiled: it is nested too deep" in raised.value.message
    assert "split it" in str(raised.value.suggestion)


@pytest.mark.parametrize(("source", "status"), [("x=1\n" * 60_000, 3), (NESTED["signs"], 0)])
def test_a_lack_of_memory_and_deep_nesting_are_told_apart(source: str, status: int) -> None:
    """Python raises MemoryError for both. Here a process may have 100 MiB, which the first source needs."""
    limited = "import resource, runpy, sys; resource.setrlimit(resource.RLIMIT_AS, (100 << 20, 100 << 20)); "
    run = f"runpy.run_path({parser.__file__!r}, run_name='__main__')"
    command = f"{limited} sys.argv = ['', 'compile', 'f.py', {512 << 20!r}]; {run}"
    ended = subprocess.run(
        [sys.executable, "-I", "-S", "-c", command], input=source.encode(), check=False, capture_output=True
    )
    assert ended.returncode == status, ended.stderr


MEMORY = "to parse it takes more memory than there is for it"


@pytest.mark.parametrize(
    ("left", "source", "message"),
    [
        (None, "import sys; sys.exit(3)", f"{MEMORY} (at most 512 MiB)"),
        (
            40 << 20,
            Path(parser.__file__).read_text(),
            f"{MEMORY} (at most 30 MiB, as the memory limit of the container leaves no more)",
        ),
        (None, "import sys; sys.exit(9)", "to parse it ends the process (status 9)"),
    ],
    ids=["memory", "memory of a container", "another end"],
)
@pytest.mark.parametrize(
    "parse",
    [parser.scan_apart, lambda source: parser.compile_apart(source.decode(), "f.py")],
    ids=["imports", "code"],
)
def test_what_is_said_of_a_file_that_can_not_be_parsed_is_true_of_imports_and_of_code(
    parse: Callable[[bytes], object], left: int | None, source: str, message: str, tmp_path: Path, monkeypatch
) -> None:
    """Imports are looked for without compiling; of what a container has left, three quarters may be used."""
    monkeypatch.setattr(memory, "memory_left", lambda: left)
    script = tmp_path / "ends.py"
    script.write_text(source)
    monkeypatch.setattr(parser, "__file__", str(script))
    with bounded(seconds=15, megabytes=60), pytest.raises(parser.TooCostly) as raised:
        parse(b"x=1\n" * 60_000)
    assert str(raised.value) == message


def test_a_large_module_is_never_compiled_where_events_pass(bundle: BundleDir, monkeypatch) -> None:
    """20,000 lines hold up events while Python compiles them: that is done in another process."""
    lines = "".join(f"def f{number}(a):\n    return a + {number}\n" for number in range(10_000))
    bundle.write("handlers.py", f"{HANDLER}{lines}")
    sizes: list[int] = []
    compiled = builtins.compile

    def seen(source: Any, *more: Any, **how: Any) -> Any:
        sizes.append(len(source) if isinstance(source, str | bytes) else 0)
        return compiled(source, *more, **how)

    monkeypatch.setattr(builtins, "compile", seen)
    checked = check(str(bundle.path))
    assert checked.inputs is not None
    namespace = GenerationNamespace(0, checked.inputs.bundle)
    try:
        module = namespace.module("handlers")
        assert (module.f9999(1), module.f9999.__code__.co_firstlineno) == (10_000, lines.count("\n"))
        assert module.f9999.__code__.co_filename == checked.inputs.bundle.display("handlers.py")
    finally:
        namespace.close()
    assert all(size <= parser.LARGE_BYTES for size in sizes)


_BUNDLE = {
    "manifest.yaml": """
apiVersion: declctl.dev/v1alpha1
kind: Controller
metadata: {name: looked-at}
spec:
  resources: [{name: pods, apiVersion: v1, kind: Pod}]
  plugins: [{name: slack, configFrom: [{name: token, file: token}]}]
  handlers: [{name: h, resourceRef: {name: pods}, entryPoint: "handlers.pods:h"}]
""",
    "handlers/pods.py": HANDLER,
    "token": "secret",
}


@pytest.mark.parametrize("place", ["", "manifest.yaml", "handlers", "handlers/pods.py", "token", "..data"])
@pytest.mark.parametrize("what", [*NO_FILES, "a link to itself", "a link to nothing"])
def test_whatever_stands_in_a_place_a_look_has_an_answer(what: str, place: str, tmp_path: Path) -> None:
    """The watcher looks on, has one answer for what is there, and sees when it is mended."""
    bundle = BundleDir(tmp_path / "bundle", _BUNDLE)
    files = InputFiles(str(bundle.path))
    whole = files.digest()
    path, aside = bundle.path / place, tmp_path / "aside"
    if place != "..data":
        path.rename(aside)
    links = {"a link to itself": path, "a link to nothing": tmp_path / "nothing"}
    path.symlink_to(links[what]) if what in links else NO_FILES[what][0](path)
    with bounded(seconds=10, megabytes=20):
        assert files.digest() == files.digest() == InputFiles(str(bundle.path)).digest()
        assert isinstance(files.look_for_folders(), tuple)
    path.unlink() if path.is_symlink() or not path.is_dir() else path.rmdir()
    if place != "..data":
        aside.rename(path)
    assert files.digest() == whole


@pytest.mark.parametrize("denied", [".", "handlers", "handlers/pods.py", "token", "manifest.yaml"])
def test_what_may_not_be_entered_or_read_is_an_answer_too(
    denied: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`chmod 000` on a folder or a file; the system is played, as root may enter everything."""
    bundle = BundleDir(tmp_path / "bundle", _BUNDLE)
    files = InputFiles(str(bundle.path))
    whole = files.digest()
    closed = bundle.path / denied

    def refuse(call: Callable, *, inside: bool) -> Callable:
        def refusing(path: object, *arguments: object, **how: object) -> object:
            named = Path(os.fspath(path)) if isinstance(path, str | Path) else Path()
            if closed in named.parents or (not inside and named == closed):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(named))
            return call(path, *arguments, **how)

        return refusing

    with monkeypatch.context() as patch:
        patch.setattr(os, "stat", refuse(os.stat, inside=True))
        for name in ("open", "listdir", "scandir"):
            patch.setattr(os, name, refuse(getattr(os, name), inside=False))
        digest = files.digest()
        assert digest == files.digest() != whole
        assert digest.startswith(("unreadable", "faulty")) or denied == "token"
        files.look_for_folders()
    assert files.digest() == whole
