"""What an author writes beside a type: rules, list maps, durations, and where unknown fields stay.

Marks are `msgspec.Meta` with the extensions of Kubernetes' schemas, so that msgspec reads them as any other
one, in an `Annotated` of a field or of a part of it. `rules` is for classes.
"""

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Annotated, Final, Literal, TypeVar

import msgspec

_Class = TypeVar("_Class", bound=type)
Reason = Literal["FieldValueInvalid", "FieldValueForbidden", "FieldValueRequired", "FieldValueDuplicate"]

VALIDATIONS: Final = "x-kubernetes-validations"
PRESERVE: Final = "x-kubernetes-preserve-unknown-fields"
LIST_TYPE: Final = "x-kubernetes-list-type"
LIST_KEYS: Final = "x-kubernetes-list-map-keys"
IMMUTABLE: Final = "self == oldSelf"
_CLASS_RULES: Final = "__schema_rules__"

_MICROSECONDS: Final = {"h": 3.6e9, "m": 6e7, "s": 1e6, "ms": 1e3, "us": 1.0, "µs": 1.0, "ns": 1e-3}
_PART: Final = r"([0-9]+(?:\.[0-9]+)?)(h|ms|m|s|us|µs|ns)"

Duration = Annotated[str, msgspec.Meta(pattern=r"^([0-9]+(\.[0-9]+)?(h|ms|m|s|us|µs|ns))+$")]
"""The type of a length of time as Go writes it: `90s`, `1h30m`, `1.5h`. It is never negative.

Its values are texts; `parse_duration` makes a `timedelta` of one. (metav1.Duration.)
"""


def parse_duration(text: str) -> timedelta:
    """The length of time that a text of the type `Duration` stands for. Raises ValueError for another text.

    It is rounded to microseconds. (Go's time.ParseDuration, without a sign.)
    """
    parts = re.findall(_PART, text)
    if "".join(f"{number}{unit}" for number, unit in parts) != text or not parts:
        raise ValueError(f"{text!r} is no duration such as 90s or 1h30m")
    return timedelta(microseconds=sum(float(number) * _MICROSECONDS[unit] for number, unit in parts))


def rule(
    rule: str,
    *,
    message: str | None = None,
    message_expression: str | None = None,
    reason: Reason | None = None,
    field_path: str | None = None,
) -> msgspec.Meta:
    """A rule in CEL for a value, as an annotation of its type; the API server checks it on every write.

    - `rule`: an expression that is true for a good value. `self` is the value, and `oldSelf` the one that it
      replaces; a rule that names `oldSelf` is checked on updates only.
    - `message`: what the server says if the rule is broken; by default the rule itself.
    - `message_expression`: an expression for the message, instead.
    - `reason`: the machine-readable kind of fault, by default FieldValueInvalid.
    - `field_path`: the field that is to blame, relative to `self`, such as `.max`.

    A field that may be missing is tested first: `!has(self.max) || self.min <= self.max`.
    (An entry of x-kubernetes-validations.)
    """
    given = {
        "rule": rule,
        "message": message,
        "messageExpression": message_expression,
        "reason": reason,
        "fieldPath": field_path,
    }
    entry = {name: value for name, value in given.items() if value is not None}
    return msgspec.Meta(extra_json_schema={VALIDATIONS: [entry]})


immutable: Final = rule(IMMUTABLE, message="it can't be changed")
"""An annotation for a value that keeps what it was when its object was made."""


def rules(*marks: msgspec.Meta) -> Callable[[_Class], _Class]:
    """A decorator that gives rules to a class; `self` is an object of it. Subclasses have them, too.

    ```python
    @declctl.rules(declctl.rule("self.min <= self.max", message="min is above max"))
    class Scale(msgspec.Struct):
        min: int
        max: int
    ```
    """

    def decorate(cls: _Class) -> _Class:
        setattr(cls, _CLASS_RULES, marks)
        return cls

    return decorate


def rules_of(cls: type) -> list[dict[str, object]]:
    """The rules of a class and of its bases, as they stand in a schema."""
    found: list[dict[str, object]] = []
    for each in reversed(cls.__mro__):
        for mark in vars(each).get(_CLASS_RULES, ()):
            found += (mark.extra_json_schema or {}).get(VALIDATIONS, ())
    return found


def list_map(*keys: str) -> msgspec.Meta:
    """An annotation for a list of objects, of which no two have the same values of these fields.

    Server-side apply then merges the list by element: each writer owns its elements. The fields are required,
    or have defaults. (x-kubernetes-list-type: map.)
    """
    return msgspec.Meta(extra_json_schema={LIST_TYPE: "map", LIST_KEYS: list(keys)})


preserve_unknown_fields: Final = msgspec.Meta(extra_json_schema={PRESERVE: True})
"""An annotation for a type that holds itself: the server keeps the fields of classes below it unchecked."""
