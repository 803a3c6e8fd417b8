"""docs/reference/guarantees.md: the guarantees of a reload, and the tests that show them.

`guarantees.yaml` has the guarantees. A test says which of them it shows by `@pytest.mark.guarantee("G4")`.
`python tests/promises/guarantees.py` writes the table into the page; a test says that it is current, and
that no guarantee is without a test unless it says what is missing.
"""

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import msgspec

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs" / "reference" / "guarantees.md"
BEGIN, END = "<!-- guarantees: begin -->", "<!-- guarantees: end -->"
NOT_DONE: frozenset[int] = frozenset()  # what may be missing; a guarantee that is there may not go


class Guarantee(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One promise. `missing` says what is not there yet, and is empty for what is."""

    number: int
    name: str
    promise: str
    missing: str = ""

    @property
    def mark(self) -> str:
        """As tests name it."""
        return f"G{self.number}"


@dataclass(frozen=True, slots=True)
class Shown:
    """A test that shows something. `expected_to_fail`: it shows what is not so yet."""

    name: str
    path: str
    marks: tuple[str, ...]
    expected_to_fail: bool


@cache
def guarantees() -> Sequence[Guarantee]:
    """All of them."""
    text = (Path(__file__).parent / "guarantees.yaml").read_bytes()
    return msgspec.yaml.decode(text, type=list[Guarantee])


@cache
def shown_by() -> Mapping[str, Sequence[Shown]]:
    """The tests of each guarantee, read without importing them."""
    found: defaultdict[str, list[Shown]] = defaultdict(list)
    for file in sorted(TESTS.rglob("test_*.py")):
        for test in _marked(file):
            for mark in test.marks:
                found[mark].append(test)
    return found


def _marked(file: Path) -> Iterator[Shown]:
    text = file.read_text("utf-8")
    if "mark.guarantee(" not in text:
        return
    path = file.relative_to(TESTS.parent).as_posix()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            marks = tuple(_arguments(node.decorator_list, "guarantee"))
            if marks:
                yield Shown(node.name, path, marks, _has(node.decorator_list, "xfail"))


def _arguments(decorators: Sequence[ast.expr], mark: str) -> Iterator[str]:
    for decorator in decorators:
        match decorator:
            case ast.Call(func=ast.Attribute(attr=name), args=args) if name == mark:
                yield from (ast.literal_eval(arg) for arg in args)
            case _:
                pass


def _has(decorators: Sequence[ast.expr], mark: str) -> bool:
    return any(
        isinstance(decorator, ast.Call)
        and isinstance(decorator.func, ast.Attribute)
        and decorator.func.attr == mark
        for decorator in decorators
    )


def gaps() -> list[str]:
    """What is missing, in words."""
    tests, known = shown_by(), {each.mark for each in guarantees()}
    found = [
        f"{test.path}::{test.name} shows {mark}, which is not known"
        for mark, by in tests.items()
        for test in by
        if mark not in known
    ]
    if [each.number for each in guarantees()] != list(range(1, 26)):
        found.append("the guarantees are not those from G1 to G25")
    for each in guarantees():
        passing = [test for test in tests.get(each.mark, ()) if not test.expected_to_fail]
        if each.missing and each.number not in NOT_DONE:
            found.append(f"{each.mark} was kept, and is said to be missing: {each.missing}")
        elif not each.missing and not passing:
            found.append(f"{each.mark} ({each.name}) has no test that passes")
    return found


def table() -> str:
    """The table of the page."""
    lines = ["| | guarantee | | shown by |", "|---|---|---|---|"]
    for each in guarantees():
        tests = shown_by().get(each.mark, ())
        state = "**not done**" if each.missing else ""
        links = ", ".join(_link(test) for test in tests)
        told = " ".join(part for part in (each.missing, links) if part)
        lines.append(f"| {each.mark} | **{each.name}.** {each.promise} | {state} | {told} |")
    return "\n".join(lines)


def _link(test: Shown) -> str:
    words = test.name.removeprefix("test_").replace("_", " ")
    known = " (expected to fail)" if test.expected_to_fail else ""
    return f"[{words}](../../{test.path}){known}"


def rendered(page: str) -> str:
    """The page with the table as it is now; raises ValueError if it has no place for it."""
    before, rest = page.split(BEGIN, 1)
    _, after = rest.split(END, 1)
    return f"{before}{BEGIN}\n\n{table()}\n\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(rendered(PAGE.read_text("utf-8")), "utf-8")
