"""Attempts: one at a time, the newest files win, and everybody who waits gets an outcome."""

import asyncio
import errno
from collections.abc import Callable

import pytest

from declctl.kit import ManualClock
from declctl.runtime.reloading.attempts import Attempts
from declctl.runtime.reloading.changes import Outcome, Result
from declctl.runtime.reloading.files import FileWatchHealth
from declctl.testing.controller import Logged
from tests.rooms.runtime.watching import inline


class FakeReloader:
    """An attempt waits for `go`, takes a while to be undone, and says what it was made of."""

    def __init__(self, files: str) -> None:
        self.files = files
        self.running = (1, "first")
        self.go, self.may_read = asyncio.Event(), asyncio.Event()
        self.may_read.set()
        self.story: list[str] = []
        self.tried = "first"
        self.look_fails: Exception | None = None

    def look(self) -> str:
        if self.look_fails is not None:
            raise self.look_fails
        return self.files

    async def reload(
        self, *, asked: bool, force: bool, settled: str | None, read: Callable[[str], None]
    ) -> Outcome:
        await asyncio.sleep(0)
        await self.may_read.wait()
        digest = self.files
        if settled is not None and settled != digest:
            return Outcome(Result.SUPERSEDED, 1, digest, reason="Superseded")
        read(digest)
        if force:
            self.story.append("forced")
        if digest == self.tried and not asked:
            return Outcome(Result.UNCHANGED, 1, digest, reason="AttemptedBefore")
        self.tried = digest
        self.story.append(f"begin {digest}")
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0)
            self.story.append(f"undone {digest}")
            raise
        if digest.startswith("bad"):
            return Outcome(Result.REFUSED, 1, digest, reason="SyntaxError")
        self.story.append(f"commit {digest}")
        return Outcome(Result.APPLIED, 2, digest)

    def forget(self, digest: str) -> None:
        if self.tried == digest:
            self.tried = ""


class World:
    """Attempts over a fake reloader; `heard` are the outcomes that were told."""

    def __init__(self, files: str = "A") -> None:
        self.clock = ManualClock()
        self.reloader = FakeReloader(files)
        self.heard: list[str] = []
        self.log = Logged()
        self.health = FileWatchHealth(clock=self.clock, log=self.log)

        async def finished(outcome: Outcome, asked: bool) -> None:
            self.heard.append(f"{outcome.result} {outcome.bundle_hash}" + (" asked" if asked else ""))

        self.attempts = Attempts(
            self.reloader, digest=self.reloader.look, finished=finished, health=self.health, clock=self.clock
        )

    def edit(self, files: str) -> asyncio.Task[Outcome]:
        """Files have settled to something else."""
        self.reloader.files = files
        return asyncio.create_task(self.attempts.reload(asked=False, digest=files))

    def ask(self) -> asyncio.Task[Outcome]:
        """Somebody asks for a reload and waits for its outcome."""
        return asyncio.create_task(self.attempts.reload(asked=True))

    async def turn(self) -> None:
        """Let everything happen that can, in threads too."""
        for _ in range(5):
            await self.clock.settle()
            await asyncio.to_thread(list)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr("declctl.runtime.reloading.attempts.in_thread", inline)
    return World()


async def test_a_newer_edit_undoes_the_older_before_it_begins(world) -> None:
    """Three edits: two are given up, each undone before the next begins, and one is live."""
    waiting = []
    for files in "ABC":
        waiting.append(world.edit(files))
        await world.turn()
    world.reloader.go.set()
    outcomes = await asyncio.gather(*waiting)
    assert [(o.result, o.bundle_hash) for o in outcomes] == [(Result.APPLIED, "C")] * 3
    assert world.reloader.story == ["begin A", "undone A", "begin B", "undone B", "begin C", "commit C"]
    assert world.heard == ["Superseded A", "Superseded B", "Applied C"]


async def test_faults_that_are_no_longer_in_the_files_are_not_told(world) -> None:
    """A file that is mended while the import of the broken one still runs: no error is logged for it."""
    broken = world.edit("bad")
    await world.turn()
    world.reloader.files = "first"  # and has not settled yet
    world.reloader.go.set()
    assert (await broken).result is Result.SUPERSEDED
    assert world.attempts.latest != "first", "it is looked at again: an earlier fault may have been told"
    assert (await world.edit("bad")).result is Result.REFUSED
    assert world.heard == ["Superseded bad", "Refused bad"]


async def test_who_asks_joins_an_attempt_on_the_same_files(world) -> None:
    """`declctl reload` right after a save that was noticed: one attempt, and its outcome for both."""
    first = world.edit("A")
    await world.turn()
    asked = [world.ask(), world.ask()]
    await world.turn()
    world.reloader.go.set()
    assert await first is await asked[0] is await asked[1]
    assert world.reloader.story == ["begin A", "commit A"]


