"""How long a connection may take, how many there may be, and what is said of those that are refused."""

import asyncio
import contextlib
import logging
from dataclasses import dataclass, field

import pytest
from aiohttp.http_exceptions import BadStatusLine

from declctl.admin import serve
from declctl.admin.access import Reason, Refusals, ServerLog
from declctl.admin.server import (
    BURST,
    HEAD_SECONDS,
    IDLE_SECONDS,
    MOST_BYTES,
    PROBE_PAUSE_SECONDS,
    PROBES_BURST,
    PROBES_PER_SECOND,
    REQUESTS_PER_SECOND,
    ConnectionTable,
)
from declctl.kit import ManualClock
from declctl.manifest.values import Address


@dataclass(eq=False)
class Pipe:
    """A transport that isn't one."""

    aborted: bool = False
    unsent: int = 0

    def abort(self) -> None:
        self.aborted = True

    def get_write_buffer_size(self) -> int:
        return self.unsent


@dataclass
class Lines:
    """A log that keeps its lines."""

    lines: list[str] = field(default_factory=list)

    def info(self, event: str, **_: object) -> None:
        self.lines.append(event)

    warning = error = info

    def bind(self, **_: object) -> "Lines":
        return self


@dataclass
class Request:
    """What the table reads of a request."""

    transport: Pipe
    path: str = "/status"
    method: str = "GET"
    remote: str = "10.0.0.7"


class Scene:
    """A table, and the means to look at it."""

    def __init__(self, most: int = 3) -> None:
        self.clock, self.log = ManualClock(), Lines()
        self.refusals = Refusals(self.clock, self.log)
        self.table = ConnectionTable(self.clock, self.refusals, most=most)

    def open(self, whose: str = "10.0.0.7") -> Pipe:
        pipe = Pipe()
        self.table.opened(pipe, whose)
        self.clock.set(0.001)
        return pipe

    def after(self, seconds: float) -> None:
        self.clock.set(seconds)
        self.table.sweep()

    def answer(self, pipe: Pipe, meanwhile=lambda: None, path: str = "/status") -> int:
        """A request comes in and is answered; its status."""

        async def handler(_: object) -> object:
            meanwhile()
            return type("Answer", (), {"status": 200})()

        return asyncio.run(self.table.watch(Request(pipe, path), handler)).status


def test_a_connection_that_says_nothing_is_closed():
    """Whoever connects and keeps silent does not hold a file descriptor for ever."""
    scene = Scene()
    pipe = scene.open()
    scene.after(HEAD_SECONDS - 1)
    assert not pipe.aborted
    scene.after(1)
    assert pipe.aborted
    assert scene.refusals.counts[Reason.TIMEOUT] == 1


def test_a_head_that_trickles_in_is_no_progress():
    """A byte now and then keeps nobody waiting for longer than a whole head may take."""
    scene = Scene()
    pipe = scene.open()
    for _ in range(10):
        scene.table.received(pipe)
        scene.after(HEAD_SECONDS / 10)
    assert pipe.aborted


def test_the_next_head_has_the_same_time():
    """A kept connection may rest, but not in the middle of a request."""
    scene = Scene()
    pipe = scene.open()
    scene.answer(pipe)
    scene.after(IDLE_SECONDS - HEAD_SECONDS - 5)
    scene.table.received(pipe)
    scene.after(HEAD_SECONDS - 1)
    scene.table.received(pipe)
    assert not pipe.aborted
    scene.after(1)
    assert pipe.aborted


def test_an_idle_connection_ends_without_a_word():
    """Prometheus keeps its connection between scrapes; that it is closed is nothing to log."""
    scene = Scene()
    pipe = scene.open()
    scene.answer(pipe)
    scene.after(IDLE_SECONDS - 1)
    assert not pipe.aborted
    scene.after(1)
    assert pipe.aborted
    assert scene.log.lines == []


def test_an_answer_may_take_its_time():
    """A reload that is waited for may take minutes."""
    scene = Scene()
    pipe = scene.open()
    scene.answer(pipe, lambda: scene.after(10 * IDLE_SECONDS))
    assert not pipe.aborted


def test_who_does_not_read_is_closed_and_who_reads_slowly_is_not():
    """A large answer over a slow line arrives; one that is not read does not stay in memory."""
    scene = Scene()
    slow, stuck = scene.open(), scene.open()
    for pipe in (slow, stuck):
        scene.answer(pipe)
        pipe.unsent = 1_000_000
    for _ in range(8):
        scene.after(IDLE_SECONDS / 2)
        slow.unsent -= 1000
    assert stuck.aborted
    assert not slow.aborted
    assert "did not read" in scene.log.lines[0]


