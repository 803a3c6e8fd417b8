"""Rules in CEL against the schema that has them."""

import pytest

from declctl.objects.rule_checks import schema_faults
from tests.rooms.objects.rule_table import CASES, RuleCase


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.text[:40])
def test_a_rule_is_compiled_against_its_schema(case: RuleCase) -> None:
    """What a server refuses has a fault with the words of the server, and what it takes has none.

    `tests/e2e` asks a server the same.
    """
    found = list(schema_faults(case.schema, is_root=True))
    assert ("; ".join(each.message for each in found) or None) == case.said


def test_a_fault_has_its_place_and_a_suggestion() -> None:
    """The place in the schema and in the rule, and the field that was probably meant."""
    (fault,) = schema_faults(RuleCase("self.min < 3 &&\n self.foo_bar == ''").schema, is_root=True)
    assert fault.steps == ("properties", "spec", "x-kubernetes-validations", 0, "rule")
    assert (fault.text[: fault.offset][-5:], fault.suggestion) == (" self", 'did you mean "foo__dash__bar"?')
    (fault,) = schema_faults(RuleCase("has(self.open)").schema, is_root=True)
    assert "does not know its type" in (fault.suggestion or "")
