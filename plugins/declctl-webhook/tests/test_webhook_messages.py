"""Requests as the specifications have them, checked with their own examples."""

# The package is found beside the tests, whether it is installed or not.
# pyright: reportMissingImports=false

import base64
import json
from typing import Any
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from declctl_webhook.messages import Message, header_value, message_of, signed
from declctl_webhook.settings import Mode, Scheme

EVENT = {
    "specversion": "1.0",
    "id": "u-1-added",
    "source": "/declctl",
    "type": "t.added",
    "subject": "v1/Pod/a/Euro €",
    "initial": True,
    "datacontenttype": "application/json",
    "data": {"object": {"kind": "Pod", "text": "Grüße"}},
}
BODY = json.dumps(EVENT, ensure_ascii=False).encode()


def test_structured_mode_has_the_event_as_the_body() -> None:
    """application/cloudevents+json."""
    message = message_of(Mode.STRUCTURED, [BODY])
    assert (message.id, message.body) == ("u-1-added", BODY)
    assert message.headers == {"Content-Type": "application/cloudevents+json; charset=UTF-8"}


def test_binary_mode_has_attributes_as_headers() -> None:
    """Every attribute but the content type is a header; the body is the data."""
    message = message_of(Mode.BINARY, [BODY])
    assert message.headers == {
        "ce-specversion": "1.0",
        "ce-id": "u-1-added",
        "ce-source": "/declctl",
        "ce-type": "t.added",
        "ce-subject": "v1/Pod/a/Euro%20%E2%82%AC",
        "ce-initial": "true",
        "Content-Type": "application/json",
    }
    assert json.loads(message.body) == EVENT["data"]


def test_batched_mode_has_an_array() -> None:
    """application/cloudevents-batch+json; the same events have the same id of the message."""
    other = json.dumps({**EVENT, "id": "u-2-added"}).encode()
    message = message_of(Mode.BATCHED, [BODY, other])
    assert [event["id"] for event in json.loads(message.body)] == ["u-1-added", "u-2-added"]
    assert message.headers == {"Content-Type": "application/cloudevents-batch+json; charset=UTF-8"}
    assert message.id == message_of(Mode.BATCHED, [BODY, other]).id != message_of(Mode.BATCHED, [other]).id


def test_the_example_of_the_http_binding_is_encoded_as_there() -> None:
    """Euro, a currency sign, and an emoji."""
    assert header_value("Euro € 😀") == "Euro%20%E2%82%AC%20%F0%9F%98%80"


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"])))
def test_every_header_is_printable_and_decodes_to_its_attribute(text: str) -> None:
    """No name of an object can end a header and begin another one."""
    value = header_value(text)
    assert all("!" <= character <= "~" for character in value)
    assert unquote(value) == text


def test_the_example_of_standard_webhooks_is_signed_as_there() -> None:
    """The vector that all of its libraries are tested with."""
    key = base64.b64decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    message = Message("msg_p5jXN8AQM9LWM0D4loKWxJek", {}, b'{"test": 2432232314}')
    signature = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
    headers = signed(Scheme.STANDARD_WEBHOOKS, [key], message, timestamp=1614265330)
    assert headers == {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": signature,
    }
    two = signed(Scheme.STANDARD_WEBHOOKS, [b"newer" * 6, key], message, timestamp=1614265330)
    assert two["webhook-signature"].split(" ")[1] == signature


def test_the_example_of_github_is_signed_as_there() -> None:
    """The example of its documentation."""
    message = Message("1", {}, b"Hello, World!")
    headers = signed(Scheme.GITHUB, [b"It's a Secret to Everybody"], message, timestamp=0)
    digest = "757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"
    assert headers == {"X-Hub-Signature-256": f"sha256={digest}"}


@pytest.mark.parametrize("mode", [Mode.STRUCTURED, Mode.BINARY])
def test_one_event_a_request(mode: Mode) -> None:
    """Only batches have several: two would be a fault of the sender, and one of them lost."""
    events: Any = [BODY, BODY]
    with pytest.raises(ValueError, match="too many values"):
        message_of(mode, events)
