"""Two objects in, the fields that differ out. Pure.

Items of lists that have names (containers, ports, volumes) or types (conditions) are compared by them, so
that an item that moved is not a change, and an item that is new doesn't change those behind it.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

Json = Any
Path = tuple[str, ...]

_IDENTITIES: Final = ("name", "type", "key", "uid", "ip")
_RANKS: Final = ("spec", "data", "metadata", "status")


class _Unset:
    """Where a field is not there; prints as such."""

    def __repr__(self) -> str:
        return "unset"


UNSET: Final = _Unset()


class Difference(NamedTuple):
    """One field; `old` or `new` is UNSET where it is not there."""

    path: Path
    old: Json
    new: Json


def differences(
    old: Mapping[str, Json], new: Mapping[str, Json], *, ignore: Sequence[Path] = ()
) -> list[Difference]:
    """The fields that differ: what is wanted (`spec`, `data`) before what is (`status`), then as they stand.

    What is below a path of `ignore` is left out; `[*]` there stands for any item.
    """
    found = [one for one in _between((), old, new) if not any(_below(one.path, prefix) for prefix in ignore)]
    return sorted(found, key=lambda one: _rank(one.path))


def parse_path(text: str) -> Path:
    """`spec.containers[*].image` and `metadata.labels[app.kubernetes.io/name]` as the names on the way."""
    steps: list[str] = []
    rest = text
    while rest:
        if rest.startswith("["):
            inner, _, rest = rest[1:].partition("]")
            steps.append(f"[{inner}]")
        else:
            ends = [end for end in (rest.find("."), rest.find("[")) if end >= 0]
            end = min(ends, default=len(rest))
            steps.append(rest[:end])
            rest = rest[end:]
        rest = rest.removeprefix(".")
    return tuple(step for step in steps if step)


def written(path: Path) -> str:
    """A path as people write it."""
    text = ""
    for step in path:
        text += step if step.startswith("[") or not text else f".{step}"
    return text


def _between(path: Path, old: Json, new: Json) -> Iterator[Difference]:
    if old == new:
        return
    pair = _as_mappings(old, new)
    if pair is None:
        yield Difference(path, old, new)
        return
    before, after = pair
    for step in dict.fromkeys([*after, *before]):
        yield from _between((*path, step), before.get(step, UNSET), after.get(step, UNSET))


def _as_mappings(old: Json, new: Json) -> tuple[Mapping[str, Json], Mapping[str, Json]] | None:
    """Both sides by step, if one can look into them; None for values, and for what has another shape now."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        return _steps(old), _steps(new)
    if isinstance(old, list) and isinstance(new, list):
        names = (name for name in _IDENTITIES if _identifies(name, old) and _identifies(name, new))
        if (name := next(names, None)) is not None:
            return _by(name, old), _by(name, new)
        if len(old) == len(new) and all(isinstance(item, Mapping) for item in [*old, *new]):
            return _numbered(old), _numbered(new)
    return None


def _steps(mapping: Mapping[str, Json]) -> dict[str, Json]:
    """A name that holds dots or slashes, as labels do, stands in brackets."""
    return {f"[{name}]" if "." in name or "/" in name else name: value for name, value in mapping.items()}


def _identifies(name: str, items: list[Json]) -> bool:
    values = [item.get(name) if isinstance(item, Mapping) else None for item in items]
    return all(isinstance(value, str) for value in values) and len(set(values)) == len(values)


def _by(name: str, items: list[Json]) -> dict[str, Json]:
    return {f"[{item[name]}]": item for item in items}


def _numbered(items: list[Json]) -> dict[str, Json]:
    return {f"[{number}]": item for number, item in enumerate(items)}


def _below(path: Path, prefix: Path) -> bool:
    if len(path) < len(prefix):
        return False
    pairs = zip(path, prefix, strict=False)
    return all(step == wanted or (wanted == "[*]" and step.startswith("[")) for step, wanted in pairs)


def _rank(path: Path) -> int:
    return _RANKS.index(path[0]) if path and path[0] in _RANKS else 1
