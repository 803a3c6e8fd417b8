"""`python benchmarks/admin.py`: its duration is announced, and each row is there when its run has ended."""

import re
import sys
from collections.abc import Sequence
from typing import Self

import admin
import pytest


class Unattacked:
    """Stands for the process: it counts its runs, and notes what was printed before each of them."""

    printed: Sequence[str] = ()  # what stdout had before each run

    def __init__(self, *_: object) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def run(self, name: str, attack: object, *, at: object, seconds: float, rate: float) -> admin.Figures:
        assert (at is self) == ("another process" not in name)
        assert (seconds, rate, attack is None) == (12.0, 100.0, name == "quiet")
        Unattacked.printed = [*Unattacked.printed, sys.stdout.getvalue()]
        return admin.Figures(name, [1.0, 2.0 + len(Unattacked.printed)], 20, 0, 7, 3)


def test_each_row_is_there_before_the_next_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """A run takes minutes: a reader sees at once how many, and the first figures after the first one."""
    monkeypatch.setattr(admin, "Attacked", Unattacked)
    monkeypatch.setattr(admin, "SETTLE_SECONDS", 0.0)
    monkeypatch.setattr(sys, "argv", ["admin.py", "--seconds", "12"])
    monkeypatch.setattr(Unattacked, "printed", ())
    admin.main()
    announced, head, *rows = capsys.readouterr().out.splitlines()
    assert re.match(r"7 runs of 12 s: \d+ s at most", announced)
    assert head.split()[:3] == ["changes", "p50", "p99"]
    assert [row.split()[0] for row in rows] == ["quiet", "1,000", "60", "Bodies", "500", "All", "All"]
    assert [len(text.splitlines()) for text in Unattacked.printed] == [2, 3, 4, 5, 6, 7, 8]
    assert len({len(row) for row in (head, *rows)}) == 1


def test_a_measured_run_takes_less_than_eight_minutes() -> None:
    """That is with runs of 30 seconds, whose 99th percentile stands on 3,000 changes."""
    assert admin.longest_seconds(30.0) < 8 * 60
