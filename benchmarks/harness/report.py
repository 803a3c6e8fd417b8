"""`python -m harness.report`: write the results into the pages of docs/ that show them, and the plot."""

import re
import sys

from harness.bar import judged
from harness.building import BENCHMARKS, BUILD
from harness.catalogue import CANDIDATES, OURS
from harness.plot import Panel, plot
from harness.results import Results
from harness.tables import summary, tables
from harness.text import markdown

PAGE = BENCHMARKS.parent / "docs" / "performance.md"
FIGURES = PAGE.parent / "reference" / "figures.md"
PLOT = PAGE.with_suffix(".svg")
_GENERATED = re.compile(r"(<!-- results -->\n).*?(<!-- end of results -->)", re.DOTALL)


def main() -> int:
    """Writes the files, and returns the exit status: 2 if there are no results."""
    file = BUILD / "results.json"
    if not file.exists():
        sys.stderr.write("There are no results yet: run `make bench-full`.\n")
        return 2
    results = Results.read(file)
    for file, generated in ((PAGE, deciding(results)), (FIGURES, section(results))):
        file.write_text(page(file.read_text("utf-8"), generated), "utf-8")
    PLOT.write_text(picture(results), "utf-8")
    return 0


def page(text: str, generated: str) -> str:
    """The page with a new generated part. Raises ValueError if the page has no place for it."""
    if not _GENERATED.search(text):
        raise ValueError("the page has no <!-- results --> and <!-- end of results -->")
    return _GENERATED.sub(lambda found: f"{found[1]}\n{generated}\n\n{found[2]}", text)


def deciding(results: Results) -> str:
    """The generated part of docs/performance.md: the machine, the plot and the table of those who choose."""
    return "\n\n".join(
        [_head(results), f"![CPU and memory of each peer]({PLOT.name})", markdown(summary(results))]
    )


def section(results: Results) -> str:
    """The generated part of docs/reference/figures.md: the machine and every table."""
    parts = [_head(results), markdown(judged(results)), *map(markdown, tables(results)), versions(results)]
    return "\n\n".join(parts)


def _head(results: Results) -> str:
    machine = results.machine
    return (
        f"Measured on {results.date}: {machine['processor']}, {machine['cores']} cores, "
        f"{machine['memory']}, {machine['kernel']}, Python {machine['python']}. "
        "The number in brackets after a figure is its ratio to the figure of declctl."
    )


def versions(results: Results) -> str:
    """The table of the measured peers: version, and the objects in the cache."""
    rows = [
        f"| {c.title} | {results.versions[c.key]} | {c.gives} |"
        for c in CANDIDATES
        if c.key in results.versions
    ]
    return "\n".join(
        ["### The peers", "", "| peer | version | what its cache holds |", "|---|---|---|", *rows]
    )


def picture(results: Results) -> str:
    """The plot of CPU and memory of the first sync; the peers of ours come first."""
    measured = [c for c in CANDIDATES if results.of("cache", c.key)]
    panels = [
        Panel("CPU to sync", [results.figure("cache", c.key, "sync_cpu") for c in measured], "seconds"),
        Panel(
            "resident after sync",
            [results.figure("cache", c.key, "sync_resident") for c in measured],
            "megabytes",
        ),
    ]
    title = f"{results.size('cache'):,} pods cached with one index: the whole process"
    ours = sum(candidate.key in OURS for candidate in measured)
    note = f"{results.machine['processor']}, {results.machine['cores']} cores, {results.date}"
    return plot(title, [c.title for c in measured], panels, ours=ours, note=note)


if __name__ == "__main__":
    sys.exit(main())
