"""Files: what asks for a reload, when, and what doesn't."""

import asyncio
import errno
import hashlib
import shutil
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress
from pathlib import Path

import pytest
import watchfiles

from declctl.kit import ManualClock, SystemClock
from declctl.manifest.model import WatchFiles
from declctl.runtime.reloading.files import FileChanges, FileWatchHealth, FileWatchStatus, Notices, folder_id
from declctl.testing import BundleDir
from declctl.testing.controller import Logged


def _digest_of(path: Path):
    def digest() -> str:
        with suppress(OSError):
            return hashlib.sha256(path.read_bytes()).hexdigest()
        return "gone"

    return digest


async def _collect(
    path: Path, steps, *, seconds: float = 10.0, settle: float = 0.02, clock=None, blind=print
) -> list[str]:
    """The digests after each step, which is taken once the last one was told."""
    digest = _digest_of(path)
    told = [digest()]
    changes = FileChanges(
        digest=digest,
        folders=lambda: [path.parent],
        settle=lambda: settle,
        clock=clock or SystemClock(),
        last=lambda: told[-1],
        blind=blind,
    )
    async with asyncio.timeout(seconds), aclosing(aiter(changes)) as stream:
        for step in steps:
            following = asyncio.ensure_future(anext(stream))
            await asyncio.sleep(0)
            step()
            told.append(await following)
    return told[1:]


# What polls no folder, in which `a` was told last.
POLLS = {"folders": list, "settle": lambda: 0.25, "last": lambda: "a", "watch": lambda: WatchFiles.POLL}


@pytest.mark.guarantee("G24")
async def test_an_edit_right_after_the_watch_began_is_not_waited_for(tmp_path: Path) -> None:
    """Many quick saves in a row: each asks for one reload, and none has to wait for the safety poll."""
    folder, path = BundleDir(tmp_path, {"h.py": "0"}), tmp_path / "h.py"
    steps = [lambda n=n: folder.write("h.py", str(n)) for n in range(1, 11)]
    told = await _collect(path, steps, seconds=4.5, settle=0.0)
    assert len(set(told)) == 10
    assert told[-1] == _digest_of(path)()


class _Script(ManualClock):
    """A clock that moves only when somebody sleeps; something may happen then."""

    def __init__(self, then: Callable[[], object] = list) -> None:
        super().__init__()
        self.slept: list[float] = []
        self._then = then

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.set(seconds)
        self._then()


async def test_polls_are_a_second_apart() -> None:
    digests, clock = ["a", "a", "a", "b", "b"], _Script()
    changes = FileChanges(digest=lambda: digests.pop(0), clock=clock, **POLLS)
    async with aclosing(aiter(changes)) as stream:
        assert await anext(stream) == "b"
    assert clock.slept == [1.0, 1.0, 1.0, 0.25]


async def test_a_folder_that_is_gone_is_polled_for(tmp_path: Path) -> None:
    """The folder is not there yet: it is found when it comes."""
    path = tmp_path / "inner" / "h.py"
    clock = _Script(lambda: BundleDir(path.parent, {"h.py": "two"}))
    assert await _collect(path, [lambda: None], clock=clock) == [_digest_of(path)()]


async def test_nothing_is_looked_at_while_watching_is_off() -> None:
    """`watch: Off` costs nothing; turned on by a reload that was asked for, what has changed is told."""
    clock, policy, looks = ManualClock(), [WatchFiles.OFF], []

    def digest() -> str:
        looks.append(clock.monotonic())
        return "changed"

    changes = FileChanges(digest=digest, clock=clock, **POLLS | {"watch": lambda: policy[0]})
    async with aclosing(aiter(changes)) as stream:
        following = asyncio.ensure_future(anext(stream))
        await clock.advance(3600.0)
        assert looks == []
        policy[0] = WatchFiles.POLL
        while not following.done():
            await clock.advance(1.0)
            await asyncio.to_thread(list)
        assert await following == "changed"


def _made_again(folder: Path, aside: Path) -> None:
    shutil.rmtree(folder)
    BundleDir(folder, {"h.py": "one"})


def _moved_aside(folder: Path, aside: Path) -> None:
    folder.rename(aside)
    BundleDir(folder, {"h.py": "one"})


def _linked_elsewhere(folder: Path, aside: Path) -> None:
    BundleDir(aside / "2", {"h.py": "one"})
    (aside / "link").symlink_to(aside / "2")
    (aside / "link").replace(folder)


@pytest.mark.parametrize("named", ["bundle", "{here}/bundle", "../{here.name}/bundle"])
@pytest.mark.parametrize("replace", [_made_again, _moved_aside, _linked_elsewhere])
async def test_a_folder_that_was_replaced_is_watched_anew(
    replace, named, tmp_path: Path, monkeypatch
) -> None:
    """A checkout or a release puts another folder in the place: edits there are noticed, not only found."""
    monkeypatch.setattr("declctl.runtime.reloading.files.SAFETY_POLL_SECONDS", 60.0)
    monkeypatch.chdir(tmp_path)
    BundleDir(tmp_path / "1", {"h.py": "zero"})
    folder = Path(named.format(here=tmp_path))
    if replace is _linked_elsewhere:
        folder.symlink_to("1")
    else:
        folder.mkdir()
    async with asyncio.timeout(20), aclosing(Notices()) as notices:
        await notices.next((folder_id(folder),))
        following = asyncio.ensure_future(notices.next((folder_id(folder),)))
        await asyncio.sleep(0)
        replace(folder, tmp_path / "aside")
        if replace is _linked_elsewhere:
            following.cancel()  # nobody tells: it is seen at the next look
        await asyncio.wait([following])
        await notices.next((folder_id(folder),))
        following = asyncio.ensure_future(notices.next((folder_id(folder),)))
        while not following.done():
            BundleDir(folder, {"h.py": "two"})
            await asyncio.wait([following], timeout=0.05)
        await following


