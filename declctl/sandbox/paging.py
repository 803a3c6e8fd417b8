"""Continue tokens: from which key, and at which version, a list goes on.

In the shape of apiserver's: base64 of a small JSON document.
"""

import base64
import binascii
import json
from dataclasses import dataclass
from typing import Final

from declctl.sandbox import status

CURRENT: Final = (
    -1
)  # the version of a token that goes on with the present state: what an expired token is exchanged for
_HINT: Final = (
    "The provided continue parameter is too old to display a consistent list result. You can start a new "
    "list without the continue "
    "parameter, or use the continue token in this response to retrieve the remainder of the results. "
    "Continuing with the provided "
    "token results in an inconsistent list - objects that were created, modified, or deleted between the "
    "time the first chunk was "
    "returned and now may show up in the list."
)


@dataclass(frozen=True, slots=True)
class Token:
    """A list goes on after `key`, at `version` (CURRENT: at the newest)."""

    version: int
    key: str

    def encode(self) -> str:
        """As it goes over the wire."""
        document = {"v": "meta.k8s.io/v1", "rv": self.version, "start": self.key}
        return (
            base64.urlsafe_b64encode(json.dumps(document, separators=(",", ":")).encode())
            .decode()
            .rstrip("=")
        )

    @classmethod
    def decode(cls, text: str) -> "Token":
        """Read a token; refused with 400 if it isn't one."""
        try:
            document = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
            if document["v"] == "meta.k8s.io/v1" and isinstance(document["start"], str):
                return cls(int(document["rv"]), document["start"])
        except (binascii.Error, ValueError, KeyError, TypeError) as error:
            raise status.bad_request(f"invalid continue token: continue key is not valid: {error}") from error
        raise status.bad_request(
            "invalid continue token: continue key is not valid: server does not recognize this encoded "
            "version"
        )

    def expired(self) -> status.Refusal:
        """410 with a token that goes on inconsistently."""
        refusal = status.Refusal(410, "Expired", _HINT)
        refusal.metadata = {"continue": Token(CURRENT, self.key).encode()}
        return refusal
