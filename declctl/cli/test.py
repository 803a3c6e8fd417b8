"""`declctl test`: play ControllerTest documents, and say what was not met."""

import os
from collections.abc import Sequence
from pathlib import Path

from declctl.cli.report import count, show_faults
from declctl.cli.terminal import line
from declctl.errors import ManifestErrors, UsageError
from declctl.kit.files import shown
from declctl.manifest.diagnostics import Diagnostic
from declctl.testing.documents import load_documents
from declctl.testing.player import PlayedTest, play

_BAD_INPUT = 2
_WORDS = {"passed": "ok", "failed": "FAILED", "skipped": "skipped"}


def run_tests(places: Sequence[Path]) -> int:
    """Play the documents of some files and folders; returns the exit status. Raises UsageError."""
    try:
        tests = load_documents(places, dict(os.environ))
    except ManifestErrors as error:
        faults = [each for each in error.diagnostics if isinstance(each, Diagnostic)]
        show_faults(faults)
        line(f"{count(faults)}; nothing was run", err=True)
        return _BAD_INPUT
    if not tests:
        where = ", ".join(shown(each) for each in places)
        raise UsageError(f"No document of kind ControllerTest is at or below {where}.")
    played: list[PlayedTest] = []
    for each in tests:
        played.append(one := play(each))
        print_one(one)
    failed = sum(each.outcome == "failed" for each in played)
    line(f"{len(played) - failed} passed, {failed} failed")
    return int(failed > 0)


def print_one(one: PlayedTest) -> None:
    """One line, and below it what was not met."""
    line(f"{_WORDS[one.outcome]:7} {one.file} {one.name} ({one.seconds:.2f} s)")
    if one.outcome != "passed":
        line(f"  {one.place}: {one.message}")
        for each in one.details:
            line(f"    {each}")
