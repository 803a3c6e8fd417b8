"""The fields of kinds by the OpenAPI schemas of a server: finds the fields that a kind does not have."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

from declctl.errors import Forbidden, MalformedAnswer, NotFound
from declctl.objects import GroupVersionKind, RequestSender

_INDEX = "/openapi/v3"
_REFERENCE = "#/components/schemas/"
_GVK = "x-kubernetes-group-version-kind"
_ANY_FIELDS = (
    "x-kubernetes-preserve-unknown-fields",
    "x-kubernetes-embedded-resource",
    "x-kubernetes-int-or-string",
)
_MOST_REFERENCES = 50  # that are followed from one schema to the next: a document may have a ring of them

_Schema = Mapping[str, Any]


class UnknownField(NamedTuple):
    """A name that a schema does not have."""

    steps: tuple[str, ...]  # from the object to the name, the name included
    names: Sequence[str]  # the names that the schema has there


class KindFields:
    """Reads the schemas of one server, each document once."""

    def __init__(self, server: RequestSender) -> None:
        self._server = server
        self._documents: dict[str, Mapping[str, _Schema]] = {}  # by root, such as apis/apps/v1

    async def unknown(self, gvk: GroupVersionKind, steps: Sequence[str]) -> UnknownField | None:
        """The first name of a path that the kind does not have; None if it has all, or if that is not known.

        It is not known if the server publishes no schema of the kind, or does not let us read it.
        """
        schemas = await self._schemas(gvk)
        schema = next((each for each in schemas.values() if _is_of(each, gvk)), None)
        for at, name in enumerate(steps):
            found = None if schema is None else _properties(schema, schemas)
            if found is None:
                return None
            if name not in found:
                return UnknownField(tuple(steps[: at + 1]), sorted(found))
            schema = found[name]
        return None

    async def _schemas(self, gvk: GroupVersionKind) -> Mapping[str, _Schema]:
        root = f"apis/{gvk.group}/{gvk.version}" if gvk.group else f"api/{gvk.version}"
        if root not in self._documents:
            try:
                document = await self._server.request_json("GET", f"{_INDEX}/{root}")
            except (NotFound, Forbidden, MalformedAnswer):
                document = {}
            self._documents[root] = _mapping(_mapping(document.get("components")).get("schemas"))
        return self._documents[root]


def _is_of(schema: _Schema, gvk: GroupVersionKind) -> bool:
    wanted = {"group": gvk.group, "version": gvk.version, "kind": gvk.kind}
    kinds = _mapping(schema).get(_GVK)
    return isinstance(kinds, list) and wanted in kinds


def _properties(schema: _Schema, schemas: Mapping[str, _Schema]) -> Mapping[str, _Schema] | None:
    """The fields of an object; None if it may have any, as a map, or if it is no object."""
    found: dict[str, _Schema] = {}
    waiting = [schema]
    for _ in range(_MOST_REFERENCES):
        if not waiting:
            break
        part = _mapping(waiting.pop())
        if any(part.get(name) for name in _ANY_FIELDS) or part.get("additionalProperties"):
            return None
        found.update(_mapping(part.get("properties")))
        reference = part.get("$ref")
        if isinstance(reference, str) and reference.startswith(_REFERENCE):
            waiting.append(schemas.get(reference.removeprefix(_REFERENCE), {}))
        # Kubernetes writes a reference with a default or a description as an `allOf` of one.
        all_of = part.get("allOf")
        waiting += cast("list[_Schema]", all_of) if isinstance(all_of, list) else []
    return found or None


def _mapping(value: object) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}
