"""Every error that declctl raises, in one tree.

DeclctlError
├── UsageError               the command line is wrong, or no cluster is configured (exit 2)
├── ManifestErrors           the manifest or a handler file is wrong; carries every fault (exit 1)
├── HookError                user code broke the plugin contract
│   ├── EntryPointError      an entry point can't be resolved; carries its place
│   └── HandlerFailed        a call of user code raised; carries the exception
│       ├── FilterFailed     a handler's filter raised
│       └── MappingFailed    a function of `mapTo` raised
├── Terminal                 a reconciler raises it: another attempt would fail, too
├── InvalidObject            an object does not fit the type of its class; carries the path
├── ReloadRefused            a reload failed before its commit: nothing has changed
├── CacheError
│   ├── UnknownIndex         a read names an index that isn't declared
│   ├── UnknownNamespace     a read names a namespace that the resource does not watch
│   ├── NoKey                an object has no key; carries the object
│   ├── TransactionError     some changes of a transaction failed; carries the positions of the others
│   ├── NotSynced            a cache was read before its first list was complete, or a wait for it failed
│   └── QueueClosed          a queue is closed and empty
├── TimedOut                 a wait took longer than its timeout; also Python's TimeoutError
├── WatchEnded               the events of `until` ended before its condition was true
├── StateUnusable            the state of an earlier process, or its folder, can't be used
├── SandboxError             the sandbox can't store an object
├── WriteError               a write of a handler was not sent
│   ├── NotLeader            another process leads
│   ├── UndeclaredWrite      the manifest does not declare that the handler writes this resource
│   ├── InvalidWrite         the object or an argument can't be written; the message says what to do
│   ├── CrossNamespaceOwner  an object can't own a child in another namespace, or outside of namespaces
│   ├── AlreadyOwned         another object is the controller of a child
│   ├── AlreadyExists        a child exists that nothing owns, and the handler adopts none
│   └── NoStatusSubresource  the kind has no status subresource
└── ApiError                 a request to an API server failed
    ├── Unreachable          no answer: refused, reset, timed out, or the name was not found
    ├── WatchSilent          a watch sent no event and no bookmark for its idle timeout
    ├── MalformedAnswer      an answer that breaks the protocol
    └── StatusError          an answer with a Status
        ├── Unauthorized (401), Forbidden (403), NotFound (404), Conflict (409)
        │   └── ObjectGone: the object of the call is gone, so that it can be written no more
        ├── Expired (410, reason Expired or Gone): the resource version is too old
        ├── TooLargeResourceVersion (504 with its cause): the server has not seen that version yet
        ├── TooManyRequests (429): carries `retry_after`
        ├── InvalidRequest (400, 405, 406, 415, 422)
        └── ServerError (5xx)
            └── GroupUnavailable: the API service of a group does not answer (503), and the server does
"""

from collections.abc import Sequence
from typing import Protocol


class DeclctlError(Exception):
    """The base class of all errors that declctl raises on purpose."""


class UsageError(DeclctlError):
    """The command line is wrong, or no cluster is configured."""


class LocatedFault(Protocol):
    """The part of a diagnostic that this module uses: `errors` can't import `manifest`."""

    @property
    def message(self) -> str:
        """The fault, as a sentence."""
        ...

    def __str__(self) -> str:
        """`file:line:column: error CODE: message`."""
        ...


class ManifestErrors(DeclctlError):
    """The manifest, or a file that it names, has errors. `diagnostics` has all faults, sorted by position."""

    def __init__(self, diagnostics: Sequence[LocatedFault]) -> None:
        super().__init__("\n".join(str(diagnostic) for diagnostic in diagnostics))
        self.diagnostics = tuple(diagnostics)


class HookError(DeclctlError):
    """User code broke the plugin contract."""


