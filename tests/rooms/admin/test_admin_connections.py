"""How long a connection may take, how many there may be, and what is said of those that are refused."""

import asyncio
import contextlib
import logging
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp.http_exceptions import BadStatusLine

from declctl.admin import serve, server
from declctl.admin.access import Reason, Refusals, ServerLog
from declctl.kit import ManualClock
from declctl.manifest.values import Address
from declctl.testing import Logged
from tests.rooms.admin.conftest import LOOPBACK, until


@dataclass(eq=False)
class Pipe:
    aborted: bool = False
    unsent: int = 0

    def abort(self) -> None:
        self.aborted = True

    def get_write_buffer_size(self) -> int:
        return self.unsent


@dataclass
class Request:
    """What the table reads of a request."""

    transport: Pipe
    path: str = "/status"
    method: str = "GET"
    remote: str = "10.0.0.7"


async def answered(_: object) -> object:
    return SimpleNamespace(status=200)


class Scene:
    """A table, and the means to look at it."""

    def __init__(self, most: int = 3) -> None:
        self.clock, self.log = ManualClock(), Logged()
        self.refusals = Refusals(self.clock, self.log)
        self.table = server.ConnectionTable(self.clock, self.refusals, most=most)

    def open(self, whose: str = "10.0.0.7") -> Pipe:
        pipe = Pipe()
        self.table.opened(pipe, whose)
        self.clock.set(0.001)
        return pipe

    def after(self, seconds: float) -> None:
        self.clock.set(seconds)
        self.table.sweep()

    async def watch(self, pipe: Pipe, path: str = "/status", handler: Any = answered, **known: str) -> int:
        """A request comes in and is answered; its status."""
        return (await self.table.watch(Request(pipe, path, **known), handler)).status

    def answer(self, pipe: Pipe, meanwhile=lambda: None, path: str = "/status", **known: str) -> int:
        """The same, with what happens meanwhile, in a test without a loop."""

        async def handler(request: object) -> object:
            meanwhile()
            return await answered(request)

        return asyncio.run(self.watch(pipe, path, handler, **known))


@pytest.fixture(name="scene")
def _scene() -> Scene:
    return Scene()


def test_a_connection_that_says_nothing_is_closed(scene):
    """Whoever connects and keeps silent, or says a byte now and then, holds no file descriptor for ever."""
    silent, slow = scene.open(), scene.open()
    for _ in range(9):
        scene.table.received(slow)
        scene.after(server.HEAD_SECONDS / 10)
    assert not silent.aborted
    scene.table.received(slow)
    scene.after(server.HEAD_SECONDS / 10)
    assert (silent.aborted, slow.aborted) == (True, True)
    assert scene.refusals.counts[Reason.TIMEOUT] == 2


def test_the_next_head_has_the_same_time(scene):
    """A kept connection may rest, but not in the middle of a request."""
    pipe = scene.open()
    scene.answer(pipe)
    scene.after(server.IDLE_SECONDS - server.HEAD_SECONDS - 5)
    scene.table.received(pipe)
    scene.after(server.HEAD_SECONDS - 1)
    scene.table.received(pipe)
    assert not pipe.aborted
    scene.after(1)
    assert pipe.aborted


def test_an_idle_connection_ends_without_a_word(scene):
    """Prometheus keeps its connection between scrapes; a reload that is waited for may take minutes."""
    pipe = scene.open()
    scene.answer(pipe, lambda: scene.after(10 * server.IDLE_SECONDS))
    assert not pipe.aborted
    scene.after(server.IDLE_SECONDS - 1)
    assert not pipe.aborted
    scene.after(1)
    assert pipe.aborted
    assert scene.log.lines == []


def test_who_does_not_read_is_closed_and_who_reads_slowly_is_not(scene):
    """A large answer over a slow line arrives; one that is not read does not stay in memory."""
    slow, stuck = scene.open(), scene.open()
    for pipe in (slow, stuck):
        scene.answer(pipe)
        pipe.unsent = 1_000_000
    for _ in range(8):
        scene.after(server.IDLE_SECONDS / 2)
        slow.unsent -= 1000
    assert (stuck.aborted, slow.aborted) == (True, False)
    assert "did not read" in scene.log.events()[0]


def test_one_connection_too_many_closes_the_one_that_has_waited_longest(scene):
    """A probe gets through, however many connections somebody holds."""
    first, second, third = scene.open(), scene.open(), scene.open()
    scene.answer(first)
    probe = scene.open()
    assert [pipe.aborted for pipe in (first, second, third, probe)] == [False, True, False, False]
    assert (scene.refusals.counts[Reason.CONNECTIONS], len(scene.table)) == (1, 3)


def test_who_holds_most_connections_loses_one(scene):
    """The one connection of a kubelet is not closed for the hundred of somebody else."""
    kubelet = scene.open("10.0.0.1")
    others = [scene.open("10.0.0.66") for _ in range(10)]
    assert [pipe.aborted for pipe in (kubelet, *others)] == [False] + [True] * 8 + [False] * 2


def test_what_is_being_answered_is_left_alone(scene):
    """Nobody's reload is cut off because others connect."""
    pipe = scene.open()
    scene.answer(pipe, lambda: [scene.open() for _ in range(5)])
    assert not pipe.aborted


