"""Did you mean: the nearest of the words that are allowed, and how they are listed."""

from collections.abc import Iterable, Mapping
from difflib import get_close_matches

_NO_SYNONYMS: Mapping[str, str] = {}


def closest(
    word: str, candidates: Iterable[str], *, synonyms: Mapping[str, str] = _NO_SYNONYMS
) -> str | None:
    """The candidate that was probably meant, or None; case counts for nothing.

    `synonyms` (lower case → candidate) are words of other systems that no likeness of letters would
    find.
    """
    by_lower = {candidate.lower(): candidate for candidate in candidates}
    lower = word.lower()
    meant = synonyms.get(lower)
    if meant is not None and meant.lower() in by_lower:
        return meant
    found = get_close_matches(lower, by_lower, n=1, cutoff=0.6)
    return by_lower[found[0]] if found else None


def did_you_mean(
    word: str, candidates: Iterable[str], *, synonyms: Mapping[str, str] = _NO_SYNONYMS
) -> str | None:
    """`did you mean "pods"?`, or None."""
    found = closest(word, candidates, synonyms=synonyms)
    return None if found is None else f'did you mean "{found}"?'


def listed(names: Iterable[str]) -> str:
    """`a, b and c`, in the order given; `none` for no names."""
    words = list(names)
    if not words:
        return "none"
    head, last = words[:-1], words[-1]
    return f"{', '.join(head)} and {last}" if head else last
