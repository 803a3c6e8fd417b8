"""OpenAPI, as much as kubectl needs.

That writes can be validated on the server and tried dry, and the schemas of custom kinds.

The schemas of built-in kinds are open: the sandbox does not know their fields, and says so by accepting all
of them.
"""

import hashlib
from typing import Any, Final

from declctl.objects import KubeObject
from declctl.sandbox.kinds import Registry, ServedKind

_QUERY: Final = ("dryRun", "fieldManager", "fieldValidation")
_GVK: Final = "x-kubernetes-group-version-kind"


def index(registry: Registry) -> KubeObject:
    """The answer to /openapi/v3; the hash changes when the kinds change, so that clients may cache."""
    roots = dict.fromkeys(_root(kind) for kind in registry.served())
    digest = hashlib.sha256(repr((registry.revision, sorted(roots))).encode()).hexdigest()[:32].upper()
    return {"paths": {root: {"serverRelativeURL": f"/openapi/v3/{root}?hash={digest}"} for root in roots}}


def document(registry: Registry, root: str) -> KubeObject | None:
    """The answer to /openapi/v3/api/v1 and /openapi/v3/apis/<group>/<version>; None if there is none."""
    kinds = [kind for kind in registry.served() if _root(kind) == root]
    if not kinds:
        return None
    paths = {f"/{root}{_path(kind)}": _operations(kind) for kind in kinds}
    schemas = {_schema_name(kind): _schema(kind) for kind in kinds}
    info = {"title": "declctl sandbox", "version": "v1.36.0"}
    return {"openapi": "3.0.0", "info": info, "paths": paths, "components": {"schemas": schemas}}


def empty_v2() -> bytes:
    """/openapi/v2 in the only form in which kubectl reads it, protobuf: `swagger.

    "2.0"`, an info, and no paths.

    kubectl falls back to what is compiled into it for kinds that aren't described here.
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
