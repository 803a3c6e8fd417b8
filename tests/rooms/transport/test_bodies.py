"""Bodies as they come off a real socket, and how each ends."""

import asyncio
import contextlib
import gzip
import socket
import ssl

import pytest

from declctl.errors import MalformedAnswer, Unreachable
from declctl.transport import Client
from declctl.transport import wire as wires
from declctl.transport.connections import LARGEST, ConnectionPool, HttpConnection
from declctl.transport.credentials import ClientConfiguration
from declctl.transport.messages import ApiRequest
from tests.raw_server import CHUNKED, RawServer, chunk, writing
from tests.rooms.transport.parts import Parts

LIST = ApiRequest("LIST", "/api/v1/pods")
WATCH = ApiRequest("WATCH", "/api/v1/pods", watch_seconds=300)
GZIP = {"disable-compression": False}  # not disabled, even where the server is on this machine
ABC = gzip.compress(b"abc")


@pytest.fixture(params=["plain", "TLS"])
def tls(request, certificates):
    """The certificates of a server with TLS, and None for one without."""
    return certificates if request.param == "TLS" else None


def talk(script, use, kubeconfig, *, certificates=None, tunnel=None, **cluster_fields):
    """Do `use(client)` with a server, behind a proxy if there is a `tunnel`; what both have to show."""
    server = script if isinstance(script, RawServer) else RawServer(script)
    tls = None
    if certificates is not None:
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        tls.load_cert_chain(certificates / "server.crt", certificates / "server.key")

    async def go():
        async with asyncio.timeout(30), server.listening(tls):
            cluster = dict(cluster_fields)
            if tls:
                cluster["certificate-authority"] = str(certificates / "ca.crt")
            proxy = await asyncio.start_server(tunnel or server.serve, "127.0.0.1", 0)
            if tunnel:
                cluster["proxy-url"] = f"http://127.0.0.1:{proxy.sockets[0].getsockname()[1]}"
            url = f"https://localhost:{server.port}" if tls else f"http://127.0.0.1:{server.port}"
            client = await Client.from_kubeconfig_dict(kubeconfig(url, **cluster))
            try:
                return await use(client)
            finally:
                await client.close()
                proxy.close()

    return server, asyncio.run(go())


async def to_end(channel):
    while await channel.read():
        pass


@contextlib.asynccontextmanager
async def opened(client, request=WATCH, parts=None):
    """The channel of an answer, and where its parts go."""
    parts = Parts() if parts is None else parts
    channel = await client.wire.open(request, parts)
    try:
        yield channel, parts
    finally:
        channel.close()


async def whole(client, request=LIST):
    """The body of an answer."""
    async with opened(client, request) as (channel, parts):
        await to_end(channel)
    return parts.body


async def twice(client):
    return [await whole(client) for _ in range(2)]


def test_a_connection_is_used_again(kubeconfig, tls):
    """Two hundred pages are one connection."""

    async def use(client):
        return [await whole(client) for _ in range(3)], client.statistics()

    script = writing(CHUNKED + chunk(b"abc"), chunk(b"d" * 100_000), b"0\r\n\r\n")
    server, (bodies, figures) = talk(script, use, kubeconfig, certificates=tls)
    assert bodies == [b"abc" + b"d" * 100_000] * 3
    assert server.connections == 1
    assert (figures.bytes_in, figures.requests) == (300_009, {("LIST", 200): 3})


def test_a_long_body_comes_unchanged(kubeconfig, tls):
    """Ten megabytes in chunks of all sizes, faster than they are read."""
    content = bytes(range(256)) * 40_000
    pieces, at, size = [CHUNKED], 0, 1
    while at < len(content):
        pieces.append(chunk(content[at : at + size]))
        at, size = at + size, size * 3 % 300_007 + 1

    pieces.append(b"0\r\n\r\n")
    assert talk(writing(b"".join(pieces)), whole, kubeconfig, certificates=tls)[1] == content


