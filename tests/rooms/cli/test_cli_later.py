"""Commands of the contract that this version does not do."""

import pytest


@pytest.mark.parametrize(
    "command",
    [
        *("fmt", "lint", "migrate", "set"),
        *("get cache", "get index", "get snapshot", "get handlers"),
        *("plugins show", "plugins doctor", "plugins docs", "plugins install", "plugins freeze"),
    ],
)
def test_a_documented_command_says_that_it_is_not_done(declctl, command):
    """A documented command answers with one sentence and 2, whatever options it is given."""
    said = declctl.refused(*command.split(), "pods", "--against", "running", "-o", "json", "--help")
    assert said.startswith(f"declctl: This version does not do `declctl {command}` yet; ")
    assert said.count("\n") == 1
