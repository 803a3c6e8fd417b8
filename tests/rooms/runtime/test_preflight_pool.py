"""The child of a pre-flight: forked, used once, and nothing of it is left, whatever happens to it."""

import asyncio
import gc
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import msgspec
import pytest

from declctl.kit import ManualClock
from declctl.runtime.checking import preflight_pool
from declctl.runtime.checking.check import import_in_child, read_files
from declctl.runtime.checking.fork_server import STATUS
from declctl.runtime.checking.inputs import InputFiles
from declctl.runtime.checking.preflight_pool import Ending, ForkServerProcess, PreflightPool, PreflightProcess
from declctl.testing import until
from tests.children import child_processes


def _open_files() -> int:
    return sum(_is_open(link) for link in Path("/proc/self/fd").iterdir())


def _is_open(link: Path) -> bool:
    try:
        return str(link.readlink()).startswith(("pipe:", "socket:"))
    except FileNotFoundError:
        return False  # the descriptor of this very listing


@pytest.fixture(autouse=True)
def _nothing_is_left():
    """No test leaves a process, a zombie, a pipe or a socket behind."""
    gc.collect()  # sockets of other tests
    before = child_processes(), _open_files()
    yield
    until("processes and files are as before", lambda: (child_processes(), _open_files()) == before)


@pytest.fixture
def children():
    """Children, of which none is left in the end."""
    children = PreflightPool()
    yield children
    children.close()


def _checked(bundle, code: str = "", policy: str = "preflightTimeout: 60s"):
    """What would be imported, with this code of the handler."""
    path = bundle.path / "manifest.yaml"
    manifest = path.read_text().partition("  reload:")[0]
    bundle.write("manifest.yaml", f"{manifest}  reload: {{{policy}}}\n")
    if code:
        bundle.write("handlers.py", f"{code}def notify(change): ...\n")
    return read_files(InputFiles(str(path)))


def _import(children: PreflightPool, checked):
    return asyncio.run(import_in_child(checked, children))


@pytest.fixture
def begun(monkeypatch):
    """The processes that are begun to fork from."""
    begun = []
    popen = subprocess.Popen

    def counted(*arguments, **options):
        begun.append(popen(*arguments, **options))
        return begun[-1]

    monkeypatch.setattr(preflight_pool.subprocess, "Popen", counted)
    return begun


def test_all_children_come_from_one_process_that_has_run_no_user_code(children, bundle, begun) -> None:
    """It is begun once, and ends with the controller; what a child has imported is gone with it."""
    checked = _checked(bundle, "import sys\nassert 'turtledemo' not in sys.modules\nimport turtledemo\n")
    children.warm()
    children.warm()
    for _ in range(3):
        assert _import(children, checked).errors == ()
    assert len(begun) == 1
    assert child_processes()
    children.close()
    children.close()


def test_two_children_at_a_time(children, bundle) -> None:
    """One that hangs keeps no other from its end, and its sockets are nobody else's."""
    checked = _checked(bundle)
    assert checked.declaration is not None
    declaration = msgspec.json.encode(checked.declaration)
    waiting = children.begin()
    said, ending = children.begin().ask(declaration, limit=30)
    assert ending == Ending(0, closed=False)
    assert b'"faults":[]' in said[-1]
    waiting.close()
    said, ending = waiting.ask(declaration, limit=30)
    assert not said
    assert ending.closed


def test_the_time_limit_is_that_of_the_import() -> None:
    """What comes before, on a busy machine, is not counted: the limit has long passed when the import begins.

    It waits for the clock, as the limit of a socket does.
    """
    (talk, peer), (fate, others) = socket.socketpair(), socket.socketpair()

    def be_late() -> None:
        with peer, others:
            assert peer.makefile("rb").read().endswith(b"\n{}")
            time.sleep(0.5)
            peer.sendall(b'{"pid": 1}\n{"faults": []}\n')
            peer.shutdown(socket.SHUT_WR)
            others.sendall(STATUS.pack(0, False, 0))

    late = threading.Thread(target=be_late)
    late.start()
    reports, ending = PreflightProcess(talk, fate).ask(b"{}", limit=0.2)
    late.join()
    assert reports == [b'{"pid": 1}', b'{"faults": []}']
    assert ending == Ending(0, closed=False)


