"""docs/reference/parity.md: what client-go promises, what declctl does about it, and the tests that show it.

The folder `parity/` has client-go's promises: rows of its features, each with our verdict, and numbered
behaviours of its tests. A test says which of them it shows by `@pytest.mark.client_go(34, "Row of a table")`.
`python tests/promises/parity.py` writes the page; a test says that it is current and has no gaps.
"""

import ast
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import msgspec

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs" / "reference" / "parity.md"
CHAPTERS = (
    "reflector",
    "queues",
    "stores",
    "informer",
    "factories",
    "workqueue",
    "flowcontrol",
    "leaderelection",
    "events",
    "controller",
    "manager",
    "peers",
)
MOST_LEFT_OUT = 5


class Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One promise of client-go, or one fault of a peer, and what declctl does: `how` argues the verdict."""

    name: str
    where: str
    promise: str
    verdict: str
    how: str


class Behaviour(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one of client-go's tests shows. `argued`: why none of ours does, or what it shows instead."""

    number: int
    name: str
    promise: str
    argued: str = ""


class Chapter(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One file of promises."""

    title: str
    rows: list[Row]
    behaviours: list[Behaviour] = msgspec.field(default_factory=list[Behaviour])


@dataclass(frozen=True, slots=True)
class Marked:
    """A test and what it is marked to show."""

    name: str
    path: str
    shows: tuple[int | str, ...]


@cache
def chapters() -> Sequence[Chapter]:
    """All promises."""
    folder = Path(__file__).parent / "parity"
    files = [folder / f"{name}.yaml" for name in CHAPTERS]
    return [msgspec.yaml.decode(file.read_bytes(), type=Chapter) for file in files if file.exists()]


@cache
def marked() -> Sequence[Marked]:
    """Every test with a mark, read without importing it."""
    found: list[Marked] = []
    for file in sorted(TESTS.rglob("test_*.py")):
        path = file.relative_to(TESTS.parent).as_posix()
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                shows = tuple(_shown(node.decorator_list))
                if shows:
                    found.append(Marked(node.name, path, shows))
    return found


def _shown(decorators: Sequence[ast.expr]) -> Iterator[int | str]:
    for decorator in decorators:
        match decorator:
            case ast.Call(func=ast.Attribute(attr="client_go"), args=args):
                yield from (ast.literal_eval(arg) for arg in args)
            case _:
                pass


def shown_by() -> Mapping[int | str, Sequence[Marked]]:
    """Which tests show a row or a behaviour."""
    found: defaultdict[int | str, list[Marked]] = defaultdict(list)
    for test in marked():
        for what in test.shows:
            found[what].append(test)
    return found


def gaps() -> list[str]:
    """What is missing, in words."""
    tests, found = shown_by(), []
    rows = [row for chapter in chapters() for row in chapter.rows]
    behaviours = [each for chapter in chapters() for each in chapter.behaviours]
    names = Counter([*(row.name for row in rows), *(each.number for each in behaviours)])
    found += [f"{name!r} stands there {times} times" for name, times in names.items() if times > 1]
    found += [
        f"{test.path}::{test.name} shows {what!r}, which is not known"
        for what, by in tests.items()
        for test in by
        if what not in names
    ]
    for row in rows:
        if row.verdict not in ("same", "better", "left out"):
            found.append(f"row {row.name!r} has no verdict")
        elif not row.how:
            found.append(f"row {row.name!r} does not say how, or why not")
        elif row.verdict != "left out" and not tests.get(row.name):
            found.append(f"row {row.name!r} has no test")
    found += [
        f"behaviour {each.number} ({each.name}) is neither tested nor argued"
        for each in behaviours
        if not each.argued and not tests.get(each.number)
    ]
    left_out = [row.name for row in rows if row.verdict == "left out"]
    if len(left_out) > MOST_LEFT_OUT:
        found.append(f"{len(left_out)} rows are left out: {', '.join(left_out)}")
    return found


Tests = Mapping[int | str, Sequence[Marked]]
_INTRODUCTION = """\
# Parity with client-go

For users of client-go: which of its promises declctl keeps. This page lists those of client-go's
`tools/cache`, `tools/pager`, `tools/watch`, `util/workqueue`, `util/flowcontrol`, `tools/leaderelection`,
`tools/record` and `tools/events`, and those of controller-runtime. Each row has the behaviour of declctl
and the tests that show it. Below each table are the behaviours that the tests of client-go and
controller-runtime show, with the numbers that our tests quote. The page is generated from marks on the
tests (`python tests/promises/parity.py`). A test fails if a row has no test, or a behaviour has neither a
test nor an argument."""


def rendered() -> str:
    """The page."""
    tests = shown_by()
    parts = [_INTRODUCTION, _count(tests)]
    for chapter in chapters():
        parts += [f"## {chapter.title}", "\n".join(_row_table(chapter.rows, tests))]
        if chapter.behaviours:
            parts += [
                f"### {chapter.title}: behaviours",
                "\n".join(_behaviour_table(chapter.behaviours, tests)),
            ]
    return "\n\n".join(parts) + "\n"


def _count(tests: Tests) -> str:
    verdicts = Counter(row.verdict for chapter in chapters() for row in chapter.rows)
    numbers = [each.number for chapter in chapters() for each in chapter.behaviours]
    tested = sum(1 for number in numbers if tests.get(number))
    return (
        f"{verdicts.total()} rows: {verdicts['same']} same, {verdicts['better']} better, "
        f"{verdicts['left out']} left out. "
        f"{len(numbers)} behaviours: {tested} tested, {len(numbers) - tested} argued."
    )


def _row_table(rows: Sequence[Row], tests: Tests) -> Iterator[str]:
    yield "| promise | | declctl | how | shown by |"
    yield "|---|---|---|---|---|"
    for row in rows:
        name = f"**{row.name}**<br>{row.where}"
        yield _line((name, row.promise, row.verdict, row.how, _links(tests.get(row.name, ()))))


def _behaviour_table(found: Sequence[Behaviour], tests: Tests) -> Iterator[str]:
    yield "| | client-go's test | given / when / then | shown by |"
    yield "|--:|---|---|---|"
    for each in found:
        shown = " ".join(part for part in (_links(tests.get(each.number, ())), each.argued) if part)
        yield _line((str(each.number), each.name, each.promise, shown))


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _links(tests: Sequence[Marked]) -> str:
    return ", ".join(f"[{_words(test.name)}](../../{test.path})" for test in tests)


def _words(name: str) -> str:
    return name.removeprefix("test_").replace("_", " ")


if __name__ == "__main__":
    if sys.argv[1:] == ["gaps"]:
        print("\n".join(gaps()))
    else:
        PAGE.write_text(rendered(), "utf-8")
