"""The table of conditions and reasons: it has each reason that the code can report, and no other."""

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import declctl
from declctl.runtime import reasons
from declctl.runtime.config_map import FollowedStatus
from declctl.runtime.handling.calls_under_way import CallsUnderWay
from declctl.runtime.handling.handler_figures import HandlerFigures
from declctl.runtime.reasons import (
    ATTEMPT,
    CONDITIONS,
    DEGRADED,
    FILES_FOLLOWED,
    HANDLERS_HEALTHY,
    READY,
    REASONS,
    RELOADED,
    reasons_named,
)
from declctl.runtime.reloading.changes import Result

ROOT = Path(declctl.__file__).parent
REPORTER = ROOT / "runtime" / "reporting" / "reporter.py"
WORD = re.compile(r"[A-Z][A-Za-z]+")
NAMED = "NOT_ALLOWED|EXHAUSTED|NOT_KEPT|STOPPING"  # constants that several modules use
BY_CONDITION = {
    condition: {each.name for each in REASONS if each.condition == condition}
    for condition in (*CONDITIONS, ATTEMPT)
}


def calls() -> Iterator[tuple[str, ast.Call, dict[str, str]]]:
    """The calls in the sources: the name that is called, the call, and the constants of its module."""
    for path in (*ROOT.joinpath("runtime").rglob("*.py"), ROOT / "errors.py"):
        tree = ast.parse(path.read_text("utf-8"))
        constants = {
            target.id: node.value.value
            for node in ast.walk(tree)
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
            for target in node.targets
            if isinstance(target, ast.Name) and isinstance(node.value.value, str)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                called = node.func
                yield getattr(called, "attr", getattr(called, "id", "")), node, constants


def texts(node: ast.expr | None, constants: dict[str, str]) -> set[str]:
    """The words that an expression may be, as far as its source shows them."""
    if node is None:
        return set()
    if isinstance(node, ast.Name):
        return {constants[node.id]} if node.id in constants else set()
    found = {each.value for each in ast.walk(node) if isinstance(each, ast.Constant)}
    return {each for each in found if isinstance(each, str) and WORD.fullmatch(each)}


def keyword(call: ast.Call, name: str) -> ast.expr | None:
    return next((each.value for each in call.keywords if each.arg == name), None)


def test_every_reason_of_a_condition_is_in_the_table() -> None:
    """A user who reads it in the status finds what it means; a new one without an entry fails here."""
    set_to: dict[str, set[str]] = {condition: set() for condition in CONDITIONS}
    for name, call, constants in calls():
        if name == "set" and keyword(call, "holds") is not None:
            if condition := getattr(reasons, getattr(call.args[0], "id", ""), None):
                set_to[condition] |= texts(keyword(call, "reason"), constants)
        elif name == "FollowedStatus" and call.args:
            set_to[FILES_FOLLOWED] |= texts(call.args[0], constants)
    set_to[FILES_FOLLOWED].add(FollowedStatus().reason)
    # The reasons of Degraded that have texts of their own are the keys of a mapping.
    (faults,) = (
        node.value
        for node in ast.walk(ast.parse(REPORTER.read_text("utf-8")))
        if isinstance(node, ast.AnnAssign) and getattr(node.target, "id", "") == "faults"
    )
    assert isinstance(faults, ast.Dict)
    set_to[DEGRADED] |= {key.value for key in faults.keys if isinstance(key, ast.Constant)}
    for part in (CallsUnderWay.problems, HandlerFigures):
        set_to[HANDLERS_HEALTHY] |= set(re.findall(r'(?<!: )"([A-Z]\w+)"', inspect.getsource(part)))
    for condition in (READY, DEGRADED, HANDLERS_HEALTHY, FILES_FOLLOWED):
        assert set_to[condition] == BY_CONDITION[condition]
    assert set_to[RELOADED] <= BY_CONDITION[RELOADED]


def test_every_reason_of_an_attempt_is_in_the_table() -> None:
    """Refusals, outcomes and results: they become the reason of the condition Reloaded."""
    found = {str(result) for result in Result} - {str(Result.REFUSED)}
    for name, call, constants in calls():
        if name == "ReloadRefused" and call.args:
            found |= texts(call.args[0], constants)
        elif name == "Outcome":
            found |= texts(keyword(call, "reason"), constants)
        elif name == "_call_all":
            found |= texts(call.args[2] if len(call.args) > 2 else None, constants)
    sources = {path: path.read_text("utf-8") for path in ROOT.joinpath("runtime").rglob("*.py")}
    for text in sources.values():
        # Reasons that are chosen before the refusal is made: by a code, by a fault, or by a subclass.
        found |= set(re.findall(r'codes\.[A-Z_]+: "([A-Z]\w+)"', text))
        found |= set(re.findall(r'\breason = "([A-Z]\w+)"', text))
        found |= set(re.findall(r'super\(\).__init__\("([A-Z]\w+)"', text))
        found |= set(re.findall(rf'^(?:{NAMED}) = "(\w+)"', text, re.MULTILINE))
    known = BY_CONDITION[RELOADED] | BY_CONDITION[ATTEMPT]
    assert found <= known
    # `RollbackRefused` is of the condition alone.
    assert known - found == {"RollbackRefused"}


def test_each_reason_says_what_it_means_and_what_to_do() -> None:
    """Once for each condition, and in one form."""
    assert len({(each.condition, each.name) for each in REASONS}) == len(REASONS)
    for each in REASONS:
        assert each.condition in (*CONDITIONS, ATTEMPT)
        assert re.fullmatch(r"[A-Zd`].*\.", each.meaning), each
        assert re.fullmatch(r"[a-z`].*[^.]", each.advice), each


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ("cachelags", [("CacheLags", RELOADED)]),
        ("NotSynced", [("NotSynced", READY), ("NotSynced", RELOADED)]),
        ("ready", [(name, READY) for name in ("Synced", "Following", "Starting", "NotSynced")]),
        ("", []),
        ("spec", []),
    ],
)
def test_a_name_is_a_reason_or_a_condition(asked: str, found: list[tuple[str, str]]) -> None:
    """Of a condition, all reasons."""
    assert [(each.name, each.condition) for each in reasons_named(asked)] == found
