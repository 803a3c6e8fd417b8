"""Commands of the contract that this version does not do."""

import pytest


@pytest.mark.parametrize("name", ["test", "record", "replay", "fmt", "lint", "migrate", "set"])
def test_a_documented_command_says_that_it_is_not_done(declctl, name):
    """A documented command answers with one sentence and 2, whatever options it is given."""
    said = declctl.refused(name, "pods", "--against", "running", "-o", "json", "--help")
    assert said.startswith(f"declctl: This version does not do `declctl {name}` yet; ")
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    "command",
    [
        *("get cache", "get index", "get snapshot", "get handlers"),
        *("plugins show", "plugins doctor", "plugins docs", "plugins install", "plugins freeze"),
    ],
)
def test_so_does_one_below_another(declctl, command):
    """`declctl get cache pods` says how to read the cache today."""
    assert f"`declctl {command}` yet" in declctl.refused(*command.split(), "x")
