"""What is answered without looking at objects: version, health, discovery, OpenAPI."""

from dataclasses import dataclass
from typing import Final

import msgspec

from declctl.objects import KubeObject
from declctl.sandbox import discovery
from declctl.sandbox.kinds import Registry
from declctl.sandbox.kubectl import openapi

_JSON: Final = "application/json"
_HEALTH: Final = frozenset({"healthz", "livez", "readyz"})


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer."""

    body: bytes
    media_type: str = _JSON
    code: int = 200


def static_answer(method: str, path: str, accept: str, registry: Registry) -> Answer | None:
    """The answer to a GET of one of these pages; None if the path is somebody else's."""
    parts = path.strip("/").split("/")
    if method not in ("GET", "HEAD"):
        return None
    if parts[0] in _HEALTH:
        return Answer(b"ok", "text/plain; charset=utf-8")
    if parts == ["version"]:
        return _answer(discovery.VERSION)
    if parts[0] == "openapi":
        return _openapi(parts[1:], registry)
    if parts[0] in ("api", "apis") and len(parts) <= (2 if parts[0] == "api" else 3):
        return _discovery(parts, accept, registry)
    return None


def _discovery(parts: list[str], accept: str, registry: Registry) -> Answer | None:
    match parts:
        case ["api" | "apis" as root] if discovery.wants_aggregated(accept):
            body = discovery.aggregated(registry, core=root == "api")
            return Answer(msgspec.json.encode(body), discovery.AGGREGATED)
        case ["api"]:
            return _answer(discovery.core_versions())
        case ["apis"]:
            return _answer(discovery.groups(registry))
        case ["api", version]:
            return _answer(discovery.resources(registry, "", version))
        case ["apis", name]:
            return _answer(discovery.group(registry, name))
        case _:
            return _answer(discovery.resources(registry, parts[1], parts[2]))


def _openapi(parts: list[str], registry: Registry) -> Answer | None:
    match parts:
        case ["v2"]:
            return Answer(openapi.empty_v2(), "application/com.github.proto-openapi.spec.v2.v1.0+protobuf")
        case ["v3"]:
            return _answer(openapi.index(registry))
        case ["v3", *root]:
            return _answer(openapi.document(registry, "/".join(root)))
        case _:
            return None


def _answer(document: KubeObject | None) -> Answer | None:
    return None if document is None else Answer(msgspec.json.encode(document))
