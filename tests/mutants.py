"""How many planted faults do the tests find? `make mutants` answers with a table.

A mutant is the package with one small fault: a comparison, a condition, a returned value or a bound is
another one, or a statement is missing. The seed decides the order in which mutants are drawn; an edit in
another function changes the place of none. For each mutant, the tests that execute the changed lines run
until one of them fails twice: a failure that is not repeated kills nothing, unless the process hangs or
crashes. The tests of `make test` come first, so that the table says which command finds the fault.

Which tests execute which line comes from one run of all tests but the end-to-end ones, with coverage, kept
in `.mutants/` until a file is newer. For lines that only a child process executes, the tests of the rest of
the file run, or those of the room.
"""

import argparse
import ast
import contextlib
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

import pytest
from coverage import CoverageData

ROOT = Path(__file__).parents[1]
ROOMS = ("informer", "kit", "workqueue", "writes", "leadership", "runtime")
FOLDER = ROOT / ".mutants"
# A mutant may hang each of its tests, or its process.
TEST_SECONDS, MUTANT_SECONDS = 60, 2400
_LISTED, _REPORT = "DECLCTL_MUTANT_TESTS", "DECLCTL_MUTANT_REPORT"  # files: the tests, what came of them
_PAIRS = ((ast.Lt, ast.LtE), (ast.Gt, ast.GtE), (ast.Eq, ast.NotEq), (ast.Is, ast.IsNot), (ast.In, ast.NotIn))
_SWAPPED = dict(_PAIRS) | {other: one for one, other in _PAIRS}
_PLAIN = (ast.Name, ast.Attribute, ast.Call)  # conditions that are no comparison, and have no operator


@dataclass(frozen=True)
class Mutant:
    """One fault: `new` stands in `path` instead of `old`, which begins at byte `start`."""

    rank: str  # a hash: mutants are drawn in the order of their ranks
    path: str
    lines: range
    kind: str
    old: str
    new: str
    start: int

    def row(self, *more: object) -> str:
        """A row of the table."""
        old, new = (" ".join(text.split())[:50].replace("|", "\\|") for text in (self.old, self.new))
        where = f"{self.path.removeprefix('declctl/')}:{self.lines.start}"
        return f"| {' | '.join(map(str, (where, self.kind, f'`{old}` → `{new}`', *more)))} |"


def mutants(seed: int) -> list[Mutant]:
    """All mutants, in the order in which they are drawn."""
    files = [file for room in ROOMS for file in sorted((ROOT / "declctl" / room).rglob("*.py"))]
    return sorted((each for file in files for each in _mutants(file, seed)), key=lambda each: each.rank)


def _mutants(file: Path, seed: int) -> Iterator[Mutant]:
    text, path = file.read_bytes(), file.relative_to(ROOT).as_posix()
    lines = text.splitlines(keepends=True)
    seen: Counter[str] = Counter()
    for function, node, kind, new in _faults(ast.parse(text)):
        start, end = (
            len(b"".join(lines[: line - 1])) + column
            for line, column in ((node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset))
        )
        old = text[start:end].decode()
        name = f"{seed} {path} {function} {kind} {old} {new}"
        seen[name] += 1
        rank = hashlib.sha256(f"{name} {seen[name]}".encode()).hexdigest()
        yield Mutant(rank, path, range(node.lineno, node.end_lineno + 1), kind, old, new, start)


