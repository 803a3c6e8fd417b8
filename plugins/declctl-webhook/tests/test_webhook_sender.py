"""When events are sent, sent again, and given up: with a clock that the test moves."""

# The package is found beside the tests, whether it is installed or not.
# pyright: reportMissingImports=false

import asyncio
import errno
import json
import os
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from declctl.testing import Logged, ManualClock
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from declctl_webhook.backlog import Backlog
from declctl_webhook.dead_letters import FILE, DeadLetters, letters, requeue
from declctl_webhook.endpoint import Answer, Unreachable
from declctl_webhook.sender import Sender
from declctl_webhook.settings import Mode, Settings, SpoolSettings
from declctl_webhook.spool import Entry, Spool


@dataclass(frozen=True)
class Judge:
    """A receiver that looks at the ids of the events."""

    bad: frozenset[str]
    status: int

    def judge(self, events: list[dict[str, Any]]) -> Answer:
        """The status for the bad ones, else success."""
        return Answer(self.status) if self.bad & {event["id"] for event in events} else TAKEN


Response = Answer | Exception | Judge
TAKEN = Answer(204)


class Rig:
    """A sender over a spool, with a receiver that answers as the test says."""

    def __init__(self, folder: Path, *, jitter: float = 0.0, **config: Any) -> None:
        self.clock = ManualClock(jitter=jitter)
        values = {"url": "http://receiver/", "spool": {"path": str(folder)}, **config}
        self.settings = Settings.of(values)
        self.folder = folder
        self.log = Logged()
        self.answers: list[Response] = []
        self.always: Response = TAKEN
        self.requests: list[tuple[float, list[str]]] = []  # when, and the subjects or ids
        self.delivered: list[str] = []  # ids
        self.under_way = 0
        self.hold: asyncio.Event | None = None  # requests wait for it
        self.backlog = self._backlog(self.settings.spool)
        self.recovery = self.backlog.open()
        self.sender = Sender(
            self.backlog,
            DeadLetters(folder, max_bytes=self.settings.spool.dead_letter_bytes),
            self.settings.delivery,
            self.send,
            clock=self.clock,
            log=self.log,
            status_file=folder / "status.json",
        )

    def _backlog(self, spool: SpoolSettings) -> Backlog:
        return Backlog(
            spool,
            monotonic=self.clock.monotonic,
            now=lambda: self.clock.now().timestamp(),
            changed=self._changed,
        )

    def _changed(self) -> None:
        self.sender.wake()

    def add(self, key: str, number: int = 1) -> bool:
        """Add an event with the id `key-number`."""
        event = {
            "id": f"{key}-{number}",
            "subject": key,
            "datacontenttype": "application/json",
            "data": number,
        }
        return self.backlog.add(key, json.dumps(event).encode())

    async def send(self, headers: Mapping[str, str], body: bytes) -> Answer:
        """One attempt."""
        found = json.loads(body)
        events: list[dict[str, Any]] = found if isinstance(found, list) else [found]
        self.requests.append((self.clock.monotonic() - 1000.0, [event["id"] for event in events]))
        self.under_way += 1
        try:
            if self.hold is not None:
                await self.hold.wait()
        finally:
            self.under_way -= 1
        answer = self.answers.pop(0) if self.answers else self.always
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, Judge):
            answer = answer.judge(events)
        if answer.status < 300:
            self.delivered += [event["id"] for event in events]
        return answer

    @property
    def dead(self) -> list[tuple[str, str]]:
        """Ids and reasons of dead letters."""
        path = self.folder / FILE
        found = [letter for letter in letters(path) if letter is not None] if path.exists() else []
        return [(letter["event"]["id"], letter["reason"]) for letter in found]

    def play(self, script: Callable[[], Awaitable[None]]) -> None:
        """Run the sender while a script moves the clock."""

        async def run() -> None:
            running = asyncio.create_task(self.sender.run())
            try:
                await self.clock.settle()
                await script()
            finally:
                running.cancel()
                with suppress(asyncio.CancelledError):
                    await running
                self.backlog.close()

        asyncio.run(run())


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    """A sender with the default settings."""
    return Rig(tmp_path)


