"""`GET /events` on the admin address: calls and reloads, live."""

import json
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from declctl.admin import TokenFile, serve
from declctl.admin.tap import MOST_LISTENERS
from declctl.runtime.handling.tap import MOST_WAITING, TapMark, TapOutcome, TappedCall, TapSubject
from tests.rooms.admin.conftest import EVERYWHERE, LOOPBACK, FakeRuntime, until

AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def call(key: str = "shop/web", outcome: TapOutcome = TapOutcome.SUCCEEDED) -> TappedCall:
    """A call of the handler that the runtime has."""
    return TappedCall(
        AT, "notify", "pods", key, TapSubject("Modified"), outcome, seconds=0.25, generation=6, attempt=1
    )


async def events(response: aiohttp.ClientResponse) -> AsyncIterator[dict[str, Any]]:
    """The documents of a stream, as they come."""
    kind = ""
    async for raw in response.content:
        name, _, value = raw.decode().rstrip("\n").partition(": ")
        if name == "event":
            kind = value
        elif name == "data":
            document = json.loads(value)
            assert document["kind"] == kind
            yield document


async def test_calls_and_reloads_come_as_they_happen(runtime: FakeRuntime):
    """The begin says who answers; then each call and each reload is one event; the end says why."""
    found: list[dict[str, Any]] = []
    async with aiohttp.ClientSession() as session:
        async with serve(runtime, LOOPBACK) as bound:
            response = await session.get(f"http://{bound}/events")
            assert (response.status, response.content_type) == (200, "text/event-stream")
            stream = events(response)
            found.append(await anext(stream))
            runtime.tap.add(call())
            found.append(await anext(stream))
            runtime.tap.add(TapMark(AT, "Applied", 7, "", "generation 7: ~handler notify (code)"))
            found.append(await anext(stream))
        # The server has ended: the stream has not kept it.
        found += [document async for document in stream]
    begin, called, reloaded, end = found
    assert begin == {"kind": "begin", "name": "pod-guard", "generation": 6}
    assert (called["kind"], called["key"], called["time"]) == ("call", "shop/web", "2026-01-02T03:04:05.000Z")
    assert (reloaded["kind"], reloaded["result"], reloaded["generation"]) == ("reload", "Applied", 7)
    assert end == {"kind": "end", "reason": "the process ends"}
    assert not runtime.tap.listeners


async def test_a_query_limits_the_calls(runtime: FakeRuntime):
    async with aiohttp.ClientSession() as session, serve(runtime, LOOPBACK) as bound:
        query = "of=pods&handler=notify&namespace=shop&name=w*&failed=true"
        async with session.get(f"http://{bound}/events?{query}") as response:
            stream = events(response)
            await anext(stream)
            runtime.tap.add(call())
            runtime.tap.add(call("other/web", TapOutcome.FAILED))
            runtime.tap.add(call("shop/web-1", TapOutcome.FAILED))
            assert (await anext(stream))["key"] == "shop/web-1"


async def test_a_client_that_is_too_slow_is_told_what_it_has_lost(runtime: FakeRuntime):
    """More calls at once than wait for one client: the rest is a number."""
    async with aiohttp.ClientSession() as session, serve(runtime, LOOPBACK) as bound:
        stream = events(await session.get(f"http://{bound}/events"))
        await anext(stream)
        # Without an await between: the stream, which runs on this loop, takes nothing meanwhile.
        for _ in range(MOST_WAITING + 5):
            runtime.tap.add(call())
        found = [await anext(stream) for _ in range(MOST_WAITING + 1)]
    assert found[-1] == {"kind": "dropped", "count": 5}


async def test_there_are_few_streams_at_a_time(runtime: FakeRuntime):
    """The one too many is told so, and probes go on. Without clients, calls cost nothing again."""
    async with serve(runtime, LOOPBACK) as bound, aiohttp.ClientSession() as session:
        streams = [await session.get(f"http://{bound}/events") for _ in range(MOST_LISTENERS)]
        refused = await session.get(f"http://{bound}/events")
        assert refused.status == 503
        assert "listen already" in (await refused.json())["error"]
        assert (await session.get(f"http://{bound}/status")).status == 200
        streams[0].close()
        await until(lambda: len(runtime.tap.listeners) < MOST_LISTENERS)
        assert (await session.get(f"http://{bound}/events")).status == 200
        assert runtime.tap.listeners
        await session.close()
        await until(lambda: not runtime.tap.listeners)


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("of=notifi", "No handler or resource is named notifi; did you mean notify?"),
        ("of=zebra", "No handler or resource is named zebra; there are notify, pods."),
        ("handler=pods", "No handler is named pods; there are notify."),
    ],
)
def test_an_unknown_name_is_refused(ask: Callable, query: str, words: str):
    """A stream in which nothing ever comes would look as if nothing happened."""
    answer = ask(f"/events?{query}")
    assert (answer.status, answer.json["error"]) == (404, words)


def test_a_stream_needs_the_token(ask: Callable, runtime: FakeRuntime):
    """Keys and texts of errors are for those who may see objects; `curl -I` ends at once."""
    assert ask("/events", address=EVERYWHERE).status == 403
    assert ask("/events", token="t" * 20).status == 401
    assert ask("/events", method="HEAD").status == 200
    assert not runtime.tap.listeners


async def test_a_stream_ends_with_the_right_to_it(runtime: FakeRuntime, tmp_path: Path, monkeypatch):
    """A token that was taken back shows no call any more."""
    monkeypatch.setattr("declctl.admin.tap.LOOK_SECONDS", 0.02)
    (tmp_path / "token").write_text("first")
    authorizer, given = TokenFile(tmp_path / "token"), {"Authorization": "Bearer first"}
    async with aiohttp.ClientSession() as session, serve(runtime, LOOPBACK, authorizer=authorizer) as bound:
        stream = events(await session.get(f"http://{bound}/events", headers=given))
        await anext(stream)
        (tmp_path / "token").write_text("second")
        await until(lambda: runtime.tap.add(call()) or not runtime.tap.listeners)
        *_, end = [document async for document in stream]
        assert end == {"kind": "end", "reason": "The token does not count any more."}
