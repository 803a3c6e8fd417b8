"""`declctl test`: play ControllerTest documents, and say what was not met."""

import multiprocessing
import os
import signal
import sys
import xml.etree.ElementTree as ET
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from types import FrameType

import msgspec

from declctl.cli.options import time_limit
from declctl.cli.report import count, show_faults
from declctl.cli.terminal import line, print_json
from declctl.errors import ManifestErrors, UsageError
from declctl.kit.files import shown
from declctl.kit.text import visible
from declctl.manifest import render_json
from declctl.manifest.controller_test import LoadedTest
from declctl.manifest.diagnostics import Diagnostic
from declctl.testing.blocking_client import ClusterChoice, DefinedOnCluster
from declctl.testing.documents import BundleUnderTest, load_documents
from declctl.testing.player import PlayedTest, play

_BAD_INPUT = 2
_WORDS = {"passed": "ok", "failed": "FAILED", "skipped": "skipped"}
_NOT = "not "


class PlayOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of the command."""

    chosen: Sequence[str] = ()
    jobs: int = 1  # 0 for one for each CPU
    junit: Path | None = None
    as_json: bool = False
    on_cluster: bool = False
    timeout: str | None = None
    kubeconfig: str | None = None
    context: str | None = None

    @property
    def cluster(self) -> ClusterChoice | None:
        """The cluster; None for the API server in memory. Raises UsageError for a wrong timeout."""
        if not self.on_cluster:
            return None
        if self.timeout is None:
            return ClusterChoice(self.kubeconfig, self.context)
        seconds = time_limit(self.timeout, example="30s")
        return ClusterChoice(self.kubeconfig, self.context, seconds)

    def is_chosen(self, name: str) -> bool:
        """Whether a test is to be played."""
        return all(
            each.removeprefix(_NOT) not in name if each.startswith(_NOT) else each in name
            for each in self.chosen
        )


def run_tests(places: Sequence[Path], run: PlayOptions) -> int:
    """Play the documents of some files and folders; returns the exit status. Raises UsageError."""
    cluster = run.cluster
    if run.junit is not None and not run.junit.parent.is_dir():  # told before the tests are played
        raise UsageError(f"--junit {shown(run.junit)} can't be written: there is no such folder.")
    try:
        loaded = load_documents(places, dict(os.environ))
    except ManifestErrors as error:
        faults = [each for each in error.diagnostics if isinstance(each, Diagnostic)]
        if run.as_json:
            print_json({"tests": [], "faults": render_json(faults)})
        else:
            show_faults(faults)
            line(f"{count(faults)}; nothing was played", err=True)
        return _BAD_INPUT
    where = ", ".join(shown(each) for each in places)
    if not loaded:
        raise UsageError(f"No document of kind ControllerTest is at or below {where}.")
    tests = [each for each in loaded if run.is_chosen(each.name)]
    if not tests:
        asked = " ".join(f"-k {each!r}" for each in run.chosen)
        raise UsageError(f"None of the {len(loaded)} tests at or below {where} is meant by {asked}.")
    played: list[PlayedTest] = []
    with _children_on_stderr(), _interrupted_by_sigterm(), _defined(tests, cluster):
        for one in _play_all(tests, cluster, run.jobs):
            played.append(one)
            if not run.as_json:
                _print_one(one)
    if run.junit is not None:
        _write_junit(played, run.junit)
    if run.as_json:
        print_json({"tests": [msgspec.to_builtins(each) for each in played], "faults": []})
    else:
        line(_sum(played))
    return int(any(each.outcome == "failed" for each in played))


def _play_all(tests: Sequence[LoadedTest], cluster: ClusterChoice | None, jobs: int) -> Iterator[PlayedTest]:
    """The tests in their order, each as soon as it and those before it have been played."""
    jobs = min(len(tests), jobs or os.cpu_count() or 1)
    if jobs == 1:
        yield from (play(each, cluster) for each in tests)
        return
    # A new interpreter for each: threads of this one would not be in a forked child.
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, spawn, initializer=partial(os.dup2, 2, 1)) as pool:
        places = [(each.document.path, each.name) for each in tests]
        yield from pool.map(partial(_play_one, cluster), places)


def _play_one(cluster: ClusterChoice | None, place: tuple[str, str]) -> PlayedTest:
    """Play one document of a file, in a process of the pool."""
    path, name = place
    (test,) = (each for each in load_documents([Path(path)], dict(os.environ)) if each.name == name)
    return play(test, cluster)


def _defined(tests: Sequence[LoadedTest], cluster: ClusterChoice | None) -> AbstractContextManager[object]:
    """The definitions of all tests in a cluster: created once, and removed after the last test."""
    if cluster is None:
        return nullcontext()
    bundles = {each.bundle.path: each.bundle for each in tests if isinstance(each.bundle, BundleUnderTest)}
    return DefinedOnCluster(cluster, [one for each in bundles.values() for one in each.definitions])


@contextmanager
def _children_on_stderr() -> Generator[None]:
    """Let what isolated handlers print in their processes go to stderr: stdout is the report."""
    stdout, number = sys.stdout, None
    with suppress(OSError, ValueError):  # it may be no file, as in a test
        number = stdout.fileno()
    if number != 1:
        yield
        return
    kept = os.dup(1)
    try:
        with os.fdopen(kept, "w", encoding=stdout.encoding, errors=stdout.errors) as sys.stdout:
            os.dup2(2, 1)
            yield
            sys.stdout.flush()
            os.dup2(kept, 1)
    finally:
        sys.stdout = stdout


@contextmanager
def _interrupted_by_sigterm() -> Generator[None]:
    """End as by Ctrl-C, so that what a test has made in a cluster is removed."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _print_one(one: PlayedTest) -> None:
    line(f"{_WORDS[one.outcome]:7} {one.file} {one.name} ({one.seconds:.2f} s)")
    for each in _reasons(one):
        line(f"  {each}")


