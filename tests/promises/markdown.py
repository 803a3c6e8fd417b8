"""Markdown files as the blocks of code in them."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
_FENCE = re.compile(r"^```(\w*)\s*$")
_LINK = re.compile(r"\]\(([^)\s]+)\)")


@dataclass(frozen=True)
class Block:
    """One fenced block. `marked` says that `<!-- runs -->` stands above it."""

    file: Path
    line: int
    language: str
    text: str
    marked: bool

    def __str__(self) -> str:
        return f"{self.file.relative_to(ROOT)}:{self.line}"


def pages() -> list[Path]:
    """Every page that people read; docs/errors.md has tests of its own, beside the codes."""
    docs = [page for page in sorted((ROOT / "docs").glob("*.md")) if page.name != "errors.md"]
    more = [*sorted((ROOT / "examples").glob("*/README.md")), *sorted((ROOT / "plugins").glob("*/README.md"))]
    return [ROOT / "README.md", *docs, *more]


def blocks(page: Path) -> list[Block]:
    """The blocks of a page, in order."""
    return list(_blocks(page))


def links(page: Path) -> list[str]:
    """What a page links to within the repository, without anchors."""
    found = _LINK.findall(page.read_text("utf-8"))
    return [link.partition("#")[0] for link in found if "://" not in link and not link.startswith("#")]


def _blocks(page: Path) -> Iterator[Block]:
    above, start, language = "", 0, ""
    inside: list[str] | None = None
    for number, line in enumerate(page.read_text("utf-8").splitlines(), 1):
        fence = _FENCE.match(line)
        if inside is not None and fence:
            yield Block(page, start, language, "\n".join(inside) + "\n", above == "<!-- runs -->")
            inside = None
        elif inside is not None:
            inside.append(line)
        elif fence:
            inside, start, language = [], number, fence[1]
        if inside is None and line.strip():
            above = line.strip()
