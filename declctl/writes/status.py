"""The status of an object, written by its handler: conditions, and other fields.

It is a JSON merge patch of the `status` subresource with the resource version of the state that it was
computed from. A server-side apply would keep the conditions of other controllers only where the schema has
them as a map by type (`x-kubernetes-list-type: map`), which many custom resources do not; there an apply
replaces the whole list. It would also remove each field that the call before has set and this one does not
name. With the version, a condition that another controller has written meanwhile is a 409: the object is
read, and the patch is computed again.
"""

import difflib
import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, cast

import msgspec

from declctl.errors import Conflict, InvalidWrite, NoStatusSubresource, NotFound, ObjectGone
from declctl.kit import Clock
from declctl.kit.secret_values import secret_values
from declctl.objects import Condition, GroupVersionKind, KubeObject, ObjectView, Resource, newer_version
from declctl.writes.apply import Discover, Typed, Writable, is_typed, plain_json
from declctl.writes.gate import ApiWrite, WriteGate
from declctl.writes.ledger import WriteOrigin, WriteVerb, Written
from declctl.writes.locks import KeyLocks

_MOST_STATUSES = 5000  # of objects that were written last, which are remembered
_CONDITION_FIELDS = ("type", "status", "reason", "message", "observedGeneration", "lastTransitionTime")
_FILLED_IN = ("observedGeneration", "lastTransitionTime")
_STATUSES = ("True", "False", "Unknown")
# The limits of metav1.Condition, which most kinds have for their conditions.
_REASON = re.compile(r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?")
_SUBDOMAIN = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
_TYPE = re.compile(rf"({_SUBDOMAIN}/)?([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")
_LONGEST_TYPE, _LONGEST_REASON, _LONGEST_MESSAGE = 316, 1024, 32768  # characters


def status_arguments(
    status: Typed | Iterable[Writable], conditions: Iterable[Writable] | None, fields: Mapping[str, Any]
) -> tuple[Iterable[Writable], Mapping[str, Any], bool]:
    """The conditions and the fields of a call, and whether they are the whole status. Raises InvalidWrite.

    `status` is the first argument: a typed status, or the conditions.
    """
    if not is_typed(status):
        if conditions is not None and status != ():
            raise InvalidWrite("the conditions are given twice: as the first argument, and by conditions=")
        given = status if conditions is None else conditions
        return cast("Iterable[Writable]", given), fields, False
    if isinstance(status, Condition):
        raise InvalidWrite("conditions is a list of conditions: write [Condition(…)]")
    if fields or conditions is not None:
        raise InvalidWrite(
            f"a {type(status).__name__} is the whole status, with its conditions: give no further arguments"
        )
    whole = plain_json(status)
    if not whole.get("observedGeneration"):
        whole.pop("observedGeneration", None)  # it is filled in
    return whole.pop("conditions", None) or (), whole, True


def conditions_of(given: Iterable[Writable]) -> list[KubeObject]:
    """Check conditions and copy them. From any thread.

    Each has `type`, `status` (True, False or Unknown, as a text or a boolean), `reason` and maybe `message`,
    of which the rest is cut off if it is too long. Raises InvalidWrite for what the server would refuse.
    """
    found: list[KubeObject] = []
    for each in given:
        if not isinstance(each, Mapping) and not is_typed(each):
            raise InvalidWrite(
                "a condition is a declctl.Condition, or a dict with type, status and reason, not a "
                f"{type(each).__name__}"
            )
        condition = plain_json(each)
        for name in condition.keys() - set(_CONDITION_FIELDS):
            near = difflib.get_close_matches(str(name), _CONDITION_FIELDS, n=1)
            hint = f"did you mean {near[0]}?" if near else f"it has {', '.join(_CONDITION_FIELDS)}"
            raise InvalidWrite(f"a condition has no field {name!r}: {hint}")
        kind, status = condition.get("type"), condition.get("status")
        if not isinstance(kind, str) or not kind:
            raise InvalidWrite(f"a condition needs a type, such as Ready; it is {kind!r}")
        if len(kind) > _LONGEST_TYPE or not _TYPE.fullmatch(kind):
            raise InvalidWrite(
                f"{kind!r} is no type of a condition: it is one CamelCase word of at most {_LONGEST_TYPE} "
                "characters, such as Ready or example.dev/Ready"
            )
        condition["status"] = str(status)
        if condition["status"] not in _STATUSES:
            raise InvalidWrite(
                f"the status of the condition {kind} is True, False or Unknown, not {status!r}"
            )
        reason = condition.get("reason")
        if not isinstance(reason, str) or not _REASON.fullmatch(reason):
            raise InvalidWrite(
                f"the condition {kind} needs a reason, one CamelCase word such as AllReady or NotFound; "
                f"it {f'is {reason!r}' if reason else 'has none'}"
            )
        if len(reason) > _LONGEST_REASON:
            raise InvalidWrite(
                f"the reason of the condition {kind} has {len(reason):,} characters, more than "
                f"{_LONGEST_REASON:,}: it is one word, and the text goes into the message"
            )
        message = condition.setdefault("message", "")
        if not isinstance(message, str):
            raise InvalidWrite(
                f"the message of the condition {kind} is a text, not a {type(message).__name__}"
            )
        condition["message"] = secret_values.hide(message)[:_LONGEST_MESSAGE]
        _check_filled_in(kind, condition)
        if any(other["type"] == kind for other in found):
            raise InvalidWrite(f"the condition {kind} is given twice")
        found.append(condition)
    return found


def given_conditions(checked: Sequence[KubeObject], obj: ObjectView) -> Sequence[KubeObject]:
    """The conditions that a handler gives anew, without what it has copied from those that it has seen.

    In a changed copy, what is filled in is that of the old condition.
    """
    if not any(name in each for each in checked for name in _FILLED_IN):
        return checked
    seen = _seen_conditions(obj)
    found: list[KubeObject] = []
    for each in checked:
        old: Mapping[str, Any] = seen.get(each["type"]) or {}
        copied = {name for name in _FILLED_IN if name in old and old[name] == each.get(name)}
        found.append(
            each if each == old else {name: value for name, value in each.items() if name not in copied}
        )
    return found


def without_copies(conditions: Iterable[Writable], obj: ObjectView) -> Sequence[Writable]:
    """The conditions of a whole status but for those that a handler has copied from what it has seen.

    These may be conditions of other controllers, which may be newer by now, and may lack a reason.
    """
    seen = _seen_conditions(obj)
    return [each for each in conditions if not _is_copy(each, seen)]


def _seen_conditions(obj: ObjectView) -> Mapping[Any, Mapping[str, Any]]:
    status = _fields(obj)
    return {each.get("type"): each for each in status.get("conditions") or () if isinstance(each, Mapping)}


def _is_copy(condition: Writable, seen: Mapping[Any, Mapping[str, Any]]) -> bool:
    """Whether a condition is one of an object, as far as a Condition has its fields."""
    try:
        read = msgspec.convert(condition, Condition)
        return read == msgspec.convert(dict(seen[read.type]), Condition)
    except (KeyError, msgspec.ValidationError):  # what is given is checked later
        return False


def hide_in_messages(fields: KubeObject) -> KubeObject:
    """The fields of a status without values of Secrets in their `message`s, at any depth.

    Many may read a status. A message is for people; any other field is data, which programs need as it is.
    """

    def hidden(name: str, value: Any) -> Any:
        if isinstance(value, dict):
            return hide_in_messages(cast("KubeObject", value))
        if isinstance(value, list):
            return [hidden("", each) for each in cast("list[Any]", value)]
        return secret_values.hide(value) if name == "message" and isinstance(value, str) else value

    return {name: hidden(name, value) for name, value in fields.items()}


def _check_filled_in(kind: str, condition: KubeObject) -> None:
    """Check the fields that are filled in unless they are given. Raises InvalidWrite."""
    since = condition.get("lastTransitionTime", "2000-01-01T00:00:00Z")
    if not isinstance(since, str) or not _TIME.fullmatch(since) or not _is_time(since):
        raise InvalidWrite(
            f"the lastTransitionTime of the condition {kind} is {since!r}: leave it out, and it is filled "
            "in, or write a time such as 2026-01-31T12:00:00Z"
        )
    observed = condition.get("observedGeneration", 0)
    if not isinstance(observed, int) or isinstance(observed, bool) or observed < 0:
        raise InvalidWrite(
            f"the observedGeneration of the condition {kind} is {observed!r}: leave it out, and it is "
            "filled in, or write a number"
        )


def _is_time(text: str) -> bool:
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return True


class StatusChange(msgspec.Struct, frozen=True):
    """The arguments of one call, checked."""

    obj: ObjectView  # as the handler has seen it
    conditions: Sequence[KubeObject]
    fields: KubeObject
    is_whole: bool = False  # the fields are whole values, and not patches of those that are there

    def patch(self, status: Mapping[str, Any], *, now: str, is_own: bool) -> KubeObject:
        """The merge patch that leads from `status` to the wanted one; empty if nothing would change.

        `now` is the time of a transition, RFC 3339. With `is_own`, the status is that of the handler, and its
        observedGeneration is filled in. Raises InvalidWrite for conditions that are no list.
        """
        generation = self.obj["metadata"].get("generation")
        wanted = self.fields
        if self.is_whole:
            wanted = {name: _replacement(status.get(name), value) for name, value in wanted.items()}
        # The field says how far the controller of the kind is: `kubectl rollout status` reads it of a kind of
        # Kubernetes, and other tools read it of the kinds of other controllers.
        kind = GroupVersionKind.of(self.obj["apiVersion"], self.obj["kind"])
        if is_own and generation is not None and not _is_of_kubernetes(kind.group):
            wanted = {"observedGeneration": generation, **wanted}
        patch = {name: value for name, value in wanted.items() if not _is_merged(status, name, value)}
        if self.conditions:
            there = status.get("conditions") or []
            if not isinstance(there, list):
                raise InvalidWrite(
                    f"status.conditions of this {kind.kind} is no list, and patch_status merges conditions "
                    "into a list: write them by ctx.client"
                )
            before = [dict(each) for each in cast("list[Any]", there) if isinstance(each, Mapping)]
            after = self._merged(before, generation, now)
            if after != before:
                patch["conditions"] = after
        # Alone it says nothing: the status is as it was for another generation, and is checked for this one.
        return patch

    def _merged(self, before: Sequence[KubeObject], generation: Any, now: str) -> list[KubeObject]:
        merged = {str(each.get("type")): each for each in before}
        for condition in self.conditions:
            old = merged.get(condition["type"], {})
            moved = old.get("status") != condition["status"] or "lastTransitionTime" not in old
            since = now if moved else old["lastTransitionTime"]
            observed = {} if generation is None else {"observedGeneration": generation}
            new = {**old, "lastTransitionTime": since, **observed, **condition}
            if not _is_stored(new, old):
                merged[condition["type"]] = new
        return list(merged.values())


class StatusWriter:
    """Writes the status of objects. Used on the loop of the gate; calls for one object wait for each other.

    Else all but one of them would be conflicts. It remembers the statuses that it has written last, so that a
    handler that is called with an older state of the cache does not write again.
    """

    def __init__(
        self,
        gate: WriteGate,
        discover: Discover,
        *,
        forget: Callable[[GroupVersionKind], None],
        clock: Clock,
    ) -> None:
        self._gate = gate
        self._discover = discover
        self._forget = forget  # discover the kind again when it is needed next
        self._clock = clock
        self._known: OrderedDict[str, _KnownStatus] = OrderedDict()  # by uid; the oldest write first
        self._locks = KeyLocks()  # by uid

    def learn(self, written: Written) -> None:
        """Note a write of this process that has given an object another version, and no other status.

        Such as the labels of the parent of a set. Without it, the next patch of the status would name the
        version before that write, and be a conflict.
        """
        if written.dry_run or not written.uid:
            return
        known, status = self._known.get(written.uid), written.obj.get("status") or {}
        if not isinstance(status, dict):
            return  # a status that is no object is not written here
        if known is not None and newer_version(known.version, written.resource_version) == known.version:
            return
        same = known is not None and known.status == status
        self._remember(written.uid, written, known.sent if known is not None and same else {})

    async def patch(
        self,
        change: StatusChange,
        *,
        manager: str,
        origin: WriteOrigin,
        is_own: bool = False,
        reads_first: bool = False,
    ) -> Written:
        """Write what would change of the status; nothing is sent if that is nothing.

        With `is_own` the handler is the controller whose status it is. With `reads_first` the status is read
        from the server unless this process has written the newest one: the cache may lack it, and the
        conditions of other controllers with it.

        Raises InvalidWrite for a status that is no object, NoStatusSubresource, NotLeader, ObjectGone if the
        object has gone, also if it has been created again, and ApiError.
        """
        obj = change.obj
        resource = await self._with_status(GroupVersionKind.of(obj["apiVersion"], obj["kind"]))
        async with self._locks.of(obj.uid):
            try:
                return await self._patch(
                    change, resource, manager, origin, is_own=is_own, reads_first=reads_first
                )
            except ObjectGone:
                raise
            except NotFound:
                await self._read(resource, obj)
                # The object lives: its definition may have lost the subresource.
                self._forget(resource.gvk)
                await self._with_status(resource.gvk)
                raise

    async def _patch(
        self,
        change: StatusChange,
        resource: Resource,
        manager: str,
        origin: WriteOrigin,
        *,
        is_own: bool,
        reads_first: bool,
    ) -> Written:
        obj = change.obj
        known = self._known.get(obj.uid)
        state = _KnownStatus(obj.resource_version, _fields(obj), {})
        if known is not None and newer_version(known.version, state.version) == known.version:
            state = known
        elif reads_first:
            state = await self._read(resource, obj)
        conflicts = 0
        while True:
            now = self._clock.now().strftime("%Y-%m-%dT%H:%M:%SZ")
            patch = change.patch(state.status, now=now, is_own=is_own)
            write = ApiWrite(
                WriteVerb.PATCH_STATUS,
                resource,
                obj.key,
                body={"metadata": {"uid": obj.uid, "resourceVersion": state.version}, "status": patch},
                manager=manager,
                subresource="status",
            )
            # The server drops fields that the schema does not have: to send them again would change nothing.
            was_sent = known is not None and known.status == state.status and known.has_sent(patch)
            if not patch or was_sent:
                return self._gate.skip(write, origin, _skipped(obj, state))
            try:
                written = await self._gate.send(write, origin)
            except Conflict as error:
                await self._gate.wait_after(error, conflicts)
                conflicts += 1
                state = await self._read(resource, obj)
                continue
            if written.dry_run:
                return written
            self._remember(obj.uid, written, patch)
            return written

    async def _with_status(self, kind: GroupVersionKind) -> Resource:
        resource = await self._discover(kind)
        if "status" not in resource.subresources:
            self._forget(kind)  # its definition may have got one since
            resource = await self._discover(kind)
        if "status" not in resource.subresources:
            raise NoStatusSubresource(
                f"{resource} have no status subresource: add `subresources: {{status: {{}}}}` to the version "
                f"{kind.version} of the CustomResourceDefinition, or write what you need by ctx.apply"
            )
        return resource

    async def _read(self, resource: Resource, obj: ObjectView) -> "_KnownStatus":
        """The present status. Raises ObjectGone if the object has gone, also if it was made again."""
        found = await self._gate.read_again(resource, obj)
        return _KnownStatus(str(found["metadata"].get("resourceVersion")), _fields(found), {})

    def _remember(self, uid: str, written: Written, patch: KubeObject) -> None:
        self._known.pop(uid, None)
        self._known[uid] = _KnownStatus(written.resource_version, written.obj.get("status") or {}, patch)
        if len(self._known) > _MOST_STATUSES:
            self._known.popitem(last=False)


class _KnownStatus(msgspec.Struct, frozen=True):
    """The status of one version of an object."""

    version: str
    status: Mapping[str, Any]
    sent: KubeObject  # the patch that has led to it; empty if it was read

    def has_sent(self, patch: KubeObject) -> bool:
        """Whether all of a patch was part of the one that has led here."""
        return all(name in self.sent and self.sent[name] == value for name, value in patch.items())


def _fields(obj: Mapping[str, Any]) -> Mapping[str, Any]:
    """The status of an object. Raises InvalidWrite for one without fields, such as a text."""
    status = obj.get("status")
    if status is None:
        return {}
    if not isinstance(status, Mapping):
        raise InvalidWrite(
            f"the status of this {obj.get('kind') or 'kind'} is no object, and patch_status merges "
            "conditions and fields into an object: write it by ctx.client, or make it an object in the "
            "CustomResourceDefinition"
        )
    return cast("Mapping[str, Any]", status)


def _skipped(obj: ObjectView, state: _KnownStatus) -> KubeObject:
    """The object as the server has it: as the handler has seen it, with the newest known status."""
    found = obj.to_dict()
    found["metadata"]["resourceVersion"] = state.version
    return {**found, "status": dict(state.status)}


def _is_of_kubernetes(group: str) -> bool:
    """Whether Kubernetes defines the kinds of a group. The group of a custom resource has a dot."""
    return "." not in group or group.endswith(".k8s.io")


def _is_stored(condition: KubeObject, old: KubeObject) -> bool:
    """Whether the server has a condition already, as far as the kind has its fields.

    The conditions of some kinds, such as Deployment, have no observedGeneration and no empty message: the
    server drops both.
    """
    return bool(old) and all(
        old.get(name) == value or (name not in old and (name == "observedGeneration" or value == ""))
        for name, value in condition.items()
    )


def _replacement(before: Any, after: Any) -> Any:
    """The JSON merge patch (RFC 7386) of a value that becomes `after`: what a map has no more is removed."""
    if not isinstance(before, Mapping) or not isinstance(after, dict):
        return after
    old, new = cast("Mapping[str, Any]", before), cast("KubeObject", after)
    removed = {name: None for name in old if name not in new}
    return removed | {name: _replacement(old.get(name), value) for name, value in new.items()}


def _is_merged(holder: Mapping[str, Any], name: str, patch: Any) -> bool:
    """Whether a JSON merge patch (RFC 7386) of a field changes nothing."""
    if patch is None:  # removes the field
        return name not in holder
    value = holder.get(name)
    if isinstance(patch, dict):
        fields = cast("KubeObject", patch)
        return isinstance(value, Mapping) and all(
            _is_merged(cast("Mapping[str, Any]", value), each, inner) for each, inner in fields.items()
        )
    return name in holder and value == patch and isinstance(value, bool) == isinstance(patch, bool)
