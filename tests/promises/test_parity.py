"""docs/reference/parity.md has no gaps and says what the tests are marked to show."""

import parity


def test_every_promise_has_a_verdict_and_a_test():
    """Each row is argued and tested, each behaviour tested or argued, few rows are left out."""
    assert parity.gaps() == []


def test_the_page_is_current():
    """`python tests/promises/parity.py` would change nothing."""
    assert parity.PAGE.read_text("utf-8") == parity.rendered(), "run: python tests/promises/parity.py"