class EntryPointError(HookError):
    """An entry point can't be resolved.

    `code` is the diagnostic code. `file`, `line` and `column` are the place of the fault; lines and columns
    count from 1. `traceback` is the end of the traceback of an installed plugin that can't be loaded.
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
        traceback: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.file = file
        self.line = line
        self.column = column
        self.suggestion = suggestion
        self.traceback = traceback


class HandlerFailed(HookError):
    """A call of user code raised; `__cause__` is its exception."""


class FilterFailed(HandlerFailed):
    """A handler's filter raised: declctl can't decide whether the handler receives the change."""


class MappingFailed(HandlerFailed):
    """A function of `mapTo` raised: declctl can't know the keys to which a changed object leads."""


class Terminal(DeclctlError):
    """A reconciler raises it if another attempt would fail, too: its key waits for the next change.

    (controller-runtime's TerminalError.)
    """


class InvalidObject(DeclctlError):
    """An object does not fit the type that its class has for a field, such as `spec`.

    `key` is that of the object. `path` is the place in it, such as `spec.replicas`, and `sentence` says what
    is wrong there. `summary` is the message without advice.
    """

    def __init__(self, key: str, type_name: str, path: str, sentence: str) -> None:
        self.summary = f"{key} does not fit {type_name}: {path}: {sentence}"
        super().__init__(
            f"{self.summary}; mend the object {key}, or catch declctl.InvalidObject where its field is read"
        )
        self.key = key
        self.path = path
        self.sentence = sentence


class ReloadRefused(DeclctlError):
    """A reload failed before its commit, and nothing has changed. `reason` is a CamelCase word."""

    def __init__(self, reason: str, message: str, diagnostics: Sequence[LocatedFault] = ()) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.diagnostics = tuple(diagnostics)


class CacheError(DeclctlError):
    """A read or write of a cache or queue failed."""


class UnknownIndex(CacheError):
    """The index is not declared; the message names the declared ones."""


class UnknownNamespace(CacheError):
    """The namespace is not watched, so the cache can't know its objects; the message names those that are.

    (The error of controller-runtime's cache for several namespaces.)
    """


class NoKey(CacheError):
    """An object has no key (client-go's KeyError).

    `obj` is the object. If the key function raised, `__cause__` is its exception.
    """

    def __init__(self, message: str, obj: object) -> None:
        super().__init__(message)
        self.obj = obj


class TransactionError(CacheError):
    """Some changes of a transaction failed; the others were made.

    `total` is the number of all changes. `succeeded` has the positions of the changes that were made, counted
    from 0. `faults` has the errors of the other changes, in order; the first of these errors is `__cause__`.
    """

    def __init__(self, *, total: int, succeeded: Sequence[int], faults: Sequence[CacheError]) -> None:
        super().__init__(f"{len(faults)} of {total} changes failed; the first: {faults[0]}")
        self.total = total
        self.succeeded = tuple(succeeded)
        self.faults = tuple(faults)


class NotSynced(CacheError):
    """A cache was read before its first list was complete, or a wait for its sync failed.

    Also raised for a snapshot of a cache that is just being replaced by a later list. `resource` is the name
    of the resource. `why` is the reason, such as a refusal by the server. Both are empty if the wait was for
    several caches. `is_relisted`: the cache can be read; only snapshots wait for the end of the list.
    """

    def __init__(self, message: str, *, resource: str = "", why: str = "", is_relisted: bool = False) -> None:
        super().__init__(message)
        self.resource = resource
        self.why = why
        self.is_relisted = is_relisted


class QueueClosed(CacheError):
    """A queue is closed and empty (client-go's ErrFIFOClosed). A closed Heap also raises it for an add."""


class TimedOut(DeclctlError, TimeoutError):
    """A wait took longer than its timeout; the message names what it waited for."""


class WatchEnded(DeclctlError):
    """The events of `until` ended before its condition was true (client-go's ErrWatchClosed)."""


class StateUnusable(DeclctlError):
    """The state of an earlier process, or the folder of `state`, can't be used; the message says why."""


