"""CustomResourceDefinitions, made of the classes that `declctl.custom_resource` decorates."""

import re
import sys
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Final

from declctl.objects.custom_resource import Column, CustomResource, custom_resource_of
from declctl.objects.schema_changes import Definition
from declctl.objects.schema_marks import PRESERVE, VALIDATIONS, rules_of
from declctl.objects.structural import (
    Schema,
    SchemaErrors,
    SchemaFault,
    ValuePlace,
    default_of,
    docstring,
    faults_of_rules,
    structural_schema,
)
from declctl.objects.typed import Object, typed_fields

_AGE: Final = {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}
_SIMPLE_PATH: Final = re.compile(r"\.(?P<first>\w+)(\.[A-Za-z_][\w-]*)*", re.ASCII)
# Fields that all versions of one kind have in common.
_SHARED: Final = ("plural", "singular", "short_names", "categories", "scope")


def definitions_of(classes: Sequence[type[Object[Any, Any]]]) -> list[Definition]:
    """A definition for each kind of the classes, which are its versions. Raises SchemaErrors.

    Kinds and versions keep the order of the classes.
    """
    kinds: dict[tuple[str, str], list[type[Object[Any, Any]]]] = {}
    for cls in dict.fromkeys(classes):
        resource: CustomResource = cls.__custom_resource__
        kinds.setdefault((resource.group, resource.kind), []).append(cls)
    found: list[Definition] = []
    faults: list[SchemaFault] = []
    for versions in kinds.values():
        try:
            found.append(_definition(versions))
        except SchemaErrors as error:
            faults += error.faults
    if faults:
        raise SchemaErrors(faults)
    return found


def versions_beside(cls: type[Object[Any, Any]]) -> list[type[Object[Any, Any]]]:
    """The classes in the module of a class that declare versions of its kind, in their order there."""
    wanted: CustomResource = cls.__custom_resource__
    found: list[type[Object[Any, Any]]] = []
    for each in vars(sys.modules[cls.__module__]).values():
        # A class that inherits the declaration of another one is no version of its own.
        if isinstance(each, type) and "__custom_resource__" in vars(each):
            resource = custom_resource_of(each)
            if resource is not None and (resource.group, resource.kind) == (wanted.group, wanted.kind):
                found.append(each)
    return found if cls in found else [cls, *found]


def _definition(classes: Sequence[type[Object[Any, Any]]]) -> Definition:
    faults = list(_contradictions(classes))
    versions: list[dict[str, Any]] = []
    for cls in classes:
        try:
            versions.append(_version(cls))
        except SchemaErrors as error:
            faults += error.faults
    if faults:
        raise SchemaErrors(faults)
    resource: CustomResource = classes[0].__custom_resource__
    names: dict[str, Any] = {
        "kind": resource.kind,
        "listKind": f"{resource.kind}List",
        "plural": resource.plural,
        "singular": resource.singular,
    }
    if resource.short_names:
        names["shortNames"] = list(resource.short_names)
    if resource.categories:
        names["categories"] = list(resource.categories)
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": resource.name},
        "spec": {
            "group": resource.group,
            "names": names,
            "scope": resource.scope,
            **({"conversion": {"strategy": "None"}} if len(versions) > 1 else {}),
            "versions": versions,
        },
    }


def _contradictions(classes: Sequence[type[Object[Any, Any]]]) -> list[SchemaFault]:
    """Why the classes can't be the versions of one kind."""
    first, found = classes[0], list[SchemaFault]()
    resource: CustomResource = first.__custom_resource__
    for number, cls in enumerate(classes):
        other: CustomResource = cls.__custom_resource__
        path = f"{other.kind} of {other.api_version}"
        for name in _SHARED:
            theirs, ours = getattr(other, name), getattr(resource, name)
            if theirs != ours:
                message = f"{name} is {theirs!r} here, and {ours!r} in {first.__name__}"
                found.append(SchemaFault(message, "all versions of a kind have the same", path, cls))
        for earlier in classes[:number]:
            if earlier.__custom_resource__.version == other.version:
                message = f"{earlier.__name__} is {other.version} of the kind, too"
                found.append(SchemaFault(message, "give each version its own name", path, cls))
    stored = [cls for cls in classes if cls.__custom_resource__.storage]
    path = f"{resource.kind} of {resource.group}"
    if not stored:
        message = "no version is stored: each has storage=False"
        found.append(SchemaFault(message, "leave it out of one of them", path, first))
    for cls in stored[1:]:
        message = f"objects are stored in one version, and {stored[0].__name__} is it"
        found.append(SchemaFault(message, "write storage=False in all classes but one", path, cls))
    return found


def _version(cls: type[Object[Any, Any]]) -> dict[str, Any]:
    resource: CustomResource = cls.__custom_resource__
    schema = object_schema(cls)
    faults = [*_scale_faults(cls, resource, schema)]
    columns: list[dict[str, Any]] = []
    for title, column in resource.columns.items():
        try:
            columns.append(_column(title, column, schema, cls))
        except SchemaErrors as error:
            faults += error.faults
    if faults:
        raise SchemaErrors(faults)
    # A server that is given columns leaves its own out, which is the age.
    if columns and "Age" not in resource.columns:
        columns.append(_AGE)
    version: dict[str, Any] = {
        "name": resource.version,
        "served": resource.served,
        "storage": resource.storage,
    }
    if resource.deprecated is not None:
        version["deprecated"] = True
        if resource.deprecated:
            version["deprecationWarning"] = resource.deprecated
    subresources: dict[str, Any] = {"status": {}}
    if resource.scale is not None:
        paths = {
            "specReplicasPath": resource.scale.spec_replicas_path,
            "statusReplicasPath": resource.scale.status_replicas_path,
            "labelSelectorPath": resource.scale.label_selector_path,
        }
        subresources["scale"] = {name: path for name, path in paths.items() if path}
    version["subresources"] = subresources
    if columns:
        version["additionalPrinterColumns"] = columns
    return {**version, "schema": {"openAPIV3Schema": schema}}


