"""A condition of a status, as metav1.Condition has it."""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Literal, cast

import msgspec

from declctl.errors import InvalidObject

ConditionStatus = Literal["True", "False", "Unknown"]


class Condition(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """A condition of a status (metav1.Condition), for `ctx.patch_status`, and for a type of a status.

    - `type`: one CamelCase word, maybe after a domain, such as `Ready` or `example.dev/Ready`.
    - `status`: True, False or Unknown, as a text.
    - `reason`: one CamelCase word. `message`: a text for people. Conditions of other controllers may lack
      both; `ctx.patch_status` refuses one without a reason.
    - `observed_generation`, `last_transition_time`: `ctx.patch_status` fills them in if they are None.
    """

    type: str
    status: ConditionStatus
    reason: str = ""
    message: str = ""
    observed_generation: int | None = None
    last_transition_time: datetime | None = None


def condition_of(key: str, conditions: object, kind: str) -> Condition | None:
    """The condition of a type among `status.conditions` of an object; None if there is none.

    `key` is that of the object. Raises InvalidObject for a condition that can't be read.
    """
    listed = cast("Iterable[Any]", conditions) if isinstance(conditions, list) else ()
    found = next((each for each in listed if isinstance(each, Mapping) and each.get("type") == kind), None)
    if found is None:
        return None
    try:
        return msgspec.convert(dict(cast("Mapping[str, Any]", found)), Condition)
    except msgspec.ValidationError as fault:
        raise InvalidObject(key, "Condition", f"status.conditions[type={kind}]", str(fault)) from None
