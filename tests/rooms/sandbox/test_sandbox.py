"""The whole server, over real HTTP on a loop of its own."""

import asyncio
import json
from contextlib import asynccontextmanager

import aiohttp
import pytest

from declctl.errors import SandboxError
from declctl.kit import ManualClock
from declctl.sandbox import Sandbox
from declctl.sandbox.faults import Match
from tests.rooms.sandbox.shapes import config_map, definition, pod, widget

PODS = "/api/v1/namespaces/default/pods"
WATCH_LIST = {"watch": "true", "sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan",
              "allowWatchBookmarks": "true"}  # fmt: skip


@asynccontextmanager
async def running(**options):
    async with (
        Sandbox(clock=ManualClock(), seed=1, **options) as sandbox,
        asyncio.timeout(20),
        aiohttp.ClientSession(sandbox.url) as session,
    ):
        yield sandbox, session


async def event(response):
    return json.loads(await response.content.readline())


async def answer(session, method, path, **options):
    async with session.request(method, path, **options) as response:
        return response.status, json.loads(await response.read())


async def test_objects_are_written_and_read():
    """Create, get, list, replace, patch and delete work over HTTP with the right codes."""
    async with running() as (_, session):
        code, created = await answer(session, "POST", PODS, json=pod("a"))
        assert (code, created["metadata"]["name"]) == (201, "a")
        assert (await answer(session, "POST", PODS, json=pod("a")))[0] == 409
        code, got = await answer(session, "GET", f"{PODS}/a")
        assert (code, got) == (200, created)
        code, listed = await answer(session, "GET", PODS)
        assert (listed["kind"], listed["items"][0].get("kind")) == ("PodList", None)
        patched = await answer(
            session, "PATCH", f"{PODS}/a", data='{"metadata":{"labels":{"x":"y"}}}',
            headers={"Content-Type": "application/merge-patch+json"},
        )  # fmt: skip
        assert patched[1]["metadata"]["labels"]["x"] == "y"
        code, gone = await answer(session, "DELETE", f"{PODS}/a")
        assert (code, gone["metadata"]["name"]) == (200, "a")
        assert (await answer(session, "GET", f"{PODS}/a"))[0] == 404


async def test_a_deleted_config_map_is_a_success():
    """Kinds whose delete answers with a Status do so, with the uid that kubectl waits for."""
    async with running() as (sandbox, session):
        created = sandbox.store.create(config_map("a"))
        _, status = await answer(session, "DELETE", "/api/v1/namespaces/default/configmaps/a")
        assert status["status"] == "Success"
        assert status["details"]["uid"] == created["metadata"]["uid"]


async def test_a_collection_is_deleted():
    async with running() as (sandbox, session):
        sandbox.load([pod("a"), pod("b", labels={"app": "db"})])
        _, deleted = await answer(session, "DELETE", PODS, params={"labelSelector": "app=db"})
        assert [item["metadata"]["name"] for item in deleted["items"]] == ["b"]
        assert [obj["metadata"]["name"] for obj in sandbox.store.objects("Pod")] == ["a"]


async def test_items_of_custom_lists_say_what_they_are():
    """As in the real server, items of custom kinds carry apiVersion and kind, in the version of the URL."""
    async with running() as (sandbox, session):
        sandbox.load([definition(), widget("w")])
        _, listed = await answer(session, "GET", "/apis/example.com/v1beta1/widgets")
        assert listed["items"][0]["apiVersion"] == "example.com/v1beta1"


async def test_tables_and_metadata_on_demand():
    """The Accept header decides whether a list is objects, a table, or metadata only."""
    async with running() as (sandbox, session):
        sandbox.load([pod("a", phase="Running")])
        table = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"}
        _, shown = await answer(session, "GET", PODS, headers=table)
        assert (shown["kind"], shown["rows"][0]["cells"][:3]) == ("Table", ["a", "0/1", "Running"])
        partial = {"Accept": "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"}
        _, listed = await answer(session, "GET", PODS, headers=partial)
        assert set(listed["items"][0]) == {"kind", "apiVersion", "metadata"}
        assert (await answer(session, "GET", PODS, headers={"Accept": "text/html"}))[0] == 406


