"""Official clients for handlers, with the same credentials."""

import asyncio
import base64
import copy
import json
import threading
from contextlib import suppress

import pytest
from aiohttp import web
from kubernetes.aio.client import ApiClient, ApiException, Configuration, VersionApi
from kubernetes.aio.client import CoreV1Api as AsyncCoreV1Api
from kubernetes.aio.stream import WsApiClient
from kubernetes.aio.watch import Watch as AsyncWatch
from kubernetes.client import ApiClient as SyncApiClient
from kubernetes.client import ApiException as SyncApiException
from kubernetes.client import Configuration as SyncConfiguration
from kubernetes.client import CoreV1Api
from kubernetes.client import VersionApi as SyncVersionApi
from kubernetes.watch import Watch as SyncWatch

from declctl.errors import NotLeader, StatusError, Unreachable
from declctl.kit import ManualClock
from declctl.kit.secret_values import secret_values
from declctl.transport import Client
from declctl.transport.credentials import Credentials

NAMES = "major minor gitVersion gitCommit gitTreeState buildDate goVersion compiler platform"
VERSION = dict.fromkeys(NAMES.split(), "1")


@pytest.fixture
def answering(serving):
    """A server that answers its version; `seen` has the tokens it was shown."""
    seen = []

    async def answer(request):
        seen.append(request.headers.get("Authorization"))
        return web.json_response(VERSION)

    return lambda: serving(answer), seen


@pytest.fixture
def token_file(tmp_path):
    file = tmp_path / "token"
    file.write_text("one")
    return file


async def test_handlers_get_official_clients_whose_token_stays_fresh(answering, kubeconfig, token_file):
    """A handler that keeps its client for days never shows an expired token, sync, async or made anew."""
    server, seen = answering
    clock = ManualClock()
    async with server() as url:
        user = {"tokenFile": str(token_file)}
        client = await Client.from_kubeconfig_dict(kubeconfig(url, user), clock=clock)
        asynchronous = VersionApi(client.api_client())
        synchronous = SyncVersionApi(client.sync_api_client())
        made = ApiClient(copy.deepcopy(client.api_client().configuration))
        assert (await asynchronous.get_code()).git_version == "1"
        token_file.write_text("two")
        clock.set(61)
        await asyncio.to_thread(synchronous.get_code)
        token_file.write_text("three")
        clock.set(61)
        await asynchronous.get_code()
        async with made:
            await VersionApi(made).get_code()
        await client.close()
    assert seen == ["Bearer one", "Bearer two", "Bearer three", "Bearer three"]


async def test_each_loop_has_a_client_of_its_own(answering, kubeconfig, token_file, monkeypatch):
    """Async handlers run on another loop than the machinery, and their client works there, token and all."""
    server, seen = answering
    renewed_on = set()
    keep_fresh = Credentials.keep_fresh

    async def noting(credentials):
        renewed_on.add(asyncio.get_running_loop())
        await keep_fresh(credentials)

    monkeypatch.setattr(Credentials, "keep_fresh", noting)

    async def on_the_other_loop(client):
        api = client.api_client()
        assert client.api_client() is api
        await VersionApi(api).get_code()
        return api

    clock = ManualClock()
    async with server() as url:
        client = await Client.from_kubeconfig_dict(
            kubeconfig(url, {"tokenFile": str(token_file)}), clock=clock
        )
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever)
        thread.start()
        token_file.write_text("two")
        clock.set(61)
        future = asyncio.run_coroutine_threadsafe(on_the_other_loop(client), loop)
        assert await asyncio.wrap_future(future) is not client.api_client()
        await client.close()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
        assert renewed_on == {asyncio.get_running_loop()}  # one loop logs in, whoever asks
    assert seen == ["Bearer two"]


