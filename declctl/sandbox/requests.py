"""What a request asks for, and what it brings.

Method and path become a verb on a resource. The body, and the options of writing and deleting, are read, and
refused in the real server's words. Pure; paths of anything that is no resource are answered elsewhere.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote

import msgspec

from declctl.errors import SandboxError
from declctl.sandbox import status
from declctl.sandbox.documents import read_documents
from declctl.sandbox.kinds import Registry, ServedKind
from declctl.sandbox.kubectl import protobuf
from declctl.sandbox.lists import truth
from declctl.sandbox.status import Cause
from declctl.sandbox.targets import Deletion, Write

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


_ACCEPTED = ("application/json", "application/yaml", protobuf.MEDIA_TYPE)


def read_object(call: Call, media_type: str, body: bytes) -> Any:
    """The object of a create or update; refused with 400 or 415."""
    if media_type not in ("", *_ACCEPTED):
        raise status.unsupported_media_type(_ACCEPTED)
    return _parse(call, media_type, body)


def read_patch(call: Call, media_type: str, body: bytes) -> Any:
    """The body of a patch, whatever kind of patch it is."""
    return _parse(call, media_type, body)


def read_write(call: Call, params: Mapping[str, str], user_agent: str) -> Write:
    """How to write; refused with 422 for a dryRun that isn't All."""
    options = {"create": "CreateOptions", "update": "UpdateOptions", "patch": "PatchOptions"}
    dry_run = _dry_run(params.get("dryRun", ""), options.get(call.verb, "UpdateOptions"))
    manager = params.get("fieldManager") or user_agent.partition("/")[0] or "unknown"
    return Write(dry_run=dry_run, manager=manager, subresource=call.subresource)


def read_deletion(call: Call, params: Mapping[str, str], media_type: str, body: bytes) -> Deletion:
    """How to delete, from the body or the query; refused with 400 or 422."""
    given = _parse(call, media_type, body) if body.strip() else {}
    if not isinstance(given, dict):
        raise status.bad_request("DeleteOptions must be an object")
    preconditions = given.get("preconditions") or {}
    dry_run = given.get("dryRun") or ([params["dryRun"]] if "dryRun" in params else [])
    policy = given.get("propagationPolicy") or params.get("propagationPolicy", "")
    if policy not in ("", "Orphan", "Background", "Foreground"):
        known = '"Foreground", "Background", "Orphan", "nil"'
        message = f'Unsupported value: "{policy}": supported values: {known}'
        cause = Cause("FieldValueNotSupported", message, "propagationPolicy")
        raise status.invalid_options("DeleteOptions", [cause])
    return Deletion(
        dry_run=_dry_run(dry_run[0] if dry_run else "", "DeleteOptions"),
        grace=_seconds(given.get("gracePeriodSeconds", params.get("gracePeriodSeconds"))),
        uid=preconditions.get("uid") or "",
        version=preconditions.get("resourceVersion") or "",
    )


def forced(params: Mapping[str, str]) -> bool:
    """Whether server-side apply may take fields from others."""
    return truth(params.get("force"))


def decoded(media_type: str, body: bytes) -> Any:
    """A body by its media type, by default JSON; raises ValueError, or SandboxError for YAML."""
    if media_type == protobuf.MEDIA_TYPE:
        return protobuf.decode(body)
    if media_type.endswith(("/yaml", "+yaml")):
        return next(iter(read_documents(body)), None)
    return msgspec.json.decode(body)


def _parse(call: Call, media_type: str, body: bytes) -> Any:
    try:
        return decoded(media_type, body)
    except (ValueError, SandboxError, RecursionError) as error:
        shown = body[:64].decode(errors="replace") or "<empty>"
        raise status.bad_request(
            f"the object provided is unrecognized (must be of type {call.kind.kind}): couldn't get "
            f"version/kind; "
            f"json parse error: {error} ({shown})"
        ) from error


def _dry_run(value: str, options: str) -> bool:
    if value in ("", "All"):
        return value == "All"
    cause = Cause(
        "FieldValueNotSupported", f'Unsupported value: ["{value}"]: supported values: "All"', "dryRun"
    )
    raise status.invalid_options(options, [cause])


def _seconds(value: Any) -> int | None:
    if value is None:
        return None
    try:
        return int(value)
    except (TypeError, ValueError):
        raise status.bad_request(f'strconv.ParseInt: parsing "{value}": invalid syntax') from None
