"""Who we are and to whom we talk: what `run` says first."""

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import msgspec


@dataclass(frozen=True, slots=True)
class Identity:
    """Names for people; `namespace` is that of the context or of the service account."""

    context: str | None
    server: str
    user: str | None
    namespace: str | None
    in_cluster: bool


def token_subject(token: str) -> str | None:
    """The `sub` of a JWT, such as `system:serviceaccount:team-a:guard`; None if it is no JWT.

    Nothing is verified: it is a name to show.
    """
    parts = token.split(".")
    if len(parts) != 3:
        return None
    try:
        payload: Any = msgspec.json.decode(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except (binascii.Error, ValueError):
        return None
    if not isinstance(payload, dict):
        return None
    subject = cast("Mapping[str, Any]", payload).get("sub")
    return subject if isinstance(subject, str) else None