async def test_an_official_client_that_was_given_stays_its_owners(answering):
    """Who uses the machinery as a library hands over an ApiClient, and it is not closed or replaced."""
    server, seen = answering
    async with (
        server() as url,
        ApiClient(Configuration(host=url, api_key={"BearerToken": "Bearer own"})) as given,
    ):
        client = Client.from_api_client(given)
        assert client.identity.server == url
        assert await client.version() == "1"
        assert client.api_client() is given
        await client.close()
        await VersionApi(given).get_code()
    assert seen == ["Bearer own", "Bearer own"]


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_handlers_clients_follow_no_redirect(serving, connected, status):
    """An answer that points elsewhere is an ApiException with its status; nothing is sent to that place."""
    asked, strayed = [], []

    async def stray(request):
        strayed.append(request)
        return web.json_response(VERSION)

    async with serving(stray) as elsewhere:

        async def point(request):
            asked.append(request.method)
            return web.Response(status=status, headers={"Location": f"{elsewhere}{request.path}"})

        user = {"token": "own", "as": "jane", "as-groups": ["ops"]}
        async with connected(point, user) as (url, client):
            for method in ("GET", "POST"):
                with pytest.raises(ApiException, match=f"{url} redirects to '{elsewhere}") as caught:
                    await client.api_client().call_api(method, f"{url}/a", {}, body={})
                assert caught.value.status == status
            async with WsApiClient(client.api_client().configuration) as streaming:
                with pytest.raises(ApiException, match="redirects to"):
                    await streaming.call_api("GET", f"{url}/exec", {})
            with pytest.raises(SyncApiException) as refused:
                await asyncio.to_thread(SyncVersionApi(client.sync_api_client()).get_code)
            assert refused.value.status == status
            assert refused.value.headers["Location"].startswith(elsewhere)
    assert asked == ["GET", "POST", "GET", "GET"]
    assert strayed == []


@pytest.fixture
def writing(connected):
    """Sends a GET, a PATCH and two DELETEs by both official clients; what came, and what was refused."""

    def run(*, leads: bool, dry_run: bool):
        got, refused = [], []

        async def answer(request):
            body = await request.read()
            got.append((request.method, request.query.get("dryRun"), json.loads(body) if body else None))
            return web.json_response({})

        async def go():
            async with connected(answer) as (url, client):
                client.guard_writes(lambda: "" if leads else "this process does not lead", dry_run=dry_run)
                asynchronous, synchronous = client.api_client(), client.sync_api_client()
                sent = [
                    ("GET", None),
                    ("PATCH", {"a": 1}),
                    ("DELETE", {"gracePeriodSeconds": 3}),
                    ("DELETE", None),
                ]
                for method, body in sent:
                    headers = {"Content-Type": "application/json"}
                    request = synchronous.rest_client.request
                    for write in (
                        asynchronous.call_api(method, f"{url}/a", headers, body=body),
                        asyncio.to_thread(request, method, f"{url}/a", headers=headers, body=body),
                    ):
                        try:
                            await write
                        except NotLeader as error:
                            refused.append(str(error))
                # The machinery writes its Lease without leading.
                await client.request_json("PATCH", "/lease", body={})

        asyncio.run(go())
        return got, refused

    return run


def test_writes_of_official_clients_are_not_sent_by_a_process_that_does_not_lead(writing):
    """A handler that goes on after the lease was lost changes nothing; it may read."""
    got, refused = writing(leads=False, dry_run=False)
    assert [method for method, _, _ in got] == ["GET", "GET", "PATCH"]
    assert refused[:2] == ["PATCH /a was not sent: this process does not lead"] * 2
    assert len(refused) == 6


@pytest.mark.parametrize(
    ("dry_run", "query", "option"), [(True, "All", {"dryRun": ["All"]}), (False, None, {})]
)
def test_writes_of_official_clients_pass_a_leader(writing, dry_run, query, option):
    """As they are, or as those of a dry run, which store nothing.

    A server takes the options of a DELETE from its body, if there is one, and else from the query.
    """
    got, refused = writing(leads=True, dry_run=dry_run)
    assert refused == []
    both = [got[at : at + 2] for at in range(0, 8, 2)]
    assert [one == other for one, other in both] == [True] * 4
    assert [one for one, _ in both] == [
        ("GET", None, None),
        ("PATCH", query, {"a": 1}),
        ("DELETE", query, {"gracePeriodSeconds": 3, **option}),
        ("DELETE", query, option or None),
    ]
    assert got[8] == ("PATCH", None, {})


