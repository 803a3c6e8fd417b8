"""From a method and a path to what is asked for: a verb on a resource.

Pure; everything that isn't a resource is somebody else's.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote

from declctl.sandbox import status
from declctl.sandbox.kinds import Registry, ServedKind
from declctl.sandbox.options import truth

_ON_ONE: Final = {"GET": "get", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
_ON_ALL: Final = {"GET": "list", "POST": "create", "DELETE": "deletecollection"}


@dataclass(frozen=True, slots=True)
class Call:
    """A verb on a resource; `namespace`, `name` and `subresource` are empty where there is none."""

    verb: str
    kind: ServedKind
    namespace: str
    name: str
    subresource: str

    @property
    def resource(self) -> str:
        """The plural, with the subresource behind a slash."""
        return f"{self.kind.plural}/{self.subresource}" if self.subresource else self.kind.plural


@dataclass(frozen=True, slots=True)
class _Address:
    group: str
    version: str
    namespace: str
    rest: Sequence[str]


def resolve(method: str, path: str, query: Mapping[str, str], registry: Registry) -> Call | None:
    """The call that a request makes; None if the path is no resource's. Refused with 404 or 405."""
    address = _split([unquote(part) for part in path.strip("/").split("/")])
    if address is None or not address.rest:
        return None
    plural, name, subresource = (*address.rest, "", "")[:3]
    if not registry.serves(address.group, address.version):
        return None
    kind = registry.at(address.group, address.version, plural)
    if kind is None or len(address.rest) > 3 or (address.namespace and not kind.namespaced):
        raise status.no_such_resource()
    if subresource and not _has(kind, subresource):
        raise status.no_such_resource()
    method = "GET" if method == "HEAD" else method
    verb = (_ON_ONE if name else _ON_ALL).get(method)
    if verb == "list" and truth(query.get("watch")):
        verb = "watch"
    call = Call(verb or "", kind, address.namespace, name, subresource)
    if not _allowed(call):
        raise status.method_not_allowed()
    return call


def _split(parts: list[str]) -> _Address | None:
    match parts:
        case ["api", version, *rest]:
            group = ""
        case ["apis", group, version, *rest]:
            pass
        case _:
            return None
    # /namespaces/x/pods is about pods; /namespaces/x and /namespaces/x/status are about the namespace itself.
    if len(rest) >= 3 and rest[0] == "namespaces" and not (group == "" and rest[2] in ("status", "finalize")):
        return _Address(group, version, rest[1], rest[2:])
    return _Address(group, version, "", rest)


def _has(kind: ServedKind, subresource: str) -> bool:
    return (subresource == "status" and kind.status) or (subresource == "scale" and kind.scale is not None)


def _allowed(call: Call) -> bool:
    if call.subresource:
        return call.verb in ("get", "update", "patch")
    across = call.kind.namespaced and not call.namespace
    if across and (call.name or call.verb in ("create", "deletecollection")):
        return False
    return call.verb in call.kind.verbs
