"""Every error that declctl raises, in one tree.

DeclctlError
├── UsageError               the command line was used wrongly, or no cluster is configured (exit 2)
├── ManifestErrors           the manifest or a handler file is wrong; carries every fault (exit 1)
├── HookError                user code broke the plugin contract
│   ├── EntryPointError      an entry point can't be resolved; says where
│   └── HandlerFailed        a call raised; carries the cause
│       └── FilterFailed     a handler's filter raised
├── ReloadRefused            a reload failed before its commit: nothing has changed
├── CacheError
│   ├── UnknownIndex         a lister was asked for an index that isn't declared
│   ├── NoKey                something has no key to be stored or found under; carries it
│   ├── TransactionError     some changes of a transaction failed; says which ones were made
│   ├── NotSynced            a cache was read, or waited for, before its first list was in
│   └── QueueClosed          a queue was closed and has handed out all it had
├── TimedOut                 what was waited for did not happen in time; also Python's TimeoutError
├── WatchEnded               the events ended before what was waited for had happened
├── SandboxError             the embedded API server was given an object that it can't hold
└── ApiError                 a server's answer, or the lack of one
    ├── Unreachable          refused, reset, timed out, name not found: no answer at all
    ├── WatchSilent          a watch said nothing, not even a bookmark, for its idle timeout
    ├── MalformedAnswer      an answer that is not what the protocol says
    └── StatusError          an answer with a Status
        ├── Unauthorized (401), Forbidden (403), NotFound (404), Conflict (409)
        ├── Expired (410, reason Expired or Gone): the resource version is too old
        ├── TooLargeResourceVersion (504 with its cause): the server has not seen that version yet
        ├── TooManyRequests (429): carries `retry_after`
        ├── InvalidRequest (400, 405, 406, 415, 422)
        └── ServerError (5xx)
"""

from collections.abc import Sequence
from typing import Protocol


class DeclctlError(Exception):
    """The root: catching it catches everything that declctl raises on purpose."""


class UsageError(DeclctlError):
    """The command line was used wrongly, or no cluster is configured."""


class Located(Protocol):
    """What a diagnostic can do, without this module knowing its room."""

    @property
    def message(self) -> str:
        """What is wrong, as a sentence."""
        ...

    def __str__(self) -> str:
        """`file:line:column: error CODE: message`."""
        ...


class ManifestErrors(DeclctlError):
    """The manifest or what it refers to is wrong.

    `diagnostics` has every fault, sorted by position.
    """

    def __init__(self, diagnostics: Sequence[Located]) -> None:
        super().__init__("\n".join(str(diagnostic) for diagnostic in diagnostics))
        self.diagnostics = tuple(diagnostics)


class HookError(DeclctlError):
    """User code broke the plugin contract."""


