"""`declctl generate types`: classes for objects of kinds that others have made, for handlers that read them.

They are made of the schemas of a cluster, of a CustomResourceDefinition, or of the official Python client,
which knows the kinds of Kubernetes. They are wider than these: bounds and choices are not part of them, so
that an object of a newer server can be read.
"""

import asyncio
import json
import keyword
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from msgspec import Struct

from declctl import __version__
from declctl.cli.terminal import print_or_write
from declctl.errors import ApiError, NotFound, UsageError
from declctl.manifest.definition_files import definitions_in, kind_of
from declctl.objects import GroupVersionKind, RequestSender

_Schema = Mapping[str, Any]
_REFERENCE: Final = "#/components/schemas/"
_GVK: Final = "x-kubernetes-group-version-kind"
_FORMATS: Final = {"date-time": "datetime", "byte": "bytes"}
_PLAIN: Final = {"integer": "int", "number": "float", "boolean": "bool"}
_COMMON: Final = frozenset({"apiVersion", "kind", "metadata"})
_PREFIX: Final = re.compile(r"^V\d+((alpha|beta)\d+)?(?=[A-Z])")
_WORDS: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


class KindSchemas(NamedTuple):
    """The schema of a kind, with a look-up of the schemas that it refers to, by name."""

    kind: GroupVersionKind
    schema: _Schema
    find: Callable[[str], _Schema]


class TypeSource(Struct, frozen=True):
    """Where schemas are from: files with definitions, or a cluster; by default the official client."""

    definitions: Sequence[str] = ()
    cluster: bool = False
    kubeconfig: str | None = None
    context: str | None = None


def show_types(kinds: Sequence[str], source: TypeSource, *, output: Path | None) -> None:
    """Print the classes of kinds such as `apps/v1/Deployment`, or write them to a file. Raises UsageError."""
    try:
        wanted = [GroupVersionKind.parse(each) for each in kinds]
    except ValueError as error:
        raise UsageError(f"{error}.") from error
    if source.cluster:
        found = asyncio.run(_of_cluster(wanted, source))
    else:
        found = [_of_definitions(each, source.definitions) or _of_client(each) for each in wanted]
    print_or_write(types_of(found), output)


def types_of(kinds: Sequence[KindSchemas]) -> str:
    """The source of a module with a class for each kind."""
    writer = _ModuleWriter()
    classes = [writer.kind(each) for each in kinds]
    body = "\n\n".join([*writer.structs.values(), *classes])
    imports = ["import declctl"] + (["import msgspec"] if writer.structs else [])
    standard = (["from datetime import datetime"] if re.search(r"\bdatetime\b", body) else []) + (
        ["from typing import Any"] if re.search(r"\bAny\b", body) else []
    )
    names = ", ".join(f"{each.kind.api_version}/{each.kind.kind}" for each in kinds)
    head = [
        f'"""{names}, written by `declctl generate types` (declctl {__version__})."""',
        "# fmt: off",
        "from __future__ import annotations",
        *(["\n".join(standard)] if standard else []),
        "\n".join(imports),
    ]
    return "\n\n".join(head) + f"\n\n\n{body}"


async def _of_cluster(kinds: Sequence[GroupVersionKind], source: TypeSource) -> list[KindSchemas]:
    from declctl.transport import Client  # late: without --cluster no client is needed

    client = await Client.connect(kubeconfig=source.kubeconfig, context=source.context)
    try:
        return [await _served(kind, client) for kind in kinds]
    finally:
        await client.close()


