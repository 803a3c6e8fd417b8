"""How many planted faults do the tests find? `make mutants` answers with a table.

A mutant is the package with one small fault: a comparison, a condition, a returned value or a bound is
another one, or a statement is missing. The seed decides which mutants are drawn; an edit elsewhere does not
change them. For each mutant, the tests that execute the changed lines run until one of them fails twice: a
failure that is not repeated kills nothing. The tests of `make test` come first, so that the table says which
command finds the fault.

Which tests execute which line comes from one run of all tests with coverage. It is kept in `.mutants/` until
a file of the package or its tests is newer. Lines that only a child process executes are unknown to it; for
these, the tests of the rest of the file run, or those of the room.
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
import sysconfig
import tempfile
import time
import venv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import SimpleQueue

import pytest
from coverage import CoverageData

ROOT = Path(__file__).parents[1]
ROOMS = ("informer", "kit", "workqueue", "writes", "leadership", "runtime")
SEED = 28
FOLDER = ROOT / ".mutants"
# A mutant may hang each of its tests, or its process.
TEST_SECONDS, MUTANT_SECONDS = 60, 2400
_TESTS_VARIABLE, _REPORT_VARIABLE = "DECLCTL_MUTANT_TESTS", "DECLCTL_MUTANT_REPORT"
_SWAPPED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_PLAIN = (ast.Name, ast.Attribute, ast.Call)  # conditions that are no comparison, and have no operator


@dataclass(frozen=True)
class Mutant:
    """One fault: `new` stands in `path` instead of `old`, from `start` to `end` (offsets in its bytes)."""

    path: str
    line: int
    last_line: int
    kind: str
    old: str
    new: str
    start: int
    end: int
    rank: str  # its place in the order by which mutants are drawn


@dataclass
class Verdict:
    """What the tests said of a mutant. `by` is empty for one that survived."""

    mutant: Mutant
    tests: int
    by: str = ""
    quick: bool = False  # killed by what `make test` runs
    seconds: float = 0.0


# Which faults there are


def mutants(rooms: Sequence[str], seed: int) -> list[Mutant]:
    """All mutants of these rooms, in the order in which they are drawn."""
    files = [file for room in rooms for file in sorted((ROOT / "declctl" / room).rglob("*.py"))]
    return sorted((each for file in files for each in _mutants(file, seed)), key=lambda each: each.rank)


def _mutants(file: Path, seed: int) -> Iterator[Mutant]:
    text = file.read_bytes()
    starts = [0]  # the offset of each line
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    seen: dict[str, int] = {}
    for function, node, kind, new in _faults(ast.parse(text)):
        start = starts[node.lineno - 1] + node.col_offset
        end = starts[node.end_lineno - 1] + node.end_col_offset
        old = text[start:end].decode()
        path = file.relative_to(ROOT).as_posix()
        name = f"{seed} {path} {function} {kind} {old} {new}"
        seen[name] = seen.get(name, 0) + 1
        rank = hashlib.sha256(f"{name} {seen[name]}".encode()).hexdigest()
        yield Mutant(path, node.lineno, node.end_lineno, kind, old, new, start, end, rank)


def _faults(tree: ast.Module) -> Iterator[tuple[str, ast.expr | ast.stmt, str, str]]:
    """Function, node, kind and the text that takes the node's place, for each fault in a function."""
    waiting: list[tuple[str, ast.AST]] = [("", tree)]
    while waiting:
        function, parent = waiting.pop()
        if isinstance(parent, ast.FunctionDef | ast.AsyncFunctionDef):
            function = f"{function}.{parent.name}"
            children: Iterable[ast.AST] = parent.body  # neither decorators nor annotations
        elif isinstance(parent, ast.ClassDef):
            function, children = f"{function}.{parent.name}", parent.body
        elif isinstance(parent, ast.AnnAssign):
            children = [parent.value] if parent.value else []
        elif isinstance(parent, ast.JoinedStr):
            children = []  # before Python 3.12, nodes inside have wrong places
        else:
            children = ast.iter_child_nodes(parent)
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
        case ast.Return(value=ast.expr() as value) if not _is_none(value):
            yield "return", "return None"
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            yield "bound", repr(value + 1)
        case ast.Constant(value=bool() as value):
            yield "bound", repr(not value)
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


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _is_text(*nodes: ast.expr) -> bool:
    return any(isinstance(node, ast.JoinedStr | ast.List | ast.Tuple) for node in nodes) or any(
        isinstance(node, ast.Constant) and isinstance(node.value, str | bytes) for node in nodes
    )


# Which tests execute a line