class SandboxError(DeclctlError):
    """The sandbox, an API server in memory, can't store an object."""


class WriteError(DeclctlError):
    """A write of a handler was not made: the object is as it was."""


class NotLeader(WriteError):
    """This process does not lead, so its handlers may not write."""


class InvalidWrite(WriteError):
    """The object or an argument can't be written; the message says what to do."""


class UndeclaredWrite(WriteError):
    """The manifest declares what the handler writes, and this write is not part of it."""


class CrossNamespaceOwner(WriteError):
    """A namespaced object can own objects of its own namespace only."""


class AlreadyOwned(WriteError):
    """Another object is the controller of a child (controller-runtime's AlreadyOwnedError)."""


class AlreadyExists(WriteError):
    """A child exists, and no object owns it: `onExisting: Fail` refuses to adopt it."""


class NoStatusSubresource(WriteError):
    """The kind has no status subresource, so its status can't be written by itself."""


class ApiError(DeclctlError):
    """A request to an API server failed: the answer is an error, or there is no answer."""


class Unreachable(ApiError):
    """No answer: refused, reset, timed out, or the name was not found."""


class WatchSilent(ApiError):
    """A watch sent no event and no bookmark for its idle timeout: its connection counts as broken."""


class MalformedAnswer(ApiError):
    """An answer that breaks the protocol, such as broken JSON, or a list without a resource version."""


class StatusError(ApiError):
    """An answer with a Status object.

    `code` is the HTTP status, `reason` the Kubernetes reason (such as `NotFound`).
    """

    def __init__(self, code: int, reason: str, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(f"{code} {reason}: {message}" if message else f"{code} {reason}")
        self.code = code
        self.reason = reason
        self.message = message
        self.retry_after = retry_after  # seconds that the server asked for; None if it did not


class Unauthorized(StatusError):
    """401: the server does not know the user."""


class Forbidden(StatusError):
    """403: the user may not do that."""


class NotFound(StatusError):
    """404: the object or the resource does not exist."""


class ObjectGone(NotFound):
    """The object of the call is gone, maybe made again: its status and its set can never be written.

    A call that ends with it is not repeated.
    """


class Conflict(StatusError):
    """409: the object has a newer version, or exists already, or others own fields of an apply without force.

    Only in the last case, `fields` has their paths, such as `.spec.replicas`, and `managers` their managers.
    """

    fields: Sequence[str] = ()
    managers: Sequence[str] = ()

    @property
    def is_outdated(self) -> bool:
        """Whether the write was based on a state that is not the newest: another attempt may succeed."""
        return self.reason == "Conflict" and not self.fields


class Expired(StatusError):
    """410: the resource version or the continue token is too old."""


class TooLargeResourceVersion(StatusError):
    """The server has not seen the requested resource version yet."""


class TooManyRequests(StatusError):
    """429: too many requests; the server asks for a retry after `retry_after` seconds."""


class InvalidRequest(StatusError):
    """400, 405, 406, 415 or 422: the request has an error, or the server does not support it."""


class ServerError(StatusError):
    """5xx: a fault of the server."""


class GroupUnavailable(ServerError):
    """503: the API service of a group, such as that of an aggregated API, is away; the server answers."""


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
    """The error for a Status.

    `causes` has the reasons and messages of `details.causes`. As in client-go
    (isTooLargeResourceVersionError), a version that is too large has three forms: the cause
    `ResourceVersionTooLarge`, a message of a cause, and the message of an older server's Timeout.
    """
    if "ResourceVersionTooLarge" in causes or _TOO_LARGE in message or any(_TOO_LARGE in c for c in causes):
        kind: type[StatusError] = TooLargeResourceVersion
    elif reason in ("Expired", "Gone"):
        kind = Expired
    else:
        kind = _BY_CODE.get(code, ServerError if code >= 500 else StatusError)
    return kind(code, reason, message, retry_after=retry_after)
