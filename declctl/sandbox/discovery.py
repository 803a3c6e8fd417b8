"""Answers that need no object: version, health, discovery and OpenAPI.

Discovery says which groups, versions and resources there are, in a document for each group and version. A
client that asks for the aggregated form gets this one, as from an older server.

OpenAPI is as much as kubectl needs: that the server validates writes and tries them dry, and the schemas of
custom kinds. The schemas of built-in kinds are open: the sandbox does not know their fields.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from declctl.objects import KubeObject
from declctl.sandbox.kinds import Registry, ServedKind, priority

VERSION: Final = {
    "major": "1",
    "minor": "36",
    "gitVersion": "v1.36.0-declctl-sandbox",
    "gitCommit": "",
    "gitTreeState": "clean",
    "buildDate": "2026-01-01T00:00:00Z",
    "goVersion": "",
    "compiler": "",
    "platform": "",
}
_SUBRESOURCE_VERBS: Final = ["get", "patch", "update"]
_QUERY: Final = ("dryRun", "fieldManager", "fieldValidation")
_GVK: Final = "x-kubernetes-group-version-kind"


@dataclass(frozen=True, slots=True)
class StaticAnswer:
    """The body and the media type of a 200."""

    body: bytes
    media_type: str = "application/json"


def static_answer(method: str, path: str, registry: Registry) -> StaticAnswer | None:
    """The answer to a GET of one of these pages; None for any other path or group."""
    if method not in ("GET", "HEAD"):
        return None
    document: KubeObject | None
    match path.strip("/").split("/"):
        case ["healthz" | "livez" | "readyz", *_]:
            return StaticAnswer(b"ok", "text/plain; charset=utf-8")
        case ["version"]:
            document = VERSION
        case ["api"]:
            document = {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}
        case ["apis"]:
            groups = [_group(registry, name) for name in _groups(registry)]
            document = {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}
        case ["api", version]:
            document = resources(registry, "", version)
        case ["apis", name] if name in _groups(registry):
            document = {"kind": "APIGroup", "apiVersion": "v1", **_group(registry, name)}
        case ["apis", name, version]:
            document = resources(registry, name, version)
        case ["openapi", "v2"]:
            return StaticAnswer(empty_v2(), "application/com.github.proto-spec.v2.v1.0+protobuf")
        case ["openapi", "v3"]:
            document = index(registry)
        case ["openapi", "v3", *root]:
            document = openapi_document(registry, "/".join(root))
        case _:
            document = None
    return None if document is None else StaticAnswer(msgspec.json.encode(document))


def resources(registry: Registry, group_name: str, version: str) -> KubeObject | None:
    """The answer to /api/v1 and /apis/<group>/<version>; None if there is none."""
    kinds = [kind for kind in registry.served() if (kind.group, kind.version) == (group_name, version)]
    if not kinds:
        return None
    entries = [entry for kind in kinds for entry in _resource(kind)]
    group_version = f"{group_name}/{version}" if group_name else version
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": group_version,
        "resources": entries,
    }


def _groups(registry: Registry) -> list[str]:
    return list(dict.fromkeys(kind.group for kind in registry.served() if kind.group))


def _versions(registry: Registry, group_name: str) -> list[str]:
    found = dict.fromkeys(kind.version for kind in registry.served() if kind.group == group_name)
    return sorted(found, key=priority)


def _group(registry: Registry, name: str) -> KubeObject:
    versions = [
        {"groupVersion": f"{name}/{version}", "version": version} for version in _versions(registry, name)
    ]
    return {"name": name, "versions": versions, "preferredVersion": versions[0]}


def _resource(kind: ServedKind) -> Iterable[KubeObject]:
    entry: KubeObject = {
        "name": kind.plural,
        "singularName": kind.singular,
        "namespaced": kind.namespaced,
        "kind": kind.kind,
        "verbs": list(kind.verbs),
    }
    if kind.short_names:
        entry["shortNames"] = list(kind.short_names)
    if kind.categories:
        entry["categories"] = list(kind.categories)
    yield entry
    for name, api_version, kind_name in _subresources(kind):
        sub: KubeObject = {
            "name": f"{kind.plural}/{name}",
            "singularName": "",
            "namespaced": kind.namespaced,
            "kind": kind_name,
            "verbs": _SUBRESOURCE_VERBS,
        }
        if name == "scale":
            group_name, _, version = api_version.partition("/")
            sub |= {"group": group_name, "version": version}
        yield sub


def _subresources(kind: ServedKind) -> Iterable[tuple[str, str, str]]:
    if kind.scale is not None:
        yield ("scale", "autoscaling/v1", "Scale")
    if kind.status:
        yield ("status", kind.api_version, kind.kind)


def index(registry: Registry) -> KubeObject:
    """The answer to /openapi/v3; the hash changes when the kinds change, so that clients may cache."""
    roots = dict.fromkeys(_root(kind) for kind in registry.served())
    digest = hashlib.sha256(repr((registry.revision, sorted(roots))).encode()).hexdigest()[:32].upper()
    return {"paths": {root: {"serverRelativeURL": f"/openapi/v3/{root}?hash={digest}"} for root in roots}}


def openapi_document(registry: Registry, root: str) -> KubeObject | None:
    """The answer to /openapi/v3/api/v1 and /openapi/v3/apis/<group>/<version>; None if there is none."""
    kinds = [kind for kind in registry.served() if _root(kind) == root]
    if not kinds:
        return None
    paths = {f"/{root}{_path(kind)}": _operations(kind) for kind in kinds}
    schemas = {_schema_name(kind): _schema(kind) for kind in kinds}
    info = {"title": "declctl sandbox", "version": "v1.36.0"}
    return {"openapi": "3.0.0", "info": info, "paths": paths, "components": {"schemas": schemas}}


def empty_v2() -> bytes:
    """The answer to /openapi/v2, in protobuf, the only form that kubectl reads: an info, and no paths.

    For kinds that it does not describe kubectl falls back to the types that are compiled into it.
    """
    info = _text(1, "declctl sandbox") + _text(2, "v1.36.0")
    return _text(1, "2.0") + _bytes(2, info)


def _text(field: int, value: str) -> bytes:
    return _bytes(field, value.encode())


def _bytes(field: int, value: bytes) -> bytes:
    # Wire type 2; all lengths here are below 128, so that one byte holds them.
    return bytes((field << 3 | 2, len(value))) + value


def _root(kind: ServedKind) -> str:
    return f"apis/{kind.group}/{kind.version}" if kind.group else f"api/{kind.version}"


def _path(kind: ServedKind) -> str:
    return (
        f"/namespaces/{{namespace}}/{kind.plural}/{{name}}" if kind.namespaced else f"/{kind.plural}/{{name}}"
    )


def _operations(kind: ServedKind) -> KubeObject:
    return {
        "patch": _operation(kind, "patch"),
        "put": _operation(kind, "put"),
        "get": _operation(kind, "get"),
    }


def _operation(kind: ServedKind, action: str) -> KubeObject:
    schema = {"$ref": f"#/components/schemas/{_schema_name(kind)}"}
    parameters = [{"name": name, "in": "query", "schema": {"type": "string"}} for name in _QUERY]
    return {
        _GVK: {"group": kind.group, "version": kind.version, "kind": kind.kind},
        "x-kubernetes-action": action,
        "parameters": [] if action == "get" else parameters,
        "responses": {"200": {"description": "OK", "content": {"application/json": {"schema": schema}}}},
    }


def _schema_name(kind: ServedKind) -> str:
    group = kind.group or "core"
    return f"{'.'.join(reversed(group.split('.')))}.{kind.version}.{kind.kind}"


def _schema(kind: ServedKind) -> KubeObject:
    schema: dict[str, Any] = {
        "type": "object",
        **(kind.schema or {"x-kubernetes-preserve-unknown-fields": True}),
    }
    properties = {
        "apiVersion": {"type": "string"},
        "kind": {"type": "string"},
        "metadata": {"type": "object"},
        **schema.get("properties", {}),
    }
    return {
        **schema,
        "properties": properties,
        _GVK: [{"group": kind.group, "version": kind.version, "kind": kind.kind}],
    }
