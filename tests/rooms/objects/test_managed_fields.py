"""An apply that would surely change nothing, by the fields of its manager."""

from typing import Any

import pytest

from declctl.objects.managed_fields import is_applied

LEAF: dict[str, Any] = {}
TCP, UDP = (f'k:{{"port":80,"protocol":"{each}"}}' for each in ("TCP", "UDP"))
ITEM = {".": LEAF, "f:port": LEAF}


def entry(fields: dict, manager: str = "ours", version: str = "v1", operation: str = "Apply") -> dict:
    return {"manager": manager, "operation": operation, "apiVersion": version, "fieldsV1": {"f:a": fields}}


@pytest.mark.parametrize(
    ("wanted", "live", "entries", "expected"),
    [
        ({"x": "1"}, {"x": "1", "y": "2"}, [entry({"f:x": LEAF}), entry({"f:y": LEAF}, "other")], True),
        ({"x": "1"}, {"x": "2"}, [entry({"f:x": LEAF})], False),
        ({"x": 1}, {"x": True}, [entry({"f:x": LEAF})], False),
        ({"x": "1"}, {"x": "1"}, [], False),
        ({"x": "1"}, {"x": "1"}, [entry({"f:x": LEAF}, "other")], False),
        ({"x": "1"}, {"x": "1"}, [entry({"f:x": LEAF}, operation="Update")], False),
        ({"x": "1"}, {"x": "1"}, [entry({"f:x": LEAF}, version="v1beta1")], False),
        ({"x": "1"}, {"x": "1", "y": "1"}, [entry({"f:x": LEAF, "f:y": LEAF})], False),  # y has to go
        ({"x": "1", "y": "1"}, {"x": "1", "y": "1"}, [entry({"f:x": LEAF})], False),  # y is another's
        # Owned as a whole, or applied as empty, and filled by others.
        ({"x": ["1"]}, {"x": ["1"]}, [entry({"f:x": LEAF})], True),
        ({"x": ["1"]}, {"x": ["1", "2"]}, [entry({"f:x": LEAF})], False),
        ({"x": {}}, {"x": {}}, [entry({"f:x": LEAF})], True),
        ({"x": {"y": 1}}, {"x": {"y": 1}}, [entry({"f:x": LEAF}), entry({"f:x": {"f:y": LEAF}}, "o")], False),
        # Sets and maps: their order, elements of others, and keys with defaults.
        (["s", "t"], ["s", "u", "t"], [entry({'v:"s"': LEAF, 'v:"t"': LEAF})], True),
        (["t", "s"], ["s", "t"], [entry({'v:"s"': LEAF, 'v:"t"': LEAF})], False),
        (["s"], ["s", "t"], [entry({'v:"s"': LEAF, 'v:"t"': LEAF})], False),
        ([{"port": 80}], [{"port": 80, "protocol": "TCP"}], [entry({TCP: ITEM})], True),
        ([{"port": 80}], [{"port": 80, "protocol": "TCP"}], [entry({TCP: ITEM, UDP: ITEM})], False),
        ([{"port": 80}], [{"port": 80, "protocol": "TCP"}] * 2, [entry({TCP: ITEM})], False),
        ([{"port": 80}], [{"port": 81, "protocol": "TCP"}], [entry({TCP: ITEM})], False),
        ([{"port": 80}], [{"port": 80, "protocol": "TCP"}], [entry({TCP: {**ITEM, "f:n": LEAF}})], False),
    ],
)  # fmt: skip
def test_what_need_not_be_applied(wanted: Any, live: Any, entries: list[dict], expected: bool) -> None:
    """In doubt, a handler applies: a wrong answer would be a write that is lost for ever."""
    body = {"apiVersion": "v1", "kind": "It", "metadata": {"name": "a", "namespace": "b"}, "a": wanted}
    obj = {**body, "metadata": {"name": "a", "uid": "u", "managedFields": entries}, "a": live}
    assert is_applied(obj, body, "ours") is expected
    assert not is_applied(obj, {**body, "metadata": {"name": "a", "uid": "u"}}, "ours")  # a precondition
    assert not is_applied(obj, {**body, "kind": "Other"}, "ours")
    # Whose annotation the server renews.
    kubectl = [{**each, "manager": "kubectl"} for each in entries if each["manager"] == "ours"]
    assert not is_applied({**obj, "metadata": {"managedFields": kubectl}}, body, "kubectl")
