"""Events in, an HTTP request out: the content modes of CloudEvents, and signatures. Pure.

- CloudEvents 1.0.2, HTTP protocol binding and JSON event format.
- Standard Webhooks 1.0.0: HMAC-SHA256 over `id.timestamp.body`, one signature for each key.
- GitHub's X-Hub-Signature-256: HMAC-SHA256 over the body.
"""

import base64
import hashlib
import hmac
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from declctl_webhook.settings import Mode, Scheme

_STRUCTURED: Final = "application/cloudevents+json; charset=UTF-8"
_BATCHED: Final = "application/cloudevents-batch+json; charset=UTF-8"


class Message(NamedTuple):
    """The body of a request, and the headers that belong to it."""

    id: str  # the same for the same events, in each attempt
    headers: Mapping[str, str]
    body: bytes


def message_of(mode: Mode, events: Sequence[bytes]) -> Message:
    """The request for some events in the JSON format. Only `Batched` allows more than one."""
    if mode is Mode.BATCHED:
        ids = [str(json.loads(event)["id"]) for event in events]
        # A batch that is sent again in the same parts has the same id.
        digest = hashlib.sha256("\n".join(ids).encode()).hexdigest()[:32]
        body = b"[" + b",".join(events) + b"]"
        return Message(f"batch-{digest}", {"Content-Type": _BATCHED}, body)
    (event,) = events
    attributes: dict[str, Any] = json.loads(event)
    number = str(attributes["id"])
    if mode is Mode.STRUCTURED:
        return Message(number, {"Content-Type": _STRUCTURED}, event)
    data = attributes.pop("data")
    content_type = attributes.pop("datacontenttype")
    headers = {f"ce-{name}": header_value(value) for name, value in attributes.items()}
    body = json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
    return Message(number, {**headers, "Content-Type": content_type}, body)


def header_value(value: object) -> str:
    """An attribute as a header: printable ASCII; all else, space, quote and percent as %XX of their UTF-8."""
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return "".join(
        character
        if "!" <= character <= "~" and character not in '"%'
        else "".join(f"%{byte:02X}" for byte in character.encode("utf-8", "replace"))
        for character in text
    )


def signed(scheme: Scheme, keys: Sequence[bytes], message: Message, *, timestamp: int) -> Mapping[str, str]:
    """The headers that sign a message. `timestamp` is the Unix time of the attempt."""
    if scheme is Scheme.GITHUB:
        digest = hmac.new(keys[0], message.body, hashlib.sha256).hexdigest()
        return {"X-Hub-Signature-256": f"sha256={digest}"}
    content = f"{message.id}.{timestamp}.".encode() + message.body
    digests = [base64.b64encode(hmac.digest(key, content, "sha256")).decode() for key in keys]
    return {
        "webhook-id": message.id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": " ".join(f"v1,{digest}" for digest in digests),
    }