class TestMap:
    """Which tests execute which line, how long each takes, and which of them `make test` runs."""

    __test__ = False

    def __init__(self, folder: Path) -> None:
        self._data = CoverageData(str(folder / "coverage"))
        self._data.read()
        self._files = {file.split("/declctl/", 1)[-1]: file for file in sorted(self._data.measured_files())}
        self._lines: dict[str, dict[int, list[str]]] = {}
        self.times: dict[str, tuple[float, bool]] = json.loads((folder / "tests.json").read_text("utf-8"))

    def tests_of(self, mutant: Mutant) -> list[str]:
        """The tests that execute a line of it: those of `make test` first, then by what they take."""
        file = self._files.get(mutant.path.removeprefix("declctl/"), "")
        if file not in self._lines:
            self._lines[file] = self._data.contexts_by_lineno(file) if file else {}
        lines = self._lines[file]
        found = self._names(lines, range(mutant.line, mutant.last_line + 1))
        # A line that runs at import or in child processes: tests of the rest of the file, or of the room.
        found = found or self._names(lines, lines) or self._tests_of_room(mutant)
        return sorted(found, key=lambda name: (not self.times[name][1], self.times[name][0], name))

    def _names(self, lines: Mapping[int, list[str]], numbers: Iterable[int]) -> set[str]:
        contexts = (context for number in numbers for context in lines.get(number, ()))
        return self.times.keys() & {context.rpartition("|")[0] for context in contexts}

    def _tests_of_room(self, mutant: Mutant) -> set[str]:
        room = f"tests/rooms/{mutant.path.split('/')[1]}/"
        return {name for name in self.times if name.startswith(room)}

    def is_quick(self, test: str) -> bool:
        """True if `make test` runs it."""
        return self.times[test][1]


def make_map(folder: Path, paths: Sequence[str], workers: int) -> None:
    """Run all tests once with coverage. Raises SystemExit if that can't be done.

    The end-to-end tests are left out: what they run is in other processes.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    config = f"[run]\nsource_pkgs = declctl\ndata_file = {folder / 'coverage'}\n"
    (folder / "coveragerc").write_text(config, "utf-8")
    measured = (
        "--cov=declctl",
        "--cov-context=test",
        f"--cov-config={folder / 'coveragerc'}",
        "--cov-report=",
    )
    order = (
        f"-n{workers}",
        "--no-loadscope-reorder",
        "-p",
        "no:randomly",
        "-p",
        "tests.mutants",
        "--ignore=tests/e2e",
    )
    command = (sys.executable, "-m", "pytest", "-q", *order, *measured, *paths)
    environment = os.environ | {"CI": "1", _REPORT_VARIABLE: str(folder / "tests.json")}
    status = subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode
    if status not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        sys.exit(status)


def _is_current(folder: Path) -> bool:
    made = folder / "tests.json"
    files = [file for name in ("declctl", "tests", "plugins") for file in (ROOT / name).rglob("*.py")]
    return made.exists() and made.stat().st_mtime > max(file.stat().st_mtime for file in files)


# What pytest is told: this file is a plugin of it, too


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the tests of a mutant, in their order."""
    for item in items:
        item.user_properties.append(("thorough", item.get_closest_marker("thorough") is not None))
    listed = os.environ.get(_TESTS_VARIABLE)
    if listed is None:
        return
    order = {name: place for place, name in enumerate(json.loads(Path(listed).read_text("utf-8")))}
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in order])
    items[:] = sorted((item for item in items if item.nodeid in order), key=lambda item: order[item.nodeid])


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
    if (report := os.environ.get(_REPORT_VARIABLE)) and not hasattr(session.config, "workerinput"):
        Path(report).write_text(json.dumps(_failed if _TESTS_VARIABLE in os.environ else _times), "utf-8")


# A mutant and its tests


