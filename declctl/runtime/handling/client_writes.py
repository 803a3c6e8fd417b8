"""Writes of official clients (`ctx.client`, `ctx.sync_client`) in the rate limit and in the ledger.

They are requests, and no writes of ours: what they are about is read from their URL, and the call that they
belong to from the context of the thread or task.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec

from declctl.errors import NotLeader, WriteError
from declctl.hooks.calls import current_arguments
from declctl.kit import Clock
from declctl.kit.loops import running_loop
from declctl.kit.text import exception_text
from declctl.objects import GroupVersionKind, ObjectKey, Resource
from declctl.objects.api_path import ApiPath, parse_api_path
from declctl.objects.resource import MOST_FIELD_MANAGER
from declctl.runtime.handling.context import Context
from declctl.transport.official import ClientWrite
from declctl.writes import WriteBudget, WriteLedger, WriteOrigin, WriteRecord, WriteResult, WriteVerb

UNKNOWN_HANDLER = "(unknown)"
"""The handler of a write outside of any call, such as in a thread that a hook has started by itself."""

_UNKNOWN = WriteOrigin(UNKNOWN_HANDLER, 0)
_APPLY = "application/apply-patch"  # of YAML or CBOR
_VERBS = {"POST": WriteVerb.CREATE, "PUT": WriteVerb.UPDATE}
_RESULTS = {409: WriteResult.CONFLICT, 429: WriteResult.THROTTLED}


class _Metadata(msgspec.Struct):
    name: str = ""


class _Named(msgspec.Struct):
    """The fields of the body of a POST that say what it makes."""

    metadata: _Metadata = msgspec.field(default_factory=_Metadata)


class ClientWrites(msgspec.Struct, frozen=True):
    """The rate limit and the ledger for writes of official clients (`ClientGate`). From any thread."""

    ledger: WriteLedger
    budget: WriteBudget  # the rate limit of all writes, used on `loop`
    loop: asyncio.AbstractEventLoop
    known_plural: Callable[
        [str, str, str], Resource | None
    ]  # a discovered resource by group, version, plural
    clock: Clock

    def begin(self) -> float:
        """The monotonic time."""
        return self.clock.monotonic()

    def wait(self) -> None:
        """Block until it is the turn of the handler that writes.

        Raises WriteError if the process ends before.
        """
        # The loop that gives the tokens can't wait for one.
        if self.budget.try_take() or running_loop() is self.loop:
            return
        try:
            self._take().result()
        except CancelledError:
            raise WriteError("the write was not sent: the process ends") from None

    async def wait_async(self) -> None:
        """As `wait`, without blocking the loop."""
        if not self.budget.try_take():
            await asyncio.wrap_future(self._take())

    def _take(self) -> Future[None]:
        taking = self.budget.take((current_origin() or _UNKNOWN).handler)
        try:
            return asyncio.run_coroutine_threadsafe(taking, self.loop)
        except RuntimeError as error:  # the loop is closed
            taking.close()
            raise WriteError("the write was not sent: the process ends") from error

    def add(self, write: ClientWrite, began: float) -> None:
        """Record a write with the call that it is part of."""
        parts = urlsplit(write.url)
        path = parse_api_path(parts.path) or ApiPath("", "", parts.path, None, "", "")
        resource = self.known_plural(path.group, path.version, path.plural)
        managers = parse_qs(parts.query).get("fieldManager")
        # Without a field manager, the API server takes the beginning of the User-Agent.
        manager = managers[0] if managers else write.user_agent.partition("/")[0][:MOST_FIELD_MANAGER]
        failure = "" if write.status is None or write.status < 300 else f"the server answered {write.status}"
        if write.error is not None:
            failure = exception_text(write.error) or type(write.error).__name__
        self.ledger.add(
            WriteRecord(
                time=self.clock.now(),
                verb=_verb(write, path),
                kind=GroupVersionKind(path.group, path.version, "") if resource is None else resource.gvk,
                resource=path.resource,
                key=ObjectKey.of(path.namespace, path.name or _name_in(write)),
                uid="",
                resource_version="",
                manager=manager,
                origin=current_origin() or _UNKNOWN,
                result=_result(write),
                seconds=self.clock.monotonic() - began,
                error=failure,
            )
        )


def current_origin() -> WriteOrigin | None:
    """The call that this thread or task is part of; None without one, or if its hook takes no `ctx`."""
    context: Any = (current_arguments() or {}).get("ctx")
    return context.origin if isinstance(context, Context) else None


def _name_in(write: ClientWrite) -> str:
    """The name of the object that a POST makes; empty if the server chooses it."""
    if write.method != "POST" or not isinstance(write.body, str | bytes):
        return ""
    try:
        return msgspec.json.decode(write.body, type=_Named).metadata.name
    except msgspec.DecodeError:  # another format, or no object
        return ""


def _verb(write: ClientWrite, path: ApiPath) -> WriteVerb:
    if write.method == "DELETE":
        return WriteVerb.DELETE if path.name else WriteVerb.DELETE_COLLECTION
    if write.method in _VERBS:
        return _VERBS[write.method]
    if write.content_type.startswith(_APPLY):
        return WriteVerb.CLIENT_APPLY
    return WriteVerb.PATCH_STATUS if path.subresource == "status" else WriteVerb.PATCH


def _result(write: ClientWrite) -> WriteResult:
    if isinstance(write.error, NotLeader):
        return WriteResult.NOT_LEADER
    if isinstance(write.error, asyncio.CancelledError):
        return WriteResult.CANCELLED
    status = write.status or 0
    if write.error is None and status < 300:
        return WriteResult.DRY_RUN if write.dry_run else WriteResult.SUCCEEDED
    is_refused = write.error is None and status < 500
    return _RESULTS.get(status, WriteResult.REFUSED if is_refused else WriteResult.FAILED)