async def test_too_many_requests_at_a_time_are_503_and_probes_are_not():
    """While many answers are being made a probe is answered all the same."""
    scene, gate = Scene(most=100), asyncio.Event()

    async def waiting(request: object) -> object:
        await gate.wait()
        return await answered(request)

    tasks = [asyncio.create_task(scene.watch(scene.open(), handler=waiting)) for _ in range(20)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert await scene.watch(scene.open(), "/healthz") == 200
    assert await scene.watch(scene.open()) == 503
    gate.set()
    assert sorted(await asyncio.gather(*tasks)) == [200] * 16 + [503] * 4
    assert await scene.watch(scene.open()) == 200
    assert scene.refusals.counts[Reason.BUSY] == 5


def test_a_client_that_asks_too_often_is_429_and_others_are_not():
    """A script without a pause slows down no dashboard, and a probe is always answered."""
    scene = Scene(most=100)
    script = scene.open("10.0.0.66")

    def ask(remote: str, path: str = "/status") -> int:
        return scene.answer(script, path=path, remote=remote)

    statuses = [ask("10.0.0.66") for _ in range(server.BURST + 50)]
    assert statuses == [200] * server.BURST + [429] * 50
    assert ask("10.0.0.7") == 200
    assert ask("10.0.0.66", "/healthz") == 200
    assert scene.refusals.counts[Reason.RATE] == 50
    scene.clock.set(1)
    assert [ask("10.0.0.66") for _ in range(server.REQUESTS_PER_SECOND + 1)].count(429) in (0, 1)
    assert [ask(f"10.1.{number >> 8}.{number & 255}") for number in range(1000)] == [200] * 1000


async def test_a_flood_of_probes_is_answered_slowly():
    """A client that probes without a pause takes little of the loop on which events are handled."""
    scene = Scene(most=100)
    statuses: list[int] = []

    async def probing(pipe: Pipe) -> None:
        while True:
            statuses.append(await scene.watch(pipe, "/readyz"))
            await asyncio.sleep(0)

    clients = [asyncio.create_task(probing(scene.open())) for _ in range(64)]
    for _ in range(40):
        await scene.clock.advance(server.PROBE_PAUSE_SECONDS)
    for client in clients:
        client.cancel()
    await asyncio.gather(*clients, return_exceptions=True)
    # In ten seconds: those of the rate, and one for each connection and pause.
    seconds = 40 * server.PROBE_PAUSE_SECONDS
    most = server.PROBES_BURST + server.PROBES_PER_SECOND * (seconds + 1) + 64 * 41
    assert 64 * 40 <= len(statuses) <= most
    assert (set(statuses), sum(scene.refusals.counts.values())) == ({200}, 0)


async def test_a_probe_that_waits_gives_its_place_to_another_client(scene):
    """Connections that flood the address with probes don't keep the one of the kubelet away."""

    async def probe(pipe: Pipe) -> asyncio.Task[int]:
        begun = asyncio.create_task(scene.watch(pipe, "/healthz"))
        await asyncio.sleep(0)
        return begun

    for _ in range(server.PROBES_BURST + 1):
        last = await probe(scene.open("10.0.0.66"))
    pipes = [scene.open("10.0.0.66") for _ in range(3)]
    waiting = [await probe(pipe) for pipe in pipes]
    kubelet = scene.open("10.0.0.1")
    assert [pipe.aborted for pipe in (*pipes, kubelet)] == [True, False, False, False]
    answer = await probe(kubelet)
    assert len(scene.table) == 3
    await scene.clock.advance(server.PROBE_PAUSE_SECONDS)
    assert await asyncio.gather(answer, last, *waiting) == [200] * 5


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

    async with serve(runtime, LOOPBACK) as bound:
        flood = [asyncio.create_task(flooding(bound)) for _ in range(100)]
        answers = [await asyncio.wait_for(probe(bound, "127.0.0.2"), 10) for _ in range(5)]
        for each in flood:
            each.cancel()
        await asyncio.gather(*flood, return_exceptions=True)
        assert [answer.split()[1] for answer in answers] == [b"200"] * 5


def test_a_body_without_end_closes_the_connection(scene):
    """It is counted from the head of its request on, and not over the life of a connection."""
    pipe = scene.open()
    for _ in range(10):
        assert scene.table.received(pipe, server.MOST_BYTES // 2)
        scene.answer(pipe)
    assert scene.table.received(pipe, server.MOST_BYTES)
    assert not pipe.aborted
    assert not scene.table.received(pipe, 1)
    assert pipe.aborted
    assert scene.refusals.counts[Reason.BODY] == 1


async def test_clients_that_come_and_go_leave_no_task(runtime, http):
    """Silent connections, half heads, bodies and requests: when they are gone, no task of theirs is left."""
    async with serve(runtime, LOOPBACK) as bound:
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
        await until(lambda: len(asyncio.all_tasks()) <= before)


def test_bad_requests_are_one_line_and_a_number(scene):
    """A flood of bad requests is seen in the log, and does not fill the disk."""
    for _ in range(1000):
        scene.refusals.add(Reason.HOST, "GET / from 10.0.0.66 was refused: wrong name")
    scene.refusals.add(Reason.MALFORMED, "no HTTP")
    first = "admin address: GET / from 10.0.0.66 was refused: wrong name"
    assert scene.log.events() == [first]
    scene.clock.set(60)
    scene.refusals.sweep()
    scene.refusals.sweep()
    rest = "admin address: 1,000 more refused since the last line (Host 999, Malformed 1)"
    assert scene.log.events() == [first, rest]
    assert scene.refusals.counts[Reason.HOST] == 1000


@pytest.mark.parametrize("level", [logging.DEBUG, logging.ERROR])
def test_what_is_no_http_is_no_traceback(scene, level: int):
    """Somebody who speaks TLS or nonsense to the address is one refused request."""
    error = BadStatusLine("\\x16\\x03")
    ServerLog(scene.refusals).log(level, "Error handling request from %s", "10.0.0.66", exc_info=error)
    assert scene.refusals.counts[Reason.MALFORMED] == 1
    (line,) = scene.log.events()
    assert "10.0.0.66" in line
    assert "Traceback" not in line
