"""Did you mean: the nearest of the words that are allowed, and how they are listed."""

from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from difflib import get_close_matches

_LONGEST_WORD = 64  # characters; a comparison takes the time of both lengths multiplied
_MOST_CANDIDATES = 1000
_MOST_COMPARISONS = 5000  # for all words of a manifest: some 50 µs each
_MOST_LISTED = 30
_left: ContextVar[list[int] | None] = ContextVar("comparisons that are left", default=None)
_NO_SYNONYMS: Mapping[str, str] = {}


def closest(
    word: str, candidates: Iterable[str], *, synonyms: Mapping[str, str] = _NO_SYNONYMS
) -> str | None:
    """The candidate that was probably meant, or None; case counts for nothing.

    `synonyms` (lower case → candidate) are words of other systems that no likeness of letters would
    find. Words of more than 64 characters are not compared, nor more than a thousand candidates, nor
    anything once the comparisons of `bounded_suggestions` are used up.
    """
    left = _left.get()
    if left is not None and left[0] <= 0:
        return None
    by_lower = {candidate.lower(): candidate for candidate in candidates}
    lower = word.lower()
    meant = synonyms.get(lower)
    if meant is not None and meant.lower() in by_lower:
        return meant
    if lower in by_lower:
        return by_lower[lower]
    near = [candidate for candidate in by_lower if _may_be_like(lower, candidate)][:_MOST_CANDIDATES]
    if left is not None:
        left[0] -= len(near)
    found = get_close_matches(lower, near, n=1, cutoff=0.6)
    return by_lower[found[0]] if found else None


@contextmanager
def bounded_suggestions() -> Generator[None]:
    """Within it, few enough words are compared that a text of nothing but faults is checked in a second.

    The first faults get their suggestions, and those after them none.
    """
    token = _left.set([_MOST_COMPARISONS])
    try:
        yield
    finally:
        _left.reset(token)


def _may_be_like(word: str, candidate: str) -> bool:
    """Whether the lengths allow a ratio of 0.6, as difflib counts."""
    shorter, longer = sorted((len(word), len(candidate)))
    return longer <= _LONGEST_WORD and 2 * shorter >= 0.6 * (shorter + longer)


def did_you_mean(
    word: str, candidates: Iterable[str], *, synonyms: Mapping[str, str] = _NO_SYNONYMS
) -> str | None:
    """`did you mean "pods"?`, or None."""
    found = closest(word, candidates, synonyms=synonyms)
    return None if found is None else f'did you mean "{found}"?'


def listed(names: Iterable[str]) -> str:
    """`a, b and c`, in the order given; `none` for no names, and of very many the first thirty."""
    words = list(names)
    if len(words) > _MOST_LISTED:
        words = [*words[:_MOST_LISTED], f"{len(words) - _MOST_LISTED:,} more"]
    if not words:
        return "none"
    head, last = words[:-1], words[-1]
    return f"{', '.join(head)} and {last}" if head else last