async def test_a_watch_streams_lines():
    """Changes come as they happen, one JSON object per line; the request is in the ledger once."""
    async with running() as (sandbox, session):
        async with session.get(PODS, params={"watch": "1"}) as response:
            sandbox.store.create(pod("a"))
            sandbox.store.delete("Pod", "a")
            assert (await event(response))["type"] == "ADDED"
            assert (await event(response))["type"] == "DELETED"
            assert sandbox.faults.document()["openWatches"] == 1
        while sandbox.faults.document()["openWatches"]:  # until a client that has left is forgotten
            await asyncio.sleep(0.001)
        assert sandbox.ledger.count("watch", resource="pods", namespace="default") == 1
        assert sandbox.ledger.count("list") == 0


async def test_a_watch_list_streams_and_goes_on():
    """Initial events, their end, then the live changes, all on one request."""
    async with running() as (sandbox, session):
        sandbox.store.create(pod("a"))
        async with session.get(PODS, params=WATCH_LIST) as response:
            assert (await event(response))["type"] == "ADDED"
            end = await event(response)
            assert end["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}
            sandbox.store.create(pod("b"))
            assert (await event(response))["object"]["metadata"]["name"] == "b"


async def test_bookmarks_come_by_themselves_until_the_timeout():
    """Each watch that allows them gets one every interval and one before its end, which is in time."""
    params = {"watch": "1", "timeoutSeconds": "15"}
    async with (
        running(bookmark_interval=10) as (sandbox, session),
        session.get(PODS, params=params) as other,
        session.get(PODS, params={**params, "allowWatchBookmarks": "true"}) as response,
    ):
        for seconds in (10, 5):
            await sandbox.clock.advance(seconds)
            assert (await event(response))["type"] == "BOOKMARK"
        assert await response.content.read() == b""
        assert await other.content.read() == b""


@pytest.mark.parametrize(
    ("order", "ends_cleanly"),
    [
        (lambda faults: faults.cut_watches(clean=True), True),
        (lambda faults: faults.cut_watches(), False),
        (lambda faults: faults.cut_mid_line(), False),
    ],
    ids=["clean", "hard", "mid line"],
)
async def test_watches_can_be_cut(order, ends_cleanly):
    """A cut ends the stream: politely, by the socket, or in the middle of a line (client-go 63)."""
    async with running() as (sandbox, session), session.get(PODS, params={"watch": "1"}) as response:
        assert order(sandbox.faults) == 1
        if ends_cleanly:
            assert await response.content.read() == b""
        else:
            with pytest.raises(aiohttp.ClientPayloadError):
                await response.content.read()


async def test_a_silent_watch_says_nothing_until_it_speaks():
    """Nothing comes through, not even a bookmark; then everything that was held back."""
    async with running() as (sandbox, session):
        sandbox.faults.silence("pods")
        async with session.get(PODS, params={"watch": "1", "allowWatchBookmarks": "true"}) as response:
            sandbox.store.create(pod("a"))
            sandbox.faults.bookmark()
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await response.content.readline()
            sandbox.faults.speak()
            assert [(await event(response))["type"] for _ in range(2)] == ["ADDED", "BOOKMARK"]


async def test_the_end_of_initial_events_can_be_withheld():
    """Then a WatchList never completes: a client needs a deadline (client-go 62)."""
    async with running() as (sandbox, session):
        sandbox.faults.withhold_initial_events_end = True
        sandbox.store.create(pod("a"))
        async with session.get(PODS, params=WATCH_LIST) as response:
            sandbox.faults.bookmark()
            assert (await event(response))["type"] == "ADDED"
            assert "annotations" not in (await event(response))["object"]["metadata"]


@pytest.mark.parametrize(("mode", "code"), [("invalid", 422), ("ignored", 200)])
async def test_old_servers_know_no_watch_list(mode, code):
    """They refuse sendInitialEvents with 422, or don't see it and send no end (client-go 150)."""
    async with running() as (sandbox, session):
        sandbox.faults.watch_list = mode
        sandbox.store.create(pod("a"))
        async with session.get(PODS, params=WATCH_LIST) as response:
            assert response.status == code
            if code == 200:
                assert (await event(response))["type"] == "ADDED"
                sandbox.faults.cut_watches(clean=True)
                assert await response.content.read() == b""


async def test_a_compacted_watch_is_an_error_event():
    """410 comes as ERROR in the stream, or as the HTTP status if ordered (client-go 55)."""
    async with running() as (sandbox, session):
        sandbox.store.create(pod("a"))
        sandbox.store.create(pod("b"))
        sandbox.faults.compact()
        params = {"watch": "1", "resourceVersion": "1"}
        async with session.get(PODS, params=params) as response:
            error = await event(response)
            assert error["type"] == "ERROR"
            assert (error["object"]["code"], error["object"]["reason"]) == (410, "Expired")
            assert await response.content.read() == b""
        sandbox.faults.expired_watch = "status"
        assert (await answer(session, "GET", PODS, params=params))[0] == 410


async def test_broken_and_huge_lines():
    """A line that is no JSON, and one of a megabyte, arrive as they are ordered."""
    async with (
        running() as (sandbox, session),
        session.get(PODS, params={"watch": "1"}, read_bufsize=4 << 20) as response,
    ):
        sandbox.faults.malformed_line()
        with pytest.raises(json.JSONDecodeError):
            await event(response)
        sandbox.faults.huge_line(1 << 20)
        huge = await event(response)
        assert len(huge["object"]["metadata"]["annotations"]["huge"]) == 1 << 20


async def test_refusals_reach_the_client():
    """A 429 has its Retry-After header, and only the matching requests are refused."""
    async with running() as (sandbox, session):
        sandbox.faults.refuse(429, Match(verb="list"), times=1, retry_after=3)
        async with session.get(PODS) as response:
            assert (response.status, response.headers["Retry-After"]) == (429, "3")
            assert (await response.json())["details"]["retryAfterSeconds"] == 3
        assert (await answer(session, "GET", PODS))[0] == 200
        assert sandbox.ledger.count("list") == 2


async def test_an_answer_can_be_lost():
    """The request is done, and the client does not hear of it."""
    async with running() as (sandbox, session):
        sandbox.faults.lose(Match(verb="write"), times=1)
        with pytest.raises(aiohttp.ServerDisconnectedError):
            await answer(session, "POST", PODS, json=pod("a"))
        assert [each["metadata"]["name"] for each in sandbox.store.objects("Pod")] == ["a"]


async def test_latency_delays_the_answer():
    async with running() as (sandbox, session):
        sandbox.faults.delay(60, Match(resource="pods"))
        waiting = asyncio.create_task(answer(session, "GET", PODS))
        while sandbox.ledger.count("list") == 0:
            await asyncio.sleep(0.001)
        assert not waiting.done()
        await sandbox.clock.advance(60)
        assert (await waiting)[0] == 200


async def test_faults_and_ledger_over_http():
    """Another process can order faults and read the ledger."""
    async with running() as (_, session):
        order = {"fault": "refuse", "status": 503, "verb": "list", "resource": "pods"}
        assert (await answer(session, "POST", "/sandbox/faults", json=order))[1]["rules"][0]["status"] == 503
        assert (await answer(session, "GET", PODS))[0] == 503
        assert (await answer(session, "GET", "/sandbox/ledger", params={"verb": "list"}))[1]["count"] == 1
        assert (await answer(session, "DELETE", "/sandbox/faults"))[1]["rules"] == []
        await answer(session, "DELETE", "/sandbox/ledger")
        assert (await answer(session, "GET", "/sandbox/ledger"))[1]["count"] == 0
        assert (await answer(session, "POST", "/sandbox/faults", data=b"{"))[0] == 400
        assert (await answer(session, "GET", "/sandbox/nope"))[0] == 404


async def test_it_comes_back_on_the_same_port_with_its_objects():
    """Stopped, it refuses connections; started again, it has the same URL and the same objects."""
    async with running() as (sandbox, session):
        sandbox.store.create(pod("a"))
        url = sandbox.url
        async with session.get(PODS, params={"watch": "1"}) as response:
            await event(response)
            await sandbox.stop()
            with pytest.raises(aiohttp.ClientError):
                await response.content.read()
        with pytest.raises(aiohttp.ClientConnectionError):
            await answer(session, "GET", PODS)
        assert await sandbox.start() == url
        assert len((await answer(session, "GET", PODS))[1]["items"]) == 1


async def test_an_outage_ends_by_itself():
    """Ordered over HTTP, the server goes away and comes back after so many seconds."""
    async with running() as (sandbox, session):
        await answer(session, "POST", "/sandbox/faults", json={"fault": "outage", "seconds": 5})
        while sandbox.is_listening:
            await asyncio.sleep(0.001)
        with pytest.raises(aiohttp.ClientConnectionError):
            await answer(session, "GET", PODS)
        while sandbox.clock.next_wake is None:
            await asyncio.sleep(0.001)
        await sandbox.clock.advance(5)
        while not sandbox.is_listening:
            await asyncio.sleep(0.001)
        assert (await answer(session, "GET", PODS))[0] == 200


async def test_a_taken_port_is_a_sentence():
    async with running() as (sandbox, _):
        port = int(sandbox.url.rpartition(":")[2])
        with pytest.raises(SandboxError, match=f"can't listen on 127.0.0.1:{port}"):
            await Sandbox().start(port=port)
        with pytest.raises(SandboxError, match="listens already"):
            await sandbox.start()


async def test_churn_keeps_its_rate():
    """A churn of 10 makes ten changes a second by the clock."""
    async with running() as (sandbox, _):
        living = asyncio.create_task(sandbox.churn(10))
        await sandbox.clock.settle()
        before = sandbox.store.version
        await sandbox.clock.advance(2.05)
        living.cancel()
        assert 20 <= sandbox.store.version - before <= 40  # a graceful deletion is two events


async def test_writes_over_http_say_who_wrote():
    """Bodies that are no objects, and options that don't exist, are refused in the real server's words."""
    async with running() as (_, session):
        maps = "/api/v1/namespaces/default/configmaps"
        for kind, broken, code in (("application/json", b"{broken", 400), ("text/plain", b"x", 415)):
            headers = {"Content-Type": kind}
            assert (await answer(session, "POST", maps, data=broken, headers=headers))[0] == code
        assert (await answer(session, "POST", f"{maps}?dryRun=foo", json=config_map("a")))[0] == 422
        assert (await answer(session, "POST", f"{maps}?dryRun=All", json=config_map("a")))[0] == 201
        yaml = {"Content-Type": "application/yaml"}
        body = b"metadata: {name: y}\ndata: {t: 'x'}"
        code, made = await answer(session, "POST", maps, data=body, headers=yaml)
        assert (code, made["kind"]) == (201, "ConfigMap")
        apply = {"Content-Type": "application/apply-patch+yaml"}
        url = f"{maps}/z?fieldManager=me"
        body = b"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: z}\ndata: {a: b}"
        assert (await answer(session, "PATCH", url, data=body, headers=apply))[0] == 201
        assert (await answer(session, "PATCH", url, data=body, headers=apply))[0] == 200
