"""Field paths and selectors: the place of a value in an object, and conditions on objects.

Field paths: `spec.nodeName`, `spec.containers[*].image`, `metadata.labels[app.kubernetes.io/name]`,
`status.conditions[0].type`. A key with a dot or a slash, such as that of a label, needs no quotes in
brackets. A `PathStruct` is the struct by which msgspec decodes the values at some paths.

Label and field selectors have the syntax of kubectl and the semantics of the API server.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, cast

import msgspec


class Wildcard:
    """The step `[*]`: every element of a list, or every value of a map."""

    def __repr__(self) -> str:
        return "[*]"


ALL: Final = Wildcard()
Step = str | int | Wildcard

_TOKEN = re.compile(
    r"""\[\*\]
      | \[(?P<index>\d+)\]
      | \[(?P<bare>[A-Za-z0-9_-]*[./][A-Za-z0-9_./-]*)\]
      | \[(?P<quote>['"])(?P<quoted>[^'"\]]+)(?P=quote)\]
      | (?P<name>[A-Za-z_$][\w$-]*)""",
    re.VERBOSE,
)
_DOTTED_KEY = re.compile(
    r"\.?(?P<map>metadata\.(?:labels|annotations))\.(?P<key>[\w-]*[./][\w./-]*)", re.ASCII
)


class FieldPathError(ValueError):
    """A text is no field path."""

    def __init__(self, message: str, column: int, *, suggestion: str | None = None) -> None:
        super().__init__(message)
        self.column = column  # offset of the fault in the text, from 0
        self.suggestion = suggestion  # a correct text, if it is known


class FieldPath(msgspec.Struct, frozen=True):
    """A parsed field path. Two paths to the same place are equal, however they were written."""

    steps: tuple[Step, ...]

    @classmethod
    def parse(cls, text: str) -> "FieldPath":
        """Parse a text; raises FieldPathError with the column of the fault."""
        _refuse_dotted_key(text)
        steps: list[Step] = []
        at = 1 if text.startswith(".") else 0
        while at < len(text):
            if steps and text[at] == ".":
                at += 1
            elif steps and text[at] != "[":
                raise FieldPathError(f"expected '.' or '[' at {text[at:]!r}", at)
            token = _TOKEN.match(text, at)
            if token is None:
                raise FieldPathError(_complaint(text, at), at)
            steps.append(_step(token))
            at = token.end()
        if not steps or text.endswith("."):
            raise FieldPathError("a field path names at least one field, such as spec.nodeName", len(text))
        return cls(tuple(steps))

    def values(self, obj: Mapping[str, Any]) -> tuple[str, ...]:
        """The scalars at this path as strings, such as `true` or `3`; those of a list at the end, too."""
        return tuple(text for found in self.find(obj) for text in scalars(found))

    def find(self, obj: Any) -> Iterator[Any]:
        """The values at this path: one, or several for a path with `[*]`; none if the field is missing."""
        yield from _walk(obj, self.steps)

    def remove_from(self, obj: Any) -> None:
        """Delete the field from a mutable object; no effect if it is missing."""
        for parent in _walk(obj, self.steps[:-1]):
            last = self.steps[-1]
            if isinstance(parent, dict):
                if last is ALL:
                    parent.clear()
                else:
                    cast("dict[Any, Any]", parent).pop(last, None)
            elif isinstance(parent, list):
                _remove_element(cast("list[Any]", parent), last)

    def __str__(self) -> str:
        text = ""
        for step in self.steps:
            if isinstance(step, str) and re.fullmatch(r"[A-Za-z_$][\w$-]*", step):
                text += f".{step}" if text else step
            elif isinstance(step, str):
                text += f"['{step}']"
            else:
                text += "[*]" if isinstance(step, Wildcard) else f"[{step}]"
        return text


def _refuse_dotted_key(text: str) -> None:
    """Raise FieldPathError for a key of a label or annotation with dots or slashes, but without brackets."""
    found = _DOTTED_KEY.fullmatch(text)
    if found is not None:
        raise FieldPathError(
            f"the key {found['key']!r} has to stand in brackets, as it holds dots or slashes",
            found.start("key"),
            suggestion=f"write {found['map']}['{found['key']}']",
        )


def scalars(found: Any) -> Iterator[str]:
    """A scalar, or the scalars of a list, as strings."""
    if isinstance(found, bool):
        yield "true" if found else "false"
    elif isinstance(found, str):
        yield found
    elif isinstance(found, int | float):
        yield str(found)
    elif isinstance(found, list):
        for element in cast("list[Any]", found):
            if not isinstance(element, list | dict):
                yield from scalars(element)


def _walk(obj: Any, steps: tuple[Step, ...]) -> Iterator[Any]:
    if not steps:
        yield obj
        return
    step, rest = steps[0], steps[1:]
    if isinstance(obj, Mapping):
        fields = cast("Mapping[Any, Any]", obj)
        if isinstance(step, Wildcard):
            for value in fields.values():
                yield from _walk(value, rest)
        elif step in fields:
            yield from _walk(fields[step], rest)
    elif isinstance(obj, list):
        elements = cast("list[Any]", obj)
        if isinstance(step, Wildcard):
            for element in elements:
                yield from _walk(element, rest)
        elif isinstance(step, int) and step < len(elements):
            yield from _walk(elements[step], rest)


def _remove_element(elements: list[Any], step: Step) -> None:
    if isinstance(step, Wildcard):
        elements.clear()
    elif isinstance(step, int) and step < len(elements):
        del elements[step]


def _step(token: re.Match[str]) -> Step:
    if token["name"]:
        return token["name"]
    if token["bare"] or token["quoted"]:
        return token["bare"] or token["quoted"]
    return int(token["index"]) if token["index"] else ALL


def _complaint(text: str, at: int) -> str:
    rest = text[at:]
    if rest.startswith("["):
        return f"{rest!r} is neither [*], [0] nor ['a-key']"
    return f"expected a field name at {rest!r}" if rest else "expected a field name at the end"


_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_PREFIX = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_SET = re.compile(r"(?P<key>\S+)\s+(?P<operator>in|notin)\s*\((?P<values>[^()]*)\)")
_PAIR = re.compile(r"(?P<key>[^\s=!<>]+)\s*(?P<operator>==|=|!=)\s*(?P<value>[^\s=!<>]*)")
_COMPARISON = re.compile(r"(?P<key>[^\s=!<>]+)\s*(?P<operator>[<>])\s*(?P<value>-?\d+)")
_INTEGER = re.compile(r"[+-]?\d+", re.ASCII)
_EXPRESSIONS = ("In", "NotIn", "Exists", "DoesNotExist")  # what metav1's matchExpressions may say
_SIGNS = {"In": "=", "NotIn": "!=", "Gt": ">", "Lt": "<"}
_LONGEST_PREFIX = 253


# name → None for a value, a tree for an object, [tree] for a list of objects, [] for a list of values
_Tree = dict[str, Any]


class PathStruct:
    """A struct by which msgspec decodes the values at some paths, and skips the rest of an object.

    - `paths`: their steps are names and `[*]`. No path is within another one, and no place is an object for
      one path and a list for another.
    - `leaf`: the type of a value.
    - `missing`: the value of a missing field.
    - `hook`: reads a value into a class that msgspec does not know, as its `dec_hook`.
    - `more`: further fields of the outermost struct, as `msgspec.defstruct` takes them.

    The attributes of the struct are numbered; the names in JSON may be any text without a quote or backslash.
    Raises ValueError for other names.
    """

    def __init__(
        self,
        paths: Iterable[Sequence[Step]],
        *,
        leaf: Any = Any,
        missing: Any = None,
        more: Sequence[tuple[str, Any, Any]] = (),
        hook: Callable[[type, Any], Any] | None = None,
    ) -> None:
        self._tree: _Tree = {}
        for steps in paths:
            _plant(self._tree, steps)
        self.decode: Callable[[Any], Any] = msgspec.json.Decoder(
            _struct(self._tree, leaf, missing, more), dec_hook=hook
        ).decode

    def attributes(self, steps: Sequence[Step]) -> Sequence[str]:
        """The arguments of `operator.attrgetter` that read the value of a path from a decoded struct.

        The first one leads to the first list or the value, each further one from an element of that list to
        the next list or the value. It is empty if the elements are the values.
        """
        parts: list[list[str]] = [[]]
        below: Any = self._tree
        for step in steps:
            if step is ALL:
                parts.append([])
                below = below[0] if below else None
            else:
                parts[-1].append(f"f{list(below).index(step)}")
                below = below[step]
        return [".".join(part) for part in parts]


def outermost(given: Iterable[tuple[Step, ...]]) -> list[tuple[Step, ...]]:
    """The paths that are not within another one, each once."""
    paths = list(dict.fromkeys(given))
    return [path for path in paths if not any(path[: len(o)] == o for o in paths if len(o) < len(path))]


def _plant(tree: _Tree, steps: Sequence[Step]) -> None:
    name, *rest = steps
    assert isinstance(name, str)
    if not rest:
        tree[name] = None
    elif rest == [ALL]:
        tree[name] = []
    elif rest[0] is ALL:
        _plant(tree.setdefault(name, [{}])[0], rest[1:])
    else:
        _plant(tree.setdefault(name, {}), rest)


def _struct(tree: _Tree, leaf: Any, missing: Any, more: Sequence[tuple[str, Any, Any]] = ()) -> Any:
    fields: list[tuple[str, Any, Any]] = [*more]
    for number, below in enumerate(tree.values()):
        if below is None:
            kind, default = leaf, missing
        elif isinstance(below, list):
            element = _struct(cast("list[_Tree]", below)[0], leaf, missing) if below else leaf
            kind, default = list[element] | None, None
        else:
            kind = _struct(cast("_Tree", below), leaf, missing)
            default = kind()
        fields.append((f"f{number}", kind, default))
    names = {f"f{number}": name for number, name in enumerate(tree)}
    return msgspec.defstruct("Path", fields, rename=names, gc=False, frozen=True)


class Requirement(msgspec.Struct, frozen=True):
    """One condition on one label.

    `operator` is In, NotIn, Exists or DoesNotExist, as in metav1; or Gt or Lt, which compare integers, and
    which only the text form of kubectl has.
    """

    key: str
    operator: str
    values: tuple[str, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether labels meet the condition."""
        value = labels.get(self.key)
        match self.operator:
            case "In":
                return value is not None and value in self.values
            case "NotIn":
                return value is None or value not in self.values
            case "Exists":
                return value is not None
            case "DoesNotExist":
                return value is None
            case _:
                return value is not None and self._compares(value)

    def __str__(self) -> str:
        if self.operator == "Exists":
            return self.key
        if self.operator == "DoesNotExist":
            return f"!{self.key}"
        if len(self.values) == 1:
            return f"{self.key}{_SIGNS[self.operator]}{self.values[0]}"
        return f"{self.key} {self.operator.lower()} ({','.join(self.values)})"

    def _compares(self, value: str) -> bool:
        if not _INTEGER.fullmatch(value):
            return False
        limit = int(self.values[0])
        return int(value) > limit if self.operator == "Gt" else int(value) < limit


class LabelSelector(msgspec.Struct, frozen=True):
    """A conjunction of requirements; without any it selects every object.

    Two selectors with the same requirements are equal, however they were written.
    """

    requirements: tuple[Requirement, ...] = ()

    @classmethod
    def parse(cls, text: str) -> "LabelSelector":
        """Parse the form of kubectl, such as `app=web,tier in (a,b),!old`; raises ValueError."""
        return cls(_canonical(_parse_requirement(part) for part in _split(text)))

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> "LabelSelector":
        """Convert metav1's `{matchLabels, matchExpressions}`; raises ValueError."""
        unknown = set(mapping) - {"matchLabels", "matchExpressions"}
        if unknown:
            raise ValueError(f"{min(unknown, key=str)!r} is neither matchLabels nor matchExpressions")
        equal = mapping.get("matchLabels") or {}
        if not isinstance(equal, Mapping):
            raise ValueError("matchLabels is a map from label to value")
        expressions = mapping.get("matchExpressions") or []
        if not isinstance(expressions, Sequence) or isinstance(expressions, str):
            raise ValueError("matchExpressions is a list")
        requirements = [
            _requirement(key, "In", [value]) for key, value in cast("Mapping[Any, Any]", equal).items()
        ]
        requirements += [_expression(expression) for expression in cast("Sequence[Any]", expressions)]
        return cls(_canonical(requirements))

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether the selector selects an object with these labels."""
        return all(requirement.matches(labels) for requirement in self.requirements)

    def __str__(self) -> str:
        return ",".join(str(requirement) for requirement in self.requirements)


class FieldSelector(msgspec.Struct, frozen=True):
    """Equality conditions on fields, such as `status.phase=Running,spec.nodeName!=a`.

    A missing field has the empty string as its value.
    """

    conditions: tuple[tuple[str, str, str], ...] = ()  # path, '=' or '!=', value

    @classmethod
    def parse(cls, text: str) -> "FieldSelector":
        """Parse the form of kubectl; raises ValueError."""
        conditions: list[tuple[str, str, str]] = []
        for part in _split(text):
            pair = _PAIR.fullmatch(part)
            if pair is None:
                raise ValueError(f"{part!r} is no field selector: write field=value or field!=value")
            FieldPath.parse(pair["key"])
            conditions.append((pair["key"], pair["operator"].replace("==", "="), pair["value"]))
        return cls(tuple(sorted(set(conditions))))

    def matches(self, obj: Mapping[str, Any]) -> bool:
        """Whether the selector selects an object."""
        for path, operator, value in self.conditions:
            found = FieldPath.parse(path).values(obj)
            if ((found[0] if found else "") == value) != (operator == "="):
                return False
        return True

    def __str__(self) -> str:
        return ",".join(f"{path}{operator}{value}" for path, operator, value in self.conditions)


def _split(text: str) -> list[str]:
    # Commas inside parentheses belong to a set of values.
    parts = [part.strip() for part in re.split(r",(?![^()]*\))", text)]
    if parts == [""]:
        return []
    if "" in parts:
        raise ValueError(f"{text!r} has a comma with nothing beside it")
    return parts


def _parse_requirement(text: str) -> Requirement:
    if members := _SET.fullmatch(text):
        values = [value.strip() for value in members["values"].split(",")]
        return _requirement(members["key"], "In" if members["operator"] == "in" else "NotIn", values)
    if pair := _PAIR.fullmatch(text):
        return _requirement(pair["key"], "NotIn" if pair["operator"] == "!=" else "In", [pair["value"]])
    if comparison := _COMPARISON.fullmatch(text):
        operator = "Gt" if comparison["operator"] == ">" else "Lt"
        return Requirement(_label_key(comparison["key"]), operator, (str(int(comparison["value"])),))
    if text.startswith("!"):
        return _requirement(text[1:].strip(), "DoesNotExist", [])
    return _requirement(text, "Exists", [])


def _expression(expression: Any) -> Requirement:
    if not isinstance(expression, Mapping):
        raise ValueError(f"{expression!r} is no matchExpression: write {{key, operator, values}}")
    fields = cast("Mapping[str, Any]", expression)
    values = fields.get("values") or []
    if not isinstance(values, Sequence) or isinstance(values, str):
        raise ValueError(f"the values of {fields.get('key')!r} are a list")
    operator = fields.get("operator", "")
    if operator not in _EXPRESSIONS:
        raise ValueError(f"{operator!r} is no operator: use In, NotIn, Exists or DoesNotExist")
    return _requirement(fields.get("key", ""), operator, cast("Sequence[Any]", values))


def _requirement(key: Any, operator: str, values: Sequence[Any]) -> Requirement:
    key = _label_key(key)
    if operator in ("In", "NotIn") and not values:
        raise ValueError(f"{operator} for {key!r} needs at least one value")
    if operator in ("Exists", "DoesNotExist") and values:
        raise ValueError(f"{operator} for {key!r} takes no values")
    for value in values:
        if not isinstance(value, str):
            raise ValueError(f"the value {value!r} of {key!r} is no string: put it in quotes")
        if value and not _NAME.fullmatch(value):
            raise ValueError(f"{value!r} is no label value")
    return Requirement(key, operator, tuple(sorted(set(values))))


def _label_key(key: Any) -> str:
    prefix, slash, name = str(key).rpartition("/")
    bad_prefix = slash and (len(prefix) > _LONGEST_PREFIX or not _PREFIX.fullmatch(prefix))
    if not isinstance(key, str) or bad_prefix or not _NAME.fullmatch(name):
        raise ValueError(f"{key!r} is no label key")
    return key


def _canonical(requirements: Iterable[Requirement]) -> tuple[Requirement, ...]:
    return tuple(sorted(set(requirements), key=lambda r: (r.key, r.operator, r.values)))