async def _served(kind: GroupVersionKind, server: RequestSender) -> KindSchemas:
    root = f"apis/{kind.group}/{kind.version}" if kind.group else f"api/{kind.version}"
    try:
        document = await server.request_json("GET", f"/openapi/v3/{root}")
        schemas: Mapping[str, _Schema] = document["components"]["schemas"]
    except NotFound as error:
        raise UsageError(f"The cluster does not serve {kind.api_version}.") from error
    except (ApiError, LookupError) as error:
        raise UsageError(f"The cluster could not be asked for the schema of {kind}: {error}") from error
    wanted = {"group": kind.group, "version": kind.version, "kind": kind.kind}
    schema = next((each for each in schemas.values() if wanted in each.get(_GVK, ())), None)
    if schema is None or not (schema.get("properties") or {}).keys() - _COMMON:
        raise UsageError(f"The cluster has no schema of {kind}: look for it with `kubectl explain`.")
    return KindSchemas(kind, schema, schemas.__getitem__)


def _of_definitions(kind: GroupVersionKind, files: Sequence[str]) -> KindSchemas | None:
    for definition in [each for file in files for each in definitions_in(Path(file))]:
        if kind_of(definition) != (kind.group, kind.kind):
            continue
        for version in definition["spec"].get("versions") or ():
            schema = (version.get("schema") or {}).get("openAPIV3Schema")
            if version.get("name") == kind.version and schema:
                return KindSchemas(kind, schema, {}.__getitem__)
    return None


def _of_client(kind: GroupVersionKind) -> KindSchemas:
    """By the models of the official client, which do not say which fields are required."""
    from kubernetes.client import models  # late: it has hundreds of modules

    version = kind.version.capitalize()
    group = kind.group.partition(".")[0].capitalize() or "Core"
    names = (f"{version}{kind.kind}", f"{group}{version}{kind.kind}")
    name = next((each for each in names if hasattr(models, each)), None)
    if name is None:
        raise UsageError(
            f"{kind} is no kind that the Python client of Kubernetes knows: add --crds FILE with its "
            "definition, or --cluster."
        )

    def find(name: str) -> _Schema:
        model: Any = getattr(models, name)
        fields: Mapping[str, str] = model.attribute_map
        return {
            "type": "object",
            "description": (model.__doc__ or "").partition("Attributes:")[0],
            "properties": {fields[each]: _of_text(text) for each, text in model.openapi_types.items()},
        }

    return KindSchemas(kind, find(name), find)


def _of_text(text: str) -> _Schema:
    """The schema of a type as the official client writes it, such as `List[V1Container]`."""
    if text.startswith("List["):
        return {"type": "array", "items": _of_text(text[5:-1])}
    if text.startswith("Dict["):
        return {"type": "object", "additionalProperties": _of_text(text.partition(", ")[2][:-1])}
    plain: Mapping[str, _Schema] = {
        "str": {"type": "string"},
        "int": {"type": "integer"},
        "float": {"type": "number"},
        "bool": {"type": "boolean"},
        "datetime": {"type": "string", "format": "date-time"},
        "bytes": {"type": "string", "format": "byte"},
        "object": {},
    }
    return plain.get(text, {"$ref": f"{_REFERENCE}{text}"})