def test_an_event_is_sent_at_once_and_forgotten(rig: Rig) -> None:
    """Nothing of a delivered event stays behind."""

    async def script() -> None:
        rig.add("a")
        await rig.clock.settle()
        assert (rig.delivered, len(rig.backlog)) == (["a-1"], 0)

    rig.play(script)
    assert rig.requests == [(0.0, ["a-1"])]
    assert not list(rig.folder.glob("segment-*"))


def test_delays_double_up_to_the_limit(tmp_path: Path) -> None:
    """A receiver that is down for long is not hammered."""
    rig = Rig(tmp_path, retry={"maxBackoff": "10s"}, circuit={"failures": 100})
    rig.always = Unreachable("no connection")

    async def script() -> None:
        rig.add("a")
        await rig.clock.advance(40.0)

    rig.play(script)
    assert [at for at, _ in rig.requests] == [0.0, 1.0, 3.0, 7.0, 15.0, 25.0, 35.0]


def test_jitter_makes_a_delay_up_to_a_half_shorter(tmp_path: Path) -> None:
    """Senders that failed together do not come back together."""
    rig = Rig(tmp_path, jitter=0.5, retry={"initialBackoff": "8s"})
    rig.answers = [Answer(500)]

    async def script() -> None:
        rig.add("a")
        await rig.clock.advance(10.0)

    rig.play(script)
    assert [at for at, _ in rig.requests] == [0.0, 6.0]


@pytest.mark.parametrize("status", [429, 503])
def test_retry_after_is_honoured_by_all_requests(rig: Rig, status: int) -> None:
    """The receiver has asked for silence: other objects' events wait, too."""
    rig.answers = [Answer(status, retry_after=30.0)]

    async def script() -> None:
        rig.add("a")
        await rig.clock.advance(1.0)
        rig.add("b")
        await rig.clock.advance(28.0)
        assert len(rig.requests) == 1
        await rig.clock.advance(2.0)

    rig.play(script)
    assert [at for at, _ in rig.requests] == [0.0, 30.0, 30.0]
    assert sorted(rig.delivered) == ["a-1", "b-1"]


@pytest.mark.parametrize("status", [302, 408, 429, 500, 502, 504])
def test_what_may_pass_is_sent_again(rig: Rig, status: int) -> None:
    """Faults that may go away cost no event."""
    rig.answers = [Answer(status)]

    async def script() -> None:
        rig.add("a")
        await rig.clock.advance(1.0)

    rig.play(script)
    assert (rig.delivered, rig.dead) == (["a-1"], [])


@pytest.mark.parametrize("status", [400, 401, 403, 404, 410, 415, 422])
def test_what_is_refused_is_a_dead_letter_and_not_sent_again(rig: Rig, status: int) -> None:
    """The receiver would refuse it again. The event is kept for people, with the reason."""
    rig.answers = [Answer(status, text="no such tenant")]

    async def script() -> None:
        rig.add("a")
        await rig.clock.advance(1.0)
        rig.add("a", 2)
        await rig.clock.advance(1.0)

    rig.play(script)
    assert (rig.delivered, rig.dead) == (["a-2"], [("a-1", f"Status{status}")])
    letter = next(letters(rig.folder / FILE))
    assert letter is not None
    assert (letter["status"], letter["answer"], letter["attempts"]) == (status, "no such tenant", 1)
    assert rig.sender.counts.dead_letters == {f"Status{status}": 1}
    assert (rig.folder / FILE).stat().st_mode & 0o077 == 0


def test_events_of_one_object_are_sent_in_order_and_those_of_others_meanwhile(tmp_path: Path) -> None:
    """A failing event holds up its own object alone."""
    rig = Rig(tmp_path, circuit={"failures": 100})
    rig.always = Judge(frozenset({"a-1"}), 500)

    async def script() -> None:
        for number in (1, 2, 3):
            for key in "abc":
                rig.add(key, number)
        await rig.clock.advance(10.0)
        assert sorted(rig.delivered) == ["b-1", "b-2", "b-3", "c-1", "c-2", "c-3"]
        rig.always = TAKEN
        await rig.clock.advance(10.0)

    rig.play(script)
    assert rig.delivered[-3:] == ["a-1", "a-2", "a-3"]
    for key in "bc":
        assert [each for each in rig.delivered if each[0] == key] == [
            f"{key}-{number}" for number in (1, 2, 3)
        ]


