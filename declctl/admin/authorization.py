"""The authorizers of the admin address: they decide whether the bearer of a token may send a request.

There are three, and a process has at most one of them:

- `StaticToken`: one token, which the environment has given to the process.
- `TokenFile`: the token in a file, which may be replaced at any time.
- `ReviewedToken` (in `reviews`): a token of Kubernetes, which the API server reviews.

An authorizer never allows a request because something has failed.
"""

import asyncio
import hmac
import os
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from declctl.errors import UsageError
from declctl.kit.files import shown
from declctl.kit.tokens import TOKEN_FILE_VARIABLE, TOKEN_VARIABLE, fits_header, read_token
from declctl.runtime.log import Log
from declctl.runtime.threads import in_thread

FILE_SECONDS = 5.0  # for reading the file of a token


class AccessVerdict(StrEnum):
    """The answer to the question whether a request is allowed."""

    ALLOWED = "Allowed"
    UNAUTHENTICATED = "Unauthenticated"  # no token, or a wrong one
    FORBIDDEN = "Forbidden"  # the bearer is known, and may not do this
    UNDECIDED = "Undecided"  # it could not be found out; the request is refused


class Decision(NamedTuple):
    """A verdict, with a sentence for the client. If it is empty, the client gets that of the verdict."""

    verdict: AccessVerdict
    sentence: str = ""


ALLOWED: Final = Decision(AccessVerdict.ALLOWED)
UNAUTHENTICATED: Final = Decision(AccessVerdict.UNAUTHENTICATED)


class Authorizer(Protocol):
    """Decides about requests of clients. Used on one loop."""

    async def decide(self, token: str, verb: str, path: str, *, client: str = "") -> Decision:
        """Whether the bearer of `token` may send a request.

        `verb` is `get` or `post`, `path` begins with a slash, and `client` is the address that the request
        comes from. Raises nothing.
        """
        ...


class StaticToken:
    """One token that never changes. Its bearer may do everything.

    Raises ValueError for a token of white space alone.
    """

    def __init__(self, token: str) -> None:
        self._token = _bytes(token.strip())
        if not self._token:
            raise ValueError("the token is empty")

    async def decide(
        self,
        token: str,
        verb: str,  # noqa: ARG002 - one token for all
        path: str,  # noqa: ARG002
        *,
        client: str = "",  # noqa: ARG002
    ) -> Decision:
        """Allow everything to the bearer of the token."""
        return _compared(token, self._token)


class TokenFile:
    """The token in a file. Its bearer may do everything.

    The file is read for each request, so that a replaced token is refused from then on. While it can't be
    read or is empty, every token is refused. The log says when the file changes, when it becomes unusable,
    and when it is usable again. Used on one loop.
    """

    def __init__(self, path: Path, log: Log | None = None) -> None:
        self.path = path
        self._log = log
        self._turn = asyncio.Lock()  # requests read one after the other
        # The newest read. It may go on after its request has been answered, if the mount hangs.
        self._reading: asyncio.Future[bytes] | None = None
        self._last: bytes | None = None  # the newest token that was usable
        self._fault: str | None = None  # why the file was not usable when it was read last

    async def decide(
        self,
        token: str,
        verb: str,  # noqa: ARG002 - one token for all
        path: str,  # noqa: ARG002
        *,
        client: str = "",  # noqa: ARG002
    ) -> Decision:
        """Allow everything to the bearer of the token that is in the file now."""
        return _compared(token, await self.read())

    async def read(self) -> bytes | None:
        """The token in the file; None if there is no usable one. What has changed is logged."""
        found: bytes | None = None
        fault: str | None = None
        try:
            # With a limit, as the file may be on a mount that hangs.
            async with asyncio.timeout(FILE_SECONDS), self._turn:
                found = await self._read_alone()
        except TimeoutError:
            fault = f"reading takes longer than {FILE_SECONDS:g} s"
        except (OSError, ValueError) as error:
            fault = getattr(error, "strerror", None) or str(error)
        self._tell(found, fault)
        return found

    async def _read_alone(self) -> bytes:
        """Read the file, unless a read that hangs still holds its thread. Raises as `token_in`.

        So a mount that hangs holds one thread, and none of the executor that all others use.
        """
        if self._reading is not None and not self._reading.done():
            raise TimeoutError
        reading = asyncio.ensure_future(in_thread(lambda: token_in(self.path), name="declctl-token-file"))
        # A read whose request has given up may fail later, and nobody else asks for its error.
        reading.add_done_callback(lambda ended: None if ended.cancelled() else ended.exception())
        self._reading = reading
        return await asyncio.shield(reading)

    def _tell(self, found: bytes | None, fault: str | None) -> None:
        before, self._fault = self._fault, fault
        if self._log is None:
            return
        name = shown(self.path)
        if fault is not None:
            if fault != before:
                self._log.error(
                    f"admin address: the token file {name} can't be used, so every token is refused: {fault}"
                )
            return
        if before is not None:
            self._log.info(f"admin address: the token file {name} can be used again")
        elif self._last is not None and found != self._last:
            self._log.info(
                f"admin address: the token in {name} was replaced; the one before it is refused now"
            )
        self._last = found


def token_in(path: Path) -> bytes:
    """The token in a file, without the white space around it. Blocks, with a deadline.

    Raises OSError if the file can't be read, and ValueError if what it has is no token.
    """
    token = read_token(path)
    if not token:
        raise ValueError("it is empty")
    if not fits_header(token.decode("ascii", "replace")):
        raise ValueError("it has characters that no header can carry; use letters and digits")
    return token


def from_environment(
    environ: Mapping[str, str] = os.environ, log: Log | None = None
) -> StaticToken | TokenFile | None:
    """The authorizer of the token, or of the token file, that the environment names; None without either.

    Raises UsageError if it names both.
    """
    token, file = environ.get(TOKEN_VARIABLE, "").strip(), environ.get(TOKEN_FILE_VARIABLE, "")
    if token and file:
        raise UsageError(f"Both {TOKEN_VARIABLE} and {TOKEN_FILE_VARIABLE} are set; unset one of them.")
    if file:
        return TokenFile(Path(file).absolute(), log)
    return StaticToken(token) if token else None


def _compared(given: str, token: bytes | None) -> Decision:
    # compare_digest: the time of the answer shows nothing about the token.
    same = token is not None and hmac.compare_digest(_bytes(given), token)
    return ALLOWED if same else UNAUTHENTICATED


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")  # as aiohttp decodes headers
