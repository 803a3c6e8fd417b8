"""What the tests of the admin address share."""

import asyncio
from collections.abc import Callable

import pytest
from fake_runtime import LOOPBACK, Answer, FakeRuntime, request

from declctl.admin import serve
from declctl.manifest.model import Address


@pytest.fixture(name="runtime")
def _runtime() -> FakeRuntime:
    return FakeRuntime()


@pytest.fixture(name="ask")
def _ask(runtime: FakeRuntime) -> Callable[..., Answer]:
    """One request to a server that is started for it."""

    def ask(
        path: str,
        *,
        method: str = "GET",
        address: Address = LOOPBACK,
        token: str | None = None,
        **headers: str,
    ) -> Answer:
        async def scenario() -> Answer:
            async with serve(runtime, address, token=token) as bound:
                return await request(bound, path, method=method, headers=headers)

        return asyncio.run(scenario())

    return ask