def test_requests_under_way_are_limited(tmp_path: Path) -> None:
    """`concurrency` requests, and never two with one object."""
    rig = Rig(tmp_path, concurrency=2)

    async def script() -> None:
        rig.hold = asyncio.Event()
        for key in "aabcd":
            rig.add(key)
        await rig.clock.settle()
        assert [ids for _, ids in rig.requests] == [["a-1"], ["b-1"]]
        rig.hold.set()
        await rig.clock.settle()

    rig.play(script)
    assert len(rig.delivered) == 5


def test_a_batch_is_sent_when_it_is_full_or_old(tmp_path: Path) -> None:
    """Many events in one request, and a single one not later than `maxAge`."""
    rig = Rig(tmp_path, mode="Batched", batch={"maxEvents": 3, "maxAge": "5s"})

    async def script() -> None:
        for number in range(4):
            rig.add("a", number)
        await rig.clock.advance(4.0)
        rig.add("b")
        await rig.clock.advance(4.0)

    rig.play(script)
    assert rig.requests == [(0.0, ["a-0", "a-1", "a-2"]), (5.0, ["a-3", "b-1"])]


def test_a_batch_that_has_filled_up_behind_another_is_sent_at_once(tmp_path: Path) -> None:
    """Events of one object wait for the request before them, and not for their age, too."""
    rig = Rig(tmp_path, mode="Batched", batch={"maxEvents": 2, "maxAge": "1h"})

    async def script() -> None:
        rig.hold = asyncio.Event()
        for number in range(4):
            rig.add("a", number)
        await rig.clock.settle()
        assert [ids for _, ids in rig.requests] == [["a-0", "a-1"]]
        rig.hold.set()
        await rig.clock.settle()

    rig.play(script)
    assert rig.requests == [(0.0, ["a-0", "a-1"]), (0.0, ["a-2", "a-3"])]


def test_a_batch_has_a_size(tmp_path: Path) -> None:
    """`maxBytes` keeps a request below the limit of the receiver; a larger event is sent alone."""
    rig = Rig(tmp_path, mode="Batched", batch={"maxBytes": 1024, "maxAge": "1s"})

    def add(key: str, size: int) -> None:
        event = {"id": key, "subject": key, "data": "x" * size}
        rig.backlog.add(key, json.dumps(event).encode())

    async def script() -> None:
        for key, size in (("a", 300), ("b", 300), ("c", 300), ("d", 5000)):
            add(key, size)
        await rig.clock.advance(2.0)

    rig.play(script)
    assert [ids for _, ids in rig.requests] == [["a", "b"], ["c"], ["d"]]


def test_one_bad_event_of_a_batch_is_found(tmp_path: Path) -> None:
    """A batch that is refused is halved, until the events that are refused stand alone."""
    rig = Rig(tmp_path, mode="Batched", batch={"maxEvents": 16, "maxAge": "1s"})
    rig.always = Judge(frozenset({"k03-1", "k07-2"}), 400)

    async def script() -> None:
        for number in (1, 2):
            for key in range(8):
                rig.add(f"k{key:02}", number)
        await rig.clock.advance(5.0)

    rig.play(script)
    assert sorted(rig.dead) == [("k03-1", "Status400"), ("k07-2", "Status400")]
    assert len(rig.delivered) == 14
    assert rig.delivered.index("k05-1") < rig.delivered.index("k05-2")
    assert rig.sender.circuit.state == "Closed"


def test_one_event_that_crashes_the_receiver_does_not_hold_up_its_batch(tmp_path: Path) -> None:
    """After some attempts, while others succeed, a batch is halved, too."""
    rig = Rig(tmp_path, mode="Batched", batch={"maxEvents": 4, "maxAge": "1s"})
    rig.always = Judge(frozenset({"k1-0"}), 500)

    async def script() -> None:
        for key in range(4):
            rig.add(f"k{key}", 0)
        for _ in range(20):
            rig.add("other", 1)
            await rig.clock.advance(1.5)

    rig.play(script)
    assert {"k0-0", "k2-0", "k3-0"} < set(rig.delivered)
    assert (rig.dead, len(rig.backlog)) == ([], 1)