async def test_who_asks_does_not_join_an_attempt_on_older_files(world) -> None:
    """`declctl reload` after another save that nobody has noticed yet: that save is what is tried."""
    first = world.edit("A")
    await world.turn()
    world.reloader.files = "B"
    asked = world.ask()
    await world.turn()
    world.reloader.go.set()
    assert (await asked).bundle_hash == (await first).bundle_hash == "B"
    assert world.heard == ["Superseded A", "Applied B asked"]


async def test_who_asks_is_not_content_with_an_attempt_that_tried_nothing(world) -> None:
    """Joined to one that nobody asked for, on bytes that were tried before: they are tried again."""
    world.reloader.tried = "A"
    world.reloader.may_read.clear()
    unasked = world.edit("A")
    await world.turn()
    asked = world.ask()
    await world.turn()
    world.reloader.go.set()
    world.reloader.may_read.set()
    assert (await unasked).reason == "AttemptedBefore"
    assert (await asked).result is Result.APPLIED
    assert world.reloader.story == ["begin A", "commit A"]


async def test_files_that_move_on_before_they_are_read_are_left_to_the_next_attempt(world) -> None:
    """What is told as settled and read are two things: nothing is tried, and nothing counts as dealt with."""
    first = world.edit("A")
    world.reloader.files = "B"
    assert (await first).result is Result.SUPERSEDED
    assert world.attempts.latest not in ("first", "A", "B")  # whatever the files are next is looked at
    world.reloader.go.set()
    assert (await world.edit("B")).bundle_hash == "B"
    assert world.attempts.latest == "B"
    assert world.reloader.story == ["begin B", "commit B"]


async def test_who_forces_a_reload_joins_no_attempt_that_has_begun(world) -> None:
    """`declctl reload --force`: what an attempt has read besides its files may be older than that."""
    first = world.edit("A")
    await world.turn()
    forced = asyncio.create_task(world.attempts.reload(asked=True, force=True))
    await world.turn()
    newer = world.edit("B")
    await world.turn()
    world.reloader.go.set()
    assert await first is await forced is await newer
    story = ["begin A", "undone A", "forced", "begin A", "undone A", "forced", "begin B", "commit B"]
    assert world.reloader.story == story


@pytest.mark.parametrize(
    ("files", "generation", "result"),
    [
        ("A", 1, Result.APPLIED),
        ("", 1, Result.APPLIED),  # no descriptor was left to read them: nobody knows what was refused
        ("B", 1, Result.SUPERSEDED),  # they have changed, and nobody has asked for that
        ("A", 7, None),  # another generation runs
    ],
)
async def test_a_refused_reload_is_tried_again_as_it_was(world, files, generation, result) -> None:
    """A retry takes the files that were refused, in the place of the generation that went on, or nothing."""
    world.reloader.tried = files  # as they were refused
    world.reloader.go.set()
    outcome = await world.attempts.again(files, generation=generation)
    assert (outcome and outcome.result) == result
    assert outcome is None or outcome.bundle_hash == "A", "what is there is tried"
    assert not world.attempts.is_busy


async def test_a_retry_leaves_an_attempt_alone_that_is_under_way(world) -> None:
    """The newer edit goes on; the retry is not made."""
    newer = world.edit("B")
    await world.turn()
    assert await world.attempts.again("A", generation=1) is None
    world.reloader.go.set()
    assert (await newer).bundle_hash == "B"
    assert world.reloader.story == ["begin B", "commit B"]


async def test_closing_undoes_what_runs_and_begins_nothing(world) -> None:
    """The process ends in the middle of an attempt: all who wait for one are told so, and not cut off."""
    waiting = [world.edit("A"), world.ask()]
    await world.turn()
    waiting.append(world.edit("B"))
    await world.turn()
    await world.attempts.close()
    waiting.append(world.ask())
    assert [(await each).reason for each in waiting] == ["Stopping"] * 4
    assert world.reloader.story == ["begin A", "undone A", "begin B", "undone B"]


LOOKS = [
    OSError(errno.EMFILE, "Too many open files"),
    RuntimeError("can't start new thread"),
    MemoryError(),
    KeyError("ours"),
]


@pytest.mark.parametrize("error", LOOKS, ids=repr)
async def test_who_asks_while_files_cannot_be_looked_at_waits_for_the_attempt_that_runs(world, error) -> None:
    """Nobody can tell whether it is of the newest files: it is joined, that is told, and nothing ends."""
    first = world.edit("A")
    await world.turn()
    world.reloader.look_fails = error
    asked = world.ask()
    await world.turn()
    world.reloader.go.set()
    assert (await first, await asked)[1].bundle_hash == "A"
    assert world.health.status().error_type == type(error).__name__
    assert world.reloader.story == ["begin A", "commit A"]


@pytest.mark.parametrize("error", LOOKS, ids=repr)
async def test_a_refusal_is_told_where_nobody_can_look_whether_files_were_mended(world, error) -> None:
    refused = world.edit("bad")
    await world.turn()
    world.reloader.look_fails = error
    world.reloader.go.set()
    assert (await refused).result is Result.REFUSED
    assert world.heard == ["Refused bad"]
