"""Official clients for handlers, with the same credentials."""

import asyncio
import threading

import pytest
from aiohttp import web
from kubernetes.aio.client import ApiClient, Configuration, VersionApi

from declctl.kit import ManualClock
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


def test_handlers_get_official_clients_whose_token_stays_fresh(answering, kubeconfig, token_file):
    """A handler that keeps its client for days never shows an expired token, sync or async."""
    server, seen = answering

    async def go():
        from kubernetes.client import VersionApi as SyncVersionApi

        clock = ManualClock()
        async with server() as url:
            client = await Client.from_kubeconfig_dict(
                kubeconfig(url, {"tokenFile": str(token_file)}), clock=clock
            )
            asynchronous = VersionApi(client.api_client())
            synchronous = SyncVersionApi(client.sync_api_client())
            assert (await asynchronous.get_code()).git_version == "1"
            token_file.write_text("two")
            clock.set(61)
            await asyncio.to_thread(synchronous.get_code)
            token_file.write_text("three")
            clock.set(61)
            await asynchronous.get_code()
            await client.close()

    asyncio.run(go())
    assert seen == ["Bearer one", "Bearer two", "Bearer three"]


def test_each_loop_has_a_client_of_its_own(answering, kubeconfig, token_file, monkeypatch):
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

    async def go():
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

    asyncio.run(go())
    assert seen == ["Bearer two"]


def test_an_official_client_that_was_given_stays_its_owners(answering):
    """Who uses the machinery as a library hands over an ApiClient, and it is not closed or replaced."""
    server, seen = answering

    async def go():
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

    asyncio.run(go())
    assert seen == ["Bearer own", "Bearer own"]


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_handlers_clients_follow_no_redirect(serving, kubeconfig, status):
    """An answer that points elsewhere is an ApiException with its status; nothing is sent to that place."""
    from kubernetes.aio.client import ApiException
    from kubernetes.aio.stream import WsApiClient
    from kubernetes.client import ApiException as SyncApiException
    from kubernetes.client import VersionApi as SyncVersionApi

    asked, strayed = [], []

    async def go():
        async def stray(request):
            strayed.append(request)
            return web.json_response(VERSION)

        async with serving(stray) as elsewhere:

            async def point(request):
                asked.append(request.method)
                return web.Response(status=status, headers={"Location": f"{elsewhere}{request.path}"})

            async with serving(point) as url:
                client = await Client.from_kubeconfig_dict(
                    kubeconfig(url, {"token": "own", "as": "jane", "as-groups": ["ops"]})
                )
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
                await client.close()

    asyncio.run(go())
    assert asked == ["GET", "POST", "GET", "GET"]
    assert strayed == []
