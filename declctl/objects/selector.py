"""Label and field selectors: read as kubectl reads them, matched as the API server matches them."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from declctl.objects.field_path import FieldPath

_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_PREFIX = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_SET = re.compile(r"(?P<key>\S+)\s+(?P<operator>in|notin)\s*\((?P<values>[^()]*)\)")
_PAIR = re.compile(r"(?P<key>[^\s=!<>]+)\s*(?P<operator>==|=|!=)\s*(?P<value>[^\s=!<>]*)")
_COMPARISON = re.compile(r"(?P<key>[^\s=!<>]+)\s*(?P<operator>[<>])\s*(?P<value>-?\d+)")
_INTEGER = re.compile(r"[+-]?\d+", re.ASCII)
_EXPRESSIONS = ("In", "NotIn", "Exists", "DoesNotExist")  # what metav1's matchExpressions may say
_SIGNS = {"In": "=", "NotIn": "!=", "Gt": ">", "Lt": "<"}
_LONGEST_PREFIX = 253


@dataclass(frozen=True, slots=True)
class Requirement:
    """One condition on one label.

    `operator` is metav1's In, NotIn, Exists or DoesNotExist, or Gt or Lt, which only kubectl's form
    can say: they select labels that are whole numbers.
    """

    key: str
    operator: str
    values: tuple[str, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether the labels meet it."""
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


@dataclass(frozen=True, slots=True)
class LabelSelector:
    """All requirements together; without any it selects everything.

    Equal when it selects by the same requirements.
    """

    requirements: tuple[Requirement, ...] = ()

    @classmethod
    def parse(cls, text: str) -> "LabelSelector":
        """From kubectl's form, `app=web,tier in (a,b),!old`; raises ValueError with a sentence."""
        return cls(_canonical(_parse_requirement(part) for part in _split(text)))

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> "LabelSelector":
        """From metav1's `{matchLabels, matchExpressions}`; raises ValueError with a sentence."""
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
        """Whether an object with these labels is selected."""
        return all(requirement.matches(labels) for requirement in self.requirements)

    def __str__(self) -> str:
        return ",".join(str(requirement) for requirement in self.requirements)


@dataclass(frozen=True, slots=True)
class FieldSelector:
    """Equality conditions on fields, `status.phase=Running,spec.nodeName!=a`.

    A missing field reads as the empty string.
    """

    conditions: tuple[tuple[str, str, str], ...] = ()  # path, '=' or '!=', value

    @classmethod
    def parse(cls, text: str) -> "FieldSelector":
        """From kubectl's form; raises ValueError with a sentence."""
        conditions: list[tuple[str, str, str]] = []
        for part in _split(text):
            pair = _PAIR.fullmatch(part)
            if pair is None:
                raise ValueError(f"{part!r} is no field selector: write field=value or field!=value")
            FieldPath.parse(pair["key"])
            conditions.append((pair["key"], pair["operator"].replace("==", "="), pair["value"]))
        return cls(tuple(sorted(set(conditions))))

    def matches(self, obj: Mapping[str, Any]) -> bool:
        """Whether the object is selected."""
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
