"""Broken answers and lines of a WATCH, by what is wrong with them."""

import sys
from typing import Any

import msgspec

from tests.rooms.informer.shapes import pod

_LEVELS = 1_000_000 if sys.version_info >= (3, 14) else 20_000  # Python 3.14 decodes a hundred thousand
DEEP = b'{"a":' * _LEVELS + b"1" + b"}" * _LEVELS


def line(kind: str, obj: Any) -> bytes:
    """A line of a WATCH."""
    return msgspec.json.encode({"type": kind, "object": obj})


def deep_pod(name: str = "deep", version: str = "9") -> bytes:
    """A pod that no decoder takes, because it is nested too deep."""
    whole = msgspec.json.encode(pod(name, uid="u", resourceVersion=version, labels={"app": "x"}))
    return whole[:-1] + b',"status":' + DEEP + b"}"


BROKEN_LINES = {
    "no JSON": b"<html>the proxy is tired</html>",
    "half a line": line("ADDED", pod("x", resourceVersion="9"))[:40],
    "JSON without a type": b'{"object":{}}',
    "JSON without an object": b'{"type":"ADDED"}',
    "an object that is null": b'{"type":"ADDED","object":null}',
    "an object without a name": line("ADDED", {"metadata": {"resourceVersion": "9"}}),
    "an object without metadata": line("MODIFIED", {"kind": "Pod", "apiVersion": "v1"}),
    "a type that nobody knows": line("RENAMED", pod("x")),
    "an error that is no Status": line("ERROR", "no"),
    "bytes that are no text": b'{"type":"ADDED","object":{"metadata":{"name":"\xff"}}}',
    "nothing but depth": b'{"type":"ADDED","object":' + DEEP + b"}",
}
OTHER_KINDS = {
    "another kind": {"kind": "Secret", "apiVersion": "v1"},
    "another version": {"kind": "Pod", "apiVersion": "v2"},
    "a table": {"kind": "Table", "apiVersion": "meta.k8s.io/v1", "rows": []},
    "an old table": {"kind": "Table", "apiVersion": "meta.k8s.io/v1beta1", "rows": []},
    "a status": {"kind": "Status", "apiVersion": "v1"},
}
BROKEN_LISTS = {
    "no JSON": b"<html>",
    "nothing": b"",
    "a status": b'{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","code":500}',
    "a table": b'{"kind":"Table","apiVersion":"meta.k8s.io/v1","metadata":{"resourceVersion":"9"},"rows":[]}',
    "an old table": b'{"kind":"Table","apiVersion":"meta.k8s.io/v1beta1","metadata":{"resourceVersion":"9"}}',
    "no metadata": b'{"kind":"PodList","items":[]}',
    "no version": b'{"kind":"PodList","metadata":{},"items":[]}',
    "items that are no list": b'{"kind":"PodList","metadata":{"resourceVersion":"9"},"items":{}}',
    "items that are all null": b'{"kind":"PodList","metadata":{"resourceVersion":"9"},"items":[null,null]}',
    "half a list": b'{"kind":"PodList","metadata":{"resourceVersion":"9"},"items":[{"meta',
}


CODES = [400, 401, 403, 404, 405, 406, 409, 410, 415, 418, 422, 429, 500, 502, 503, 504]