def test_an_old_event_is_given_up(tmp_path: Path) -> None:
    """`retry.maxAge`: it becomes a dead letter, with the last error; a younger one is sent."""
    rig = Rig(tmp_path, retry={"maxAge": "1h"}, circuit={"failures": 1000})
    rig.always = Unreachable("no connection: refused")

    async def script() -> None:
        rig.add("a")
        await rig.clock.advance(3500.0)
        rig.add("b")
        await rig.clock.advance(500.0)
        assert rig.dead == [("a-1", "Expired")]
        rig.always = TAKEN
        await rig.clock.advance(300.0)

    rig.play(script)
    assert rig.delivered == ["b-1"]
    letter = next(letters(rig.folder / FILE))
    assert letter is not None
    assert letter["answer"] == "no connection: refused"


def test_the_circuit_opens_and_one_request_at_a_time_probes_it(tmp_path: Path) -> None:
    """A receiver that comes back is not flooded, and everything arrives."""
    rig = Rig(tmp_path, circuit={"failures": 3})
    rig.always = Answer(503)

    async def script() -> None:
        for key in "abcdefgh":
            rig.add(key)
        await rig.clock.settle()
        first = len(rig.requests)
        assert (rig.sender.circuit.state, first <= 4) == ("Open", True)
        assert rig.sender.status()["circuit"]["nextRequestAt"] == "2026-01-01T00:00:01Z"
        await rig.clock.advance(15.0)
        # Probes after 1, 2, 4 and 8 seconds.
        assert [at for at, _ in rig.requests[first:]] == [1.0, 3.0, 7.0, 15.0]
        rig.always = TAKEN
        await rig.clock.advance(16.0)
        assert (rig.sender.circuit.state, len(rig.backlog)) == ("Closed", 0)

    rig.play(script)
    assert sorted(rig.delivered) == [f"{key}-1" for key in "abcdefgh"]
    assert [line for line in rig.log.events("error") if "takes no events: status 503" in line]
    assert [line for line in rig.log.events("info") if "takes events again" in line]


def test_refusals_in_a_row_open_the_circuit(tmp_path: Path) -> None:
    """A wrong token makes some dead letters, and not one of every event."""
    rig = Rig(tmp_path, circuit={"failures": 3}, concurrency=1)
    rig.always = Answer(401)

    async def script() -> None:
        for number in range(100):
            rig.add(f"k{number}")
        await rig.clock.advance(6.0)

    rig.play(script)
    assert len(rig.dead) == 5
    assert (rig.sender.circuit.state, len(rig.backlog)) == ("Open", 95)


def test_a_receiver_that_is_gone_opens_the_circuit_at_once(rig: Rig) -> None:
    """410: the receiver has asked for no more."""
    rig.answers = [Answer(410)]

    async def script() -> None:
        rig.add("a")
        rig.add("a", 2)
        await rig.clock.settle()
        assert (rig.sender.circuit.state, len(rig.requests)) == ("Open", 1)

    rig.play(script)


def test_an_edit_takes_effect_on_what_waits(rig: Rig) -> None:
    """A mended URL is tried at once: nobody waits for the back-off of the broken one."""
    rig.always = Unreachable("no such host")
    other: list[bytes] = []

    async def to_other(headers: Mapping[str, str], body: bytes) -> Answer:
        other.append(body)
        return TAKEN

    async def script() -> None:
        rig.add("a")
        rig.add("a", 2)
        await rig.clock.advance(200.0)
        batched = replace(rig.settings.delivery, mode=Mode.BATCHED)
        rig.sender.configure(batched, to_other, "http://other", rig.log)
        await rig.clock.advance(1.0)

    rig.play(script)
    assert [event["id"] for body in other for event in json.loads(body)] == ["a-1", "a-2"]


