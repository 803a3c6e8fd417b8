"""Official API clients for user code: the same cluster, the same fresh credentials."""

import asyncio
from typing import Any

from declctl.transport.credentials import LOGIN_SECONDS, TOKEN, Credentials

# What the synchronous Configuration has in common with the asyncio one.
_SHARED = (
    "host",
    "ssl_ca_cert",
    "ca_cert_data",
    "cert_file",
    "key_file",
    "verify_ssl",
    "assert_hostname",
    "tls_server_name",
    "disable_strict_ssl_verification",
)


class OfficialClients:
    """Makes official clients and closes them.

    `given` is one that is somebody else's, which is handed on and never closed. An asyncio client
    belongs to the loop that it was asked for on; there is one for each.
    """

    def __init__(self, credentials: Credentials, *, given: Any, user_agent: str) -> None:
        self._credentials = credentials
        self._given = given
        self._user_agent = user_agent
        self._by_loop: dict[asyncio.AbstractEventLoop, Any] = {}
        self._synchronous: Any = None
        self._home: asyncio.AbstractEventLoop | None = None

    def live_on(self, loop: asyncio.AbstractEventLoop) -> None:
        """Say on which loop the credentials are renewed, wherever they are asked for."""
        if self._home is None:
            self._home = loop
            if self._given is None:
                self._credentials.configuration.refresh_api_key_hook = self._renew_async

    def asynchronous(self) -> Any:
        """The kubernetes.aio ApiClient for the running loop."""
        if self._given is not None:
            return self._given
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError as error:
            raise RuntimeError(
                "the asynchronous client belongs to a loop, so it is for `async def` hooks; a `def` hook has "
                "ctx.sync_client"
            ) from error
        if loop not in self._by_loop:
            from kubernetes.aio.client import ApiClient  # late: half a second

            client = ApiClient(configuration=self._credentials.configuration)
            client.user_agent = self._user_agent
            self._by_loop[loop] = client
        return self._by_loop[loop]

    def synchronous(self) -> Any:
        """The kubernetes.client ApiClient, for any thread."""
        if self._synchronous is None:
            from kubernetes.client import ApiClient, Configuration  # late: half a second

            theirs: Any = Configuration()
            ours = self._credentials.configuration
            for name in _SHARED:
                setattr(theirs, name, getattr(ours, name))
            if ours.proxy:
                theirs.proxy = ours.proxy
                theirs.proxy_headers = ours.proxy_headers
            for name, key in ours.api_key.items():
                prefix = ours.api_key_prefix.get(name)
                theirs.api_key[name] = f"{prefix} {key}" if prefix else key
            theirs.refresh_api_key_hook = self._renew_sync
            self._synchronous = ApiClient(configuration=theirs)
            self._synchronous.user_agent = self._user_agent
        return self._synchronous

    async def close(self) -> None:
        """Close what was made here, each client on its own loop."""
        clients, self._by_loop = self._by_loop, {}
        for loop, client in clients.items():
            if loop is asyncio.get_running_loop() or not loop.is_running():
                await client.close()
            else:
                await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(client.close(), loop))
        synchronous, self._synchronous = self._synchronous, None
        if synchronous is not None:
            synchronous.close()

    async def _renew_async(self, _: Any) -> None:
        home = self._home
        if home is None or not home.is_running() or _runs_here(home):
            await self._credentials.keep_fresh()
        else:
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._credentials.keep_fresh(), home))

    def _renew_sync(self, theirs: Any) -> None:
        home = self._home
        if home is None or not home.is_running() or _runs_here(home):
            return  # nobody can wait for a login here: the last token has to do
        proof = asyncio.run_coroutine_threadsafe(self._credentials.proof(), home).result(LOGIN_SECONDS + 5)
        if proof.authorization:
            theirs.api_key[TOKEN] = proof.authorization


def _runs_here(loop: asyncio.AbstractEventLoop) -> bool:
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False