def _faults(tree: ast.Module) -> Iterator[tuple[str, ast.expr | ast.stmt, str, str]]:
    """Function, node, kind and the text that takes the node's place, for each fault in a function."""
    waiting: list[tuple[str, ast.AST]] = [("", tree)]
    while waiting:
        function, parent = waiting.pop()
        children: Iterable[ast.AST] = ast.iter_child_nodes(parent)
        if isinstance(parent, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            # Neither decorators nor annotations.
            function, children = f"{function}.{parent.name}", parent.body
        elif isinstance(parent, ast.AnnAssign):
            children = [parent.value] if parent.value else []
        elif isinstance(parent, ast.JoinedStr):
            children = []  # before Python 3.12, nodes inside have wrong places
        if isinstance(parent, ast.If | ast.While | ast.IfExp) and isinstance(parent.test, _PLAIN):
            yield function, parent.test, "condition", _text(ast.UnaryOp(ast.Not(), parent.test))
        for node in children:
            waiting.append((function, node))
            if function and not isinstance(parent, ast.ClassDef):
                yield from ((function, node, kind, new) for kind, new in _replacements(node))


def _replacements(node: ast.AST) -> Iterator[tuple[str, str]]:
    match node:
        case ast.Compare(left=left, ops=[op], comparators=right):
            yield "comparison", _text(ast.Compare(left, [_SWAPPED[type(op)]()], right))
        case ast.BoolOp(op=op, values=values):
            yield "condition", _text(ast.BoolOp(ast.Or() if isinstance(op, ast.And) else ast.And(), values))
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield "condition", _text(operand)
        case ast.Return(value=ast.expr() as value) if ast.unparse(value) != "None":
            yield "return", "return None"
        case ast.Constant(value=bool() as value):
            yield "bound", repr(not value)
        case ast.Constant(value=int() | float() as value):
            yield "bound", repr(value + 1)
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub() as op, right=right) if not _is_text(left, right):
            yield "bound", _text(ast.BinOp(left, ast.Sub() if isinstance(op, ast.Add) else ast.Add(), right))
        case ast.Expr(value=ast.Call() | ast.Await()) | ast.AugAssign() | ast.Raise() | ast.Delete():
            yield "statement", "pass"
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]) | ast.Break() | ast.Continue():
            yield "statement", "pass"
        case _:
            pass


def _text(node: ast.expr) -> str:
    return f"({ast.unparse(ast.fix_missing_locations(node))})"


def _is_text(*nodes: ast.expr) -> bool:
    texts = (node.value if isinstance(node, ast.Constant) else node for node in nodes)
    return any(isinstance(each, ast.JoinedStr | ast.List | ast.Tuple | str | bytes) for each in texts)


class TestMap:
    """Which tests execute which line, how long each takes, and which of them `make test` runs."""

    __test__ = False

    def __init__(self) -> None:
        """Read the map; if a file is newer, run all tests once with coverage before."""
        made = FOLDER / "tests.json"
        files = [file for name in ("declctl", "tests", "plugins") for file in (ROOT / name).rglob("*.py")]
        if not made.exists() or made.stat().st_mtime < max(file.stat().st_mtime for file in files):
            shutil.rmtree(FOLDER, ignore_errors=True)
            FOLDER.mkdir()
            settings = f"[run]\nsource_pkgs = declctl\ndata_file = {FOLDER / 'coverage'}\n"
            (FOLDER / "coveragerc").write_text(settings)
            # What end-to-end tests run is in other processes.
            options = f"-n{2 * (os.cpu_count() or 1)} --no-loadscope-reorder --ignore=tests/e2e --cov=declctl"
            options += f" --cov-context=test --cov-config={FOLDER / 'coveragerc'} --cov-report= tests plugins"
            if _pytest(ROOT, *options.split(), report=made).wait() > 1:  # 1: a test failed
                raise SystemExit("the run that maps the tests did not end by itself")
        self.times: dict[str, tuple[float, bool]] = json.loads(made.read_text())["times"]
        self._data = CoverageData(str(FOLDER / "coverage"))
        self._data.read()

    def tests_of(self, mutant: Mutant) -> list[str]:
        """The tests that execute a line of it: those of `make test` first, then by what they take."""
        lines = self._data.contexts_by_lineno(str(ROOT / mutant.path))
        found = set[str]()
        for numbers in (mutant.lines, lines):  # or the rest of the file, or of the room
            contexts = {context for number in numbers for context in lines.get(number, ())}
            found = found or self.times.keys() & {context.rpartition("|")[0] for context in contexts}
        room = f"tests/rooms/{mutant.path.split('/')[1]}/"
        found = found or {name for name in self.times if name.startswith(room)}
        return sorted(found, key=lambda name: (not self.times[name][1], self.times[name][0], name))


def _pytest(folder: Path, *options: str, report: Path, listed: str = "") -> "subprocess.Popen[bytes]":
    files = {"PYTHONPATH": str(folder), _REPORT: str(report), _LISTED: listed}
    environment = os.environ | {"CI": "1", "PYTHONDONTWRITEBYTECODE": "1"} | files
    command = (sys.executable, "-m", "pytest", "-q", "-p", "no:randomly", "-p", "tests.mutants", *options)
    output = subprocess.DEVNULL if listed else None
    return subprocess.Popen(command, cwd=folder, env=environment, stdout=output, start_new_session=True)