@pytest.mark.parametrize(
    "answer",
    [
        [b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc"],
        [b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n", b"a", b"bc"],
        [CHUNKED[:30], CHUNKED[30:] + chunk(b"abc") + b"0\r\n\r\n"],
        [b"HTTP/1.1 100 Continue\r\n\r\n", CHUNKED, chunk(b"abc"), b"0\r\n\r\n"],
        [b"HTTP/1.1 201 Created\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk(b"abc") + b"0\r\n\r\n"],
        [b"HTTP/1.1 200 OK\nContent-Length: 3\n\nabc"],
        [CHUNKED + chunk(b"abc") + b"0;la", b"st\r\nX-Trailer: 1\r\n\r\n"],
    ],
)
def test_what_is_written_in_another_way_is_read_all_the_same(kubeconfig, answer):
    """Proxies and old servers write heads in pieces and bodies with a length."""
    server, bodies = talk(writing(*answer), twice, kubeconfig)
    assert bodies == [b"abc", b"abc"]
    assert server.connections == 1


def test_a_long_body_with_a_length_comes_in_parts_too(kubeconfig):
    """What comes of it is decoded part by part, and everything else goes on in between."""
    content = bytes(range(256)) * 20_000

    async def use(client):
        parts, turns = Parts(), 0

        async def other():
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        going_on = asyncio.create_task(other())
        channel = await client.wire.open(LIST, parts)
        longest = 0
        while await channel.read():
            longest = max(longest, len(parts[-1]))
        going_on.cancel()
        channel.close()
        assert turns >= len(parts)
        return parts.body, longest

    head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(content)
    _, (body, longest) = talk(writing(head + content), use, kubeconfig)
    assert body == content
    assert longest <= LARGEST


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nabc",  # as HTTP/1.0 does it
        CHUNKED + chunk(b"abc") + b"0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n%b" % (len(ABC), ABC),
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nConnection: close\r\n\r\n%b" % ABC,
    ],
    ids=["no length", "chunked", "gzip with a length", "gzip without"],
)
def test_an_answer_of_a_server_that_closes_at_once_is_read(kubeconfig, answer):
    """It may be here before anybody asks for it."""
    assert talk(writing(answer, close=True), whole, kubeconfig, **GZIP)[1] == b"abc"


@pytest.mark.parametrize("begun", [b"", b"9\r\ntw"])
def test_events_before_a_broken_connection_are_given(kubeconfig, tls, begun):
    async def script(_, writer):
        writer.write(CHUNKED + chunk(b"one\n") + begun)
        await writer.drain()
        writer.transport.abort() if tls is None else writer.close()

    async def use(client):
        async with opened(client) as (channel, parts):
            with pytest.raises(Unreachable, match="was cut off"):
                await to_end(channel)
        return parts.body

    assert talk(script, use, kubeconfig, certificates=tls)[1] == b"one\n" + begun[3:]


def test_a_server_that_loses_its_place_is_told_and_left(kubeconfig):
    """Bytes that are no chunk end the watch with a sentence; what came before them is given."""

    async def use(client):
        async with opened(client) as (channel, parts):
            assert await channel.read()
            with pytest.raises(Unreachable, match="is no HTTP: a chunk begins with b'zz"):
                await channel.read()
        return parts, client.statistics()

    _, (parts, figures) = talk(writing(CHUNKED, chunk(b"one\n") + b"zz\r\n"), use, kubeconfig)
    assert parts == [b"one\n"]
    assert "zz" in figures.last_error
    assert figures.open_watches == 0


def test_a_sink_that_has_had_enough_ends_the_body(kubeconfig):
    class Full(Parts):
        def feed(self, part):
            super().feed(part)
            if len(self) == 2:
                raise MalformedAnswer("too long")

    async def use(client):
        async with opened(client, parts=Full()) as (channel, parts):
            with pytest.raises(MalformedAnswer, match="too long"):
                await to_end(channel)
        return parts

    assert talk(writing(CHUNKED, chunk(b"a"), chunk(b"b"), chunk(b"c")), use, kubeconfig)[1] == [b"a", b"b"]


@pytest.mark.parametrize(
    ("ask", "written", "requests"),
    [
        (Client.version, b"", {("GET", 0): 1}),
        (whole, CHUNKED + chunk(b"abc"), {("LIST", 200): 1, ("LIST", 0): 1}),
        (whole, b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc", {("LIST", 200): 1, ("LIST", 0): 1}),
    ],
    ids=["before its answer", "within chunks", "within a length"],
)
def test_a_server_that_falls_silent_is_given_up(kubeconfig, monkeypatch, ask, written, requests):
    """An answer of which nothing comes, or half and then nothing, fails in a time that is known."""
    monkeypatch.setattr(wires, "SILENCE_SECONDS", 0.05)

    async def use(client):
        with pytest.raises(Unreachable, match="did not answer in time"):
            await ask(client)
        return client.statistics()

    assert talk(writing(written), use, kubeconfig)[1].requests == requests


class Transport(asyncio.Transport):
    """A transport that reads nothing."""

    def __init__(self, sock):
        super().__init__({"socket": sock})
        self.reading = True

    def write(self, data): ...

    def abort(self): ...

    def pause_reading(self):
        self.reading = False

    def resume_reading(self):
        self.reading = True


class TimedLoop(asyncio.SelectorEventLoop):
    """A loop on which it is as late as somebody says."""

    now = 1000.0

    def time(self):
        return self.now

    async def wait(self, seconds):
        self.now += seconds
        for _ in range(5):
            await asyncio.sleep(0)


def taken(use):
    """Do `use(loop, transport, feed, intake)` with a body that falls silent after 30 seconds."""

    async def go(sock):
        loop, transport = asyncio.get_running_loop(), Transport(sock)
        configuration = ClientConfiguration()
        configuration.host = "http://127.0.0.1"
        intake = HttpConnection(ConnectionPool(configuration))
        intake.connection_made(transport)
        head = intake.start(b"GET / HTTP/1.1", 30)

        def feed(content):
            intake.get_buffer(len(content))[: len(content)] = content
            intake.buffer_updated(len(content))

        feed(CHUNKED)
        await head
        intake.take(Parts(), silence=30)
        try:
            await use(loop, transport, feed, intake)
        finally:
            intake.close()

    with socket.socket() as sock, asyncio.Runner(loop_factory=TimedLoop) as runner:
        runner.run(go(sock))


def test_a_server_that_is_only_slow_is_not_given_up():
    """The time that counts is since the last byte, and not since the first.

    A peer that vanished without a word is noticed by the kernel, not by a user days later.
    """

    async def use(loop, transport, feed, intake):
        option = transport.get_extra_info("socket").getsockopt
        assert option(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        if hasattr(socket, "TCP_KEEPIDLE"):
            assert option(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 30
        for _ in range(5):
            await loop.wait(29)
            feed(chunk(b"x"))
            assert await intake.read()
        await loop.wait(31)
        with pytest.raises(TimeoutError):
            await intake.read()

    taken(use)


def test_the_time_in_which_nobody_reads_is_not_the_servers():
    """A handler that stops everything for a minute does not make the server silent."""

    async def use(loop, transport, feed, intake):
        while transport.reading:
            feed(chunk(b"x" * 10_000))
        await loop.wait(100)
        assert await intake.read()
        assert transport.reading
        await loop.wait(29)
        feed(chunk(b"x"))
        assert await intake.read()

    taken(use)


def test_a_flood_that_nobody_reads_waits_at_the_server(kubeconfig, tls):
    """While handlers are slow, what a watch brings does not fill our memory."""
    written = 0
    most = 200_000_000

    async def script(_, writer):
        nonlocal written
        writer.write(CHUNKED)
        while written < most:
            writer.write(chunk(b"x" * 100_000))
            written += 100_000
            await writer.drain()

    async def use(client):
        async with opened(client) as (channel, parts):
            before = -1
            while before != written:  # as long as the server gets rid of something
                before = written
                for _ in range(200):
                    await asyncio.sleep(0)
            assert len(parts.body) < 2_000_000
            assert written < most
            seen = len(parts.body)
            assert await channel.read()
            while len(parts.body) == seen:
                assert await channel.read()  # and it goes on

    talk(script, use, kubeconfig, certificates=tls)


def test_closing_ends_the_connection_whatever_is_still_in_it(kubeconfig, tls):
    """A watch that is no longer wanted is gone from the server's side at once, in the middle of a flood."""
    gone = asyncio.Event()

    async def script(_, writer):
        try:
            writer.write(CHUNKED)
            while True:
                writer.write(chunk(b"x" * 50_000))
                await writer.drain()
        finally:
            gone.set()

    async def use(client):
        parts = Parts()
        channel = await client.wire.open(WATCH, parts)
        assert await channel.read()
        assert client.statistics().open_watches == 1
        channel.close()
        channel.close()
        seen = len(parts)
        await gone.wait()
        assert len(parts) == seen
        assert client.statistics().open_watches == 0

    talk(script, use, kubeconfig, certificates=tls)


def test_an_event_that_comes_alone_is_there_at_once(kubeconfig, tls):
    """Nothing waits for a second event, nor for a buffer to be full; then the watch ends."""
    step = asyncio.Event()

    async def script(_, writer):
        writer.write(CHUNKED)
        for number in range(3):
            writer.write(chunk(b"%d\n" % number))
            await writer.drain()
            await step.wait()
            step.clear()
        writer.write(b"0\r\n\r\n")

    async def use(client):
        async with opened(client) as (channel, parts):
            for number in range(3):
                assert await channel.read()
                assert parts == [b"%d\n" % each for each in range(number + 1)]
                step.set()
            assert not await channel.read()
        assert (client.statistics().bytes_in, client.statistics().requests) == (6, {("WATCH", 200): 1})

    talk(script, use, kubeconfig, certificates=tls)


def test_gzip_is_read_as_if_it_were_not_there(kubeconfig):
    """What an API server packs is counted as it was on the wire, and unpacked as it comes."""
    plain = b"".join(b'{"metadata":{"name":"pod-%d"}},' % number for number in range(100_000))
    packed = gzip.compress(plain, 1)
    head = CHUNKED.replace(b"Content-Type", b"Content-Encoding: gzip\r\nContent-Type")
    pieces = [chunk(packed[at : at + 50_000]) for at in range(0, len(packed), 50_000)]

    async def use(client):
        return [await whole(client) for _ in range(2)], client.statistics()

    server, (bodies, figures) = talk(writing(head, *pieces, b"0\r\n\r\n"), use, kubeconfig, **GZIP)
    assert bodies == [plain] * 2
    assert figures.bytes_in == 2 * len(packed)
    assert server.connections == 1


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (gzip.compress(b"x" * 1000)[:-8], "ended too early"),
        (b"plain", "not what gzip makes"),
        (gzip.compress(b"x") + b"y", "something follows the end"),
        (gzip.compress(b"x") + gzip.compress(b"y"), "something follows the end"),
    ],
    ids=["cut", "plain", "text behind", "gzip behind"],
)
def test_gzip_that_is_broken_is_told(kubeconfig, content, said):
    """Half a list is no list, and neither is one with something behind it."""
    head = CHUNKED.replace(b"Content-Type", b"Content-Encoding: gzip\r\nContent-Type")

    async def use(client):
        with pytest.raises(Unreachable, match=said):
            await whole(client)

    talk(writing(head + chunk(content) + b"0\r\n\r\n"), use, kubeconfig, **GZIP)


@pytest.mark.parametrize(("fields", "lists"), [({}, 0), (GZIP, 1), ({"disable-compression": True}, 0)])
def test_lists_are_asked_for_in_gzip_and_watches_never(kubeconfig, fields, lists):
    """From a server on this machine they are not; the kubeconfig's `disable-compression` comes first."""
    script = writing(CHUNKED + chunk(b"x" * 1000) + b"0\r\n\r\n")

    async def use(client):
        await whole(client)
        await whole(client, WATCH)

    server, _ = talk(script, use, kubeconfig, **fields)
    asked = [request.lower().count("accept-encoding: gzip\r\n") for request in server.requests]
    assert asked == [lists, 0]


def test_a_cluster_behind_a_proxy_is_read_as_any_other(kubeconfig, certificates):
    """Through a tunnel of proxy-url there is TLS from end to end, and one connection for all pages."""
    asked = []
    pumps = set()

    async def pump(reader, writer):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.close()

    async def tunnel(reader, writer):
        first, *_ = (await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")
        asked.append(first)
        host, port = first.split()[1].decode().split(":")
        there, back = await asyncio.open_connection(host, int(port))
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        pumps.update(asyncio.create_task(pump(*pair)) for pair in ((reader, back), (there, writer)))

    async def use(client):
        bodies = [await whole(client) for _ in range(2)]
        await client.close()
        await asyncio.gather(*pumps, return_exceptions=True)
        return bodies

    script = writing(CHUNKED + chunk(b"abc"), chunk(b"d" * 100_000), b"0\r\n\r\n")
    server, bodies = talk(script, use, kubeconfig, certificates=certificates, tunnel=tunnel)
    assert bodies == [b"abc" + b"d" * 100_000] * 2
    assert server.connections == 1
    assert [line.split()[0] for line in asked] == [b"CONNECT"]


@pytest.mark.parametrize(("method", "sent"), [("GET", 3), ("PATCH", 2), ("PUT", 2), ("DELETE", 2)])
def test_a_read_alone_is_sent_again(kubeconfig, method, sent):
    """A server that ends an idle connection may have got the write that was on its way."""

    async def script(_, writer):
        if len(server.requests) == 2:
            writer.close()
        else:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")

    async def use(client):
        await client.request_json("GET", "/a")
        await client.request_json(method, "/a")

    server = RawServer(script)
    with contextlib.nullcontext() if method == "GET" else pytest.raises(Unreachable, match="closed the conn"):
        talk(server, use, kubeconfig)
    assert len(server.requests) == sent


@pytest.mark.parametrize("written", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{"])
def test_a_request_that_is_cancelled_leaves_no_connection_behind(kubeconfig, written):
    """The late answer to it is not that to the next one."""
    came = asyncio.Event()

    async def script(path, writer):
        came.set()
        writer.write(written if path == "/late" else b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")

    async def use(client):
        late = asyncio.ensure_future(client.request_json("PATCH", "/late", body={}))
        await came.wait()
        late.cancel()
        await asyncio.wait([late])
        return late.cancelled(), await client.request_json("GET", "/next")

    server, seen = talk(script, use, kubeconfig)
    assert (seen, server.connections) == ((True, {}), 2)


@pytest.mark.parametrize("turns", range(8))
async def test_a_pool_that_is_closed_sends_nothing_any_more(turns):
    """Not either on the connection that it was about to make."""
    closed, late = [], []
    async with RawServer(writing(b"")).listening() as server:
        pool = ConnectionPool(ClientConfiguration(f"http://127.0.0.1:{server.port}"))
        sent = pool.send(
            b"GET / HTTP/1.1\r\n\r\n", method="GET", seconds=9, before_send=lambda: late.extend(closed)
        )
        asked = asyncio.ensure_future(sent)
        for _ in range(turns):
            await asyncio.sleep(0)
        closed.append("a request")
        await pool.close()
        with pytest.raises(OSError, match="clos"):
            await asked
    assert not late
