"""Objects that are deleted and made again: `onImmutable: Recreate` of a kind in `applies`.

Some fields can't be changed, such as the selector of a Deployment: the server refuses an apply with 422. What
has such fields differs between kinds and servers, and so do the messages. So the server is asked whether it
would create the object as it is applied (a dry run of a create). Only if it would, the refusal is about a
change, and the object is deleted and made again. An object that could not be made is never deleted.
"""

import re
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from msgspec import structs

from declctl.errors import ApiError, InvalidRequest, NotFound
from declctl.kit import Clock
from declctl.objects import KubeObject
from declctl.writes.apply import has_applied
from declctl.writes.declared import DeclaredWrites
from declctl.writes.gate import NO_VERSION, ApiWrite, WarningLog, WriteGate
from declctl.writes.ledger import WriteOrigin, WriteVerb, Written

SendApply = Callable[[ApiWrite, WriteOrigin, Sequence[str], KubeObject | None], Awaitable[Written]]
"""Sends an apply, unless the live object is as it would be; see `FieldAdoption.apply`."""
IsOwn = Callable[[KubeObject], bool]
"""Whether an object is of the handler that applies it, so that it may be deleted."""

_INVALID = 422
_ADDRESSES, _HEALTH_PORT = ("clusterIP", "clusterIPs"), "healthCheckNodePort"  # of a Service
_SECONDS = 5.0  # that one call waits for the end of what it has deleted
_PAUSE = 0.05  # seconds before the first look; each further one waits twice as long
_AGAIN_SECONDS = 60.0  # between two times that an object is made again
_MOST_OBJECTS = 1000  # that were made again, which are remembered
# Messages of kube-apiserver about changes, for the advice alone.
_OF_A_CHANGE = re.compile(r"immutable|may not change|cannot change|updates to .* are forbidden")


def is_of_handler(obj: KubeObject, manager: str, owner: str) -> bool:
    """Whether a field manager has made an object that it has applied by `ctx.apply`.

    The object of the call, whose uid is `owner`, controls it, or no object does; and nobody else has written
    anything but metadata and subresources.
    """
    metadata: Mapping[str, Any] = obj.get("metadata") or {}
    if not has_applied(manager, metadata):
        return False
    controllers = [
        each.get("uid") for each in metadata.get("ownerReferences") or () if each.get("controller")
    ]
    if controllers and (not owner or controllers != [owner]):
        return False
    return not any(
        (entry.get("fieldsV1") or {}).keys() - {"f:metadata", "f:status"}
        for entry in metadata.get("managedFields") or ()
        if entry.get("manager") != manager and not entry.get("subresource")
    )