@pytest.mark.parametrize("copies", [lambda configuration: configuration, copy.copy, copy.deepcopy])
async def test_a_client_that_a_handler_makes_from_the_configuration_is_guarded_too(connected, copies):
    """In a dry run it stores nothing, without the lease it writes nothing, and it acts as the same user.

    A client of another configuration, as for a second cluster, is left alone.
    """
    got = []

    async def answer(request):
        got.append((request.method, request.query.get("dryRun"), request.headers.get("Impersonate-User")))
        return web.json_response({})

    async with connected(answer, {"token": "own", "as": "jane"}) as (url, client):
        leads = [True]
        client.guard_writes(lambda: "" if leads[0] else "this process does not lead", dry_run=True)

        def handle():
            made = CoreV1Api(SyncApiClient(configuration=copies(client.sync_api_client().configuration)))
            made.create_namespaced_config_map("a", {})
            leads[0] = False
            with pytest.raises(NotLeader):
                made.create_namespaced_config_map("a", {})
            other = CoreV1Api(SyncApiClient(configuration=SyncConfiguration(host=url)))
            other.create_namespaced_config_map("a", {})

        await asyncio.to_thread(handle)
    assert got == [("POST", "All", "jane"), ("POST", None, None)]


async def test_a_write_is_not_sent_again_after_the_lease_was_lost(serving, kubeconfig):
    """A server says when to send a write again, or has no connection: by then another process may lead."""
    got, leads = [], [True]

    async def answer(request):
        got.append(request.method)
        leads[0] = False
        return web.json_response({}, status=429, headers={"Retry-After": "0"})

    def is_asked_once():
        had, leads[0] = leads[0], False
        return "" if had else "this process does not lead"

    async with serving(answer) as url:
        client = await Client.from_kubeconfig_dict(kubeconfig(url, {"token": "own", "as": "jane"}))
        api = CoreV1Api(client.sync_api_client())
        client.guard_writes(lambda: "" if leads[0] else "this process does not lead", dry_run=False)
        with pytest.raises(NotLeader):
            await asyncio.to_thread(api.delete_namespaced_config_map, "b", "a")
    leads[0] = True
    client.guard_writes(is_asked_once, dry_run=False)
    with pytest.raises(NotLeader):  # the server is gone
        await asyncio.to_thread(api.delete_namespaced_config_map, "b", "a")
    await client.close()
    assert got == ["DELETE"]


async def test_a_write_that_is_sent_again_is_the_same_request(connected):
    """Each attempt of a dry run is one, and acts as the same user."""
    got = []

    async def answer(request):
        groups = request.headers.getall("Impersonate-Group")
        got.append((request.query_string, await request.text(), groups))
        if len(got) == 1:
            return web.json_response({}, status=429, headers={"Retry-After": "0"})
        return web.json_response({})

    user = {"token": "own", "as": "jane", "as-groups": ["ops", "dev"]}
    async with connected(answer, user) as (_, client):
        client.guard_writes(lambda: "", dry_run=True)
        api = CoreV1Api(client.sync_api_client())
        await asyncio.to_thread(api.delete_namespaced_config_map, "b", "a")
    assert got == [("dryRun=All", '{"dryRun": ["All"]}', ["ops", "dev"])] * 2


class Gate:
    """A gate that notes what passes it."""

    def __init__(self) -> None:
        self.passed: list[tuple] = []
        self.waited = 0

    def begin(self) -> float:
        return 7.0

    def wait(self) -> None:
        self.waited += 1

    async def wait_async(self) -> None:
        self.waited += 1

    def add(self, write, began: float) -> None:
        failure = type(write.error).__name__ if write.error is not None else None
        self.passed.append((write.method, write.body, write.status, failure, write.dry_run, began))