def test_events_of_an_earlier_process_are_sent_in_their_order(tmp_path: Path) -> None:
    """A restart while the receiver is down costs nothing."""
    before = Rig(tmp_path)
    before.always = Unreachable("down")

    async def fill() -> None:
        for number in (1, 2):
            before.add("a", number)
            before.add("b", number)
        await before.clock.advance(5.0)

    before.play(fill)
    after = Rig(tmp_path, concurrency=1)
    assert len(after.recovery.entries) == 4

    async def script() -> None:
        after.add("a", 3)
        await after.clock.settle()

    after.play(script)
    assert after.delivered == ["a-1", "b-1", "a-2", "b-2", "a-3"]


@given(
    answers=st.lists(st.sampled_from([204, 500, 429, 400, 0]), max_size=40),
    keys=st.lists(st.sampled_from("abc"), min_size=1, max_size=40),
    batched=st.booleans(),
    restart=st.integers(0, 40),
)
@hypothesis_settings(deadline=None, max_examples=30)
def test_whatever_fails_each_event_arrives_once_and_in_order(
    answers: list[int], keys: list[str], batched: bool, restart: int
) -> None:
    """Random faults, and a process that ends in between: each event is delivered or dead, in order."""
    with tempfile.TemporaryDirectory() as name:
        config: dict[str, Any] = {"mode": "Batched" if batched else "Structured", "batch": {"maxEvents": 3}}
        config["retry"] = {"maxBackoff": "4s"}
        ended: list[str] = []

        def rig_of(answers: list[int]) -> Rig:
            rig = Rig(Path(name), jitter=0.3, circuit={"failures": 3}, **config)
            rig.answers = [Answer(each) if each else Unreachable("down") for each in answers]
            return rig

        async def part(rig: Rig, first: int, last: int, seconds: float) -> None:
            for number in range(first, min(last, len(keys))):
                rig.add(keys[number], number)
                await rig.clock.advance(0.5)
            await rig.clock.advance(seconds)

        before = rig_of(answers[:20])
        before.play(lambda: part(before, 0, restart, 0.0))
        ended += before.delivered
        after = rig_of(answers[20:])
        after.play(lambda: part(after, restart, len(keys), 200.0))
        ended += after.delivered
        dead = [number for number, _ in after.dead]
        assert sorted(ended + dead) == sorted(f"{key}-{number}" for number, key in enumerate(keys))
        for key in "abc":
            numbers = [int(each.split("-")[1]) for each in ended if each.startswith(key)]
            assert numbers == sorted(numbers)


def test_dropped_events_are_left_out_and_counted(tmp_path: Path) -> None:
    """`DropOldest`: an event that was dropped while it waited for a retry is not sent later."""
    spool = {"path": str(tmp_path), "maxBytes": 8192, "whenFull": "DropOldest"}
    rig = Rig(tmp_path, spool=spool, mode="Batched", batch={"maxEvents": 5, "maxAge": "1s"})
    rig.always = Unreachable("down")

    async def script() -> None:
        for number in range(200):
            rig.add(f"k{number % 3}", number)
            if number == 20:
                await rig.clock.advance(2.0)
        assert 100 < rig.backlog.dropped < 180
        assert len(rig.backlog) == 200 - rig.backlog.dropped
        rig.always = TAKEN
        await rig.clock.advance(600.0)

    rig.play(script)
    assert len(rig.delivered) == 200 - rig.backlog.dropped
    for key in ("k0", "k1", "k2"):
        numbers = [int(each.split("-")[1]) for each in rig.delivered if each.startswith(key)]
        assert numbers == sorted(numbers)
    assert rig.sender.status()["dropped"] == rig.backlog.dropped
    assert rig.sender.counts.damaged == 0


def test_dropped_events_leave_the_memory(tmp_path: Path) -> None:
    """A receiver that is down for days does not make the process grow."""
    rig = Rig(tmp_path, spool={"path": str(tmp_path), "maxBytes": 8192, "whenFull": "DropOldest"})
    for number in range(300):
        rig.add("a", number)
    batch = rig.backlog.take(10000, 2**20)
    assert batch is not None
    assert len(batch.entries) == len(rig.backlog) == 300 - rig.backlog.dropped
    assert rig.backlog.live(batch.entries) == list(batch.entries)
    rig.backlog.close()


