"""The gate of apply, apply_set, patch_status, finalizers and Kubernetes Events, and the request of a write.

The official clients have a gate of their own (`WriteGuard` of the transport).

In this order: leadership, dry run, the client-side rate limit, the request with its retries, the ledger.
The sender asks for the leadership again in the call that sends the first byte of each request, because a
write may have waited.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from contextvars import ContextVar
from datetime import timedelta
from types import MappingProxyType
from typing import Any, Literal, Protocol

import msgspec
from msgspec.structs import replace

from declctl.errors import (
    ApiError,
    Conflict,
    Forbidden,
    NotFound,
    NotLeader,
    ObjectGone,
    StatusError,
    TooManyRequests,
)
from declctl.kit import Clock
from declctl.kit.text import exception_text
from declctl.objects import (
    GroupVersionKind,
    KubeObject,
    ObjectKey,
    ObjectView,
    RequestSender,
    Resource,
    newer_version,
)
from declctl.objects.managed_fields import applied_fields
from declctl.objects.refusals import granting_command
from declctl.writes.budget import WriteBudget
from declctl.writes.ledger import (
    RetryReason,
    WriteLedger,
    WriteOrigin,
    WriteRecord,
    WriteResult,
    WriteVerb,
    Written,
)

MOST_CONFLICTS = 5  # requests of one write that may answer 409 and be repeated
MOST_THROTTLED = 5  # requests of one write that may answer 429 and be repeated
_MOST_VERSIONS = 20_000  # of objects that were written last, which are remembered
MOST_THROTTLED_SECONDS = 60.0  # that one write waits for the server's Retry-After, in all
NO_VERSION = str(2**63 - 1)  # an apply with it creates the object, or is a conflict: no object has it
_CONFLICT_SECONDS = 0.01  # before the first repetition after a 409; each further one waits twice as long
_CANNOT = re.compile(r'cannot (\w+) resource "([^"]+)"')  # the refusal of RBAC; others have another text

Params = Mapping[str, str]
_NO_PARAMS: Params = MappingProxyType({})
_NOT_CONTENT = re.compile(rb'"(?:resourceVersion|lastTransitionTime)":"[^"]*",?')  # of a body, for its digest
CachedVersion = Callable[[GroupVersionKind, ObjectKey], str]
"""The resource version of an object as a cache has it; empty if no cache has it."""
Propagation = Literal["Background", "Foreground", "Orphan"]
"""What becomes of objects that a deleted object owns: they are deleted after it, or before it, or stay."""
WantsLive = Callable[[WriteOrigin], bool]
"""Whether the live object is worth a read before a write of a call."""
WriteRefusal = Callable[[WriteOrigin], str]
"""Why a write of a call must not be sent now; empty if it may be. From any thread."""
current_write: ContextVar[WriteOrigin | None] = ContextVar("current_write", default=None)
"""The call whose write this task sends; None outside of a `WriteGate`."""
OnWritten = Callable[[Written, WriteOrigin, KubeObject | None], None]
"""Called on the loop of the gate after each write that the server has stored, or would store in a dry run.

