"""Markdown files as the blocks of code in them."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
_FENCE = re.compile(r"^```(\w*)\s*$")
_FENCED = re.compile(r"^```.*?^```\s*$", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
_LINK = re.compile(r"\]\(([^)\s]+)\)")


@dataclass(frozen=True)
class Block:
    """One fenced block, with the line of text above it."""

    file: Path
    line: int
    language: str
    text: str
    above: str

    @property
    def marked(self) -> bool:
        """Whether `<!-- runs -->` stands above it."""
        return self.above == "<!-- runs -->"

    def __str__(self) -> str:
        return f"{self.file.relative_to(ROOT)}:{self.line}"


def pages() -> list[Path]:
    """Every page that people read; docs/reference/errors.md has tests of its own, beside the codes."""
    docs = [page for page in sorted((ROOT / "docs").glob("**/*.md")) if page.name != "errors.md"]
    more = [*sorted((ROOT / "examples").glob("*/README.md")), *sorted((ROOT / "plugins").glob("*/README.md"))]
    return [ROOT / "README.md", *docs, *more]


def blocks(page: Path) -> list[Block]:
    """The blocks of a page, in order."""
    return list(_blocks(page))


def links(page: Path) -> list[str]:
    """What a page links to within the repository, with anchors."""
    return [link for link in _LINK.findall(_FENCED.sub("", page.read_text("utf-8"))) if "://" not in link]


def leads_somewhere(page: Path, link: str) -> bool:
    """Whether the file of a link exists and, in a page of Markdown, the heading of its anchor."""
    path, _, anchor = link.partition("#")
    target = page.parent / path if path else page
    return target.exists() and (not anchor or target.suffix != ".md" or anchor in _anchors(target))


@cache
def _anchors(page: Path) -> frozenset[str]:
    """The anchors that GitHub gives to the headings of a page."""
    titles = _HEADING.findall(_FENCED.sub("", page.read_text("utf-8")))
    return frozenset(re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles)


def _blocks(page: Path) -> Iterator[Block]:
    above, start, language = "", 0, ""
    inside: list[str] | None = None
    for number, line in enumerate(page.read_text("utf-8").splitlines(), 1):
        fence = _FENCE.match(line)
        if inside is not None and fence:
            yield Block(page, start, language, "\n".join(inside) + "\n", above)
            inside = None
        elif inside is not None:
            inside.append(line)
        elif fence:
            inside, start, language = [], number, fence[1]
        if inside is None and line.strip():
            above = line.strip()
