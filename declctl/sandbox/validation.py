"""Input: YAML and JSON texts within bounds, and the names, labels and metadata of objects.

The depth of a text, and the number of its values with aliases expanded, are checked before objects are built:
a kilobyte of aliases could stand for more than any memory holds. Timestamps stay text, as Kubernetes reads
them.

Faults of metadata are worded as kube-apiserver words them. Schemas of built-in kinds are not checked: that
is what a real API server is for.
"""

import re
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import yaml

from declctl.errors import SandboxError
from declctl.objects import KubeObject
from declctl.sandbox import rules, status
from declctl.sandbox.kinds import ServedKind
from declctl.sandbox.status import StatusCause

MAX_DEPTH: Final = 100
"""Levels of a document; the schema of a large CustomResourceDefinition has some fifty."""

MAX_VALUES: Final = 2_000_000
"""Keys and values of a text, those of an alias counted each time: some 20,000 large objects."""

_TIMESTAMP: Final = "tag:yaml.org,2002:timestamp"
_Events: type[yaml.CSafeLoader] | type[yaml.SafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_SHORT_NAMES: Final = frozenset({("", "namespaces"), ("", "services")})
_LABEL: Final = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN: Final = rf"{_LABEL}(\.{_LABEL})*"
_JSON_NAMES: Final = {str: "string", bool: "bool", list: "array"}
_WORD: Final = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
_SUBDOMAIN_RULE: Final = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and "
    "must start and end with an alphanumeric character "
    f"(e.g. 'example.com', regex used for validation is '{_SUBDOMAIN}')"
)
_LABEL_RULE: Final = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start "
    "and end with an alphanumeric character "
    f"(e.g. 'my-name',  or '123-abc', regex used for validation is '{_LABEL}')"
)
_NAME_PART_RULE: Final = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an "
    "alphanumeric character "
    f"(e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '{_WORD}')"
)
_VALUE_RULE: Final = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and "
    "must start and end with an alphanumeric character "
    f"(e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '({_WORD})?')"
)


class _Loader(yaml.SafeLoader):
    """YAML without dates: an object's times are strings."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != _TIMESTAMP]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def read_documents(text: str | bytes, *, name: str = "<objects>") -> list[Any]:
    """Every document of a YAML (or JSON) text.

    Raises SandboxError with the place of a fault, counted from 1; also where a document nests more than
    MAX_DEPTH levels, an alias stands for something that it is a part of, or there are more than MAX_VALUES.
    """
    try:
        _Bounds(name).check(text)
        return list(yaml.load_all(text, _Loader))
    except yaml.MarkedYAMLError as error:
        where = _place(name, error.problem_mark)
        raise SandboxError(f"{where}: the YAML can't be read: {error.problem}") from error
    except (yaml.YAMLError, ValueError) as error:
        raise SandboxError(f"{name}: the YAML can't be read: {error}") from error


class _Bounds:
    """Counts the values of a text by its events, as the parser meets them."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._values = 0  # so far, with aliases expanded
        self._weights: dict[str, int] = {}  # by anchor, of those that have ended
        self._open: list[tuple[str | None, int]] = []  # anchors of what is open, with the values before

    def check(self, text: str | bytes) -> None:
        """Raises SandboxError at the first bound that is passed, and YAMLError where it is no YAML."""
        for event in yaml.parse(text, _Events):
            if isinstance(event, yaml.DocumentStartEvent):
                self._weights = {}  # anchors are of one document
            elif isinstance(event, yaml.CollectionEndEvent):
                anchor, before = self._open.pop()
                if anchor is not None:
                    self._weights[anchor] = self._values - before
            elif isinstance(event, yaml.NodeEvent):
                self._count(event)

    def _count(self, event: yaml.NodeEvent) -> None:
        weight = 1
        if isinstance(event, yaml.AliasEvent):
            anchor = event.anchor or ""
            if any(each == anchor for each, _ in self._open):
                self._refuse(event, f"the alias *{anchor[:60]} refers to something that it is a part of")
            weight = self._weights.get(anchor, 1)  # the loader reports an unknown alias
        elif isinstance(event, yaml.CollectionStartEvent):
            self._open.append((event.anchor, self._values))
            if len(self._open) > MAX_DEPTH:
                self._refuse(event, f"it nests more than {MAX_DEPTH} levels deep")
        elif event.anchor is not None:
            self._weights[event.anchor] = 1
        self._values += weight
        # Counted with aliases expanded: a short text may stand for more than memory holds.
        if self._values > MAX_VALUES:
            self._refuse(event, f"it has more than {MAX_VALUES:,} values when its aliases are expanded")

    def _refuse(self, event: yaml.NodeEvent, what: str) -> None:
        raise SandboxError(f"{_place(self._name, event.start_mark)}: the YAML can't be read: {what}")


def _place(name: str, mark: Any) -> str:
    return f"{name}:{mark.line + 1}:{mark.column + 1}" if mark else name


@contextmanager
def readable(kind: str) -> Generator[None]:
    """Refuse with 400 an object of which a field is of another shape than its kind's, or that nests too deep.

    Schemas of built-in kinds are not checked, so that such a field shows itself where it is read.
    """
    try:
        yield
    except RecursionError as error:
        raise status.bad_request(f"{kind} can't be handled: it nests too many levels deep") from error
    except (AttributeError, KeyError, IndexError, TypeError) as error:
        raise status.bad_request(
            f"{kind} can't be handled: a field has another type than it should: {error}"
        ) from error


