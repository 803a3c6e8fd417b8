"""What an object must look like before it is stored: names, labels, metadata.

Worded as kube-apiserver words it.

Schemas of built-in kinds are not checked: that is what a real API server is for.
"""

import re
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any, Final

from declctl.objects import KubeObject
from declctl.sandbox import status
from declctl.sandbox.kinds import ServedKind
from declctl.sandbox.status import Cause

_SHORT_NAMES: Final = frozenset({("", "namespaces"), ("", "services")})
_LABEL: Final = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN: Final = rf"{_LABEL}(\.{_LABEL})*"
_JSON_NAMES: Final = {str: "string", bool: "bool", list: "array"}
_WORD: Final = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"

_SUBDOMAIN_RULE: Final = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and "
    "must start and end "
    f"with an alphanumeric character (e.g. 'example.com', regex used for validation is '{_SUBDOMAIN}')"
)
_LABEL_RULE: Final = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start "
    "and end with an "
    f"alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '{_LABEL}')"
)
_NAME_PART_RULE: Final = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an "
    "alphanumeric character "
    f"(e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '{_WORD}')"
)
_VALUE_RULE: Final = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and "
    "must start and end with an "
    f"alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is "
    f"'({_WORD})?')"
)


@contextmanager
def readable(kind: str) -> Generator[None]:
    """Refuse with 400 an object of which a field is of another shape than its kind's.

    Schemas are not checked beforehand, so that such a field shows itself where it is read.
    """
    try:
        yield
    except (AttributeError, KeyError, IndexError, TypeError) as error:
        raise status.bad_request(
            f"{kind} can't be handled: a field has another type than it should: {error}"
        ) from error


def check(kind: ServedKind, obj: KubeObject) -> None:
    """Refuse with 422, naming everything that is wrong with the metadata."""
    metadata: KubeObject = obj["metadata"]
    causes = [*_name(kind, metadata), *_labels(metadata), *_annotations(metadata), *_finalizers(metadata)]
    if causes:
        raise status.invalid(kind.kind, metadata.get("name", ""), causes, group=kind.group)


def check_finalizers(kind: ServedKind, old: KubeObject, new: KubeObject) -> None:
    """Refuse with 422 finalizers that are added to an object that is being deleted."""
    before: KubeObject = old["metadata"]
    added = sorted(set(new["metadata"].get("finalizers") or ()) - set(before.get("finalizers") or ()))
    if added and "deletionTimestamp" in before:
        found = ", ".join(f'"{finalizer}"' for finalizer in added)
        message = (
            "Forbidden: no new finalizers can be added if the object is being deleted, "
            f"found new finalizers []string{{{found}}}"
        )
        cause = Cause("FieldValueForbidden", message, "metadata.finalizers")
        raise status.invalid(kind.kind, before["name"], [cause], group=kind.group)


def check_shape(kind: ServedKind, obj: Any) -> KubeObject:
    """Refuse with 400 what isn't an object of this kind at all; fills in apiVersion, kind and metadata."""
    if not isinstance(obj, dict):
        raise status.bad_request(
            f"the object provided is unrecognized (must be of type {kind.kind}): couldn't get "
            f"version/kind; json parse error: "
            "the body is not a JSON object"
        )
    given: KubeObject = {**obj}
    name, api_version = given.get("kind") or kind.kind, given.get("apiVersion") or kind.api_version
    if (name, api_version) != (kind.kind, kind.api_version):
        raise status.bad_request(
            f'{name} in version "{api_version}" cannot be handled as a {kind.kind}: it is sent to '
            f"{kind.plural} of {kind.api_version}"
        )
    for field in () if kind.custom else ("spec", "status"):
        if not isinstance(given.get(field) or {}, dict):
            found = _JSON_NAMES.get(type(given[field]), "number")
            raise status.bad_request(
                f'{kind.kind} in version "{kind.version}" cannot be handled as a {kind.kind}: json: cannot '
                f"unmarshal {found} into Go struct field {kind.kind}.{field} of type "
                f"{kind.version}.{kind.kind}{field.capitalize()}"
            )
    metadata = given.get("metadata") or {}
    if not isinstance(metadata, dict):
        raise status.bad_request(f"metadata must be an object, not {type(metadata).__name__}")
    return {**given, "apiVersion": api_version, "kind": name, "metadata": {**metadata}}


