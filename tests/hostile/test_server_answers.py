"""Servers, or what stands between them and us, that answer what they should not.

Whatever comes, it ends in an error of the ApiError family, at a bounded cost, and the next request gets its
own answer.
"""

import asyncio
import collections
import contextlib
import gzip
import itertools
import json
import os
import random
import ssl

import pytest

from declctl.decoding import Projection
from declctl.errors import ApiError, MalformedAnswer, StatusError, TooManyRequests, Unreachable
from declctl.objects import GroupVersionKind, ListOptions, WatchOptions, answers
from declctl.transport import Client, LineSplitter
from tests.hostile import fuzzing
from tests.hostile.bounds import bounded
from tests.raw_server import CHUNKED, RawServer, chunk, writing

PODS = GroupVersionKind("", "v1", "Pod")
SEEDS = int(os.environ.get("DECLCTL_FUZZED_ANSWERS", "30000"))


def answer(body: bytes, *headers: str, status: str = "200 OK") -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def talk(script, use, *, user=None, tls=None, **fields):
    """Do `use(client, server)` with a server; what it returns. It has to end in time."""

    async def go():
        async with asyncio.timeout(60), RawServer(script).listening(tls) as server:
            cluster = {"server": f"http://127.0.0.1:{server.port}"}
            if tls is not None:
                cluster = {"server": f"https://localhost:{server.port}", "insecure-skip-tls-verify": True}
            config = {
                "current-context": "test",
                "clusters": [{"name": "test", "cluster": cluster | fields}],
                "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
                "users": [{"name": "test", "user": user or {}}],
            }
            client = await Client.from_kubeconfig_dict(config)
            try:
                return await use(client, server)
            finally:
                await client.close()

    return asyncio.run(go())


def source(client):
    return client.source(PODS, projection=Projection(api_version="v1", kind="Pod"))


async def watched(client):
    async with contextlib.aclosing(source(client).watch(WatchOptions("1", timeout_seconds=300))) as events:
        return [event async for batch in events for event in batch]


def served(pods):
    """A script that serves discovery well, and pods as the script `pods` does."""

    async def script(path, writer):
        if path == "/api/v1":
            writer.write(answer(fuzzing.RESOURCES.replace(b'"list"', b'"list","watch"')))
        else:
            await pods(path, writer)

    return script