def test_an_import_that_takes_too_much_memory_is_ended(children, bundle, tmp_path, monkeypatch) -> None:
    """Before the kernel ends the controller, too. The refusal says so, names the import, and what to do."""
    (left := tmp_path / "left").write_text(f"{400 << 20}")
    (tmp_path / "limited.py").write_text(
        "from declctl.kit import memory\nfrom declctl.runtime.checking import fork_server as it\n"
        f"memory.memory_left = it.memory_left = lambda: int(open('{left}').read())\nit.main()\n"
    )
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.setattr(preflight_pool, "MODULE", "limited")
    code = f"import os\nopen('{left}2', 'w').write('{99 << 20}')\nos.replace('{left}2', '{left}')\n"
    (fault,) = _import(children, _checked(bundle, f"{code}while True: pass\n")).errors
    limit = "at most 300 MiB, as the memory limit of the container leaves no more"
    assert fault.message == f"handlers:notify: importing it takes more memory than there is for it ({limit})"
    assert (fault.code, "raise the memory limit" in str(fault.suggestion)) == ("DCL044", True)


async def test_it_is_ended_when_nobody_has_wanted_it_for_a_while(children, bundle, begun, tmp_path) -> None:
    """Between two edits of a day nothing is kept; between two of a minute, and amid an import, all is."""
    before, sign, clock = child_processes(), tmp_path / "sign", ManualClock()
    checked = _checked(bundle)
    waits = f"while os.path.exists({str(sign)!r}): time.sleep(0.01)\n"
    slow = _checked(bundle, f"import os, time\nopen({str(sign)!r}, 'w').close()\n{waits}")
    lingering = asyncio.create_task(children.linger(clock))
    await import_in_child(checked, children)
    for _ in range(3):
        await clock.advance(60)
        assert child_processes() != before
        await import_in_child(checked, children)
    work = asyncio.create_task(import_in_child(slow, children))
    await asyncio.to_thread(until, "it imports", sign.exists)
    for _ in range(3):
        await clock.advance(60)
    sign.unlink()
    assert (await work).errors == ()
    await clock.advance(60)
    await asyncio.to_thread(until, "it is ended", lambda: child_processes() == before)
    assert (await import_in_child(checked, children)).errors == ()
    lingering.cancel()
    assert len(begun) == 2


def test_children_have_the_environment_of_now_and_a_low_priority(children, bundle, monkeypatch) -> None:
    """Handler code changes it after the process was begun; the processors are for the controller.

    No signal writes into a file of the server, whose number may be that of another file by now.
    """
    own = "import os, signal\nassert signal.set_wakeup_fd(-1) == -1\n"
    checked = _checked(bundle, f"{own}os.environ['NEWS']\n")
    assert _import(children, checked).errors
    monkeypatch.setenv("NEWS", "good")
    assert _import(children, checked).errors == ()
    nice = os.nice(0) + 5
    code = f"import os\nassert os.nice(0) == {nice} and not os.sched_getscheduler(0)\n"
    assert _import(children, _checked(bundle, code)).errors == ()


@pytest.mark.parametrize("when", ["while it waited", "after the look at it"])
def test_what_it_comes_from_was_killed(children, bundle, begun, when) -> None:
    """The kernel was short of memory and took it: the import is made in a child of another."""
    children.warm()
    if when == "while it waited":
        os.kill(begun[0].pid, signal.SIGKILL)
    else:
        begun[0].send_signal(signal.SIGSTOP)  # it takes the order, and never carries it out
        begin, killed = children.begin, []

        def begin_and_kill():
            child = begin()
            if not killed:
                killed.append(begun[0].kill())
            return child

        children.begin = begin_and_kill
    assert _import(children, _checked(bundle)).errors == ()
    assert len(begun) == 2


def test_a_child_that_is_killed_takes_the_blame(children, bundle, begun) -> None:
    """A bundle that eats all memory; or that kills the server, too: the next one has another."""
    kills = "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n"
    kills_both = kills.replace("\n", "\nos.kill(os.getppid(), signal.SIGKILL)\n", 1)
    for code, words in ((kills, "(signal 9)"), (kills_both, "")):
        (fault,) = _import(children, _checked(bundle, code)).errors
        assert fault.code == "DCL044"
        assert words in fault.message
    assert _import(children, _checked(bundle, "\n")).errors == ()
    assert len(begun) == 2


def test_where_no_process_may_be_started_the_check_goes_on_without(children, bundle, monkeypatch) -> None:
    """A limit of processes, or a seccomp profile: a warning that says what was left out."""

    def refuse(*_, **__):
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(preflight_pool.subprocess, "Popen", refuse)
    children.warm()
    checked = _import(children, _checked(bundle))
    assert checked.errors == ()
    (warning,) = checked.diagnostics
    assert (warning.code, warning.severity) == ("DCL086", "warning")
    assert "Resource temporarily unavailable" in warning.message
    assert checked.declaration is not None


