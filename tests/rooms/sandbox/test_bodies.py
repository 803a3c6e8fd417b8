"""What comes in: JSON, YAML, protobuf, and nonsense."""

import random
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from declctl.errors import SandboxError
from declctl.kit import ManualClock
from declctl.sandbox.kinds import BUILT_IN
from declctl.sandbox.kubectl import protobuf
from declctl.sandbox.store import ObjectStore
from declctl.sandbox.validation import read_documents


def field(number, payload):
    return bytes((number << 3 | 2, len(payload))) + payload


def varint(number, value):
    return bytes((number << 3, value))


def message(kind, api_version, raw):
    return b"k8s\x00" + field(1, field(1, api_version) + field(2, kind)) + field(2, raw)


def test_a_config_map_in_protobuf():
    """Strings, maps and metadata of kubectl's typed client are read; what it leaves empty is left out."""
    raw = field(1, field(1, b"x") + field(2, b"") + field(8, b"")) + field(2, field(1, b"a") + field(2, b"b"))
    assert protobuf.decode(message(b"ConfigMap", b"v1", raw)) == {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "x"},
        "data": {"a": "b"},
    }


def test_a_deployment_in_protobuf():
    """Nested messages, repeated ones, integers, and a zero that is meant."""
    container = field(1, b"c") + field(2, b"nginx") + field(6, varint(3, 80))
    template = field(2, field(2, container))
    raw = field(1, field(1, b"d")) + field(2, varint(1, 0) + field(3, template) + varint(5, 0))
    found = protobuf.decode(message(b"Deployment", b"apps/v1", raw))
    containers = [{"name": "c", "image": "nginx", "ports": [{"containerPort": 80}]}]
    assert found["spec"] == {"replicas": 0, "template": {"spec": {"containers": containers}}}


def test_special_values_in_protobuf():
    """Secrets are base64, ports numbers or names, times text, inlined sources where JSON has them."""
    secret = protobuf.decode(message(b"Secret", b"v1", field(2, field(1, b"k") + field(2, b"\x00\xff"))))
    assert secret["data"] == {"k": "AP8="}
    port = field(1, varint(5, 0) + varint(3, 80) + field(4, varint(1, 1) + field(3, b"web")))
    assert protobuf.decode(message(b"Service", b"v1", field(2, port)))["spec"]["ports"] == [
        {"port": 80, "targetPort": "web"}
    ]
    time = field(1, field(9, bytes((8, 0x80, 0xF2, 0xD6, 0xCA, 0x06))))
    deleted = protobuf.decode(message(b"Pod", b"v1", time))["metadata"]["deletionTimestamp"]
    assert deleted == "2026-01-01T00:00:00Z"
    volume = field(2, field(1, field(1, b"v") + field(2, field(2, b""))))
    assert protobuf.decode(message(b"Pod", b"v1", volume))["spec"]["volumes"] == [
        {"name": "v", "emptyDir": {}}
    ]


@given(st.binary(max_size=60))
def test_any_bytes_are_an_object_or_a_sentence(data):
    """Broken protobuf never breaks the server."""
    for body in (data, b"k8s\x00" + data, message(b"Pod", b"v1", data[:60])):
        with suppress(ValueError):
            assert isinstance(protobuf.decode(body), dict)


@pytest.mark.parametrize(
    ("body", "words"),
    [(b"{}", "is no Kubernetes protobuf"), (message(b"Widget", b"example.com/v1", b""), "send it as JSON")],
)
def test_what_is_no_protobuf_says_so(body, words):
    """A body that isn't what its media type says is refused with a sentence."""
    with pytest.raises(ValueError, match=words):
        protobuf.decode(body)


def test_yaml_times_stay_text():
    assert read_documents("a: 2026-01-01T00:00:00Z\n---\nb: 1") == [{"a": "2026-01-01T00:00:00Z"}, {"b": 1}]


@pytest.mark.parametrize("text", ["a: [", "a: b: c", "\ttab: 1", "a: !!python/object:os.system x"])
def test_broken_yaml_is_located(text):
    """A fault in YAML names file, line and column."""
    with pytest.raises(SandboxError, match=r"^pods\.yaml:\d+:\d+: the YAML can't be read: "):
        read_documents(text, name="pods.yaml")


ODD = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(
                ["spec", "template", "containers", "ports", "names", "versions", "replicas", "x"]
            ),
            inner,
        )
    ),
    max_leaves=10,
)


@given(st.sampled_from(BUILT_IN), ODD, ODD, ODD)
def test_any_object_is_taken_or_refused(kind, spec, status, labels):
    """Whatever shape an object has, it is stored or refused with words, and what is stored can be listed."""
    cluster = ObjectStore(clock=ManualClock(), chance=random.Random(1))
    metadata = {"name": "x", "labels": labels}
    obj = {
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "metadata": metadata,
        "spec": spec,
        "status": status,
    }
    stored = []
    with suppress(SandboxError):
        stored.append(cluster.create(obj)["metadata"]["uid"])
    uids = [found["metadata"]["uid"] for found in cluster.objects(f"{kind.plural}.{kind.group}")]
    assert set(stored) <= set(uids)