class _ModuleWriter:
    """Writes classes, each once."""

    def __init__(self) -> None:
        self.structs: dict[str, str] = {}  # sources by name
        self._names: dict[str, str] = {}  # of classes, by the name of the schema or the path of its field

    def kind(self, found: KindSchemas) -> str:
        """The source of the class of a kind."""
        properties: Mapping[str, _Schema] = found.schema.get("properties") or {}
        name = found.kind.kind
        parts = [
            self._type(properties[part], f"{name}{part.capitalize()}", found.find)
            if part in properties
            else "dict[str, Any]"
            for part in ("spec", "status")
        ]
        base = "declctl.Object"
        if properties.keys() & {"spec", "status"}:
            base = f"declctl.Object[{', '.join(parts)}]"
        lines = [f"class {name}({base}):", *_docstring(found.schema)]
        for field, schema in properties.items():
            if field not in (*_COMMON, "spec", "status"):
                kind = self._type(schema, f"{name}{_title(field)}", found.find)
                alias = "" if _attribute(field) == field else f', name="{field}"'
                lines.append(
                    f"    {_attribute(field)} = declctl.field({'Any' if '|' in kind else kind}{alias})"
                )
        return "\n".join(lines if len(lines) > 1 else [f"{lines[0]} ..."]) + "\n"

    def _type(self, schema: _Schema, name: str, find: Callable[[str], _Schema]) -> str:
        """The type of a value; `name` is that of the class if it is an object of its own."""
        key = name
        if "allOf" in schema and len(schema["allOf"]) == 1:  # a reference with a default or a description
            schema = schema["allOf"][0]
        if reference := schema.get("$ref"):
            key = str(reference).removeprefix(_REFERENCE)
            schema, name = find(key), _PREFIX.sub("", key.rpartition(".")[2])
        if schema.get("x-kubernetes-int-or-string") or schema.get("format") == "int-or-string":
            return "int | str"
        match schema.get("type"):
            case "object" if schema.get("properties"):
                return self._struct(schema, key, name, find)
            case "object" if isinstance(schema.get("additionalProperties"), Mapping):
                return f"dict[str, {self._type(schema['additionalProperties'], f'{name}Value', find)}]"
            case "object":
                return "dict[str, Any]"
            case "array":
                return f"list[{self._type(schema.get('items') or {}, f'{name}Item', find)}]"
            case "string":
                return _FORMATS.get(schema.get("format", ""), "str")
            case other:
                return _PLAIN.get(str(other), "Any")

    def _struct(self, schema: _Schema, key: str, name: str, find: Callable[[str], _Schema]) -> str:
        if key in self._names:
            return self._names[key]
        taken = set(self._names.values())
        name = next(
            each for each in (name, *(f"{name}{number}" for number in range(2, 1000))) if each not in taken
        )
        self._names[key] = name
        self.structs[name] = ""  # its place in the module: before the classes that it refers to
        names = {_attribute(each): each for each in schema["properties"]}
        renamed = {attribute: each for attribute, each in names.items() if attribute != each}
        by_rule = all(_camel(attribute) == each for attribute, each in names.items())
        rename = '"camel"' if by_rule else json.dumps(renamed)
        lines = [
            f"class {name}(msgspec.Struct, kw_only=True, omit_defaults=True, rename={rename}):",
            *_docstring(schema),
        ]
        required = set(schema.get("required") or ())
        for field, inner in schema["properties"].items():
            kind = self._type(inner, f"{name}{_title(field)}", find)
            lines.append(f"    {_field(field, kind, is_required=field in required)}")
        self.structs[name] = "\n".join(lines) + "\n"
        return name


def _field(name: str, kind: str, *, is_required: bool) -> str:
    if is_required:
        return f"{_attribute(name)}: {kind}"
    if kind.startswith(("list[", "dict[")):
        return f"{_attribute(name)}: {kind} = {'[]' if kind[0] == 'l' else '{}'}"
    return f"{_attribute(name)}: {kind if kind == 'Any' else f'{kind} | None'} = None"


def _attribute(name: str) -> str:
    """The Python name of a field."""
    snake = re.sub(r"\W", "_", _WORDS.sub("_", name)).lower()
    return f"{snake}_" if keyword.iskeyword(snake) or snake[:1].isdigit() else snake


def _camel(attribute: str) -> str:
    """What msgspec makes of a Python name by rename="camel"."""
    first, *rest = attribute.split("_")
    return first + "".join(each.title() for each in rest)


def _title(name: str) -> str:
    return re.sub(r"\W", "", name[:1].upper() + name[1:])


def _docstring(schema: _Schema) -> list[str]:
    """The first sentence of a description."""
    text = " ".join(str(schema.get("description") or "").split())
    sentence = re.split(r"(?<=\.) ", text, maxsplit=1)[0].replace("\\", "").replace('"', "'")
    return [f'    """{sentence}"""'] if sentence else []