def test_half_a_dead_letter_does_not_hide_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk was full within a line: the line is taken back."""
    dead = DeadLetters(tmp_path, max_bytes=2**20)
    write = os.write
    event = json.dumps({"id": "a-1", "subject": "a"}).encode()

    def bury() -> None:
        dead.write(event, reason="Status400", status=400, text="", attempts=1, at=ManualClock().now())

    monkeypatch.setattr(os, "write", lambda file, line: write(file, line[:20]))
    with pytest.raises(OSError, match="No space left"):
        bury()
    monkeypatch.undo()
    bury()
    assert [letter and letter["event"]["id"] for letter in letters(tmp_path / FILE)] == ["a-1"]


def test_dead_letters_are_bounded(tmp_path: Path) -> None:
    """A receiver that refuses everything does not fill the disk."""
    rig = Rig(tmp_path, deadLetters={"maxBytes": 2048}, circuit={"failures": 1000})
    rig.always = Answer(400)

    async def script() -> None:
        for number in range(100):
            rig.add(f"k{number}")
            await rig.clock.settle()

    rig.play(script)
    assert sum(rig.sender.counts.dead_letters.values()) == 100
    assert sum(path.stat().st_size for path in tmp_path.glob("dead-letters*")) < 5000
    assert len([line for line in rig.log.events("warning") if "dead letter" in line]) == 1


def test_a_dead_letter_that_can_not_be_written_stays_an_event(rig: Rig) -> None:
    """A refused event is not lost because the disk is full."""
    rig.answers = [Answer(400), Answer(400)]
    blocker = rig.folder / FILE
    blocker.mkdir()

    async def script() -> None:
        rig.add("a")
        await rig.clock.settle()
        assert len(rig.backlog) == 1
        blocker.rmdir()
        await rig.clock.advance(5.0)

    rig.play(script)
    assert (rig.dead, len(rig.backlog)) == ([("a-1", "Status400")], 0)


def test_an_old_event_whose_dead_letter_can_not_be_written_is_kept(tmp_path: Path) -> None:
    """It is given up when there is room for its letter, and not before."""
    rig = Rig(tmp_path, retry={"maxAge": "1m", "maxBackoff": "10s"})
    rig.always = Unreachable("down")
    blocker = rig.folder / FILE
    blocker.mkdir()

    async def script() -> None:
        rig.add("a")
        await rig.clock.advance(120.0)
        assert len(rig.backlog) == 1
        blocker.rmdir()
        await rig.clock.advance(30.0)

    rig.play(script)
    assert (rig.dead, len(rig.backlog)) == ([("a-1", "Expired")], 0)


def test_dead_letters_are_sent_again_on_request(rig: Rig) -> None:
    """`declctl-webhook requeue`, while the process runs: they come with their ids."""
    rig.answers = [Answer(400), Answer(422)]

    async def script() -> None:
        rig.add("a")
        rig.add("b")
        await rig.clock.settle()
        assert len(rig.dead) == 2
        with (rig.folder / FILE).open("a") as file:
            file.write('{"event": {"id": "cut o')
        assert len(requeue(rig.folder, at=rig.clock.now())) == 1
        await rig.clock.advance(3.0)

    rig.play(script)
    assert sorted(rig.delivered) == ["a-1", "b-1"]
    assert not list(rig.folder.glob("requeue*"))
    assert rig.sender.counts.damaged == 1


def test_requeued_letters_wait_for_room(tmp_path: Path) -> None:
    """A full spool takes as many as fit, and the others later."""
    rig = Rig(tmp_path, spool={"path": str(tmp_path), "maxBytes": 4096}, circuit={"failures": 1000})
    rig.always = Answer(400)

    async def script() -> None:
        for number in range(150):
            rig.add(f"k{number}")
            await rig.clock.settle()
        assert len(rig.dead) == 150
        rig.always = TAKEN
        requeue(rig.folder, at=rig.clock.now())
        for _ in range(20):
            await rig.clock.advance(2.0)

    rig.play(script)
    assert sorted(rig.delivered) == sorted(f"k{number}-1" for number in range(150))


def test_the_status_and_the_log_have_the_counts(tmp_path: Path) -> None:
    """What a person, a probe or a log pipeline looks at."""
    rig = Rig(tmp_path, logEvery="10s")
    rig.answers = [TAKEN, Answer(404), Unreachable("http://receiver: no connection")]
    rig.always = Answer(500)

    async def script() -> None:
        for key in "abc":
            rig.add(key)
        await rig.clock.advance(30.0)
        quiet = len([line for line in rig.log.lines if line.event == "counts of events"])
        assert 1 <= quiet <= 3

    rig.play(script)
    assert (tmp_path / "status.json").stat().st_mode & 0o777 == 0o600
    status = json.loads((tmp_path / "status.json").read_text())
    assert (status["delivered"], status["deadLetters"], status["waiting"]) == (1, {"Status404": 1}, 1)
    assert status["lastError"] == "status 500"
    assert status["lastSuccessAt"] == "2026-01-01T00:00:00Z"
    line = rig.log.find("counts of events")
    assert line is not None
    assert (line.fields["delivered"], line.fields["dead_letters"]) == (1, 1)


def test_the_status_has_a_heartbeat(rig: Rig) -> None:
    """A person, or a probe, tells a process that is idle from one that has ended."""

    async def script() -> None:
        written: list[str] = []
        for _ in range(3):
            await rig.clock.advance(12.0)
            written.append(json.loads((rig.folder / "status.json").read_text())["writtenAt"])
        assert len(set(written)) == 3

    rig.play(script)


def test_a_flush_ends_early_if_the_receiver_is_down(rig: Rig) -> None:
    """The end of the process is not delayed for events that the spool keeps anyway."""
    rig.always = Unreachable("down")

    async def script() -> None:
        for key in "abcdef":
            rig.add(key)
        await rig.clock.settle()
        assert rig.sender.circuit.state == "Open"
        assert await asyncio.wait_for(rig.sender.flush(60.0), 5.0) == 6

    rig.play(script)


def test_a_flush_sends_batches_that_are_not_full(tmp_path: Path) -> None:
    """The last events of a process do not wait for others."""
    rig = Rig(tmp_path, mode="Batched", batch={"maxAge": "1h"})

    async def script() -> None:
        rig.add("a")
        await rig.clock.settle()
        assert rig.requests == []
        flushing = asyncio.create_task(rig.sender.flush(10.0))
        await rig.clock.advance(1.0)
        assert await flushing == 0

    rig.play(script)
    assert rig.delivered == ["a-1"]


def test_a_spool_that_can_not_be_read_for_a_moment_loses_nothing(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Too many open files: the event is read again later."""
    read, faults = Spool.read, iter([OSError(errno.EMFILE, "Too many open files")] * 3)

    def fails(spool: Spool, entry: Entry) -> bytes:
        for fault in faults:
            raise fault
        return read(spool, entry)

    monkeypatch.setattr(Spool, "read", fails)

    async def script() -> None:
        rig.add("a", 1)
        rig.add("a", 2)
        await rig.clock.settle()
        assert rig.sender.last_error == "the spool can't be read: Too many open files"
        await rig.clock.advance(10.0)

    rig.play(script)
    assert (rig.delivered, rig.sender.counts.damaged) == (["a-1", "a-2"], 0)


def test_an_event_that_the_disk_has_lost_is_counted_and_holds_up_nothing(rig: Rig) -> None:
    """A damaged file costs its events, and the log says which object they were about."""
    rig.answers = [Answer(500)]

    async def script() -> None:
        rig.add("a", 1)
        rig.add("a", 2)
        await rig.clock.settle()
        (segment,) = rig.folder.glob("segment-*.log")
        segment.write_bytes(segment.read_bytes().replace(b'"a-1"', b'"a-?"'))
        await rig.clock.advance(5.0)

    rig.play(script)
    assert (rig.delivered, rig.sender.counts.damaged) == (["a-2"], 1)
    assert any("an event about a is lost" in line for line in rig.log.events("error"))