def test_one_connection_too_many_closes_the_one_that_has_waited_longest():
    """A probe gets through, however many connections somebody holds."""
    scene = Scene(most=3)
    first, second, third = scene.open(), scene.open(), scene.open()
    scene.answer(first)
    probe = scene.open()
    assert [pipe.aborted for pipe in (first, second, third, probe)] == [False, True, False, False]
    assert scene.refusals.counts[Reason.CONNECTIONS] == 1
    assert len(scene.table) == 3


def test_who_holds_most_connections_loses_one():
    """The one connection of a kubelet is not closed for the hundred of somebody else."""
    scene = Scene(most=3)
    kubelet = scene.open("10.0.0.1")
    others = [scene.open("10.0.0.66") for _ in range(10)]
    assert not kubelet.aborted
    assert [pipe.aborted for pipe in others] == [True] * 8 + [False] * 2


def test_what_is_being_answered_is_left_alone():
    """Nobody's reload is cut off because others connect."""
    scene = Scene(most=2)
    pipe = scene.open()
    scene.answer(pipe, lambda: [scene.open() for _ in range(5)])
    assert not pipe.aborted


async def test_too_many_requests_at_a_time_are_503_and_probes_are_not():
    """While many answers are being made a probe is answered all the same."""
    scene = Scene(most=100)

    async def handler(_: object) -> object:
        return type("Answer", (), {"status": 200})()

    gate = asyncio.Event()

    async def waiting(_: object) -> object:
        await gate.wait()
        return await handler(_)

    tasks = [asyncio.create_task(scene.table.watch(Request(scene.open()), waiting)) for _ in range(20)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert (await scene.table.watch(Request(scene.open(), "/healthz"), handler)).status == 200
    assert (await scene.table.watch(Request(scene.open()), handler)).status == 503
    gate.set()
    answers = [answer.status for answer in await asyncio.gather(*tasks)]
    assert (answers.count(200), answers.count(503)) == (16, 4)
    assert (await scene.table.watch(Request(scene.open()), handler)).status == 200
    assert scene.refusals.counts[Reason.BUSY] == 5


def test_a_client_that_asks_too_often_is_429_and_others_are_not():
    """A script without a pause slows down no dashboard, and a probe is always answered."""
    scene = Scene(most=100)
    script = scene.open("10.0.0.66")

    def ask(remote: str, path: str = "/status") -> int:
        async def handler(_: object) -> object:
            return type("Answer", (), {"status": 200})()

        return asyncio.run(scene.table.watch(Request(script, path, remote=remote), handler)).status

    statuses = [ask("10.0.0.66") for _ in range(BURST + 50)]
    assert statuses == [200] * BURST + [429] * 50
    assert ask("10.0.0.7") == 200
    assert ask("10.0.0.66", "/healthz") == 200
    assert scene.refusals.counts[Reason.RATE] == 50
    scene.clock.set(1)
    assert [ask("10.0.0.66") for _ in range(REQUESTS_PER_SECOND + 1)].count(429) in (0, 1)
    assert [ask(f"10.1.{number >> 8}.{number & 255}") for number in range(1000)] == [200] * 1000


def test_a_flood_of_probes_is_answered_slowly():
    """A client that probes without a pause takes little of the loop on which events are handled."""
    scene = Scene(most=100)
    answered: list[str] = []

    async def handler(request: Request) -> object:
        answered.append(request.path)
        return type("Answer", (), {"status": 200})()

    async def probing(pipe: Pipe) -> None:
        while True:
            assert (await scene.table.watch(Request(pipe, "/readyz"), handler)).status == 200
            await asyncio.sleep(0)

    async def flood() -> int:
        clients = [asyncio.create_task(probing(scene.open())) for _ in range(64)]
        for _ in range(40):
            await scene.clock.advance(PROBE_PAUSE_SECONDS)
        for client in clients:
            client.cancel()
        await asyncio.gather(*clients, return_exceptions=True)
        return len(answered)

    # In ten seconds: those of the rate, and one for each connection and pause.
    seconds = 40 * PROBE_PAUSE_SECONDS
    most = PROBES_BURST + PROBES_PER_SECOND * (seconds + 1) + 64 * 41
    assert 64 * 40 <= asyncio.run(flood()) <= most
    assert sum(scene.refusals.counts.values()) == 0


async def test_a_probe_that_waits_gives_its_place_to_another_client():
    """Connections that flood the address with probes don't keep the one of the kubelet away."""
    scene = Scene(most=3)

    async def handler(_: object) -> object:
        return type("Answer", (), {"status": 200})()

    for _ in range(PROBES_BURST + 1):
        request = Request(scene.open("10.0.0.66"), "/healthz")
        last = asyncio.create_task(scene.table.watch(request, handler))
        await asyncio.sleep(0)
    pipes = [scene.open("10.0.0.66") for _ in range(3)]
    waiting = [asyncio.create_task(scene.table.watch(Request(p, "/healthz"), handler)) for p in pipes]
    await asyncio.sleep(0)
    kubelet = scene.open("10.0.0.1")
    assert [pipe.aborted for pipe in (*pipes, kubelet)] == [True, False, False, False]
    probe = asyncio.create_task(scene.table.watch(Request(kubelet, "/healthz"), handler))
    await asyncio.sleep(0)
    assert len(scene.table) == 3
    await scene.clock.advance(PROBE_PAUSE_SECONDS)
    assert (await probe).status == 200
    assert [(await each).status for each in (last, *waiting)] == [200] * 4


async def test_a_kubelet_is_answered_while_another_client_holds_all_connections(runtime):
    """It has an address of its own; the other one probes on more connections than there may be."""

    async def probe(bound: Address, source: str) -> bytes:
        reader, writer = await asyncio.open_connection(bound.host, bound.port, local_addr=(source, 0))
        try:
            head = f"GET /healthz HTTP/1.1\r\nHost: {bound}\r\nConnection: close\r\n\r\n"
            writer.write(head.encode())
            return await reader.read()
        finally:
            writer.close()

    async def flooding(bound: Address) -> None:
        while True:
            with contextlib.suppress(OSError):
                await probe(bound, "127.0.0.1")

    async with serve(runtime, Address("127.0.0.1", 0)) as bound:
        flood = [asyncio.create_task(flooding(bound)) for _ in range(100)]
        answers = [await asyncio.wait_for(probe(bound, "127.0.0.2"), 10) for _ in range(5)]
        for each in flood:
            each.cancel()
        await asyncio.gather(*flood, return_exceptions=True)
        assert [answer.split()[1] for answer in answers] == [b"200"] * 5


def test_a_body_without_end_closes_the_connection():
    """It is counted from the head of its request on, and not over the life of a connection."""
    scene = Scene()
    pipe = scene.open()
    for _ in range(10):
        assert scene.table.received(pipe, MOST_BYTES // 2)
        scene.answer(pipe)
    assert scene.table.received(pipe, MOST_BYTES)
    assert not pipe.aborted
    assert not scene.table.received(pipe, 1)
    assert pipe.aborted
    assert scene.refusals.counts[Reason.BODY] == 1


async def test_clients_that_come_and_go_leave_no_task(runtime, http):
    """Silent connections, half heads, bodies and requests: when they are gone, no task of theirs is left."""
    async with serve(runtime, Address("127.0.0.1", 0)) as bound:
        before = len(asyncio.all_tasks())
        writers = []
        body = b"POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\n"
        for data in (b"", b"GET /status HTTP/1.1\r\nX: ", body):
            for _ in range(60):
                _, writer = await asyncio.open_connection("127.0.0.1", bound.port)
                writer.write(data)
                writers.append(writer)
        answers = await asyncio.gather(*(http(bound, "/status") for _ in range(30)))
        assert {answer.status for answer in answers} <= {200, 503}
        for writer in writers:
            writer.close()
        async with asyncio.timeout(20):
            while len(asyncio.all_tasks()) > before:
                await asyncio.sleep(0.01)


def test_bad_requests_are_one_line_and_a_number():
    """A flood of bad requests is seen in the log, and does not fill the disk."""
    scene = Scene()
    for _ in range(1000):
        scene.refusals.add(Reason.HOST, "GET / from 10.0.0.66 was refused: wrong name")
    scene.refusals.add(Reason.MALFORMED, "no HTTP")
    assert scene.log.lines == ["admin address: GET / from 10.0.0.66 was refused: wrong name"]
    scene.clock.set(60)
    scene.refusals.sweep()
    scene.refusals.sweep()
    assert scene.log.lines[1:] == [
        "admin address: 1,000 more refused since the last line (Host 999, Malformed 1)"
    ]
    assert scene.refusals.counts[Reason.HOST] == 1000


@pytest.mark.parametrize("level", [logging.DEBUG, logging.ERROR])
def test_what_is_no_http_is_no_traceback(level: int):
    """Somebody who speaks TLS or nonsense to the address is one refused request."""
    scene = Scene()
    error = BadStatusLine("\\x16\\x03")
    ServerLog(scene.refusals).log(level, "Error handling request from %s", "10.0.0.66", exc_info=error)
    assert scene.refusals.counts[Reason.MALFORMED] == 1
    assert "10.0.0.66" in scene.log.lines[0]
    assert "Traceback" not in scene.log.lines[0]
