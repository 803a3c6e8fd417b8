"""One object of any kind by its name: `ctx.get` reads it from the server, and `ctx.delete` deletes it.

Arguments are checked in the thread of the caller; the coroutines run on the loop of the gate.
"""

from collections.abc import Mapping
from typing import Any, Final, cast, get_args

import msgspec

from declctl.errors import InvalidWrite, NotFound
from declctl.objects import GroupVersionKind, ObjectKey, ObjectView, Resource
from declctl.objects.plain import plain_view
from declctl.writes.apply import is_typed, key_in, plain_json
from declctl.writes.gate import Propagation, WriteGate

_PROPAGATIONS: Final = get_args(Propagation)


class ObjectReference(msgspec.Struct, frozen=True):
    """An object, as the arguments of a call name it."""

    kind: GroupVersionKind
    name: str
    namespace: str | None  # None if they name none
    uid: str = ""  # of the only object that is meant; empty for any object of the name

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"

    def key(self, resource: Resource, default: str | None) -> ObjectKey:
        """The key of the object, by default in the namespace `default`. Raises InvalidWrite."""
        return key_in(resource, self.name, self.namespace, default, what=str(self))


def reference_to(
    given: object, name: object = None, namespace: object = None, uid: object = None
) -> ObjectReference:
    """Check the arguments of `get` or `delete`. From any thread. Raises InvalidWrite.

    `given` is a kind such as `apps/v1/Deployment`, with a `name`; or an object, which has a name and maybe a
    namespace and a uid.
    """
    if isinstance(given, Mapping) or is_typed(given):
        if name is not None or namespace is not None:
            raise InvalidWrite(
                "an object has a name and a namespace: give either an object, or kind and name"
            )
        obj = plain_json(given) if is_typed(given) else cast("Mapping[str, Any]", given)
        kind, metadata = f"{obj.get('apiVersion')}/{obj.get('kind')}", obj.get("metadata")
        fields = cast("Mapping[str, Any]", metadata) if isinstance(metadata, Mapping) else {}
        name, namespace, uid = fields.get("name"), fields.get("namespace"), uid or fields.get("uid")
    elif isinstance(given, str):
        kind = given
    else:
        raise InvalidWrite(
            f"a {type(given).__name__} names no object: give an object, or a kind such as "
            '"apps/v1/Deployment" and a name'
        )
    for value, what in ((namespace, "namespace"), (uid, "uid")):
        if value is not None and not (isinstance(value, str) and value):
            raise InvalidWrite(f"the {what} of the {kind} is {value!r}; it has to be a text")
    if not isinstance(name, str) or not name:
        found = "is missing" if name is None else f"is {name!r}"
        raise InvalidWrite(
            f'the name of the {kind} {found}: write kind and name, as "v1/ConfigMap", "settings"'
        )
    try:
        parsed = GroupVersionKind.parse(str(kind))
    except ValueError as fault:
        raise InvalidWrite(str(fault)) from None
    return ObjectReference(
        parsed, str(name), cast("str | None", namespace), str(cast("str | None", uid) or "")
    )


def propagation_of(given: object) -> Propagation | None:
    """Check a propagation; None is the default of the server. Raises InvalidWrite."""
    if given is not None and given not in _PROPAGATIONS:
        raise InvalidWrite(f"propagation is {', '.join(_PROPAGATIONS)} or None, not {given!r}")
    return cast("Propagation | None", given)


async def read_object(gate: WriteGate, resource: Resource, key: ObjectKey) -> ObjectView | None:
    """The object as the server has it now; None if it is not there. Raises ApiError."""
    try:
        return plain_view(await gate.read(resource, key.namespace, key.name))
    except NotFound:
        return None
