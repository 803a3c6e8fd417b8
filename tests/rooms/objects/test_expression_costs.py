"""The bounds of what an evaluation costs: its parts, and the objects for which it is not computed."""

import pytest

from declctl.objects.expression_costs import program_size
from declctl.objects.expressions import Expression


@pytest.mark.parametrize(
    ("pattern", "least", "most"),
    [
        ("a{1000}", 1000, 1010),
        ("(a{100}){10}", 1000, 1100),
        ("((a{0,100}){0,10})b", 3000, 10_000),
        (r"[0-9]{1,3}\.[0-9]{1,3}\.[0-9]{1,3}", 9, 200),
        (r"\pL{100}", 50_000, 200_000),
        (r"\p{Greek}{100}", 50_000, 200_000),
        (r"[\]a(]\(a\{9}", 4, 20),
        ("a{9", 3, 5),
    ],
)
def test_the_size_of_a_pattern(pattern, least, most):
    """What is repeated is copied, also within another repetition."""
    assert least <= program_size(pattern) <= most


@pytest.mark.parametrize(
    "text",
    [
        "obj.status.phase == 'Running' && has(obj.spec.nodeName)",
        "obj.spec.containers.exists(c, c.image.startsWith('nginx'))",
        "old == null || obj.spec != old.spec",
        "obj.?a.optMap(v, v + 'x').orValue('') == ''",
        "obj.metadata.name.matches('^[a-z0-9-]+-[0-9]{1,3}$')",
    ],
)
def test_an_object_of_some_kilobytes_is_not_measured(text):
    """Most evaluations cost nothing more than a comparison of two numbers."""
    assert Expression(text).costs.within(2**15, 2**15)