FAULTS = [
    OSError(errno.EMFILE, "Too many open files"),
    PermissionError(errno.EACCES, "Permission denied", "bundle"),
    RuntimeError("can't start new thread"),
    MemoryError(),
    KeyError("a fault of declctl"),
]


class _Failing:
    """Raises the first times that it is called, and then gives what it is told to give."""

    def __init__(self, error: Exception, times: int, then: object) -> None:
        self.left = times
        self._error = error
        self._then = then

    def __call__(self, *_: object, **__: object) -> object:
        if self.left:
            self.left -= 1
            raise self._error
        return self._then


@pytest.mark.parametrize("error", FAULTS, ids=repr)
@pytest.mark.parametrize("where", ["digest", "folders", "seen", "thread"])
async def test_a_look_that_fails_is_told_and_made_again(where, error, monkeypatch) -> None:
    """Whatever a look raises, and wherever: nothing ends, pauses grow to 16 s, and the edit is told."""
    times = 1 if where == "seen" else 7
    failing = _Failing(error, times, then=[] if where == "folders" else None)
    clock, failed, succeeded = _Script(), [], []

    def digest() -> str:
        if where == "digest":
            failing()
        return "a" if where == "folders" and failing.left else "b"

    async def in_thread(call, *, name: str):
        if where == "thread":
            failing()
        return call()

    monkeypatch.setattr("declctl.runtime.reloading.files.in_thread", in_thread)
    changes = FileChanges(
        digest=digest,
        clock=clock,
        **POLLS | ({"folders": failing} if where == "folders" else {}),
        seen=failing if where == "seen" else lambda: None,
        failed=failed.append,
        succeeded=lambda: succeeded.append(clock.monotonic()),
    )
    async with asyncio.timeout(10), aclosing(aiter(changes)) as stream:
        assert (await anext(stream)) == "b"
    assert failed == [error] * times
    assert clock.slept == ([] if where == "seen" else [1.0, 2.0, 4.0, 8.0, 16.0, 16.0, 16.0]) + [0.25]
    assert len(succeeded) == 1


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("Error creating recommended watcher: Too many open files (os error 24)"),
        ExceptionGroup("in a task group", [RuntimeError("can't start new thread")]),
        PermissionError(errno.EACCES, "Permission denied"),
        MemoryError(),
        KeyError("of watchfiles"),
    ],
    ids=repr,
)
async def test_a_system_whose_notices_fail_in_any_way_is_looked_at(error, tmp_path, monkeypatch) -> None:
    """No thread for the watch, no memory, a fault of the library: edits are found all the same."""

    async def broken(*_: object, **__: object) -> AsyncGenerator[object]:
        raise error
        yield

    path = BundleDir(tmp_path, {"h.py": "one"}).path / "h.py"
    clock = _Script(lambda: path.write_text("two"))
    monkeypatch.setattr(watchfiles, "awatch", broken)
    told: list[str] = []
    assert await _collect(path, [lambda: None], clock=clock, blind=told.append) == [_digest_of(path)()]
    if isinstance(error, RuntimeError):
        assert told == ["Error creating recommended watcher: Too many open files (os error 24)"]


def test_each_fault_is_logged_once_and_so_is_its_end() -> None:
    """An hour without descriptors is one line, and so is a fault that comes and goes; all are counted."""
    clock, log = ManualClock(), Logged()
    health = FileWatchHealth(clock=clock, log=log)
    assert health.status() == FileWatchStatus()
    for _ in range(240):  # an hour, at the longest pause
        health.failed(OSError(errno.EMFILE, "Too many open files"))
        clock.set(15.0)
    assert health.status() == FileWatchStatus(240, "[Errno 24] Too many open files", "OSError")
    health.failed(RuntimeError("can't start new thread"))
    health.failed(RuntimeError("can't start new thread"))
    assert len(log.events("warning")) == 2
    assert "Too many open files; it is tried again" in log.events()[0]
    health.succeeded()
    health.succeeded()
    assert log.events("info") == ["files are looked at again, after that has failed 242 times"]
    assert health.status() == FileWatchStatus(242)
    for _ in range(10):
        clock.set(5.0)
        health.failed(RuntimeError("can't start new thread"))
        health.succeeded()
    assert len(log.lines) == 3
    clock.set(60.0)
    health.failed(RuntimeError("can't start new thread"))
    health.succeeded()
    assert log.events()[3:] == [log.events()[1], "files are looked at again, after that has failed once"]


def test_a_fault_is_named_by_its_text_and_if_need_be_by_its_class() -> None:
    """`status` shows it. What neither the files nor the system can be blamed for is an error of ours."""
    log = Logged()
    health = FileWatchHealth(clock=ManualClock(), log=log)
    errors = [OSError("no descriptors"), OSError(), RuntimeError("no threads")]
    for error, words in zip(errors, ["no descriptors", "OSError", "RuntimeError: no threads"], strict=True):
        health.failed(error)
        assert health.status().error == words
    try:
        raise KeyError("x")
    except KeyError as error:
        health.failed(error)
    line = log.lines[-1]
    assert (line.level, "please report it" in line.event) == ("error", True)
    assert "test_a_fault_is_named_by" in line.fields["traceback"]
