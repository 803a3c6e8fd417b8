"""Applies that take over fields which former updates hold, as client-go's `csaupgrade` does for kubectl.

A server-side apply removes a field only if an apply of the same manager has set it before. So after the move
from create or update to `apply`, a field that the apply does not have would stay for ever. The entries
`Update` of declctl's own clients, and of the managers that the handler names, become part of the entry
`Apply` of the handler. A second apply then removes what it does not have.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace

from msgspec import structs

from declctl.errors import Conflict
from declctl.objects import KubeObject
from declctl.objects.managed_fields import CLIENT_MANAGER, is_applied, upgraded_managed_fields
from declctl.writes.gate import ApiWrite, WriteGate
from declctl.writes.ledger import WriteOrigin, WriteVerb, Written

_MOST_OBJECTS = 20_000  # that are remembered


class FieldAdoption:
    """Sends applies, and takes fields over at the first one of each object. Used on the loop of the gate.

    The answer to an apply shows who holds fields: an object without such entries costs no further request. A
    process looks once for each handler and object: what `ctx.client` writes later stays until the next
    process, or until 20,000 others were looked at. A dry run takes nothing over.
    """

    def __init__(self, gate: WriteGate) -> None:
        self._gate = gate
        # (field manager, those that it adopts from, uid of the object) that were looked at; the oldest first.
        self._done: OrderedDict[tuple[str, Sequence[str], str], None] = OrderedDict()

    async def apply(
        self,
        write: ApiWrite,
        origin: WriteOrigin,
        adopted: Sequence[str],
        known: KubeObject | None = None,
    ) -> Written:
        """Send an apply; returns its result, or that of the second one after a takeover.

        `adopted` are further managers than that of declctl's own clients. Nothing is sent if `known`, the
        present state of the object, is as it would be. Raises as `WriteGate.send`.
        """
        managers, version = (CLIENT_MANAGER, *adopted), write.resource.gvk.api_version
        if (
            known is not None
            and is_applied(known, write.body or {}, write.manager)
            and upgraded_managed_fields(known, managers, write.manager, version) is None
        ):
            return self._gate.skip(write, origin, known)
        if self._gate.dry_run:
            return await self._gate.send(write, origin)
        conflicts, took_over = 0, False
        while True:
            answer: Written | Conflict
            try:
                answer = await self._gate.send(write, origin)
                live = answer.obj
            except Conflict as error:
                # Without force: a field that is going to be taken over is no conflict.
                if took_over or not set(managers) & set(error.managers):
                    raise
                answer = error
                live = await self._gate.read(write.resource, write.key.namespace, write.key.name)
            looked_at = write.manager, managers, str((live.get("metadata") or {}).get("uid"))
            entries = None
            if isinstance(answer, Conflict) or looked_at not in self._done:
                entries = upgraded_managed_fields(live, managers, write.manager, version)
            if entries is not None:
                try:
                    write = await self._take_over(write, origin, live, entries)
                except Conflict as error:
                    await self._gate.wait_after(error, conflicts)
                    conflicts += 1
                    continue  # the answer to the next apply has the entries as they are then
                took_over = True
            self._remember(looked_at)
            if entries is None:
                if isinstance(answer, Conflict):
                    raise answer
                return replace(answer, changed=True) if took_over else answer

    async def _take_over(
        self, write: ApiWrite, origin: WriteOrigin, live: KubeObject, entries: Sequence[KubeObject]
    ) -> ApiWrite:
        """Give an object other entries of `managedFields`, unless it has changed; returns the next apply."""
        seen = {name: live["metadata"][name] for name in ("uid", "resourceVersion")}
        body: KubeObject = {"metadata": {**seen, "managedFields": entries}}
        patch = ApiWrite(WriteVerb.PATCH, write.resource, write.key, body=body, manager=write.manager)
        version = (await self._gate.send(patch, origin)).resource_version
        metadata: KubeObject = (write.body or {})["metadata"]
        if "resourceVersion" not in metadata:
            return write
        # It is a precondition, which the takeover has outdated.
        body = {**(write.body or {}), "metadata": {**metadata, "resourceVersion": version}}
        return structs.replace(write, body=body)

    def _remember(self, looked_at: tuple[str, Sequence[str], str]) -> None:
        self._done[looked_at] = None
        if len(self._done) > _MOST_OBJECTS:
            self._done.popitem(last=False)
