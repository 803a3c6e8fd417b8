"""Objects as an API server writes them, for the tests of this room."""

import json
from typing import Any

from hypothesis import strategies as st

from declctl.decoding import Projection
from declctl.objects import FieldPath, Record

NODE_NAME = FieldPath.parse("spec.nodeName")
IMAGES = FieldPath.parse("spec.containers[*].image")
TEXTS = st.text(max_size=30)
INTEGERS = st.integers(min_value=-(10**30), max_value=10**30)
NUMBERS = INTEGERS | st.floats(allow_nan=False, allow_infinity=False)
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=10,
)


def pod(name: str = "web-1", **fields: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "team-a",
            "uid": f"uid-of-{name}",
            "resourceVersion": "7",
            "labels": {"app": "web", "tier": "front"},
            "annotations": {"note": 'said "hello"'},
        },
        "spec": {
            "nodeName": "node-1",
            "containers": [{"name": "a", "image": "i:1"}, {"name": "b", "image": "i:2"}],
        },
        "status": {"phase": "Running"},
    } | fields


def compact(obj: Any) -> bytes:
    """JSON as Go writes it: without spaces."""
    return json.dumps(obj, separators=(",", ":"), ensure_ascii=False).encode()


def event(kind: str, obj: Any) -> bytes:
    """A line of a WATCH as Go writes it."""
    return b'{"type":"' + kind.encode() + b'","object":' + compact(obj) + b"}\n"


def projection(*paths: FieldPath, **options: Any) -> Projection:
    """A projection of pods."""
    return Projection(api_version="v1", kind="Pod", paths=paths, **options)


def record(obj: Any, *paths: FieldPath, **options: Any) -> Record:
    made = projection(*paths, **options).record(compact(obj))
    assert made is not None
    return made
