"""docs/reference/guarantees.md names the tests of each guarantee of a reload."""

import guarantees


def test_every_guarantee_has_a_test() -> None:
    """A guarantee without a test that passes has to say what is missing, and only two may."""
    assert guarantees.gaps() == []


def test_the_table_is_current() -> None:
    """`python tests/promises/guarantees.py` would change nothing."""
    page = guarantees.PAGE.read_text("utf-8")
    assert page == guarantees.rendered(page), "run: python tests/promises/guarantees.py"