class EntryPointError(HookError):
    """An entry point can't be resolved.

    `code` is the diagnostic code; `file`, `line` and `column` say where, counted from 1.
    """

    def __init__(
        self,
        message: str,
        *,
        code: str,
        file: str | None = None,
        line: int | None = None,
        column: int | None = None,
        suggestion: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.file = file
        self.line = line
        self.column = column
        self.suggestion = suggestion


class HandlerFailed(HookError):
    """A call into user code raised; `__cause__` is what it raised."""


class FilterFailed(HandlerFailed):
    """A handler's filter raised, so that it is not known whether the handler wants to hear of a change."""


class ReloadRefused(DeclctlError):
    """A reload failed before its commit, so that nothing has changed.

    `reason` is a CamelCase word for conditions.
    """

    def __init__(self, reason: str, message: str, diagnostics: Sequence[Located] = ()) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.diagnostics = tuple(diagnostics)


class CacheError(DeclctlError):
    """The cache was asked for something that it doesn't have."""


class UnknownIndex(CacheError):
    """An index that isn't declared; the message names those that are."""


class NoKey(CacheError):
    """Something has no key to be stored or found under (client-go's KeyError).

    `obj` is what was given; `__cause__` is why it has none, where something else failed on it.
    """

    def __init__(self, message: str, obj: object) -> None:
        super().__init__(message)
        self.obj = obj


class TransactionError(CacheError):
    """Some changes of a transaction failed; the others were made.

    `succeeded` has the positions of those that were made, counted from 0, `total` is how many were
    asked for, `faults` has what was wrong with the others, in their order; the first of them is
    `__cause__`.
    """

    def __init__(self, *, total: int, succeeded: Sequence[int], faults: Sequence[CacheError]) -> None:
        super().__init__(f"{len(faults)} of {total} changes failed; the first: {faults[0]}")
        self.total = total
        self.succeeded = tuple(succeeded)
        self.faults = tuple(faults)


class NotSynced(CacheError):
    """A cache was read, or waited for, before its first list was in.

    `resource` is the name of what was read, `why` what keeps it from being filled, such as a refusal by the
    server. Both are empty where several were waited for.
    """

    def __init__(self, message: str, *, resource: str = "", why: str = "") -> None:
        super().__init__(message)
        self.resource = resource
        self.why = why


class QueueClosed(CacheError):
    """A queue was closed and has handed out all it had (client-go's ErrFIFOClosed).

    A closed Heap says so to whoever adds, too.
    """


class TimedOut(DeclctlError, TimeoutError):
    """What was waited for did not happen in time; the message says what it was."""


class WatchEnded(DeclctlError):
    """The events ended before what was waited for had happened."""


class SandboxError(DeclctlError):
    """The embedded API server was given an object that it can't hold."""


class ApiError(DeclctlError):
    """A server's answer, or the lack of one."""


class Unreachable(ApiError):
    """No answer: refused, reset, timed out, or the name was not found."""


class WatchSilent(ApiError):
    """A watch said nothing, not even a bookmark, for its idle timeout.

    The connection is taken for dead.
    """


class MalformedAnswer(ApiError):
    """An answer that breaks the protocol.

    Broken JSON, a cut line, a list without a resource version.
    """


class StatusError(ApiError):
    """An answer with a Status object.

    `code` is the HTTP status, `reason` the Kubernetes reason (such as `NotFound`).
    """

    def __init__(self, code: int, reason: str, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(f"{code} {reason}: {message}" if message else f"{code} {reason}")
        self.code = code
        self.reason = reason
        self.message = message
        self.retry_after = retry_after  # seconds, as the server asked


class Unauthorized(StatusError):
    """401: the server doesn't know who asks."""


class Forbidden(StatusError):
    """403: who asks may not do that."""


class NotFound(StatusError):
    """404: no such object, or no such resource."""


class Conflict(StatusError):
    """409: the object is newer, or exists already."""


class Expired(StatusError):
    """410: the resource version or the continue token is too old."""


class TooLargeResourceVersion(StatusError):
    """The server has not seen the resource version that was asked for (yet)."""


class TooManyRequests(StatusError):
    """429: come back after `retry_after` seconds."""


class InvalidRequest(StatusError):
    """400, 405, 406, 415 or 422.

    The request is at fault, or asks for what the server does not know.
    """


class ServerError(StatusError):
    """5xx: the server's fault."""


_BY_CODE: dict[int, type[StatusError]] = {
    400: InvalidRequest,
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    405: InvalidRequest,
    406: InvalidRequest,
    409: Conflict,
    410: Expired,
    415: InvalidRequest,
    422: InvalidRequest,
    429: TooManyRequests,
}
_TOO_LARGE = "Too large resource version"


def from_status(
    code: int, reason: str, message: str, *, causes: Sequence[str] = (), retry_after: float | None = None
) -> StatusError:
    """The error for a Status; `causes` are the reasons of `details.causes`.

    A version that is too large is recognised in its three wire forms (client-go's
    isTooLargeResourceVersionError): by the cause `ResourceVersionTooLarge`, by the cause's message,
    and by the legacy Timeout message.
    """
    if "ResourceVersionTooLarge" in causes or _TOO_LARGE in message or any(_TOO_LARGE in c for c in causes):
        kind: type[StatusError] = TooLargeResourceVersion
    elif reason in ("Expired", "Gone"):
        kind = Expired
    else:
        kind = _BY_CODE.get(code, ServerError if code >= 500 else StatusError)
    return kind(code, reason, message, retry_after=retry_after)