def check(kind: ServedKind, obj: KubeObject, others: Sequence[StatusCause] = ()) -> None:
    """Refuse with 422, naming everything that is wrong with the metadata, and `others`."""
    metadata: KubeObject = obj["metadata"]
    causes = [
        *_name(kind, metadata),
        *_labels(metadata),
        *_annotations(metadata),
        *_finalizers(metadata),
        *others,
    ]
    if causes:
        raise status.invalid(kind.kind, metadata.get("name", ""), causes, group=kind.group)


def new_finalizers(old: KubeObject, new: KubeObject) -> list[StatusCause]:
    """What is wrong with finalizers that are added to an object that is being deleted: they would hold it."""
    before: KubeObject = old["metadata"]
    added = sorted(set(new["metadata"].get("finalizers") or ()) - set(before.get("finalizers") or ()))
    if not added or "deletionTimestamp" not in before:
        return []
    found = ", ".join(f'"{finalizer}"' for finalizer in added)
    why = "no new finalizers can be added if the object is being deleted, found new finalizers"
    # The real server checks it twice, and says so.
    return [StatusCause.forbidden("metadata.finalizers", f"{why} []string{{{found}}}")] * 2


def check_shape(kind: ServedKind, obj: Any) -> KubeObject:
    """Refuse with 400 what isn't an object of this kind at all; fills in apiVersion, kind and metadata."""
    if not isinstance(obj, dict):
        raise status.bad_request(
            f"the object provided is unrecognized (must be of type {kind.kind}): couldn't get "
            "version/kind; json parse error: the body is not a JSON object"
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


def _name(kind: ServedKind, metadata: KubeObject) -> Iterator[StatusCause]:
    name = metadata.get("name")
    if not name:
        yield StatusCause.required("metadata.name", "name or generateName is required")
        return
    longest = 63 if kind.resource in _SHORT_NAMES else 253
    rule = _name_rule(kind, str(name))
    if rule:
        yield StatusCause.invalid("metadata.name", str(name), rule)
    if len(str(name)) > longest:
        yield StatusCause.invalid("metadata.name", str(name), f"must be no more than {longest} bytes")


def _name_rule(kind: ServedKind, name: str) -> str | None:
    if kind.group == "rbac.authorization.k8s.io":  # path segment names: anything that fits into a URL
        return "may not be '.' or '..' or contain '/' or '%'" if re.search(r"^\.\.?$|[/%]", name) else None
    if kind.resource in _SHORT_NAMES:
        fits = re.fullmatch(_LABEL, name)
        return None if fits else "must not contain dots" if "." in name else _LABEL_RULE
    return None if re.fullmatch(_SUBDOMAIN, name) else _SUBDOMAIN_RULE


def _labels(metadata: KubeObject) -> Iterator[StatusCause]:
    for key, value in _strings(metadata, "labels"):
        if not _qualified(key):
            yield StatusCause.invalid("metadata.labels", key, _NAME_PART_RULE)
        if len(value) > 63:
            yield StatusCause.invalid("metadata.labels", value, "must be no more than 63 bytes")
        if value and not re.fullmatch(_WORD, value):
            yield StatusCause.invalid("metadata.labels", value, _VALUE_RULE)


def _annotations(metadata: KubeObject) -> Iterator[StatusCause]:
    size = 0
    for key, value in _strings(metadata, "annotations"):
        size += len(key) + len(value)
        if not _qualified(key.lower()):
            yield StatusCause.invalid("metadata.annotations", key, _NAME_PART_RULE)
    if size > 256 * 1024:
        yield StatusCause(
            "FieldValueTooLong", "Too long: may not be more than 262144 bytes", "metadata.annotations"
        )


def _finalizers(metadata: KubeObject) -> Iterator[StatusCause]:
    for finalizer in metadata.get("finalizers") or ():
        if not isinstance(finalizer, str) or not _qualified(finalizer):
            yield StatusCause.invalid("metadata.finalizers", str(finalizer), _NAME_PART_RULE)


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


def check_definition(crd: KubeObject) -> None:
    """Refuse with 422 a definition that could not be served."""
    name = crd["metadata"].get("name", "")
    causes = list(_definition_causes(crd.get("spec") or {}, name))
    if causes:
        raise status.invalid("CustomResourceDefinition", name, causes, group="apiextensions.k8s.io")


def _definition_causes(spec: KubeObject, name: str) -> Iterator[StatusCause]:
    names = spec.get("names") or {}
    wanted = f"{names.get('plural', '')}.{spec.get('group', '')}"
    if name != wanted:
        yield StatusCause.invalid("metadata.name", name, 'must be spec.names.plural+"."+spec.group')
    for name_kind in ("plural", "kind"):
        if not names.get(name_kind):
            yield StatusCause.required(f"spec.names.{name_kind}")
    if spec.get("scope") not in ("Namespaced", "Cluster"):
        yield StatusCause.unsupported("spec.scope", spec.get("scope", ""), '"Cluster", "Namespaced"')
    if sum(bool(version.get("storage")) for version in spec.get("versions") or ()) != 1:
        message = "Invalid value: must have exactly one version marked as storage version"
        yield StatusCause("FieldValueInvalid", message, "spec.versions")
    yield from rules.uncompiled(spec.get("versions") or ())