def _reasons(one: PlayedTest) -> Iterator[str]:
    """Why a test has failed or was skipped, in lines."""
    for reason in one.reasons:
        yield f"{reason.place}: {reason.message}"
        yield from (f"  {each}" for each in reason.details)
    yield from one.notes


def _sum(played: Sequence[PlayedTest]) -> str:
    words = ("passed", "failed", "skipped")
    counts = {word: sum(each.outcome == word for each in played) for word in words}
    return ", ".join(f"{number} {word}" for word, number in counts.items() if number or word == "passed")


def _write_junit(played: Sequence[PlayedTest], target: Path) -> None:
    """A report as CI systems read it: a suite for each file. Raises UsageError."""
    root = ET.Element("testsuites", name="declctl test")
    for file in dict.fromkeys(each.file for each in played):
        cases = [each for each in played if each.file == file]
        suite = ET.SubElement(root, "testsuite", name=visible(file), tests=str(len(cases)))
        suite.set("failures", str(sum(each.outcome == "failed" for each in cases)))
        suite.set("skipped", str(sum(each.outcome == "skipped" for each in cases)))
        suite.set("time", f"{sum(each.seconds for each in cases):.3f}")
        for each in cases:
            case = ET.SubElement(suite, "testcase", name=each.name, classname=visible(file))
            case.set("time", f"{each.seconds:.3f}")
            if each.outcome != "passed":
                word = "failure" if each.outcome == "failed" else "skipped"
                messages = "; ".join(reason.message for reason in each.reasons)
                found = ET.SubElement(case, word, message=visible(messages))
                found.text = visible("\n".join(_reasons(each)))
    try:
        ET.indent(root)
        ET.ElementTree(root).write(target, "utf-8", xml_declaration=True)
    except OSError as error:
        raise UsageError(f"--junit {shown(target)} can't be written: {error.strerror or error}.") from error
