"""Warnings of a server: what `Warning` headers say, of a well-behaved server and of any other."""

import time

from hypothesis import given
from hypothesis import strategies as st

from declctl.transport.warnings import parse_warnings

TEXTS = st.text(
    st.one_of(st.sampled_from('"\\, =-'), st.characters(exclude_categories=("Cc", "Cs"))), min_size=1
)
# Text, code, agent, and whether a date follows.
WARNINGS = st.tuples(
    TEXTS,
    st.sampled_from(["299", "299", "199", "100"]),
    st.sampled_from(["-", "apiserver", 'a"b']),
    st.booleans(),
)


def header(warnings) -> str:
    """As Go's net/http and apimachinery write it."""
    parts = []
    for text, code, agent, has_date in warnings:
        quoted = text.replace("\\", "\\\\").replace('"', '\\"')
        date = ' "Wed, 21 Oct 2015 07:28:00 GMT"' if has_date else ""
        parts.append(f'{code} {agent} "{quoted}"{date}')
    return ", ".join(parts)


@given(st.lists(st.lists(WARNINGS, min_size=1, max_size=4), max_size=4), st.data())
def test_a_warning_is_read_as_it_was_written_and_a_broken_one_ends_its_header(headers, data) -> None:
    """One header may have several. A proxy may cut a header off: what was whole in it counts."""
    written = [header(each) for each in headers]
    texts = [[text for text, code, _, _ in each if code == "299"] for each in headers]
    assert parse_warnings(written) == [text for each in texts for text in each]
    for whole, of_whole in zip(written, texts, strict=True):
        cut = parse_warnings([whole[: data.draw(st.integers(0, len(whole)))]])
        assert cut == of_whole[: len(cut)]


@given(st.lists(st.text(), max_size=3), st.lists(TEXTS, min_size=1, max_size=2))
def test_whatever_a_server_sends_is_read_within_bounds(others, texts) -> None:
    """Garbage raises nothing, and hides no warning of another header; no text has control characters."""
    good = header([(text, "299", "-", False) for text in texts])
    found = parse_warnings([*others, good, '299 - "\x1b[2J", 299 - "behind it"', '299 - ""'])
    assert found[-len(texts) :] == texts
    assert all(ord(c) >= 32 and not 127 <= ord(c) < 160 for text in found for c in text)


def test_headers_that_are_far_too_long_cost_little() -> None:
    """What is behind the first 64 KiB of a header, and behind 100 warnings, is not read."""
    assert parse_warnings([f'299 - "short", 299 - "{"a" * 70_000}"', f'299 - "{"a" * 70_000}"']) == ["short"]
    began = time.process_time()
    for much in ('299 - "' + "\\" * (1 << 20), " " * (1 << 20), '299 - "a", ' * (1 << 17)):
        assert len(parse_warnings([much] * 200)) <= 100
    assert time.process_time() - began < 5.0
