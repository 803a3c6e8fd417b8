"""Values of Secrets in texts: which are hidden, in which forms, and how many are remembered."""

import base64
import json
from functools import partial
from urllib.parse import quote, quote_plus

import pytest

from declctl.kit.secret_values import LAST_APPLIED, SecretValues, is_secret, without_values


def secret(version: str = "1", **values: str) -> dict:
    data = {name: base64.b64encode(value.encode()).decode() for name, value in values.items()}
    return {"metadata": {"name": "s", "namespace": "n", "resourceVersion": version}, "data": data}


VALUES = ["long-password", 'with "quotes" / and \\', "l\u00f6ng-password", "line one\nline two"]
QUOTES = [str, repr, json.dumps, lambda text: repr(text.encode())]
QUOTES += [
    lambda text: json.dumps(json.dumps(text)),
    lambda text: json.dumps(json.dumps(text), ensure_ascii=False),
]
ODD = [None, "text", {"a": 1}, {"a": None}, {"a": "not base64!"}, {"a": "gICAgICAgIA="}]


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("quoted", [*QUOTES, quote, partial(quote, safe=""), quote_plus])
def test_a_value_is_hidden_in_each_form(value: str, quoted):
    """Plain, as Python and JSON quote it, in URLs, and encoded."""
    values = SecretValues()
    values.remember(secret(a=value))
    text = f"before {quoted(value)} after"
    for line in value.splitlines():
        assert line not in values.hide(text)
    assert values.hide(text).startswith("before ")
    assert values.hide(text) != text
    for word in ("password", "quotes", "line"):
        assert word not in values.hide(text)
    assert values.hide(secret(a=value)["data"]["a"]) == "(hidden)"
    values = SecretValues()
    values.remember({"stringData": {"a": value}})
    assert values.hide(secret(a=value)["data"]["a"]) == "(hidden)"  # as the server stores it


REQUESTS = [
    {"stringData": {"a": 7304518629}},  # a server refuses these three, and quotes them
    {"stringData": {"a": {"b": ["first", "7304518629"]}}},
    {"stringData": "7304518629"},
    {"kind": "SecretList", "items": [None, {"stringData": {"a": "7304518629"}}]},
    [None, {"op": "add", "path": "/stringData/a", "value": "7304518629"}, {"op": "remove", "path": "/data"}],
    [{"op": "replace", "path": "/stringData", "value": {"a": "7304518629"}}],
    [{"op": "replace", "path": "", "value": {"stringData": {"a": "7304518629"}}}],
]


@pytest.mark.parametrize("document", REQUESTS)
def test_the_values_of_a_request_are_hidden(document: object):
    """A Secret as users get it wrong, a list, and the forms of a JSON patch."""
    values = SecretValues()
    values.remember_request(document)
    assert values.hide("it is 7304518629, not 730451862") == "it is (hidden), not 730451862"


def test_which_values_are_hidden():
    """Not `true` and `5432`; of a value that contains another one, no part stays."""
    values = SecretValues()
    values.remember(secret(a="true", b="5432"))
    assert values.hide("it is true on 5432") == "it is true on 5432"
    values = SecretValues()
    values.remember(secret(a="password", b="password-and-more"))
    assert values.hide("x password-and-more password") == "x (hidden) (hidden)"


@pytest.mark.parametrize("data", ODD)
def test_data_of_another_form_is_no_fault(data: object):
    """Objects that no API server would accept may come from a test."""
    values = SecretValues()
    values.remember({"data": data})
    values.remember({"metadata": None, "stringData": data})
    values.remember_request(data)
    values.remember_request([data, {"path": None}, {"value": data}])
    assert values.hide("harmless") == "harmless"


def test_of_too_many_values_the_oldest_are_forgotten():
    """Ten thousand Secrets do not fill the memory; one that is read again is hidden again.

    What is kept stays.
    """
    values = SecretValues()
    first = secret("first", a="the-first-value")
    values.keep({"data": {"token": base64.b64encode(b"tok-5e6ea91c").decode()}})
    values.remember(first)
    for number in range(5000):
        values.remember(secret(str(number), a=f"value-number-{number}"))
    assert values.hide("the-first-value") == "the-first-value"
    assert values.hide("value-number-4999") == "(hidden)"
    values.remember(first)
    assert values.hide("the-first-value") == "(hidden)"
    assert values.hide("refused tok-5e6ea91c") == "refused (hidden)"


def test_another_value_under_the_same_version_is_hidden_too():
    """After a part without values, and by a transform that was reloaded; old ones may be in later texts."""
    values = SecretValues()
    values.remember({"metadata": secret(a="long-password")["metadata"]})
    values.remember(secret(a="long-password"))
    assert values.hide("long-password") == "(hidden)"
    values = SecretValues()
    values.remember(secret("7", a="as-stored"))
    transformed = secret("7", a="of-the-first-code")
    values.remember(transformed)
    values.remember(secret("7", a="of-the-second-code"))
    values.remember(transformed)
    shown = values.hide("as-stored of-the-first-code of-the-second-code")
    assert shown == "(hidden) (hidden) (hidden)"


def test_what_is_remembered_is_not_encoded_again(monkeypatch: pytest.MonkeyPatch):
    """Also after a thousand updates of Secrets, a read of a known one costs little."""
    values = SecretValues()
    for number in range(3000):
        values.remember(secret(str(number), a=f"value-number-{number}"))
    monkeypatch.setattr("base64.b64decode", lambda *_, **__: pytest.fail("it was decoded again"))
    values.remember(secret("2999", a="value-number-2999"))


def test_only_secrets_are_hidden():
    """A ConfigMap is shown as it is; of a Secret, kubectl's annotation is hidden too."""
    shown = {"apiVersion": "v1", "kind": "ConfigMap", "data": {"a": "b"}}
    assert without_values(dict(shown)) == shown
    metadata = {"name": "s", "annotations": {LAST_APPLIED: "{...}", "other": "x"}}
    found = without_values({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": {"a": "b"}})
    assert found["data"] == {"a": "(hidden)"}
    assert found["metadata"]["annotations"] == {LAST_APPLIED: "(hidden)", "other": "x"}
    assert not is_secret("example.dev/v1", "Secret")
