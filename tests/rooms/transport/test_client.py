"""The client as a whole, against a server that lists and watches."""

import contextlib
import json
import subprocess
import sys

import pytest
from aiohttp import web

from declctl.decoding import Projection
from declctl.errors import Conflict, InvalidWrite, MalformedAnswer
from declctl.objects import GroupVersionKind, ListOptions, WatchOptions

POD = GroupVersionKind.of("v1", "Pod")


def item(name):
    return {"metadata": {"name": name, "namespace": "default", "uid": name, "resourceVersion": "5"}}


async def test_a_resource_is_discovered_listed_and_watched(connected, core):
    """From a kind in a manifest to its events, with the three requests that it takes."""

    async def answer(request):
        if request.path == "/api/v1":
            return web.json_response(core)
        if "watch" not in request.query:
            return web.json_response({"metadata": {"resourceVersion": "5"}, "items": [item("a"), item("b")]})
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(json.dumps({"type": "DELETED", "object": item("a")}).encode() + b"\n")
        return response

    async with connected(answer) as (_, client):
        pods = client.source(POD, projection=Projection(api_version="v1", kind="Pod"))
        found = await pods.list(ListOptions(limit=500))
        async with contextlib.aclosing(pods.watch(WatchOptions(resource_version="5"))) as events:
            deleted = [event async for batch in events for event in batch]
        figures = client.statistics()
    assert [record.key for record in found.records] == ["default/a", "default/b"]
    assert [event.record.key for event in deleted] == ["default/a"]
    assert figures.requests == {("GET", 200): 1, ("LIST", 200): 1, ("WATCH", 200): 1}
    assert (figures.open_watches, figures.last_error) == (0, None)


async def test_a_request_carries_its_body_and_type(connected):
    """Patches, leases and events go through the same gate, each with its content type."""
    seen = []

    async def answer(request):
        seen.append((request.method, request.path_qs, request.content_type, await request.json()))
        return web.json_response({"done": True})

    sent = [
        ("application/merge-patch+json", {"a": 1}),
        ("application/apply-patch+yaml", {"b": 2}),
        ("application/json-patch+json", [{"op": "remove", "path": "/c"}]),
    ]
    async with connected(answer) as (_, client):
        for content_type, body in sent:
            answered = await client.request_json(
                "patch", "/api/v1/x", params={"fieldManager": "a b"}, body=body, content_type=content_type
            )
            assert answered == {"done": True}
    assert seen == [("PATCH", "/api/v1/x?fieldManager=a+b", *each) for each in sent]


async def test_a_refusal_and_a_page_are_errors_of_their_kind(connected):
    """A conflict is told as a conflict, and a captive portal that answers 200 is not taken for a server.

    A body that can't be written as JSON is no fault of the server, and is not sent.
    """

    async def answer(request):
        if request.method == "PUT":
            return web.json_response({"kind": "Status", "code": 409, "reason": "Conflict"}, status=409)
        return web.Response(text="<html>Log in to the WiFi")

    async with connected(answer) as (_, client):
        with pytest.raises(Conflict):
            await client.request_json("PUT", "/x", body={})
        with pytest.raises(MalformedAnswer, match="Log in to the WiFi"):
            await client.version()
        requests = client.statistics().requests
        for body in ({"a": object()}, {"name": "\ud800"}):
            with pytest.raises(InvalidWrite, match="the body of PUT /x can't be written as JSON"):
                await client.request_json("PUT", "/x", body=body)
        assert client.statistics().requests == requests


def test_importing_the_room_loads_no_client():
    """`declctl version` and `validate` stay fast: an import loads neither aiohttp nor the official client."""
    code = "import sys, declctl.transport; print({'aiohttp', 'kubernetes', 'yaml'} & set(sys.modules))"
    result = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert result.stdout.strip() == "set()"


@pytest.mark.parametrize(
    ("date", "expected"),
    [("Wed, 21 Oct 2026 07:28:00 GMT", "2026-10-21T07:28:00+00:00"), ("yesterday", None)],
)
async def test_the_clock_of_the_server_is_read_from_its_answer(connected, date, expected):
    """`declctl doctor` compares it with the own clock; an unreadable date is no time."""

    async def answer(_):
        return web.json_response({"gitVersion": "v1.36.3"}, headers={"Date": date})

    async with connected(answer) as (_, client):
        found = await client.server_time()
    assert (found and found.isoformat()) == expected
