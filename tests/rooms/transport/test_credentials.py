"""When credentials are renewed, and where their files are."""

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest
from kubernetes.aio.client import Configuration

from declctl.errors import Unauthorized, UsageError
from declctl.kit import ManualClock
from declctl.transport.credentials import Credentials, PrivateFiles, first_login


class Counting:
    """A login that gives a new token each time, after letting others run."""

    def __init__(self, *, lasts=timedelta(minutes=10), fault=None, token="token-{}"):
        self.runs = 0
        self.lasts = lasts
        self.fault = fault
        self.token = token

    async def load(self, configuration, *, afresh):
        self.runs += 1
        await asyncio.sleep(0)
        if self.fault:
            raise UsageError(self.fault)
        configuration.api_key["BearerToken"] = self.token.format(self.runs)

    def good_for(self, now):
        return self.lasts


async def made(login):
    clock = ManualClock()
    configuration = Configuration()
    await first_login(login, configuration)
    return Credentials(configuration, login=login, clock=clock), clock


async def token(credentials):
    return (await credentials.proof()).authorization


async def test_a_token_is_renewed_when_it_is_due_and_not_before():
    """A process that runs for a week never shows an expired token."""
    login = Counting()
    credentials, clock = await made(login)
    assert await token(credentials) == "token-1"
    clock.set(599)
    assert await token(credentials) == "token-1"
    clock.set(1)
    assert await token(credentials) == "token-2"


async def test_many_requests_log_in_once():
    """A hundred watches whose token runs out start one login, and not a hundred browsers."""
    login = Counting()
    credentials, clock = await made(login)
    clock.set(600)
    assert await asyncio.gather(*(token(credentials) for _ in range(20))) == ["token-2"] * 20
    assert login.runs == 2


async def test_a_refused_token_is_replaced_once_for_everybody():
    """After a 401 one login serves all the requests that were refused."""
    login = Counting()
    credentials, _ = await made(login)
    refused = await credentials.proof()
    assert await asyncio.gather(*(credentials.renew(refused) for _ in range(20))) == [True] * 20
    assert login.runs == 2


async def test_a_server_that_refuses_everything_is_not_hammered():
    """With a revoked account, the login is not repeated for each 401 but every ten seconds at most."""
    login = Counting()
    credentials, clock = await made(login)
    assert await credentials.renew(await credentials.proof())
    assert not await credentials.renew(await credentials.proof())
    clock.set(9)
    assert not await credentials.renew(await credentials.proof())
    clock.set(1)
    assert await credentials.renew(await credentials.proof())
    assert login.runs == 3


async def test_a_login_that_changes_nothing_says_so():
    """A static token that the server refuses ends in its 401, without another try."""
    login = Counting(token="always")
    credentials, _ = await made(login)

    assert await credentials.renew(await credentials.proof()) is False


async def test_a_renewal_that_fails_keeps_the_token_and_tries_again_later():
    """A login service that is down for a minute does not stop what still works."""
    login = Counting()
    credentials, clock = await made(login)
    login.fault = "the login service is down"
    clock.set(600)
    assert await token(credentials) == "token-1"
    assert await token(credentials) == "token-1"
    assert (login.runs, credentials.fault) == (2, "the login service is down")
    login.fault = None
    clock.set(10)
    assert await token(credentials) == "token-3"
    assert credentials.fault is None


async def test_a_login_that_fails_after_a_refusal_is_the_error():
    """The log says why nobody is logged in, and not only that the server answered 401."""
    login = Counting()
    credentials, _ = await made(login)
    login.fault = "the plugin is gone"
    with pytest.raises(Unauthorized, match="the plugin is gone"):
        await credentials.renew(await credentials.proof())


async def test_a_rotated_certificate_file_is_another_proof(tmp_path):
    """Client certificates and authorities that rotate under their names are noticed."""
    login = Counting(token="always")
    credentials, clock = await made(login)
    credentials.configuration.ssl_ca_cert = str(tmp_path / "ca.crt")

    async def proof_after(text):
        (tmp_path / "ca.crt").write_text(text)
        clock.set(600)
        return await credentials.proof()

    assert await proof_after("one") != await proof_after("other")


def test_somebody_elses_configuration_refreshes_itself():
    """An official client that was handed over keeps its own way to refresh its token."""
    configuration = Configuration(api_key={"BearerToken": "first"})

    async def hook(theirs):
        theirs.api_key["BearerToken"] = "from-their-hook"

    configuration.refresh_api_key_hook = hook
    credentials = Credentials(configuration, login=None, clock=ManualClock())
    assert asyncio.run(token(credentials)) == "from-their-hook"


def test_a_ca_stays_while_certificates_are_rotated():
    """A plugin gives a certificate every few minutes: what every login uses is never let go for it."""
    files = PrivateFiles()
    ca = files.path(b"ca")
    for number in range(40):
        files.path(b"certificate %d" % number)
        files.path(b"key %d" % number)
        assert files.path(b"ca") == ca
    assert Path(ca).read_bytes() == b"ca"
