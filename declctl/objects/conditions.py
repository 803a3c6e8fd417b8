"""A condition of a status, as metav1.Condition has it."""

from datetime import datetime
from typing import Literal

import msgspec

ConditionStatus = Literal["True", "False", "Unknown"]


class Condition(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """A condition of a status (metav1.Condition), for `ctx.patch_status`, and for a type of a status.

    - `type`: one CamelCase word, maybe after a domain, such as `Ready` or `example.dev/Ready`.
    - `status`: True, False or Unknown, as a text.
    - `reason`: one CamelCase word. `message`: a text for people.
    - `observed_generation`, `last_transition_time`: `ctx.patch_status` fills them in if they are None.
    """

    type: str
    status: ConditionStatus
    reason: str
    message: str = ""
    observed_generation: int | None = None
    last_transition_time: datetime | None = None
