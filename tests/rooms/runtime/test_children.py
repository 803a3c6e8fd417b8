"""The child of a pre-flight: begun early, used once, and nothing of it is left, whatever happens to it."""

import asyncio
import os
import signal
import subprocess
from pathlib import Path

import pytest

from declctl.runtime import aside
from declctl.runtime.aside import Aside
from declctl.runtime.check import check, read_files
from declctl.runtime.children import Children
from declctl.runtime.inputs import InputFiles
from declctl.testing import until
from tests.children import child_processes


def _pipes() -> int:
    return sum(_is_pipe(link) for link in Path("/proc/self/fd").iterdir())


def _is_pipe(link: Path) -> bool:
    try:
        return str(link.readlink()).startswith("pipe:")
    except FileNotFoundError:
        return False  # the descriptor of this very listing


@pytest.fixture(autouse=True)
def _nothing_is_left():
    """No test leaves a process, a zombie or a pipe behind."""
    before = child_processes(), _pipes()
    yield
    until("processes and pipes are as before", lambda: (child_processes(), _pipes()) == before)


@pytest.fixture
def children():
    """Children, of which none is left in the end."""
    children = Children()
    yield children
    children.close()


def _checked(bundle, policy: str = "preflightTimeout: 60s"):
    path = bundle.path / "manifest.yaml"
    bundle.write("manifest.yaml", path.read_text() + f"  reload: {{{policy}}}\n")
    return read_files(InputFiles(str(path)))


def _import(children: Children, checked):
    return asyncio.run(children.import_aside(checked))


def test_a_child_is_begun_once_and_used_once(children, bundle, monkeypatch) -> None:
    """Noticed twice before it is used, there is one; the next import has another."""
    begun = []
    popen = subprocess.Popen

    def counted(*arguments, **options):
        begun.append(arguments)
        return popen(*arguments, **options)

    monkeypatch.setattr(aside.subprocess, "Popen", counted)
    checked = _checked(bundle)
    children.warm()
    children.warm()
    assert len(begun) == 1
    assert _import(children, checked).errors == ()
    assert len(begun) == 1
    assert _import(children, checked).errors == ()
    assert len(begun) == 2


def test_a_child_that_nobody_uses_is_ended(children) -> None:
    """A change that comes to nothing, or a process that ends."""
    children.warm()
    assert child_processes()
    children.close()
    children.close()


def test_a_child_that_was_killed_while_it_waited_is_replaced(children, bundle) -> None:
    """The kernel was short of memory and took the child: the import is made in another."""
    before = child_processes()
    children.warm()
    (pid,) = child_processes() - before
    os.kill(int(pid), signal.SIGKILL)
    assert _import(children, _checked(bundle)).errors == ()


def test_a_child_that_dies_before_it_begins_is_replaced(bundle) -> None:
    """It goes between the look at it and the question: still no fault of the handlers."""
    child = Aside()
    child._child.kill()
    assert check(str(bundle.path), child=child).errors == ()


def test_where_no_process_may_be_started_the_check_goes_on_without(children, bundle, monkeypatch) -> None:
    """A limit of processes, or a seccomp profile: a warning that says what was left out."""

    def refuse(*_, **__):
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(aside.subprocess, "Popen", refuse)
    children.warm()
    checked = _import(children, _checked(bundle))
    assert checked.errors == ()
    (warning,) = checked.diagnostics
    assert (warning.code, warning.severity) == ("DCL086", "warning")
    assert "Resource temporarily unavailable" in warning.message
    assert checked.declaration is not None


def test_no_child_is_asked_where_the_manifest_opts_out(children, bundle) -> None:
    """`preflight: Off`: code that would end the process is not even imported in a child."""
    bundle.write("handlers.py", "import os\nos._exit(1)\n")
    before = child_processes()
    children.warm()  # before the manifest was read
    assert _import(children, _checked(bundle, "preflight: 'Off'")).diagnostics == ()
    assert child_processes() == before


def test_an_import_that_is_given_up_ends_with_all_it_has_started(children, bundle, tmp_path) -> None:
    """A newer edit comes while the import hangs: the child and its own children are killed."""
    sign = tmp_path / "sign"
    bundle.write(
        "handlers.py",
        "import os, subprocess\n"
        "started = subprocess.Popen(['sleep', '1000'])\n"
        f"sign = {str(sign)!r}\n"
        "open(sign, 'w').write(str(started.pid)); os.rename(sign, sign + '.pid')\n"
        "while True: pass\n",
    )
    checked = _checked(bundle)

    async def scenario() -> None:
        work = asyncio.create_task(children.import_aside(checked))
        await asyncio.to_thread(lambda: until("it hangs", Path(f"{sign}.pid").exists))
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work

    asyncio.run(scenario())
    until("its child is gone", lambda: _is_gone(int(Path(f"{sign}.pid").read_text())))


def test_processes_that_an_import_has_started_end_with_it(bundle, tmp_path) -> None:
    """Whether the import succeeds, raises or ends the process, what it has started is not left behind."""
    for number, end in enumerate(("", "raise OSError('no disk')\n", "import os; os._exit(3)\n")):
        sign = tmp_path / f"sign{number}"
        bundle.write(
            "handlers.py",
            "import subprocess\n"
            "started = subprocess.Popen(['sleep', '1000'])\n"
            f"open({str(sign)!r}, 'w').write(str(started.pid))\n{end}"
            "def notify(change): ...\n",
        )
        assert bool(check(str(bundle.path)).errors) == bool(end)
        until("its child is gone", lambda s=sign: _is_gone(int(s.read_text())))


def _is_gone(pid: int) -> bool:
    """Whether a process is over; one that nobody reaps yet is."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_a_child_whose_parent_is_gone_ends_by_itself(bundle) -> None:
    """The parent was killed: a child that waits ends at once, one that hangs after its time limit."""
    waiting = Aside()
    assert waiting._child.stdin is not None
    waiting._child.stdin.close()
    assert waiting._child.wait(20) == 0
    waiting.close()


def test_a_child_that_hangs_ends_after_its_limit_without_anybody(bundle, monkeypatch) -> None:
    """No alarm of the parent is needed: the child has one of its own, which Python code can't delay."""
    monkeypatch.setattr(aside, "_ORPHAN_SECONDS", 0.0)
    bundle.write("handlers.py", "import ctypes\nctypes.PyDLL(None).pause()\n")  # with the interpreter's lock
    checked = _checked(bundle)
    import msgspec

    child = Aside()
    assert child.ask(msgspec.json.encode(checked.declaration), lambda _: False, limit=3.0) == -signal.SIGALRM
