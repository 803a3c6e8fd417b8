"""Credentials that stay fresh: renewed before they expire, and after a server has refused them.

How to log in is a `Login`'s business (a kubeconfig, a service account) and in the end the official
client's. Here is decided when, and that it happens once however many requests wait for it.
"""

import asyncio
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Protocol

from declctl.errors import DeclctlError, Unauthorized, UsageError
from declctl.kit import Clock
from declctl.transport.official_config import OfficialConfiguration

LOGIN_SECONDS = 60  # an exec plugin may open a browser; it may not hold up a controller for ever
AGAIN_SECONDS = 10  # after a login that failed, and between two that a server's refusal has forced
TOKEN = "BearerToken"


class Login(Protocol):
    """One way to log in."""

    async def load(self, configuration: OfficialConfiguration, *, afresh: bool) -> None:
        """Put token and certificates into an official Configuration.

        `afresh`: what was remembered has been refused. Raises UsageError with a sentence.
        """
        ...

    def good_for(self, now: datetime) -> timedelta:
        """How long what was loaded may be used before `load` is called again."""
        ...


@dataclass(frozen=True, slots=True)
class Proof:
    """What one request shows: its Authorization header and the state of its certificate files."""

    authorization: str | None
    files: tuple[tuple[str, int, int], ...]


class Credentials:
    """The credentials of one client. Used on the client's loop only.

    `configuration` is the official Configuration that everything is read from. Without a `login` it
    belongs to the caller, whose own hook refreshes it.
    """

    def __init__(self, configuration: OfficialConfiguration, *, login: Login | None, clock: Clock) -> None:
        self.configuration = configuration
        self.fault: str | None = None
        self._login = login
        self._clock = clock
        self._lock = asyncio.Lock()
        self._files = _files(configuration)
        self._due: datetime | None = None if login is None else self._next()
        self._forced_at: float | None = None

    async def proof(self) -> Proof:
        """What to show now, renewed if it was due.

        If the renewal fails, the old credentials stay: the server decides.
        """
        await self.keep_fresh()
        return Proof(await self._authorization(), self._files)

    async def keep_fresh(self) -> None:
        """Log in again if it is time to; never raises for a login that fails."""
        if self._is_due():
            async with self._lock:
                if self._is_due():  # somebody else may have done it while this waited
                    await self._load(afresh=False)

    async def renew(self, refused: Proof) -> bool:
        """A server answered 401 to `refused`: log in again.

        Says whether there is now something else to show. At most once in `AGAIN_SECONDS`, however
        many requests were refused. Raises Unauthorized when the login itself fails.
        """
        async with self._lock:
            if await self._shows_other_than(refused):
                return True
            now = self._clock.monotonic()
            if self._login is None or (self._forced_at is not None and now - self._forced_at < AGAIN_SECONDS):
                return False
            self._forced_at = now
            await self._load(afresh=True)
            if self.fault is not None:
                raise Unauthorized(
                    401, "Unauthorized", f"the server refused the credentials, and {self.fault}"
                )
            return await self._shows_other_than(refused)

    async def _shows_other_than(self, refused: Proof) -> bool:
        return Proof(await self._authorization(), self._files) != refused

    async def _authorization(self) -> str | None:
        if self._login is not None:
            return self.configuration.api_key.get(TOKEN)
        # The caller's configuration: this call runs its hook, which refreshes the token.
        value = (await self.configuration.auth_settings()).get(TOKEN, {}).get("value")
        return value.strip() if value else None

    def _is_due(self) -> bool:
        return self._due is not None and self._clock.now() >= self._due

    def _next(self) -> datetime:
        assert self._login is not None
        now = self._clock.now()
        return now + max(self._login.good_for(now), timedelta(seconds=AGAIN_SECONDS))

    async def _load(self, *, afresh: bool) -> None:
        assert self._login is not None
        try:
            async with asyncio.timeout(LOGIN_SECONDS):
                await self._login.load(self.configuration, afresh=afresh)
        except TimeoutError:
            self.fault = f"logging in took longer than {LOGIN_SECONDS} s"
        except DeclctlError as fault:
            self.fault = str(fault)
        else:
            self.fault = None
            self._files = _files(self.configuration)
        if self.fault is None:
            self._due = self._next()
        else:
            self._due = self._clock.now() + timedelta(seconds=AGAIN_SECONDS)


async def first_login(login: Login, configuration: OfficialConfiguration) -> None:
    """Log in for the first time; raises UsageError with a sentence, also when it takes too long."""
    try:
        async with asyncio.timeout(LOGIN_SECONDS):
            await login.load(configuration, afresh=True)
    except TimeoutError as fault:
        raise UsageError(
            f"Logging in to the cluster took longer than {LOGIN_SECONDS} s: is the credential plugin waiting?"
        ) from fault


def _files(configuration: OfficialConfiguration) -> tuple[tuple[str, int, int], ...]:
    # Mounted certificates rotate under the same name: their state tells whether the TLS context
    # is still theirs.
    found: list[tuple[str, int, int]] = []
    for name in (configuration.ssl_ca_cert, configuration.cert_file, configuration.key_file):
        if not name:
            continue
        try:
            state = Path(name).stat()
        except OSError:
            continue
        found.append((str(name), state.st_mtime_ns, state.st_size))
    return tuple(found)