It has the live object before the write; None without one, and if it was not read.
"""


class WarningLog(Protocol):
    """The log, as far as this room writes to it."""

    def warning(self, event: str) -> Any:
        """Log a warning."""
        ...


class ApiWrite(msgspec.Struct, frozen=True):
    """One write before it is sent.

    `repeats_conflict` repeats the request after a 409: only for an apply without preconditions, whose result
    does not depend on what somebody else wrote meanwhile. Without `force`, an apply that would change fields
    of other managers raises a Conflict that has their names. With `awaits_event`, the writer goes on when the
    watch brings the object back.
    """

    verb: WriteVerb
    resource: Resource
    key: ObjectKey
    body: KubeObject | None = None
    manager: str = ""
    subresource: str = ""
    repeats_conflict: bool = False
    force: bool = True  # of an apply
    awaits_event: bool = False

    @property
    def method(self) -> str:
        """The HTTP method."""
        return {WriteVerb.CREATE: "POST", WriteVerb.DELETE: "DELETE"}.get(self.verb, "PATCH")

    @property
    def path(self) -> str:
        """The URL path."""
        name = None if self.verb is WriteVerb.CREATE else self.key.name
        return self.resource.path(self.key.namespace, name, self.subresource)

    @property
    def content_type(self) -> str:
        """The content type of the body."""
        if self.verb is WriteVerb.APPLY:
            return "application/apply-patch+yaml"  # JSON is YAML
        return "application/merge-patch+json" if self.method == "PATCH" else "application/json"

    def params(self, *, dry_run: bool) -> dict[str, str]:
        """The query parameters."""
        found: dict[str, str] = {}
        if self.manager and self.verb is not WriteVerb.DELETE:
            found["fieldManager"] = self.manager
        if self.verb is WriteVerb.APPLY and self.force:
            found["force"] = "true"
        if dry_run:
            found["dryRun"] = "All"
        return found


def no_version(_kind: GroupVersionKind, _key: ObjectKey) -> str:
    """The version of an object that is in no cache."""
    return ""


def refuse_nothing(_: WriteOrigin) -> str:
    """No write is refused."""
    return ""


class WriteGate:
    """Sends writes. Used on one loop, that of `sender`.

    - `refusal`: why a write of a call must not be sent, as this process does not lead; empty if it may be.
      Such a write does not wait for the budget.
    - `dry_run`: each request has `dryRun=All`; the server checks it and stores nothing.
    - `budget`: the client-side rate limit; by default 50 writes a second, and 100 at once.
    - `cached_version`: that of an object when it is written, to tell whether the write has changed it.
    - `on_written`: called after each write that the server has stored. The live object is read before the
      write if `wants_live` says so.
    - `on_dry_run`: called after each write of a dry run. The live object is read before the write.
    - `rediscover`: the resource of a kind as the server has it now. A CustomResourceDefinition may be made
      anew with another plural, so that the path of its kind answers 404.
    """

    def __init__(  # noqa: PLR0913 - one parameter for each thing that decides over a write
        self,
        sender: RequestSender,
        ledger: WriteLedger,
        *,
        clock: Clock,
        refusal: WriteRefusal = refuse_nothing,
        dry_run: bool = False,
        budget: WriteBudget | None = None,
        cached_version: CachedVersion = no_version,
        wants_live: WantsLive = lambda _: False,
        on_written: OnWritten | None = None,
        on_dry_run: OnWritten | None = None,
        rediscover: Callable[[GroupVersionKind], Awaitable[Resource]] | None = None,
    ) -> None:
        self._rediscover = rediscover
        self._sender = sender
        self._ledger = ledger
        self._clock = clock
        self._refusal = refusal
        self._budget = budget or WriteBudget(clock=clock)
        self._cached_version = cached_version
        self._versions: dict[str, str] = {}  # of the last answers, by uid
        self._wants_live = wants_live
        self._on_written = on_written
        self._on_dry_run = on_dry_run
        self.dry_run = dry_run

    async def send(self, write: ApiWrite, origin: WriteOrigin) -> Written:
        """Send a write; returns its result.

        Raises NotLeader, and the ApiError of the answer. A 429 is waited for, and a 409 is repeated if
        `repeats_conflict`, both for a bounded number of times. Everything else is raised at once: the handler
        is retried anyway.
        """
        attempts = _Attempts(write, self._ledger, self._clock)
        live = None
        # Before the request: a write that the server has stored must not raise.
        digest = 0 if self._on_written is None else _digest(write.body)
        try:
            if self.dry_run and self._on_dry_run is not None:
                live = await self._live(write)
            elif self._wants_live(origin):
                with suppress(ApiError):  # the handler may have no right to read, and has not asked for it
                    live = await self._live(write)
            if why := self._refusal(origin):
                raise NotLeader(f"{write.verb} of {write.resource} {write.key} was not sent: {why}")
            await self._budget.take(origin.handler)
            current_write.set(origin)  # of this task, and of those that it begins: the sender asks again
            written = await self._sent(write, attempts, digest)
        except BaseException as error:
            shown = exception_text(error) or type(error).__name__
            self._record(attempts, origin, _result_of(error), error=shown)
            raise
        result = WriteResult.DRY_RUN if written.dry_run else WriteResult.SUCCEEDED
        self._record(attempts, origin, result, written=written)
        if self._on_written is not None and not written.dry_run:
            self._on_written(written, origin, live)
        if self._on_dry_run is not None and written.dry_run:
            self._on_dry_run(written, origin, live)
        return written

    async def delete(
        self,
        resource: Resource,
        key: ObjectKey,
        *,
        uid: str = "",
        propagation: Propagation | None = None,
        manager: str,
        origin: WriteOrigin,
    ) -> Written | None:
        """Delete an object, with a `uid` only that one; None if it is gone. Raises as `send`."""
        options: KubeObject = {"apiVersion": "v1", "kind": "DeleteOptions"}
        if uid:
            options["preconditions"] = {"uid": uid}
        if propagation is not None:
            options["propagationPolicy"] = propagation
        if self.dry_run:
            options["dryRun"] = ["All"]  # a server that gets options in the body ignores those of the query
        try:
            return await self.send(ApiWrite(WriteVerb.DELETE, resource, key, options, manager), origin)
        except NotFound:
            return None
        except Conflict:
            if not uid:
                raise
            with suppress(NotFound):
                there = await self.read(resource, key.namespace, key.name)
                if there["metadata"].get("uid") == uid:
                    raise  # something else was in its way
            return None

    def skip(self, write: ApiWrite, origin: WriteOrigin, known: KubeObject) -> Written:
        """Record that a write is not sent, because the object `known` is as it would be afterwards."""
        written = self._written(write, known, changed=False)
        self._record(
            _Attempts(write, self._ledger, self._clock), origin, WriteResult.SKIPPED, written=written
        )
        return written

    def is_newest(self, obj: KubeObject) -> bool:
        """Whether no answer to a write of this process had a newer version of an object."""
        metadata = obj["metadata"]
        version, last = str(metadata.get("resourceVersion")), self._versions.get(str(metadata.get("uid")), "")
        return version == last or newer_version(version, last) == version

    async def read(
        self,
        resource: Resource,
        namespace: str | None,
        name: str | None = None,
        *,
        params: Params = _NO_PARAMS,
    ) -> KubeObject:
        """Read an object, or without a `name` a list. Reads pass no gate. Raises ApiError."""
        moved = False
        while True:
            try:
                return await self._sender.request_json("GET", resource.path(namespace, name), params=params)
            except Forbidden as error:
                raise with_rule(error, resource, namespace) from error
            except NotFound:
                # There is a list wherever a resource is served.
                if moved or name is not None or (other := await self._moved(resource)) is None:
                    raise
                resource, moved = other, True

    async def read_again(self, resource: Resource, obj: ObjectView) -> KubeObject:
        """The present state of an object. Raises ObjectGone if it has gone, also if it was made again."""
        try:
            found = await self.read(resource, obj.namespace, obj.name)
        except NotFound as error:
            raise ObjectGone(error.code, error.reason, error.message) from error
        if found["metadata"].get("uid") != obj.uid:
            raise ObjectGone(404, "NotFound", f"{obj['kind']} {obj.key} has been deleted and created again")
        return found

    async def check_new(self, write: ApiWrite) -> None:
        """Ask the server whether it would create the object of an apply, if the name were free.

        Nothing is stored. Raises ApiError if it would not: the object is checked before its name.
        """
        params = {"dryRun": "All", "fieldManager": write.manager}
        path = write.resource.path(write.key.namespace)
        try:
            await self._sender.request_json("POST", path, params=params, body=write.body)
        except Conflict as error:
            if error.reason != "AlreadyExists":
                raise

    async def wait_after(self, conflict: Conflict, conflicts: int) -> None:
        """Count and wait, before a write is computed anew from the state that has overtaken it.

        `conflicts` were waited for already. Raises `conflict` after five.
        """
        if conflicts >= MOST_CONFLICTS:
            raise conflict
        self._ledger.retried(RetryReason.CONFLICT)
        await self._clock.sleep(conflict_pause(self._clock, conflicts))

    async def _moved(self, resource: Resource) -> Resource | None:
        """The resource of a kind whose path answers 404, if it has another path now; else None.

        Raises NotFound, with a sentence, if the server does not serve the kind any more.
        """
        if self._rediscover is None:
            return None
        found = await self._rediscover(resource.gvk)
        # With another scope, the key is another one: the next call of the handler begins anew.
        return found if found.plural != resource.plural and found.namespaced == resource.namespaced else None

    async def _live(self, write: ApiWrite) -> KubeObject | None:
        """The object that a write is about; None if there is none."""
        try:
            return await self.read(write.resource, write.key.namespace, write.key.name)
        except NotFound:
            return None

    async def _sent(self, write: ApiWrite, attempts: "_Attempts", digest: int) -> Written:
        moved = False
        while True:
            cached = self._cached_version(write.resource.gvk, write.key)
            try:
                answer = await self._sender.request_json(
                    write.method,
                    write.path,
                    params=write.params(dry_run=self.dry_run),
                    body=write.body,
                    content_type=write.content_type,
                )
            except (TooManyRequests, Conflict) as error:
                await attempts.wait_to_repeat(error)
            except NotFound:
                # Any other write is about an object, which may be gone.
                makes = write.verb in (WriteVerb.APPLY, WriteVerb.CREATE)
                if moved or not makes or (other := await self._moved(write.resource)) is None:
                    raise
                write, moved = replace(write, resource=other), True
                attempts.write = write
            except Forbidden as error:
                raise with_rule(error, write.resource, write.key.namespace) from error
            else:
                return self._written(
                    write, answer, digest=digest, changed=self._is_new(write, answer, cached)
                )

    def _is_new(self, write: ApiWrite, answer: KubeObject, cached: str) -> bool:
        """Whether an answer has a version that neither a cache nor the last answer had before."""
        if self.dry_run or write.verb is WriteVerb.DELETE:
            return True
        metadata, based_on = answer.get("metadata") or {}, (write.body or {}).get("metadata") or {}
        uid, version = str(metadata.get("uid")), str(metadata.get("resourceVersion"))
        is_new = version not in (cached, self._versions.pop(uid, ""), based_on.get("resourceVersion"))
        if len(self._versions) >= _MOST_VERSIONS:
            self._versions.clear()  # the next write of each of them counts as a change
        self._versions[uid] = version
        return is_new

    def _written(
        self, write: ApiWrite, answer: KubeObject, *, digest: int = 0, changed: bool = True
    ) -> Written:
        # A delete of some kinds answers with a Status, whose details have the uid.
        metadata = answer.get("metadata") or {}
        details = answer.get("details") or {}
        name = metadata.get("name") or write.key.name
        based_on = (
            "" if write.awaits_event else ((write.body or {}).get("metadata") or {}).get("resourceVersion")
        )
        return Written(
            verb=write.verb,
            kind=write.resource.gvk,
            key=ObjectKey.of(write.key.namespace, name),
            uid=str(metadata.get("uid") or details.get("uid") or ""),
            resource_version=str(metadata.get("resourceVersion") or ""),
            obj=answer,
            changed=changed,
            dry_run=self.dry_run,
            manager=write.manager,
            based_on=str(based_on or ""),
            digest=digest,
        )

    def _record(
        self,
        attempts: "_Attempts",
        origin: WriteOrigin,
        result: WriteResult,
        *,
        written: Written | None = None,
        error: str = "",
    ) -> None:
        write, now = attempts.write, self._clock.now()
        seconds = self._clock.monotonic() - attempts.began
        fields = None
        if written is not None and result is WriteResult.SUCCEEDED:
            fields = applied_fields(
                written.obj,
                manager=write.manager,
                operation=write.verb.operation,
                subresource=write.subresource,
                since=now - timedelta(seconds=seconds),
            )
        record = WriteRecord(
            time=now,
            verb=write.verb,
            kind=write.resource.gvk,
            resource=str(write.resource),
            key=write.key if written is None else written.key,
            uid="" if written is None else written.uid,
            resource_version="" if written is None else written.resource_version,
            manager=write.manager,
            origin=origin,
            result=result,
            seconds=seconds,
            retries=attempts.retries,
            error=error,
            fields=fields,
            changed=written is None or written.changed,
        )
        self._ledger.add(record, written if result is WriteResult.DRY_RUN else None)


class _Attempts:
    """The requests of one write."""

    def __init__(self, write: ApiWrite, ledger: WriteLedger, clock: Clock) -> None:
        self.write = write
        self.began = clock.monotonic()
        self._ledger = ledger
        self._clock = clock
        self._conflicts = 0
        self._throttled = 0
        self._waited = 0.0  # seconds, for 429

    @property
    def retries(self) -> int:
        """The requests after the first one."""
        return self._conflicts + self._throttled

    async def wait_to_repeat(self, error: TooManyRequests | Conflict) -> None:
        """Wait before the next request, or raise `error` if there is none."""
        if isinstance(error, TooManyRequests):
            # As client-go, which repeats a 429 only if the server says when.
            wait = error.retry_after
            if (
                wait is None
                or self._throttled >= MOST_THROTTLED
                or self._waited + wait > MOST_THROTTLED_SECONDS
            ):
                raise error
            self._throttled += 1
            self._waited += wait
            reason = RetryReason.TOO_MANY_REQUESTS
        else:
            # The owners of fields stay the same ones.
            if error.fields or not self.write.repeats_conflict or self._conflicts >= MOST_CONFLICTS:
                raise error
            wait = conflict_pause(self._clock, self._conflicts)
            self._conflicts += 1
            reason = RetryReason.CONFLICT
        self._ledger.retried(reason)
        await self._clock.sleep(wait)


def conflict_pause(clock: Clock, conflicts: int) -> float:
    """Seconds before a request is repeated after a 409, when so many were repeated already.

    With jitter, so that writers who have met do not meet again.
    """
    return _CONFLICT_SECONDS * 2**conflicts * (1 + clock.random())


def with_rule(error: Forbidden, resource: Resource, namespace: str | None) -> Forbidden:
    """The error with the RBAC rule that is missing, if RBAC has refused the request."""
    found = _CANNOT.search(error.message)
    if found is None:  # an admission webhook, a quota, a namespace that is being deleted, …
        return error
    verb, refused = found.groups()
    # An apply of an object that is not there is a create: without both verbs, the next apply is refused.
    verbs = '"create", "patch"' if verb in ("create", "patch") and "/" not in refused else f'"{verb}"'
    rule = f'{{apiGroups: ["{resource.gvk.group}"], resources: ["{refused}"], verbs: [{verbs}]}}'
    where = f"a Role of the namespace {namespace}" if namespace else "a ClusterRole"
    message = f"{error.message}. Grant it by {where} with the rule {rule}"
    if (command := granting_command(error.message)) is not None:
        message += f", or all that the manifest declares (`applies`, `status`, `finalizer`) by `{command}`"
    return Forbidden(error.code, error.reason, message, retry_after=error.retry_after)


def _digest(body: KubeObject | None) -> int:
    """A number that is equal for writes of the same content.

    Without the version that a write was based on, and without times of transitions, which follow from it.
    """
    return hash(_NOT_CONTENT.sub(b"", msgspec.json.encode(body)))


def _result_of(error: BaseException) -> WriteResult:
    match error:
        case asyncio.CancelledError():
            return WriteResult.CANCELLED
        case NotLeader():
            return WriteResult.NOT_LEADER
        case Conflict():
            return WriteResult.CONFLICT
        case TooManyRequests():
            return WriteResult.THROTTLED
        case StatusError() if error.code < 500:
            return WriteResult.REFUSED
        case _:
            return WriteResult.FAILED