def _name(kind: ServedKind, metadata: KubeObject) -> Iterator[Cause]:
    name = metadata.get("name")
    if not name:
        yield Cause("FieldValueRequired", "Required value: name or generateName is required", "metadata.name")
        return
    longest = 63 if kind.resource in _SHORT_NAMES else 253
    rule = _name_rule(kind, str(name))
    if rule:
        yield Cause("FieldValueInvalid", f'Invalid value: "{name}": {rule}', "metadata.name")
    if len(str(name)) > longest:
        message = f'Invalid value: "{name}": must be no more than {longest} bytes'
        yield Cause("FieldValueInvalid", message, "metadata.name")


def _name_rule(kind: ServedKind, name: str) -> str | None:
    if kind.group == "rbac.authorization.k8s.io":  # path segment names: anything that fits into a URL
        return "may not be '.' or '..' or contain '/' or '%'" if re.search(r"^\.\.?$|[/%]", name) else None
    if kind.resource in _SHORT_NAMES:
        fits = re.fullmatch(_LABEL, name)
        return None if fits else "must not contain dots" if "." in name else _LABEL_RULE
    return None if re.fullmatch(_SUBDOMAIN, name) else _SUBDOMAIN_RULE


def _labels(metadata: KubeObject) -> Iterator[Cause]:
    for key, value in _strings(metadata, "labels"):
        if not _qualified(key):
            yield Cause("FieldValueInvalid", f'Invalid value: "{key}": {_NAME_PART_RULE}', "metadata.labels")
        if len(value) > 63:
            message = f'Invalid value: "{value}": must be no more than 63 bytes'
            yield Cause("FieldValueInvalid", message, "metadata.labels")
        if value and not re.fullmatch(_WORD, value):
            yield Cause("FieldValueInvalid", f'Invalid value: "{value}": {_VALUE_RULE}', "metadata.labels")


def _annotations(metadata: KubeObject) -> Iterator[Cause]:
    size = 0
    for key, value in _strings(metadata, "annotations"):
        size += len(key) + len(value)
        if not _qualified(key.lower()):
            yield Cause(
                "FieldValueInvalid", f'Invalid value: "{key}": {_NAME_PART_RULE}', "metadata.annotations"
            )
    if size > 256 * 1024:
        yield Cause(
            "FieldValueTooLong", "Too long: may not be more than 262144 bytes", "metadata.annotations"
        )


def _finalizers(metadata: KubeObject) -> Iterator[Cause]:
    for finalizer in metadata.get("finalizers") or ():
        if not isinstance(finalizer, str) or not _qualified(finalizer):
            message = f'Invalid value: "{finalizer}": {_NAME_PART_RULE}'
            yield Cause("FieldValueInvalid", message, "metadata.finalizers")


def _strings(metadata: KubeObject, field: str) -> Iterator[tuple[str, str]]:
    entries = metadata.get(field) or {}
    if not isinstance(entries, dict):
        raise status.bad_request(f"metadata.{field} must be an object, not {type(entries).__name__}")
    for key, value in entries.items():
        if not isinstance(value, str):
            found = type(value).__name__
            raise status.bad_request(
                f"json: cannot unmarshal {found} into Go struct field ObjectMeta.metadata.{field} of type "
                f"string ({key})"
            )
        yield str(key), value


def _qualified(key: str) -> bool:
    prefix, slash, name = key.rpartition("/")
    return (
        len(name) <= 63
        and bool(re.fullmatch(_WORD, name))
        and (not slash or bool(re.fullmatch(_SUBDOMAIN, prefix)))
    )
