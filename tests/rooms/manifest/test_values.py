"""Durations, sizes, addresses, entry points, names: what is read, for good texts and for any."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from declctl.manifest import values
from declctl.manifest.values import (
    Address,
    BadValue,
    EntryPoint,
    check_version_range,
    parse_address,
    parse_duration,
    parse_entry_point,
    parse_quantity,
)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("10s", 10.0),
        ("500ms", 0.5),
        ("1h30m", 5400.0),
        ("1.5h", 5400.0),
        (".5s", 0.5),
        ("1m1s1ms1us1ns", 61.001001001),
        ("3µs", 0.000003),
        ("0s", 0.0),
        ("24h0m0s", 86400.0),
    ],
)
def test_durations_are_gos(text, seconds):
    """Everything that Go's ParseDuration reads, but for signs and a bare 0."""
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    ("value", "size"),
    [
        ("64Mi", 64 * 2**20),
        ("1k", 1000),
        ("1Ki", 1024),
        ("1.5Gi", 3 * 2**29),
        ("0.1Ki", 103),
        (4096, 4096),
        ("7", 7),
    ],
)
def test_sizes_are_kubernetes_quantities(value, size):
    """Binary and decimal units; a part of a byte is a byte."""
    assert parse_quantity(value) == size


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:8081", Address("127.0.0.1", 8081)),
        (":0", Address("", 0)),
        ("[::1]:9090", Address("::1", 9090)),
        ("localhost:65535", Address("localhost", 65535)),
    ],
)
def test_addresses_read_and_print(text, address):
    assert parse_address(text) == address
    assert str(address) == text


@pytest.mark.parametrize(
    ("listening", "other", "covered"),
    [
        ("127.0.0.1:80", "127.0.0.1:80", True),
        ("127.0.0.1:80", "127.0.0.1:81", False),
        ("127.0.0.1:80", "0.0.0.0:80", False),
        ("0.0.0.0:80", "127.0.0.1:80", True),
        ("0.0.0.0:80", "[::1]:80", False),
        ("[::]:80", "[::1]:80", True),
        ("[::]:80", "127.0.0.1:80", False),
        (":80", "[::1]:80", True),
        (":80", "localhost:80", True),
        ("0.0.0.0:80", ":80", False),
        (":0", ":0", False),
    ],
)
def test_all_interfaces_cover_one_of_them(listening, other, covered):
    """Of the same protocol, as a server listens for IPv6 alone on ::, and port 0 is another one each time."""
    assert parse_address(listening).covers(parse_address(other)) is covered


@pytest.mark.parametrize("text", ["handlers", "handlers.pods:on_change", "a.b:C.method", "größe:höhe"])
def test_entry_points_read_and_print(text):
    """A module, or something in it."""
    assert str(parse_entry_point(text)) == text
    assert parse_entry_point("a:b") == EntryPoint("a", "b")


@pytest.mark.parametrize(
    ("check", "texts"),
    [
        (check_version_range, [">=1.2,<2", "==1.2.*", "~=1.4.2", "!=1.0rc1", "> 1, <= 2.0.post1"]),
        # What Kubernetes takes as a namespace.
        (values.check_label, ["default", "a", "0", "a-b", "a" * 63]),
        # Also those of custom resources, whose version may be any label.
        (values.check_api_version, ["v1", "v2beta1", "apps/v1", "example.com/v1alpha1", "acme.io/stable"]),
        # Names of roles are not DNS names.
        (values.check_object_name, ["web-0", "system:node", "My.Role_1"]),
    ],
)
def test_what_python_and_kubernetes_take_is_taken(check, texts):
    for text in texts:
        check(text)


@pytest.mark.parametrize("text", ["", "-a", "a-", "A", "a_b", "a.b", "a" * 64, "a\n", "ä"])
def test_bad_labels(text):
    with pytest.raises(BadValue):
        values.check_label(text)


READERS = [
    parse_duration,
    parse_quantity,
    parse_address,
    parse_entry_point,
    check_version_range,
    values.check_label,
    values.check_namespace,
    values.check_subdomain,
    values.check_index_name,
    values.check_object_name,
    values.check_file_name,
    values.check_plugin_name,
    values.check_kind,
    values.check_api_version,
    values.check_variable,
]


@pytest.mark.parametrize("read", READERS)
@given(text=st.text() | st.from_regex(r"[0-9.]{0,40}[a-zA-Z]{0,3}:?[0-9/.-]{0,9}"))
def test_any_text_is_read_or_refused(read, text):
    """A text is read, or refused with a place inside it: nothing else ever happens."""
    refusal = None
    try:
        read(text)
    except BadValue as error:
        refusal = error
    assert refusal is None or (0 <= refusal.offset <= len(text) and str(refusal))