class Copy:
    """A copy of the checkout, in which one mutant at a time is planted."""

    def __init__(self, folder: Path) -> None:
        left_out = shutil.ignore_patterns(".git", ".venv", ".mutants", ".hypothesis", "dist", "node_modules")
        self._folder = shutil.copytree(ROOT, folder / "tree", ignore=left_out, symlinks=True)
        self._python = _interpreter_of(self._folder)
        self._listed, self._report = folder / "listed.json", folder / "report.json"

    def judge(self, mutant: Mutant, test_map: TestMap) -> Verdict:
        """Plant the mutant, run its tests, and take it out again."""
        tests = test_map.tests_of(mutant)
        verdict, begun = Verdict(mutant, len(tests)), time.monotonic()
        file = self._folder / mutant.path
        text = file.read_bytes()
        file.write_bytes(text[: mutant.start] + mutant.new.encode() + text[mutant.end :])
        try:
            while tests and (failed := self._failing(tests)):
                if failed not in tests or self._failing([failed]):
                    verdict.by, verdict.quick = failed, failed not in tests or test_map.is_quick(failed)
                    break
                tests = tests[tests.index(failed) + 1 :]  # it failed by chance
        finally:
            shutil.copy2(ROOT / mutant.path, file)  # with its time, so that the compiled file is true again
        verdict.seconds = time.monotonic() - begun
        return verdict

    def _failing(self, tests: Sequence[str]) -> str:
        """The test that fails first, or how the process ended; empty if all pass."""
        self._listed.write_text(json.dumps(tests), "utf-8")
        self._report.unlink(missing_ok=True)
        files = dict.fromkeys(test.split("::")[0] for test in tests)
        options = ("-x", "-q", f"--timeout={TEST_SECONDS}", "-p", "no:randomly", "-p", "tests.mutants")
        process = subprocess.Popen(
            (self._python, "-m", "pytest", *options, *files),
            cwd=self._folder,
            env=os.environ
            | {
                "CI": "1",
                "PYTHONPATH": str(self._folder),
                "PYTHONDONTWRITEBYTECODE": "1",
                _TESTS_VARIABLE: str(self._listed),
                _REPORT_VARIABLE: str(self._report),
            },
            stdout=subprocess.DEVNULL,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            status = process.wait(MUTANT_SECONDS)
        except subprocess.TimeoutExpired:
            return "(hangs)"
        finally:
            _kill(process)
        if status == 0:
            return ""
        if status == pytest.ExitCode.NO_TESTS_COLLECTED:
            raise RuntimeError(f"none of {len(tests)} tests was found, such as {tests[0]}")
        failed = json.loads(self._report.read_text("utf-8")) if self._report.exists() else []
        return failed[0] if failed else f"(pytest ends with {status})"


def _interpreter_of(folder: Path) -> Path:
    """The packages of this interpreter, but declctl from a folder: in children without PYTHONPATH, too."""
    environment = folder / ".venv"
    venv.create(environment, symlinks=True)
    (site,) = environment.glob("lib/python*/site-packages")
    packages = sysconfig.get_path("purelib")
    (site / "first.pth").write_text(f"{folder}\nimport site; site.addsitedir({packages!r})\n", "utf-8")
    for script in Path(sys.executable).parent.iterdir():
        if not (here := environment / "bin" / script.name).exists():
            here.symlink_to(script)
    return environment / "bin" / "python"


def _kill(process: "subprocess.Popen[bytes]") -> None:
    """End it, with all that it has started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def judge_all(drawn: Sequence[Mutant], test_map: TestMap, jobs: int, results: Path) -> list[Verdict]:
    """Judge the mutants, `jobs` at once; prints each verdict when it is known, and writes it to `results`."""
    verdicts: list[Verdict] = []
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(jobs) as pool:
        copies: SimpleQueue[Copy] = SimpleQueue()
        for number in range(jobs):
            (Path(folder) / str(number)).mkdir()
            copies.put(Copy(Path(folder) / str(number)))

        def judge(mutant: Mutant) -> None:
            copy = copies.get()
            try:
                verdict = copy.judge(mutant, test_map)
            finally:
                copies.put(copy)
            verdicts.append(verdict)
            print(f"{len(verdicts)}/{len(drawn)} {_row(verdict)}", flush=True)
            results.write_text(json.dumps([asdict(each) for each in verdicts], indent=1), "utf-8")

        list(pool.map(judge, drawn))
    return sorted(verdicts, key=lambda each: (each.mutant.path, each.mutant.line))


def _row(verdict: Verdict) -> str:
    mutant = verdict.mutant
    old, new = (" ".join(text.split())[:50].replace("|", "\\|") for text in (mutant.old, mutant.new))
    end = ("make test" if verdict.quick else "make test-all") if verdict.by else "**survives**"
    where = f"{mutant.path.removeprefix('declctl/')}:{mutant.line}"
    cells = (where, mutant.kind, f"`{old}` → `{new}`", verdict.tests, end, verdict.by, round(verdict.seconds))
    return f"| {' | '.join(map(str, cells))} |"


def main() -> None:
    """Draw, judge, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mutants", type=int, default=150, help="how many are drawn")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--rooms", nargs="+", default=ROOMS)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="how many are judged at once")
    parser.add_argument("--map", type=Path, default=FOLDER, help="the folder of the map")
    parser.add_argument("--keep-map", action="store_true", help="use the map although files are newer")
    parser.add_argument("paths", nargs="*", default=["tests", "plugins"])
    chosen = parser.parse_args()
    if not chosen.keep_map and not _is_current(chosen.map):
        make_map(chosen.map, chosen.paths, 3 * (os.cpu_count() or 1))
    drawn = mutants(chosen.rooms, chosen.seed)[: chosen.mutants]
    verdicts = judge_all(drawn, TestMap(chosen.map), chosen.jobs, chosen.map / "results.json")
    print("\n| where | kind | fault | tests | found by | the test | s |\n|---|---|---|--:|---|---|--:|")
    for verdict in verdicts:
        print(_row(verdict))
    killed, quick = sum(bool(each.by) for each in verdicts), sum(each.quick for each in verdicts)
    print(f"\n{killed} of {len(verdicts)} killed, {quick} of them by what `make test` runs.")


if __name__ == "__main__":
    main()