# What pytest is told: this file is a plugin of it, too


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave the tests of a mutant, in their order."""
    for item in items:
        item.user_properties.append(("thorough", item.get_closest_marker("thorough") is not None))
    if listed := os.environ[_LISTED]:
        order = {name: place for place, name in enumerate(json.loads(Path(listed).read_text()))}
        chosen = [item for item in items if item.nodeid in order]
        items[:] = sorted(chosen, key=lambda item: order[item.nodeid])


_times: dict[str, tuple[float, bool]] = {}
_failed: list[str] = []


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note what each test takes, and which one fails."""
    seconds, _ = _times.get(report.nodeid, (0.0, False))
    _times[report.nodeid] = (seconds + report.duration, not dict(report.user_properties)["thorough"])
    if report.failed:
        _failed.append(report.nodeid)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write it down."""
    if not hasattr(session.config, "workerinput"):
        Path(os.environ[_REPORT]).write_text(json.dumps({"times": _times, "failed": _failed}))


class Copy:
    """A copy of the checkout, in which one mutant at a time is planted."""

    def __init__(self, folder: Path) -> None:
        left_out = shutil.ignore_patterns(".git", ".venv", ".mutants", ".hypothesis")
        self._folder = shutil.copytree(ROOT, folder / "tree", ignore=left_out, symlinks=True)
        self._listed, self._report = folder / "listed.json", folder / "report.json"

    def killer(self, mutant: Mutant, tests: list[str]) -> str:
        """The test that finds the mutant, or how the process ended; empty if all tests pass."""
        file = self._folder / mutant.path
        text = file.read_bytes()
        end = mutant.start + len(mutant.old.encode())
        file.write_bytes(text[: mutant.start] + mutant.new.encode() + text[end:])
        try:
            while tests and (failed := self._failing(tests)):
                if failed not in tests or self._failing([failed]):
                    return failed
                tests = tests[tests.index(failed) + 1 :]  # it failed by chance
            return ""
        finally:
            shutil.copy2(ROOT / mutant.path, file)  # with its time, so that the compiled file is true again

    def _failing(self, tests: Sequence[str]) -> str:
        self._listed.write_text(json.dumps(tests))
        self._report.unlink(missing_ok=True)
        files = dict.fromkeys(test.split("::")[0] for test in tests)
        options = ("-x", f"--timeout={TEST_SECONDS}", *files)
        process = _pytest(self._folder, *options, report=self._report, listed=str(self._listed))
        try:
            status = process.wait(MUTANT_SECONDS)
        except subprocess.TimeoutExpired:
            return "(hangs)"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # with all that it has started
            process.wait()
        if status == pytest.ExitCode.NO_TESTS_COLLECTED:
            raise RuntimeError(f"the map names tests that are not there: {tests}")
        failed = json.loads(self._report.read_text())["failed"] if self._report.exists() else []
        return failed[0] if failed else f"(pytest ends with {status})" if status else ""


def main() -> None:
    """Draw, judge, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mutants", type=int, default=150, help="how many are drawn")
    parser.add_argument("--seed", type=int, default=28)
    parser.add_argument("--jobs", type=int, default=2 * (os.cpu_count() or 1), help="how many at once")
    chosen = parser.parse_args()
    test_map, drawn, copies = TestMap(), mutants(chosen.seed)[: chosen.mutants], SimpleQueue[Copy]()
    ends: Counter[str] = Counter()
    print("| where | kind | fault | tests | found by | the test |\n|---|---|---|--:|---|---|", flush=True)

    def judge(mutant: Mutant) -> None:
        copy, tests = copies.get(), test_map.tests_of(mutant)
        by = copy.killer(mutant, tests)
        copies.put(copy)
        quick = test_map.times[by][1] if by in test_map.times else True
        end = "**survives**" if not by else "make test" if quick else "make test-all"
        ends[end] += 1
        print(mutant.row(len(tests), end, by), flush=True)

    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(chosen.jobs) as pool:
        for number in range(chosen.jobs):
            (Path(folder) / str(number)).mkdir()
            copies.put(Copy(Path(folder) / str(number)))
        list(pool.map(judge, drawn))
    killed = ends.total() - ends["**survives**"]
    print(f"\n{killed} of {ends.total()} killed, {ends['make test']} of them by what `make test` runs.")


if __name__ == "__main__":
    main()
