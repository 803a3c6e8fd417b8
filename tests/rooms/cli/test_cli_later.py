"""Commands of the contract that this version does not do."""

from collections.abc import Callable

import pytest

NAMES = [
    "test",
    "record",
    "replay",
    "fmt",
    "lint",
    "migrate",
    "set",
]


@pytest.mark.parametrize("name", NAMES)
def test_a_documented_command_says_that_it_is_not_done(declctl: Callable, name: str):
    """A documented command answers with one sentence and 2, whatever options it is given."""
    ended = declctl(name, "pods", "--against", "running", "-o", "json", "--help")
    assert ended.status == 2
    assert ended.err.startswith(f"declctl: This version does not do `declctl {name}` yet; ")
    assert ended.err.count("\n") == 1


@pytest.mark.parametrize("name", ["cache", "index", "snapshot", "handlers"])
def test_so_does_a_read_of_a_running_process(declctl: Callable, name: str):
    """`declctl get cache pods` says how to read the cache today."""
    ended = declctl("get", name, "pods")
    assert ended.status == 2
    assert f"`declctl get {name}` yet" in ended.err


@pytest.mark.parametrize("name", ["show", "doctor", "docs", "install", "freeze"])
def test_so_does_a_documented_command_about_plugins(declctl: Callable, name: str):
    """`declctl plugins install x` says how to do it today."""
    ended = declctl("plugins", name, "x")
    assert ended.status == 2
    assert f"`declctl plugins {name}` yet" in ended.err