class Recreation:
    """Sends applies, and makes an object again if the server refuses to change it. On the loop of the gate.

    It remembers what it has made. An object that is refused as it was made is changed by somebody else, and
    would be made again without end. Two applies that want different things would make it again in each call.
    """

    def __init__(
        self, gate: WriteGate, send: SendApply, *, clock: Clock, log: WarningLog | None = None
    ) -> None:
        self._gate = gate
        self._send = send
        self._clock = clock
        self._log = log
        # By uid, the body of what was made again, and when (monotonic seconds); the oldest first.
        self._made: OrderedDict[str, tuple[KubeObject | None, float]] = OrderedDict()

    async def apply(
        self,
        write: ApiWrite,
        origin: WriteOrigin,
        declared: DeclaredWrites,
        is_own: IsOwn,
        known: KubeObject | None = None,
    ) -> Written:
        """Send an apply; returns its result, or that of the apply that has made the object again.

        Raises as `WriteGate.send`: an InvalidRequest says why the object was not made again.
        """
        try:
            return await self._send(write, origin, declared.adopt_fields_from, known)
        except InvalidRequest as error:
            if error.code != _INVALID:
                raise
            if not declared.recreates_kind(write.resource.gvk):
                raise _with_advice(error, write) from error
            live = await self._deletable(write, is_own, error)
            return await self._recreated(write, origin, live, error)

    async def _deletable(self, write: ApiWrite, is_own: IsOwn, error: InvalidRequest) -> KubeObject:
        """The object that stands in the way. Raises InvalidRequest if it has to stay."""
        if _has_preconditions(write):
            raise _explained(error, "it is not made again, as the apply names its uid or version")
        try:
            live = await self._gate.read(write.resource, write.key.namespace, write.key.name)
        except NotFound:
            raise error from None
        if not is_own(live):
            raise _explained(error, f"it is not made again, as {write.manager} has not made it alone")
        try:
            body = without_allocated(write.body or {}, live)
            await self._gate.check_new(structs.replace(write, body=body))
        except ApiError as refusal:
            raise _explained(error, f"it is not made again, as it could not be made: {refusal}") from refusal
        made = self._made.get(str(live["metadata"].get("uid")))
        if made is not None and made[0] == write.body:
            why = "it is not made again, as it was made so: somebody else, such as a webhook, changes it"
            raise _explained(error, why)
        if made is not None and (ago := self._clock.monotonic() - made[1]) < _AGAIN_SECONDS:
            why = f"it was made again {ago:.0f} s ago, and is so once in {_AGAIN_SECONDS:.0f} s at most"
            raise _explained(error, why)
        return live

    async def _recreated(
        self, write: ApiWrite, origin: WriteOrigin, live: KubeObject, error: InvalidRequest
    ) -> Written:
        metadata: Mapping[str, Any] = live["metadata"]
        if "deletionTimestamp" not in metadata:
            deleted = await self._gate.delete(
                write.resource,
                write.key,
                uid=metadata["uid"],
                propagation="Background",
                manager=write.manager,
                origin=origin,
            )
            if deleted is not None and deleted.dry_run:
                return replace(deleted, verb=WriteVerb.APPLY, obj=write.body or {})
        await self._gone(write, str(metadata["uid"]), error)
        body: KubeObject = {**(write.body or {})}
        # Somebody else may have made one meanwhile.
        body["metadata"] = {**body["metadata"], "resourceVersion": NO_VERSION}
        made = structs.replace(write, body=body, repeats_conflict=False, awaits_event=True)
        written = await self._gate.send(made, origin)
        self._made[written.uid] = write.body, self._clock.monotonic()
        if len(self._made) > _MOST_OBJECTS:
            self._made.popitem(last=False)
        if self._log is not None:
            self._log.warning(
                f"{origin.handler}: {write.resource.gvk.kind} {write.key} was deleted and made again "
                f"(onImmutable: Recreate), as it can't be changed: {error.message}"
            )
        return written

    async def _gone(self, write: ApiWrite, uid: str, error: InvalidRequest) -> None:
        """Wait until an object is gone. Raises InvalidRequest after five seconds."""
        end, pause = self._clock.monotonic() + _SECONDS, _PAUSE
        while True:
            try:
                found = await self._gate.read(write.resource, write.key.namespace, write.key.name)
            except NotFound:
                return
            if found["metadata"].get("uid") != uid:
                return
            if self._clock.monotonic() >= end:
                holders = ", ".join(found["metadata"].get("finalizers") or ()) or "its grace period"
                raise _explained(
                    error, f"it is being deleted, held by {holders}, and made again by a later call"
                )
            await self._clock.sleep(pause)
            pause = min(2 * pause, 1.0)


def without_allocated(body: KubeObject, live: KubeObject) -> KubeObject:
    """A new object without the values that a server gives to one object alone, and that the live one has.

    Its delete sets them free. Until then, a dry run of a create would be refused because of them. These are
    addresses and ports of a Service.
    """
    if (body.get("apiVersion"), body.get("kind")) != ("v1", "Service"):
        return body
    spec, held = dict(body.get("spec") or {}), live.get("spec") or {}
    if _addresses(spec) & _addresses(held):
        spec = {name: value for name, value in spec.items() if name not in _ADDRESSES}
    ports = {port.get("nodePort") for port in held.get("ports") or ()} | {held.get(_HEALTH_PORT)}
    if spec.get(_HEALTH_PORT) in ports:
        spec.pop(_HEALTH_PORT, None)
    if spec.get("ports"):
        spec["ports"] = [
            {name: value for name, value in port.items() if name != "nodePort" or value not in ports}
            for port in spec["ports"]
        ]
    return {**body, "spec": spec}


def _addresses(spec: Mapping[str, Any]) -> set[str]:
    """The addresses of a Service in the cluster. A headless one has None as a text, which is no address."""
    return {spec.get("clusterIP") or "None", *(spec.get("clusterIPs") or ())} - {"None"}


def _has_preconditions(write: ApiWrite) -> bool:
    metadata: Mapping[str, Any] = (write.body or {}).get("metadata") or {}
    return bool(metadata.get("uid") or metadata.get("resourceVersion"))


def _explained(error: InvalidRequest, why: str) -> InvalidRequest:
    return InvalidRequest(error.code, error.reason, f"{error.message}; {why}")


def _with_advice(error: InvalidRequest, write: ApiWrite) -> InvalidRequest:
    if not _OF_A_CHANGE.search(error.message):
        return error
    kind = write.resource.gvk
    return _explained(
        error,
        "to have the object deleted and made again, write onImmutable: Recreate for "
        f"{{apiVersion: {kind.api_version}, kind: {kind.kind}}} in the `applies` of the handler",
    )
