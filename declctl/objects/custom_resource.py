"""Custom resources that are declared by a class of typed objects: `@declctl.custom_resource(…)`.

The decorator checks its arguments and keeps them. A CustomResourceDefinition is made of them, and a manifest
that names the class reads apiVersion and kind of the decorator in the source, without an import.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, TypeVar, get_args

import msgspec

from declctl.objects.typed import Object, typed_fields

O = TypeVar("O", bound=Object[Any, Any])  # noqa: E741 - as S and T

Scope = Literal["Namespaced", "Cluster"]
ColumnType = Literal["string", "integer", "number", "boolean", "date"]

_LABEL = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
_GROUP = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)+")
_KIND = re.compile(r"[A-Z][A-Za-z0-9]{0,62}")
_SIMPLE_PATH = re.compile(r"\.(spec|status)(\.[A-Za-z_][\w-]*)+", re.ASCII)
_SCALE = {  # the keys of `scale`, as in a CustomResourceDefinition, with the begin of each path
    "specReplicasPath": ".spec.",
    "statusReplicasPath": ".status.",
    "labelSelectorPath": "",
}


class Column(msgspec.Struct, frozen=True):
    """A column of `kubectl get`, beside name and age (additionalPrinterColumns).

    - `path`: a JSON path, such as `.status.ready`.
    - `type`: None for the type that the schema has at the path.
    - `priority`: columns above 0 are shown by `-o wide` only.
    """

    path: str
    type: ColumnType | None = None
    priority: int = 0
    description: str = ""


class ScaleSubresource(msgspec.Struct, frozen=True):
    """The paths of a `scale` subresource; `label_selector_path` is empty for none."""

    spec_replicas_path: str
    status_replicas_path: str
    label_selector_path: str = ""


class CustomResource(msgspec.Struct, frozen=True, kw_only=True):
    """What `custom_resource` says of a class: one version of a custom resource.

    `spec` and `status` are the types of the class; `deprecated` is None for a version that is not, and
    otherwise the warning that the server sends, empty for its own one.
    """

    api_version: str
    kind: str
    plural: str
    singular: str
    spec: Any
    status: Any
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    scope: Scope = "Namespaced"
    columns: Mapping[str, Column] = {}
    scale: ScaleSubresource | None = None
    served: bool = True
    storage: bool = True
    deprecated: str | None = None

    @property
    def group(self) -> str:
        """The group of `api_version`."""
        return self.api_version.partition("/")[0]

    @property
    def version(self) -> str:
        """The version of `api_version`."""
        return self.api_version.partition("/")[2]

    @property
    def name(self) -> str:
        """The name of the CustomResourceDefinition: `plural.group`."""
        return f"{self.plural}.{self.group}"


class DeclaredKind(msgspec.Struct, frozen=True):
    """What the source of a class says of its kind: nothing if both are empty, or a fault with its code."""

    api_version: str = ""
    kind: str = ""
    code: str = ""
    message: str = ""
    suggestion: str = ""


def custom_resource(  # noqa: PLR0913 - what a CustomResourceDefinition has
    api_version: str,
    *,
    plural: str,
    kind: str | None = None,
    singular: str | None = None,
    short_names: Iterable[str] = (),
    categories: Iterable[str] = (),
    scope: Scope = "Namespaced",
    columns: Mapping[str, str | Column] | None = None,
    scale: Mapping[str, str] | None = None,
    served: bool = True,
    storage: bool = True,
    deprecated: str | bool | None = None,
) -> Callable[[type[O]], type[O]]:
    """Declare a class of typed objects as a custom resource; sets its `__custom_resource__`.

    - `api_version`: group and version, such as `acme.dev/v1`.
    - `plural`: the name in URLs. `kind` is by default the name of the class, `singular` the kind in small
      letters.
    - `short_names`, `categories`: further words for `kubectl get`, such as `pv` and `all`.
    - `columns`: by title, the JSON path of a column of `kubectl get`, or a `Column`.
    - `scale`: `specReplicasPath`, `statusReplicasPath` and maybe `labelSelectorPath`, for `kubectl scale`.
    - `served`, `storage`: of this version, if there are several.
    - `deprecated`: whether the version is, or the warning that the server then sends.

    Raises ValueError and TypeError, which name the argument, for what a server would refuse.
    """
    group, slash, version = api_version.partition("/")
    if not slash:
        raise ValueError(
            f"api_version is {api_version!r}: a custom resource has a group, such as acme.dev/{api_version}"
        )
    _require(_GROUP, "the group of api_version", group, "a domain in small letters, such as acme.dev")
    _require(_LABEL, "the version of api_version", version, "a version such as v1 or v1alpha1")
    _require(_LABEL, "plural", plural, f"small letters, such as {_small(plural) or 'previews'}")
    if scope not in get_args(Scope):
        raise ValueError(f"scope is {scope!r}: write Namespaced or Cluster")
    found_columns = {title: _column(title, each) for title, each in (columns or {}).items()}
    found_scale = None if scale is None else _scale(scale)
    short, of_categories = _words("short_names", short_names), _words("categories", categories)

    def decorate(cls: type[O]) -> type[O]:
        if not (isinstance(cls, type) and issubclass(cls, Object)):  # pyright: ignore[reportUnnecessaryIsInstance] - user code
            raise TypeError("custom_resource is for a class that derives from declctl.Object")
        name = kind if kind is not None else cls.__name__
        _require(_KIND, "kind", name, f"a word such as {name[:1].upper()}{name[1:]}")
        types = {each.name: each.kind for each in typed_fields(cls)}
        resource = CustomResource(
            api_version=api_version,
            kind=name,
            plural=plural,
            singular=singular if singular is not None else name.lower(),
            spec=types.get("spec"),
            status=types.get("status"),
            short_names=short,
            categories=of_categories,
            scope=scope,
            columns=found_columns,
            scale=found_scale,
            served=served,
            storage=storage,
            deprecated="" if deprecated is True else deprecated or None,
        )
        _require(_LABEL, "singular", resource.singular, f"small letters, such as {name.lower()}")
        cls.__custom_resource__ = resource
        return cls

    return decorate


def custom_resource_of(cls: type) -> CustomResource | None:
    """What `custom_resource` says of a class; None for one that it does not decorate."""
    return cls.__custom_resource__ if issubclass(cls, Object) else None


def _require(pattern: re.Pattern[str], what: str, text: object, wanted: str) -> None:
    if not isinstance(text, str):
        raise TypeError(f"{what} is a {type(text).__name__}: write a text")
    if not pattern.fullmatch(text):
        raise ValueError(f"{what} is {text!r}: write {wanted}")


def _small(text: object) -> str:
    """A text that is a name in small letters; empty if there is none like it."""
    small = str(text).lower().replace("_", "-")
    return small if _LABEL.fullmatch(small) else ""


def _words(what: str, words: Iterable[str]) -> tuple[str, ...]:
    if isinstance(words, str):
        raise TypeError(f"{what} is the text {words!r}: write a list, such as [{words!r}]")
    found = tuple(words)
    for each in found:
        _require(_LABEL, f"a word of {what}", each, f"small letters, such as {_small(each) or 'pv'}")
    return found


def _column(title: object, given: object) -> Column:
    column = Column(given) if isinstance(given, str) else given
    if not isinstance(column, Column):
        kind = type(given).__name__
        raise TypeError(f"columns[{title!r}] is a {kind}: write a JSON path, or declctl.Column(path, …)")
    if not column.path.startswith(".") or column.path != column.path.strip():
        raise ValueError(f"columns[{title!r}] is {column.path!r}: a JSON path begins with a dot")
    if column.type is not None and column.type not in get_args(ColumnType):
        choices = ", ".join(get_args(ColumnType))
        raise ValueError(f"the type of columns[{title!r}] is {column.type!r}: it is one of {choices}")
    return column


def _scale(given: Mapping[str, str]) -> ScaleSubresource:
    for name, path in given.items():
        if name not in _SCALE:
            raise ValueError(f"scale has no {name!r}: it has {', '.join(_SCALE)}")
        if not _SIMPLE_PATH.fullmatch(path) or not path.startswith(_SCALE[name]):
            within = _SCALE[name] or ".spec. or .status."
            raise ValueError(f"scale[{name!r}] is {path!r}: write a simple path below {within}")
    missing = [name for name in tuple(_SCALE)[:2] if name not in given]
    if missing:
        raise ValueError(f"scale needs {missing[0]!r}")
    return ScaleSubresource(*(given.get(name, "") for name in _SCALE))
