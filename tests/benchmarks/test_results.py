"""From figures to tables, to the bar, to the page."""

from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from harness.bar import BARS, judged, verdict
from harness.plot import Panel, plot
from harness.report import FIGURES, PAGE, deciding, page, picture, section
from harness.results import Record, Results
from harness.tables import summary, tables
from harness.text import Table, markdown, plain

_MACHINE = {"processor": "P", "cores": "2", "memory": "1 GiB", "kernel": "Linux", "python": "3.11"}


def _results(**records: list[dict[str, float]]) -> Results:
    """One run for each dictionary, of 100 pods cached."""
    results = Results("quick", "2026-01-01", _MACHINE)
    for name, runs in records.items():
        peer = name.replace("_", "-")
        results.peers[peer] = peer
        results.records += [Record("cache", "pods", 100, peer, n, figures) for n, figures in enumerate(runs)]
    return results


def _row(table: Table, first: str) -> list[str]:
    (row,) = [row for row in table.rows if row[0] == first]
    return list(row)


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    """Nothing is lost between a measurement and its report."""
    results = _results(declctl=[{"sync_cpu": 1.5}])
    results.left_out["kube-rs"] = "cargo is not installed"
    results.write(tmp_path / "results.json")
    assert Results.read(tmp_path / "results.json") == results


def test_the_median_of_the_runs_is_shown_with_its_ratio() -> None:
    """Three runs, one of them disturbed; four times as much is said to be that."""
    results = _results(
        declctl=[{"sync_cpu": 2.0}, {"sync_cpu": 1.0}, {"sync_cpu": 9.0}], kopf=[{"sync_cpu": 8.0}]
    )
    (table,) = tables(results)
    assert _row(table, "declctl")[1] == "2"
    assert _row(table, "kopf")[1] == "8 (4x)"


def test_a_peer_that_was_too_slow_is_shown_as_that() -> None:
    """Beside what it could do, and with the step at which it was."""
    results = _results(declctl=[{"sync_cpu": 1.0, "relist_cpu": 1.0}])
    results.records.append(Record("cache", "pods", 100, "kr8s", 1, {"sync_cpu": 7.0}, "relist: > 90 s"))
    (table,) = tables(results)
    row = _row(table, "kr8s")
    assert "7 (7x)" in row
    assert "> 90 s" in row
    assert table.notes == ["kr8s: relist: > 90 s"]


def test_who_was_left_out_is_said() -> None:
    """With the reason."""
    results = _results(declctl=[{"sync_cpu": 1.0}])
    results.peers["kube-rs"], results.left_out["kube-rs"] = "kube-rs", "cargo is not installed"
    assert _row(tables(results)[-1], "kube-rs") == ["kube-rs", "cargo is not installed"]


@pytest.mark.parametrize(
    ("theirs", "said"), [(3.0, "met"), (4.0, "met"), (1.5, "missed, 2x the bar"), (1.0, "missed, 3x the bar")]
)
def test_a_ratio_is_held_against_its_bar(theirs: float, said: str) -> None:
    """At most a third of client-go's CPU; and how far off it is."""
    results = _results(declctl=[{"sync_cpu": 1.0}], client_go=[{"sync_cpu": theirs}])
    row = _row(judged(results), "CPU to sync, of client-go typed protobuf's")
    assert row[3] == said


def test_what_was_not_measured_is_not_judged() -> None:
    """No bar is met by a figure that is not there."""
    for row in judged(_results(declctl=[])).rows:
        assert list(row[2:]) == ["-", "not measured", "-", "not measured"]


def test_nothing_is_more_than_nothing() -> None:
    """A bar of 0 is missed by one notification."""
    assert verdict(0, 0) == "met"
    assert verdict(1, 0) == "missed"
    assert len(BARS) > 15


def test_a_table_reads_well_in_both_forms() -> None:
    """Columns stand below each other; Markdown has as many cells in every row."""
    table = Table("T", ["peer", "CPU s"], [["declctl", "1"], ["kopf", "25.5 (25x)"]])
    _, _, head, _, first, second = plain(table).splitlines()
    assert len(first.split("  ")[-1]) <= len(second.split("  ")[-1])
    assert head.endswith("CPU s")
    assert {line.count("|") for line in markdown(table).splitlines()[2:]} == {3}


def test_the_plot_has_a_bar_for_each_figure() -> None:
    """It is XML, longer bars are of larger figures, and what is missing is said."""
    root = ET.fromstring(plot("<CPU>", ["a & b", "c", "d"], [Panel("CPU", [2.0, 200.0, None], "s")], ours=1))
    bars = [float(each.attrib["width"]) for each in root.iter() if each.tag.endswith("rect")]
    assert len(bars) == 2
    assert 0 < bars[0] < bars[1]
    assert "no figure" in [each.text for each in root.iter() if each.tag.endswith("text")]


def test_the_page_takes_the_results_between_its_marks() -> None:
    """What people wrote around them stays, however often it is done."""
    results = _results(declctl=[{"sync_cpu": 1.0, "sync_resident": 80.0}])
    results.versions["declctl"] = "declctl 0.1"
    text = "before\n<!-- results -->\nof another day\n<!-- end of results -->\nafter\n"
    once = page(text, section(results))
    assert once.startswith("before\n")
    assert once.endswith("\nafter\n")
    assert "of another day" not in once
    assert "declctl 0.1" in once
    assert page(once, section(results)) == once
    assert "<svg" in picture(results)


@pytest.mark.parametrize("file", [PAGE, FIGURES], ids=lambda file: file.name)
def test_docs_have_a_place_for_the_results(file: Path) -> None:
    """`make bench-full` will not end with an error after hours."""
    assert page(file.read_text("utf-8"), deciding(_results(declctl=[{"sync_cpu": 1.0}])))


def test_the_table_of_those_who_choose_has_each_client_once() -> None:
    """A client without a cache of its own has its reconciles; what was not measured at all has no row."""
    results = _results(declctl=[{"sync_cpu": 2.0}], kopf=[{"sync_cpu": 8.0}])
    for peer, cpu in (("declctl-run", 0.0002), ("controller-runtime", 0.0003)):
        results.records.append(Record("reconcile", "customs", 10, peer, 0, {"flood_cpu": cpu}))
    assert summary(results).rows == [
        ["declctl", "2", "-", "-", "-", "-"],
        ["declctl run", "-", "-", "-", "-", "200"],
        ["controller-runtime", "-", "-", "-", "-", "300 (1.50x)"],
        ["kopf", "8 (4x)", "-", "-", "-", "-"],
    ]
