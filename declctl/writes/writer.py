"""The writes of handlers: `ctx.apply` and its like, as methods; and `ctx.get`.

`WriterFactory` belongs to the process, and `HandlerWriter` to one handler of one generation. Arguments are
checked and copied in the thread of the caller (`document_of`, `status_change`, `reference_to`); the
coroutines run on the loop of the gate.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from declctl.errors import InvalidWrite, UndeclaredWrite
from declctl.kit import Clock
from declctl.objects import (
    GroupVersionKind,
    KubeObject,
    ObjectView,
    RequestSender,
    Resource,
    event_id_of,
    second_view,
)
from declctl.objects.resource import namespace_of
from declctl.writes.apply import (
    AppliedDocument,
    Discover,
    Writable,
    document_of,
    field_manager,
    has_preconditions,
    is_typed,
    placed,
    plain_json,
)
from declctl.writes.apply_set import AppliedSet, ApplySets, Member, SetOwner
from declctl.writes.budget import WriteBudget
from declctl.writes.declared import DeclaredWrites
from declctl.writes.field_adoption import FieldAdoption
from declctl.writes.finalizers import FinalizedObject, FinalizerWriter
from declctl.writes.gate import (
    ApiWrite,
    CachedVersion,
    OnWritten,
    Propagation,
    WantsLive,
    WarningLog,
    WriteGate,
    WriteRefusal,
    no_version,
    refuse_nothing,
)
from declctl.writes.ledger import WriteLedger, WriteOrigin, WriteVerb, Written
from declctl.writes.one_object import ObjectReference, read_object
from declctl.writes.recreation import Recreation, is_of_handler
from declctl.writes.status import (
    StatusChange,
    StatusWriter,
    conditions_of,
    given_conditions,
    hide_in_messages,
    without_copies,
)


class CallScope(msgspec.Struct, frozen=True):
    """The call that writes: its object, and what it was called for.

    `obj` is None in a life-cycle hook, and if the object is gone. `key` is empty in a life-cycle hook.
    `causes` may be a function that returns them, for a call that seldom writes.
    """

    key: str = ""
    obj: ObjectView | None = None
    request_id: str = ""
    causes: tuple[object, ...] | Callable[[], tuple[object, ...]] = ()

    @property
    def namespace(self) -> str | None:
        """The namespace of the object; None without one."""
        return namespace_of(self.key)

    @property
    def event_id(self) -> str:
        """What the call is for: the id of a request, or that of a change; empty in a life-cycle hook."""
        if self.request_id or self.obj is None:
            return self.request_id
        return event_id_of(self.obj)


def origin_of(handler: str, generation: int, scope: CallScope) -> WriteOrigin:
    """The origin of the writes of a call."""
    causes = scope.causes() if callable(scope.causes) else scope.causes
    # A reconciler has a request, and its reasons are those of its queue.
    obj = None if scope.request_id else scope.obj
    reads = None if obj is None else (obj.uid, obj.resource_version)
    return WriteOrigin(handler, generation, scope.event_id, causes, str(scope.key), reads)


def documents_of(objects: Iterable[object]) -> list[AppliedDocument]:
    """Check the objects of a set and copy them. From any thread. Raises InvalidWrite."""
    if isinstance(objects, Mapping | str | bytes) or is_typed(objects):
        raise InvalidWrite("apply_set takes a list of objects; for one object, write [obj]")
    return [document_of(obj) for obj in objects]


def status_change(
    scope: CallScope, conditions: Iterable[Writable], fields: Mapping[str, Any], *, is_whole: bool = False
) -> StatusChange:
    """Check what `status_arguments` has found, and copy it. From any thread. Raises InvalidWrite."""
    if "conditions" in fields or isinstance(conditions, Mapping | str | bytes):
        raise InvalidWrite("conditions is a list of conditions: conditions=[{...}]")
    obj = object_of(scope, "patch_status")
    given = given_conditions(conditions_of(without_copies(conditions, obj) if is_whole else conditions), obj)
    return StatusChange(obj, given, hide_in_messages(plain_json(fields)), is_whole)


def object_of(scope: CallScope, what: str) -> ObjectView:
    """A view of the object of a call, for the loop of the gate.

    It is another view than that of the hook, which may read its own at the same time: one thread at a time
    may use a view. Both have the same decoded object, if the hook has read it. Raises InvalidWrite if the
    call has no object; `what` is the method, for the message.
    """
    if scope.obj is None:
        why = f"{scope.key} is gone" if scope.key else "a life-cycle hook is about no object"
        raise InvalidWrite(f"ctx.{what} writes the object of the call, and there is none: {why}")
    return second_view(scope.obj)


class HandlerWriter:
    """The writes of one handler of one generation. Coroutines run on the loop of the gate."""

    def __init__(
        self,
        parts: "WriterParts",
        *,
        handler: str,
        generation: int,
        manager: str,
        declared: DeclaredWrites,
    ) -> None:
        self._parts = parts
        self._handler = handler
        self._generation = generation
        self._declared = declared
        self.manager = manager

    async def apply(
        self, document: AppliedDocument, scope: CallScope, *, force: bool | None = None
    ) -> Written:
        """Server-side apply of one object. `force` is by default that of the handler.

        Without a namespace it is that of the object of the call. A child of a set of the handler stays one.
        Raises InvalidWrite, UndeclaredWrite, NotLeader, and ApiError: NotFound if the server does not serve
        the kind; without force a Conflict if other managers own fields that it would change.
        """
        self._declared.require(document.kind, self._handler)
        resource = await self._parts.discover(document.kind)
        key = placed(document, resource, scope.namespace)
        origin = self._origin(scope)
        owner = None if scope.obj is None else self._owner(object_of(scope, "apply"), origin)
        await self._parts.sets.keep_marks(self.manager, owner, document, Member.of(resource, key))
        write = ApiWrite(
            WriteVerb.APPLY,
            resource,
            key,
            body=document.body,
            manager=self.manager,
            repeats_conflict=not has_preconditions(document),
            force=self._declared.force if force is None else force,
        )

        def is_own(obj: KubeObject) -> bool:
            if owner is not None and owner.is_only_owner_of(obj):
                return True
            return is_of_handler(obj, self.manager, "" if owner is None else owner.parent.uid)

        written = await self._parts.recreation.apply(write, origin, self._declared, is_own)
        if scope.obj is not None and written.uid == scope.obj.uid:
            self._parts.statuses.learn(written)  # its version is newer than that which the handler has
        return written

    async def apply_set(
        self, parent: ObjectView, documents: Sequence[AppliedDocument], scope: CallScope
    ) -> AppliedSet:
        """Apply the children of an object, and delete former ones; see `ApplySets`.

        Raises UndeclaredWrite before anything is written.
        """
        for document in documents:
            self._declared.require(document.kind, self._handler)
        return await self._parts.sets.apply(self._owner(parent, self._origin(scope)), documents)

    async def patch_status(self, change: StatusChange, scope: CallScope) -> Written:
        """Write the status of an object; see `StatusWriter`. Raises UndeclaredWrite."""
        if self._declared.status is False:
            raise UndeclaredWrite(
                f"ctx.patch_status was not sent: the manifest has status: false for the handler "
                f"{self._handler}; write status: true"
            )
        return await self._parts.statuses.patch(
            change,
            manager=self.manager,
            origin=self._origin(scope),
            is_own=self._declared.status is True,
            reads_first=self._declared.lacks_status,
        )

    async def get(self, reference: ObjectReference, scope: CallScope) -> ObjectView | None:
        """The object as the server has it now; None if it is not there.

        Without a namespace it is that of the object of the call. Raises InvalidWrite, and ApiError: NotFound
        if the server does not serve the kind.
        """
        resource = await self._parts.discover(reference.kind)
        return await read_object(self._parts.gate, resource, reference.key(resource, scope.namespace))

    async def delete(
        self, reference: ObjectReference, scope: CallScope, *, propagation: Propagation | None = None
    ) -> bool:
        """Delete an object; False if it is gone, or if one with another uid has its name.

        Raises UndeclaredWrite, NotLeader, and what `get` raises.
        """
        self._declared.require(reference.kind, self._handler)
        resource = await self._parts.discover(reference.kind)
        deleted = await self._parts.gate.delete(
            resource,
            reference.key(resource, scope.namespace),
            uid=reference.uid,
            propagation=propagation,
            manager=self.manager,
            origin=self._origin(scope),
        )
        return deleted is not None

    async def change_finalizer(
        self, kind: GroupVersionKind, finalizer: str, scope: CallScope, *, adds: bool, reads_first: bool
    ) -> Written | None:
        """Add the finalizer of the handler to the object of the call, or remove it; see `FinalizerWriter`.

        With `reads_first`, the object of the call may lack finalizers of others. Returns None if there was
        nothing to write.
        """
        obj = object_of(scope, "finalizer")
        resource = await self._parts.discover(kind)
        target = FinalizedObject(resource, obj.key, obj.uid, finalizer, self.manager, self._origin(scope))
        change = self._parts.finalizers.add if adds else self._parts.finalizers.remove
        return await change(target, None if reads_first else obj)

    def _owner(self, parent: ObjectView, origin: WriteOrigin) -> SetOwner:
        return SetOwner(parent, self.manager, origin, self._declared)

    def _origin(self, scope: CallScope) -> WriteOrigin:
        return origin_of(self._handler, self._generation, scope)


_NOTHING_DECLARED = DeclaredWrites()


class WriterParts(msgspec.Struct, frozen=True):
    """The parts that all handlers share."""

    gate: WriteGate
    recreation: Recreation
    sets: ApplySets
    statuses: StatusWriter
    finalizers: FinalizerWriter
    discover: Discover


class WritePolicy(msgspec.Struct, frozen=True):
    """What decides over all writes of a process."""

    refusal: WriteRefusal = refuse_nothing  # why a write must not be sent
    dry_run: bool = False
    on_written: OnWritten | None = None  # called after each write that the server has stored
    on_dry_run: OnWritten | None = None  # called after each write of a dry run
    cached_version: CachedVersion = no_version
    # Whether the live object is read before a write.
    wants_live: WantsLive = msgspec.field(default=lambda _: False)


class WriterFactory:
    """Makes the writers of handlers. One for each process; made and used on the loop of `sender`.

    - `controller`: the name of the manifest, which is part of each field manager.
    - `discover`, `forget`: the resource of a kind, and to discover it anew.
    - `version`: of declctl, for the annotation of ApplySets.
    - `log`: gets the kinds of children that a handler may not delete, the children that it adopts, and the
      objects that are made again.
    """

    def __init__(  # noqa: PLR0913 - one parameter for each thing that the process owns
        self,
        sender: RequestSender,
        ledger: WriteLedger,
        *,
        controller: str,
        discover: Discover,
        forget: Callable[[GroupVersionKind], None],
        version: str,
        clock: Clock,
        policy: WritePolicy | None = None,
        log: WarningLog | None = None,
    ) -> None:
        policy = policy or WritePolicy()

        async def rediscover(kind: GroupVersionKind) -> Resource:
            forget(kind)
            return await discover(kind)

        self._controller = controller
        self.budget = WriteBudget(clock=clock)  # of all writes of the process, also those of other clients
        gate = WriteGate(
            sender,
            ledger,
            clock=clock,
            refusal=policy.refusal,
            dry_run=policy.dry_run,
            budget=self.budget,
            cached_version=policy.cached_version,
            wants_live=policy.wants_live,
            on_written=policy.on_written,
            on_dry_run=policy.on_dry_run,
            rediscover=rediscover,
        )
        statuses = StatusWriter(gate, discover, forget=forget, clock=clock)
        recreation = Recreation(gate, FieldAdoption(gate).apply, clock=clock, log=log)
        sets = ApplySets(
            gate, recreation.apply, discover, version=version, clock=clock, on_marked=statuses.learn, log=log
        )
        finalizers = FinalizerWriter(gate)
        self._parts = WriterParts(gate, recreation, sets, statuses, finalizers, discover)

    def writer(
        self,
        handler: str,
        generation: int,
        *,
        manager: str = "",
        declared: DeclaredWrites = _NOTHING_DECLARED,
    ) -> HandlerWriter:
        """The writer of a handler. Its field manager is `manager`, else `declctl/<controller>/<handler>`."""
        return HandlerWriter(
            self._parts,
            handler=handler,
            generation=generation,
            manager=manager or field_manager(self._controller, handler),
            declared=declared,
        )

    def forget_sets(self) -> None:
        """List the members of sets again: another process may have written them, such as another leader."""
        self._parts.sets.forget()