async def test_each_write_passes_the_gate_once(connected):
    """It counts once: for the rate, in the ledger, as refused, also if it is sent twice; no read counts."""
    got, leads, refused, gate = [], [True], [], Gate()

    def refusal():
        refused.append(not leads[0])
        return "" if leads[0] else "this process does not lead"

    async def answer(request):
        got.append(request.method)
        busy = got == ["DELETE"]
        status = 429 if busy else 403 if request.method == "POST" else 200
        return web.json_response({}, status=status, headers={"Retry-After": "0"} if busy else {})

    async with connected(answer) as (url, client):
        client.guard_writes(refusal, dry_run=True, gate=gate)
        api, asynchronous = CoreV1Api(client.sync_api_client()), client.api_client()
        await asyncio.to_thread(api.delete_namespaced_config_map, "b", "a")
        with pytest.raises(SyncApiException):
            await asyncio.to_thread(api.create_namespaced_config_map, "a", {"data": {}})
        await asyncio.to_thread(api.read_namespaced_config_map, "b", "a")
        headers = {"Content-Type": "application/json"}
        await asynchronous.call_api("PATCH", f"{url}/a", headers, body={"a": 1})
        await asynchronous.call_api("GET", f"{url}/a", headers)
        leads[0] = False
        with pytest.raises(NotLeader):
            await asynchronous.call_api("PATCH", f"{url}/a", headers, body={"a": 1})
        with pytest.raises(NotLeader):
            await asyncio.to_thread(api.delete_namespaced_config_map, "b", "a")
    assert got == ["DELETE", "DELETE", "POST", "GET", "PATCH", "GET"]
    assert sum(refused) == 2
    assert gate.waited == 3  # a write that is refused here takes no token
    assert gate.passed == [
        ("DELETE", None, 200, None, True, 7.0),
        ("POST", '{"data": {}}', 403, None, True, 7.0),
        ("PATCH", b'{"a": 1}', 200, None, True, 7.0),
        ("PATCH", b'{"a": 1}', None, "NotLeader", True, 7.0),
        ("DELETE", None, None, "NotLeader", True, 7.0),
    ]


@pytest.mark.client_go("Probes & metrics")
async def test_each_request_is_counted_by_method_and_code(serving, kubeconfig):
    """`rest_client_requests_total` has the requests of the machinery, and of handlers by both clients.

    So have the observers of warnings: an answer may be a success, and the server may have dropped a field.
    """
    warned = []

    async def answer(request):
        response = web.json_response({}, status=404 if request.path == "/none" else 200)
        if request.method == "PATCH" or request.path == "/version":
            response.headers.add("Warning", '299 - "one", 299 - "two"')
            response.headers.add("Warning", '299 - "three"')
        return response

    async with serving(answer) as url:
        client = await Client.from_kubeconfig_dict(kubeconfig(url, {"token": "own"}))
        client.warnings.observer = lambda *seen: warned.append(seen)
        await client.version()
        headers = {"Content-Type": "application/json"}
        for method, path in (("GET", "/"), ("PATCH", "/"), ("GET", "/none")):
            call = (method, f"{url}{path}", headers)
            with suppress(ApiException, SyncApiException):
                await client.api_client().call_api(*call, body={})
            with suppress(ApiException, SyncApiException):
                await asyncio.to_thread(client.sync_api_client().call_api, *call, body={})
        client.guard_writes(lambda: "this process does not lead", dry_run=False)
        with pytest.raises(NotLeader):
            await client.api_client().call_api("DELETE", f"{url}/", headers)
        with pytest.raises(NotLeader):
            client.sync_api_client().call_api("DELETE", f"{url}/", headers)
        counted = {(each.method, each.code): each.count for each in client.statistics().totals}
    # The server is gone.
    with pytest.raises(Unreachable):
        await client.version()
    after = {(each.method, each.code): each.count for each in client.statistics().totals}
    await client.close()
    assert counted == {("GET", "200"): 3, ("GET", "404"): 2, ("PATCH", "200"): 2}
    assert after == {**counted, ("GET", "<error>"): 1}
    texts = ["one", "two", "three"]
    assert warned == [("GET", "/version", texts), ("PATCH", "/", texts), ("PATCH", "/", texts)]