def test_no_child_is_asked_where_the_manifest_opts_out(children, bundle) -> None:
    """`preflight: Off`: code that would end the process is not even imported in a child."""
    before = child_processes()
    children.warm()  # before the manifest was read
    checked = _checked(bundle, "import os\nos._exit(1)\n", "preflight: 'Off'")
    assert _import(children, checked).diagnostics == ()
    assert child_processes() == before


def test_what_an_import_has_started_ends_with_the_process_that_imports(tmp_path, monkeypatch) -> None:
    """Also if that is killed amid the import."""
    code = "import pathlib, subprocess, time\nchild = subprocess.Popen(['sleep', '99'])\n"
    (tmp_path / "starts.py").write_text(
        f"{code}pathlib.Path('{tmp_path}', str(child.pid)).touch()\nchild.wait()"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    process = ForkServerProcess("starts", output=None)
    until("it has started another one", lambda: [*tmp_path.glob("[0-9]*")])
    process.kill()
    process.close()
    until("that has ended, too", lambda: _is_gone(int(next(tmp_path.glob("[0-9]*")).name)))


async def test_an_import_that_is_given_up_ends_with_all_it_has_started(children, bundle, tmp_path) -> None:
    """A newer edit comes while the import hangs: its daemons, which no other end has ended, are killed."""
    sign = tmp_path / "sign"
    checked = _checked(
        bundle,
        "import os, time\n"
        f"sign = {str(sign)!r}\n"
        "if not os.fork():\n"
        "    os.setsid()\n"
        "    if os.fork(): os._exit(0)\n"
        "    while os.getppid() == os.getpgrp(): pass\n"  # until its own parent is gone
        "    open(sign, 'w').write(str(os.getpid())); os.rename(sign, sign + '.pid')\n"
        "    time.sleep(1000)\n"
        "while True: pass\n",
    )
    work = asyncio.create_task(import_in_child(checked, children))
    await asyncio.to_thread(lambda: until("it hangs", Path(f"{sign}.pid").exists))
    pid = int(Path(f"{sign}.pid").read_text())
    await asyncio.to_thread(lambda: children.begin().ask(b"", limit=30))
    assert not _is_gone(pid)
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    until("its daemon is gone", lambda: _is_gone(pid))


def _is_gone(pid: int) -> bool:
    """Whether a process is over; one that nobody reaps yet is."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


_HOST = """
import os, sys
from declctl.runtime.checking.preflight_pool import PreflightPool
from declctl.runtime.checking.inputs import InputFiles
from declctl.runtime.checking.check import read_files
import msgspec

children = PreflightPool()
child = children.begin()
print("begun", flush=True)
if sys.argv[2:]:
    child.ask(msgspec.json.encode(read_files(InputFiles(sys.argv[1])).declaration), limit=60)
sys.stdin.read()
"""


@pytest.mark.parametrize("hangs", [False, True])
def test_all_end_where_the_controller_was_killed(bundle, tmp_path, hangs) -> None:
    """One that waits, and one that hangs in an import, with the process they come from."""
    sign = tmp_path / "sign"
    bundle.write("handlers.py", f"open({str(sign)!r}, 'w').write('')\nwhile True: pass\n")
    arguments = [str(bundle.path), *(["ask"] if hangs else [])]
    with subprocess.Popen(
        [sys.executable, "-c", _HOST, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as host:
        assert host.stdout is not None
        assert host.stdout.readline() == b"begun\n"
        (server,) = map(int, Path(f"/proc/{host.pid}/task/{host.pid}/children").read_text().split())
        if hangs:
            until("it hangs", sign.exists)
        children = Path(f"/proc/{server}/task/{server}/children")
        until("there is a child", lambda: bool(children.read_text()))
        pids = [server, *map(int, children.read_text().split())]
        assert len(pids) == 2
        host.kill()
    for pid in pids:
        until("it is gone", lambda pid=pid: _is_gone(pid))


def test_a_child_that_hangs_ends_after_its_limit_without_anybody(children, bundle, monkeypatch) -> None:
    """No alarm of the parent is needed: the child has one of its own, which Python code can't delay."""
    monkeypatch.setattr(preflight_pool, "ORPHAN_SECONDS", 0.0)
    monkeypatch.setattr(preflight_pool, "EXIT_SECONDS", 60.0)  # nothing is ended from here meanwhile
    checked = _checked(bundle, "import ctypes\nwhile True: ctypes.PyDLL(None).pause()\n")  # with the lock
    monkeypatch.setattr(preflight_pool.PreflightProcess, "close", lambda _: None)
    _, ending = children.begin().ask(msgspec.json.encode(checked.declaration), limit=1.0)
    assert ending == Ending(-signal.SIGALRM, closed=False)