def object_schema(cls: type[Object[Any, Any]]) -> Schema:
    """The structural schema of a whole object of a class. Raises SchemaErrors."""
    faults: list[SchemaFault] = []
    properties: dict[str, Schema] = {
        "apiVersion": {"type": "string"},
        "kind": {"type": "string"},
        "metadata": {"type": "object"},
    }
    schema: Schema = {"type": "object"}
    if text := docstring(cls):
        schema["description"] = text
    required: list[str] = []
    for field in typed_fields(cls):
        try:
            of_field = structural_schema(field.kind, path=field.name)
        except SchemaErrors as error:
            faults += [each if each.cls is not None else each._replace(cls=cls) for each in error.faults]
            continue
        if field.name != "status":
            # A field that may be empty is there, so that the defaults in it are.
            if of_field.get("required"):
                required.append(field.name)
            elif of_field.get("type") == "object":
                of_field["default"] = default_of(of_field)
        properties[field.name] = of_field
    for name in ("spec", "status"):  # of a class that leaves them untyped
        properties.setdefault(name, {"type": "object", PRESERVE: True})
    if (fields := properties["status"].get("properties")) is not None:
        # `ctx.patch_status` fills it in for the controller of the kind (`status: true`).
        fields.setdefault("observedGeneration", {"type": "integer", "format": "int64"})
    schema["properties"] = properties
    if required:
        schema["required"] = required
    if found := rules_of(cls):
        schema[VALIDATIONS] = found
        faults = faults or faults_of_rules(found, schema, ValuePlace("the object", cls), is_root=True)
    if faults:
        raise SchemaErrors(faults)
    return schema


def _column(title: str, column: Column, schema: Schema, cls: type) -> dict[str, Any]:
    kind = column.type
    if _SIMPLE_PATH.fullmatch(column.path) and not column.path.startswith(".metadata."):
        found = _schema_at(schema, column.path)
        if isinstance(found, SchemaFault):
            place = f"columns[{title!r}] of {cls.__name__}"
            raise SchemaErrors([found._replace(path=place, cls=cls)])
        kind = kind or _column_type(found)
    made = {"name": title, "type": kind or "string", "jsonPath": column.path}
    if column.description:
        made["description"] = column.description
    return {**made, **({"priority": column.priority} if column.priority else {})}


def _column_type(schema: Schema) -> str:
    if schema.get("format") == "date-time":
        return "date"
    kind = schema.get("type")
    return kind if kind in ("integer", "number", "boolean") else "string"


def _scale_faults(cls: type, resource: CustomResource, schema: Schema) -> list[SchemaFault]:
    """Why the paths of the scale subresource do not lead to numbers, and its selector to no text."""
    if resource.scale is None:
        return []
    found: list[SchemaFault] = []
    for name, path, kind in (
        ("specReplicasPath", resource.scale.spec_replicas_path, "integer"),
        ("statusReplicasPath", resource.scale.status_replicas_path, "integer"),
        ("labelSelectorPath", resource.scale.label_selector_path, "string"),
    ):
        if not path:
            continue
        place, at = f"scale[{name!r}] of {cls.__name__}", _schema_at(schema, path)
        if isinstance(at, SchemaFault):
            found.append(at._replace(path=place, cls=cls))
        elif at.get("type", kind) != kind:
            message = f"{path} is of the type {at['type']}, and has to be {kind}"
            found.append(SchemaFault(message, "name another field, or change its type", place, cls))
    return found


def has_field(cls: type[Object[Any, Any]], path: str) -> bool:
    """Whether objects of a class have a field, by its path as a server writes it: `status.parts[0].name`."""
    try:
        schema = object_schema(cls)
    except SchemaErrors:
        return False
    for name in re.sub(r"\[\d+\]", "", path).split("."):
        while "items" in schema:
            schema = schema["items"]
        inner = (schema.get("properties") or {}).get(name, schema.get("additionalProperties"))
        if inner is None:
            return False
        schema = inner
    return True


def _schema_at(schema: Schema, path: str) -> Schema | SchemaFault:
    """The schema of the field at a simple path; a fault for a field that is not there."""
    steps = path.split(".")[1:]
    for number, step in enumerate(steps):
        properties: Mapping[str, Schema] = schema.get("properties") or {}
        if step in properties:
            schema = properties[step]
        elif schema.get(PRESERVE) or "additionalProperties" in schema:
            return {}
        else:
            where = ".".join(steps[:number]) or "the object"
            near = get_close_matches(step, properties, n=1)
            advice = (
                f'did you mean "{near[0]}"?' if near else f"it has {', '.join(properties) or 'no fields'}"
            )
            return SchemaFault(f"{path}: {where} has no field {step}", advice, path)
    return schema