async def watched(client, token):
    stream = AsyncWatch().stream(AsyncCoreV1Api(client.api_client()).list_namespaced_secret, token)
    return await anext(stream)


def watched_in_a_thread(client, token):
    return next(SyncWatch().stream(CoreV1Api(client.sync_api_client()).list_namespaced_secret, token))


def by_hand(client, method, token, **options):
    """As the dynamic client reads: not before it needs the content."""
    manager, url = client.sync_api_client().rest_client.pool_manager, client.identity.server
    return manager.request(
        method, f"{url}/api/v1/namespaces/{token}/secrets/s", preload_content=False, **options
    ).data


PASSING = {
    "get": lambda client, token: AsyncCoreV1Api(client.api_client()).read_namespaced_secret("s", token),
    "list": lambda client, token: AsyncCoreV1Api(client.api_client()).list_namespaced_secret(token),
    "watch": watched,
    "sync get": lambda client, token: asyncio.to_thread(by_hand, client, "GET", token),
    "sync list": lambda client, token: asyncio.to_thread(
        CoreV1Api(client.sync_api_client()).list_namespaced_secret, token
    ),
    "sync watch": lambda client, token: asyncio.to_thread(watched_in_a_thread, client, token),
    "refused": lambda client, token: AsyncCoreV1Api(client.api_client()).create_namespaced_secret(
        "refused", {"stringData": {"a": token}}
    ),
    "sync refused": lambda client, token: asyncio.to_thread(
        by_hand, client, "PATCH", "refused", body=json.dumps([{"path": "/stringData/a", "value": token}])
    ),
    "own get": lambda client, token: client.request_json("GET", f"/api/v1/namespaces/{token}/secrets/s"),
    "own refused": lambda client, token: client.request_json(
        "PATCH", "/api/v1/namespaces/refused/secrets/s", body={"stringData": {"a": token}}
    ),
}


@pytest.mark.parametrize("way", PASSING)
async def test_values_of_secrets_that_pass_are_remembered(connected, way):
    """What a handler has read or written through a client is hidden; of other kinds it is not.

    The server answers with the name of the namespace as the value, or refuses and quotes the body.
    """

    async def answer(request):
        _, _, _, _, namespace, *rest = request.path.split("/")
        if namespace == "refused":
            return web.json_response({"kind": "Status", "message": await request.text()}, status=422)
        found = {"apiVersion": "v1", "kind": rest[0].title()[:-1], "metadata": {"name": "s"}}
        found["data"] = {"a": base64.b64encode(namespace.encode()).decode()}
        if request.query.get("watch"):
            return web.Response(text=json.dumps({"type": "ADDED", "object": found}) + "\n")
        del found["apiVersion"], found["kind"]  # as in a list
        return web.json_response(found if rest[1:] else {"kind": "SecretList", "items": [found]})

    token = f"mark-{way.replace(' ', '-')}-er"
    async with connected(answer) as (_, client):
        with suppress(ApiException, StatusError):  # refused
            await PASSING[way](client, token)
        assert secret_values.hide(f"it is {token}") == "it is (hidden)"
        path = "/api/v1/namespaces/mark-of-another-kind/configmaps/secrets"
        await client.request_json("GET", path)
        await client.api_client().rest_client.request("GET", f"{client.identity.server}{path}")
    assert secret_values.hide("mark-of-another-kind") == "mark-of-another-kind"