def flooding(begin, part, *, mebibytes=2048):
    """A script that answers with `begin`, and then `part` over and over, as long as anybody reads."""

    async def script(_, writer):
        writer.write(begin)
        with contextlib.suppress(ConnectionError):
            for _ in range(mebibytes * 1024 * 1024 // len(part)):
                writer.write(part)
                await writer.drain()
                if writer.is_closing():
                    break

    return script


async def version(client):
    return await client.version()


async def listed(client):
    return await source(client).list(ListOptions())


def refused(ask, error, said=None):
    """What `talk` does with a client whose `ask(client)` has to end in this error, which says `said`."""

    async def use(client, _):
        with pytest.raises(error, match=said):
            await ask(client)

    return use


@pytest.mark.timeout(120 + SEEDS / 100)
def test_no_answer_raises_what_nobody_expects():
    """Answers that went wrong at random: each is a result or an ApiError, never a crash of an informer."""
    reading, ends = fuzzing.Reading(), collections.Counter()
    with bounded(seconds=600 + SEEDS / 100, megabytes=150):
        for seed in range(SEEDS):
            ends[fuzzing.one(reading, seed)] += 1
    assert sum(ends.values()) == SEEDS
    if SEEDS >= 10_000:  # it was neither all harmless nor all broken
        assert min(ends[None], ends[MalformedAnswer], ends[Unreachable]) > SEEDS / 100


@pytest.mark.parametrize("kind", ["length", "chunks"])
def test_a_body_that_never_ends_is_given_up(kind):
    """A server can't fill the memory with the answer to `GET /version`."""
    part = b" " * (1024 * 1024)
    begin, part = (
        (CHUNKED, chunk(part))
        if kind == "chunks"
        else (b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n", part)
    )

    with bounded(seconds=60, megabytes=350):
        talk(flooding(begin, part), refused(version, MalformedAnswer, "longer than 128 MiB"))


@pytest.mark.parametrize(
    ("begin", "part", "said"),
    [
        (
            fuzzing.LIST[:-3] + b',{"metadata":{"name":"',
            b"x" * 65536,
            "an item of a LIST is longer than 32 MiB",
        ),
        (
            fuzzing.LIST[:-3] + b',{"metadata":{"name":"',
            b"\\n" * 32768,
            "an item of a LIST is longer than 32 MiB",
        ),
        (b'{"items":[{"metadata":{"name":"x"}', b" " * 65536, "an item of a LIST is longer than 32 MiB"),
        (
            fuzzing.LIST[:-3] + b',{"metadata":',
            b"[" * 65536,
            "an item of a LIST nests deeper than 10000 levels",
        ),
        (b" ", b" " * 65536, "a LIST is longer than 256 MiB and not written as API servers write it"),
    ],
)
def test_a_list_without_end_is_given_up(begin, part, said):
    """Neither one endless item nor something that is no list at all is held."""
    pods = flooding(CHUNKED + chunk(begin), chunk(part))
    with bounded(seconds=60, megabytes=400):
        talk(served(pods), refused(listed, MalformedAnswer, said))


def test_a_list_far_beyond_every_limit_is_read_if_its_items_are_not():
    """A list without pages is read item by item: while 40 MB of pods come, nothing of them is held."""
    item = fuzzing.compact({"metadata": {"name": "pod-1"}, "spec": {"text": "x" * 9000}})

    async def pods(_, writer):
        writer.write(CHUNKED + chunk(b'{"kind":"PodList","metadata":{"resourceVersion":"7"},"items":['))
        for number in range(40):
            items = [item.replace(b"pod-1", b"pod-%d" % (number * 100 + n)) for n in range(100)]
            writer.write(chunk(b",".join(items) + (b"," if number < 39 else b"]}")))
            await writer.drain()
        writer.write(b"0\r\n\r\n")

    async def use(client, _):
        return await listed(client)

    with bounded(seconds=60, megabytes=30):
        assert len(talk(served(pods), use).records) == 4000


def test_a_line_without_end_is_given_up():
    """A watch whose server never ends an event is ended here."""
    begin = CHUNKED + chunk(b'{"type":"ADDED","object":{"metadata":{"name":"')
    pods, said = flooding(begin, chunk(b"x" * 65536)), "a line of a WATCH is longer than 32 MiB"
    with bounded(seconds=60, megabytes=150):
        talk(served(pods), refused(watched, MalformedAnswer, said))


def test_single_bytes_cost_no_more_than_what_they_are():
    """Megabytes, each byte in a chunk of its own, cost megabytes and no gigabyte."""
    splitter, byte = LineSplitter(), memoryview(b"x")
    with bounded(seconds=60, megabytes=20):
        for _ in range(2_000_000):
            splitter.feed(byte)
    splitter.feed(memoryview(b"\n"))
    assert [len(line) for line in splitter.take()] == [2_000_000]


def test_a_bomb_of_gzip_is_bounded():
    """A megabyte that unpacks to a gigabyte costs what an item may have."""
    bomb = gzip.compress(b'{"metadata":{},"items":[{"metadata":{"name":"' + b"x" * (512 * 1024 * 1024), 1)
    head = CHUNKED.replace(b"\r\n\r\n", b"\r\nContent-Encoding: gzip\r\n\r\n")
    pods = writing(head, chunk(bomb) + b"0\r\n\r\n")
    use = refused(listed, MalformedAnswer, "an item of a LIST is longer than 32 MiB")
    with bounded(seconds=60, megabytes=200):
        talk(served(pods), use, **{"disable-compression": False})


@pytest.mark.parametrize("encoding", ["gzip", "br", "deflate", "zstd", "gzip, gzip", "x" * 5000])
@pytest.mark.parametrize("status", ["200 OK", "500 Internal Server Error"])
def test_what_was_not_asked_for_is_not_unpacked(encoding, status):
    """A bomb of a packing that nobody accepted is not lit."""
    bomb = answer(gzip.compress(b" " * 10_000_000), f"Content-Encoding: {encoding}", status=status)
    said = "not asked for" if status.startswith("2") else "not asked for|InternalS"
    with bounded(seconds=60, megabytes=60):
        talk(writing(bomb), refused(version, ApiError, said))


OTHERS = answer(b'{"gitVersion":"of somebody else"}')
MINE = answer(b'{"gitVersion":"mine"}')
SURPLUS = {
    "an answer": OTHERS,
    "an answer in chunks": CHUNKED + chunk(b'{"gitVersion":"of somebody else"}') + b"0\r\n\r\n",
    "a head": OTHERS[:20],
    "a newline": b"\r\n",
    "garbage": b"\0\xff garbage",
    "a continue": b"HTTP/1.1 100 Continue\r\n\r\n",
}


@pytest.mark.parametrize("encrypted", [False, True])
@pytest.mark.parametrize("first", ["length", "chunks", "error"])
@pytest.mark.parametrize("surplus", SURPLUS.values(), ids=SURPLUS)
def test_surplus_bytes_are_never_the_answer_to_the_next_request(surplus, first, encrypted, server_tls):
    """A server that appends a second answer can't answer a question that was not asked yet."""
    bodies = {
        "length": MINE,
        "chunks": CHUNKED + chunk(b'{"gitVersion":"mine"}') + b"0\r\n\r\n",
        "error": answer(b"no", status="500 Internal Server Error"),
    }
    asked = itertools.count()

    async def script(_, writer):
        writer.write(bodies[first] + surplus if next(asked) == 0 else MINE)

    async def use(client, server):
        with contextlib.suppress(ApiError):
            assert await client.version() == "mine"
        assert await client.version() == "mine"
        assert await client.version() == "mine"
        return server.connections

    assert talk(script, use, tls=server_tls if encrypted else None) == 2


@pytest.mark.parametrize("case", ["plain", "encrypted", "not read yet"])
def test_a_connection_is_closed_when_its_server_speaks_unasked(case, server_tls):
    """What comes while nobody asks is no answer, and what waits in the socket is older than the request."""
    writers = []

    async def script(_, writer):
        writers.append(writer)
        writer.write(MINE)

    async def use(client, server):
        assert await client.version() == "mine"
        if case == "not read yet":
            writers[0].get_extra_info("socket")._sock.send(OTHERS)  # and the loop does not turn
        else:
            with contextlib.suppress(ConnectionError):
                writers[0].write(OTHERS)
                await writers[0].drain()
            while not server.closed:
                await asyncio.sleep(0)
        assert await client.version() == "mine"
        assert server.connections == 2

    talk(script, use, tls=server_tls if case == "encrypted" else None)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("verb", ["GET", "LIST", "WATCH"])
def test_redirects_are_not_followed(status, verb):
    """A token never travels to where an answer points; the error says where that is, and what to do."""
    elsewhere = answer(b"", "Location: https://evil.example/api?\x07", status=f"{status} Found")

    async def script(path, writer):
        if path == "/api/v1" and verb != "GET":
            writer.write(answer(fuzzing.RESOURCES.replace(b'"list"', b'"list","watch"')))
        else:
            writer.write(elsewhere.replace(b"\x07", b""))

    async def use(client, server):
        ask = {"GET": client.version, "LIST": source(client).list, "WATCH": lambda: watched(client)}[verb]
        with pytest.raises(
            StatusError, match=r"redirects to 'https://evil.example/api\?'. Redirects are not"
        ):
            await ask()
        assert "evil" in client.statistics().last_error
        return server.requests

    requests = talk(script, use, user={"token": "secret"})
    assert len(requests) == (1 if verb == "GET" else 2)


@pytest.mark.parametrize("asked", ["86400", "1e300", "99999999999999999999", "Fri, 31 Dec 9999 23:59:59 GMT"])
def test_a_server_can_not_put_us_to_sleep_for_long(asked):
    """Retry-After is kept for five minutes at most, and what was asked for is told."""
    refusal = answer(b"slow down", f"Retry-After: {asked}", status="429 Too Many Requests")

    async def use(client, _):
        with pytest.raises(
            TooManyRequests, match=r"slow down \(the server asks to wait .*asked again after 300 s"
        ):
            await client.version()
        try:
            await client.version()
        except TooManyRequests as fault:
            return fault.retry_after

    assert talk(writing(refusal), use) == 300


BROKEN_HEADS = {
    "two lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 4\r\n\r\n{}{}",
    "the same length twice": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\n{}",
    "length and chunks": CHUNKED[:-2] + b"Content-Length: 2\r\n\r\n" + chunk(b"{}") + b"0\r\n\r\n",
    "chunks twice": CHUNKED.replace(b"chunked", b"chunked, chunked") + chunk(b"{}") + b"0\r\n\r\n",
    "chunks in two lines": CHUNKED[:-2] + b"Transfer-Encoding: chunked\r\n\r\n" + chunk(b"{}") + b"0\r\n\r\n",
    "an unknown encoding": CHUNKED.replace(b"chunked", b"gzip") + b"{}",
    "a negative length": b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n{}",
    "a length that is none": b"HTTP/1.1 200 OK\r\nContent-Length: 0x2\r\n\r\n{}",
    "a length of 5,000 digits": b"HTTP/1.1 200 OK\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n{}",
    "a negative chunk": CHUNKED + b"-2\r\n{}\r\n0\r\n\r\n",
    "a huge chunk": CHUNKED + b"f" * 17 + b"\r\n{}\r\n0\r\n\r\n",
    "a chunk extension without end": CHUNKED + b"2;" + b"x" * 100_000 + b"\r\n{}\r\n0\r\n\r\n",
    "a chunk without an end": CHUNKED + b"2\r\n{}XX0\r\n\r\n",
    "a NUL in the head": b"HTTP/1.1 200 OK\r\nX: a\0b\r\nContent-Length: 2\r\n\r\n{}",
    "a folded header": b"HTTP/1.1 200 OK\r\nContent-Length:\r\n 2\r\n\r\n{}",
    "a line without a colon": b"HTTP/1.1 200 OK\r\nnonsense\r\nContent-Length: 2\r\n\r\n{}",
    "a space before the colon": b"HTTP/1.1 200 OK\r\nTransfer-Encoding : chunked\r\n\r\n"
    + chunk(b"{}")
    + b"0\r\n\r\n",
    "ten thousand headers": b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 10_000 + b"Content-Length: 2\r\n\r\n{}",
    "a header of a megabyte": b"HTTP/1.1 200 OK\r\nX: "
    + b"y" * 1_000_000
    + b"\r\nContent-Length: 2\r\n\r\n{}",
    "a reason of a megabyte": b"HTTP/1.1 200 " + b"y" * 1_000_000 + b"\r\nContent-Length: 2\r\n\r\n{}",
    "HTTP/9.9": b"HTTP/9.9 200 OK\r\nContent-Length: 2\r\n\r\n{}",
    "HTTP/0.9": b"{}",
    "a status of four digits": b"HTTP/1.1 2000 OK\r\nContent-Length: 2\r\n\r\n{}",
    "a status of 0": b"HTTP/1.1 000 OK\r\nContent-Length: 2\r\n\r\n{}",
    "TLS": b"\x15\x03\x01\x00\x02\x02\x16",
    "SSH": b"SSH-2.0-OpenSSH_9.9\r\n",
    "an upgrade": b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n{}",
    "nothing": b"",
    "half a head": b"HTTP/1.1 200 OK\r\nContent-Le",
    "half a body": b"HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\n{}",
    "half a chunk": CHUNKED + b"20\r\n{}",
    "no last chunk": CHUNKED + chunk(b"{}"),
    "a thousand continues": b"HTTP/1.1 100 Continue\r\n\r\n" * 1000,
    "JSON of 5,000 digits": answer(b'{"gitVersion":' + b"9" * 5000 + b"}"),
    "JSON that nests for ever": answer(b'{"gitVersion":' + b"[" * 100_000),
    "no UTF-8": answer(b'{"gitVersion":"\xff"}'),
    "a Status that is a number": answer(b'{"kind":"Status","code":-9e99,"message":{"a":[]}}', status="500 X"),
    "a Status of no UTF-8": answer(b'{"kind":"Status","message":"\xff"}', status="500 X"),
    "a Status that nests for ever": answer(b'{"kind":"Status","message":' + b"[" * 50_000, status="500 X"),
    "a Status of megabytes": answer(
        json.dumps({"kind": "Status", "reason": "x" * 400_000, "message": "y" * 400_000}).encode(),
        status="500 X",
    ),
}


@pytest.mark.parametrize("name", BROKEN_HEADS)
def test_a_broken_answer_is_one_error_and_the_next_request_gets_its_own(name):
    """Whatever stands in an answer, it is told as an ApiError of a few lines, and that is all."""
    asked = itertools.count()

    async def script(_, writer):
        if next(asked) == 0:
            writer.write(BROKEN_HEADS[name])
            writer.close()
        else:
            writer.write(MINE)

    async def use(client, _):
        said = ""
        try:
            assert await client.version() in ("", "mine")
        except ApiError as fault:
            said = str(fault)
        assert name == "a thousand continues" or 0 < len(said) < 6000  # a read may be asked for anew
        assert len(client.statistics().last_error or "") < 6000
        assert await client.version() == "mine"

    with bounded(seconds=60, megabytes=60):
        talk(script, use)


def test_a_flood_of_continues_ends_in_time(monkeypatch):
    """Answers that announce an answer, for ever, are no answer."""
    monkeypatch.setattr("declctl.transport.wire.SILENCE_SECONDS", 1)
    script = flooding(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 1000)
    with bounded(seconds=50, megabytes=150):
        talk(script, refused(version, Unreachable))


def test_a_status_that_comes_in_two_parts_is_read_to_its_end():
    """What the server says of a fault is not lost because the network cut it."""
    status = fuzzing.STATUS
    head = answer(status, status="410 Gone")[: -len(status)]
    script = writing(head + status[:10], status[10:30], status[30:])
    talk(script, refused(version, ApiError, "too old resource version"))


def test_discovery_that_is_nonsense_is_an_error_of_its_own():
    """Resources that are no list, names that are numbers: said with the path, not as a bug of declctl."""

    async def discover(client):
        await client.discover(PODS)

    use = refused(discover, MalformedAnswer, "GET /api/v1 is no discovery document")
    for resources in (7, "pods", [7], [{"name": 7}], [{"name": "pods", "kind": "Pod", "verbs": 7}], {"a": 1}):
        talk(writing(answer(json.dumps({"resources": resources}).encode())), use)


def test_random_answers_on_one_client_never_get_mixed_up():
    """After each of 300 answers that went wrong at random, the next request gets its own."""
    rng = random.Random(17)
    bodies = [MINE, CHUNKED + chunk(b'{"gitVersion":') + chunk(b'"mine"}') + b"0\r\n\r\n", OTHERS]

    async def script(path, writer):
        if path.startswith("/mine/"):
            writer.write(answer(b'{"path":"%b"}' % path.encode()))
            return
        writer.write(fuzzing.changed(rng, rng.choice(bodies)) + rng.choice([b"", b"", OTHERS, b"\0"]))
        writer.close()

    async def use(client, _):
        ends = collections.Counter()
        for number in range(300):
            try:
                await client.version()
                ends["ok"] += 1
            except ApiError as fault:
                ends[type(fault)] += 1
            path = f"/mine/{number}"
            assert (await client.request_json("GET", path))["path"] == path
        return ends

    with bounded(seconds=120, megabytes=150):
        ends = talk(script, use)
    assert len(ends) >= 3


@pytest.fixture(scope="module")
def server_tls(tmp_path_factory):
    from tests.hostile.certificates import self_signed

    folder = tmp_path_factory.mktemp("certificate")
    self_signed(folder)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    return context


def test_the_limits_leave_room_for_everything_that_is_legal():
    """The largest request that etcd takes, each byte of it an escape, is far from the limit of an object."""
    assert 3 * 1024 * 1024 * 6 < answers.OBJECT_BYTES < answers.BODY_BYTES < answers.LIST_BYTES
