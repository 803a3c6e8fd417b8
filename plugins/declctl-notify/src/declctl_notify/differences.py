"""Two states of an object in, the fields that differ out. Pure.

Items of lists are compared by their name or type if all of them have one, so that a condition that moved is
no difference. Values of Secrets are never shown, and neither is what they were compared with.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from declctl_notify.text import hidden, plain_text

Json = Any
Path = tuple[str, ...]

UNSET: Final = "unset"
_IDENTITIES: Final = ("name", "type")
_LONGEST_VALUE: Final = 80
_RANKS: Final = ("spec", "data", "metadata", "status")
_TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")
_SECRET_FIELDS: Final = ("data", "stringData", "metadata.annotations")
_ABSENT: Final = object()


@dataclass(frozen=True, slots=True)
class Difference:
    """One field that differs; `old` and `new` are texts, `unset` where the field is missing.

    `digest` stands for the whole new value, also if `new` is cut or hidden, and is valid in this process. It
    is empty for a time, which differs each time that an object flaps.
    """

    steps: Path
    old: str
    new: str
    digest: str = ""

    @property
    def path(self) -> str:
        """The path as text."""
        return plain_text(_written(self.steps))

    def __str__(self) -> str:
        return f"{self.path}: {self.old} → {self.new}"


def differences(
    old: Mapping[str, Json], new: Mapping[str, Json], *, ignore: Sequence[Path] = ()
) -> list[Difference]:
    """The fields that differ, except those at or below a path of `ignore`: spec and data before status.

    The items of a list without names or types are one value.
    """
    secret = is_secret(new)
    found = [
        one
        for one in _between((), old, new)
        if not any(len(one[0]) >= len(path) and is_same_branch(one[0], path) for path in ignore)
    ]
    found.sort(key=lambda one: _RANKS.index(one[0][0]) if one[0][0] in _RANKS else 1)
    return [_difference(*one, secret=secret) for one in found]


def parse_path(text: str) -> Path:
    """The steps of `spec.containers[*].image` or `metadata.labels[app.kubernetes.io/name]`."""
    return tuple(step for step in re.findall(r"\[[^\]]*\]|[^.\[\]]+", text) if step not in ("", "[]"))


def is_same_branch(path: Path, wanted: Path) -> bool:
    """Whether one of two paths is the other or above it. `[*]` of `wanted` is any item of a list."""
    return all(
        step == other or (other == "[*]" and step.startswith("["))
        for step, other in zip(path, wanted, strict=False)
    )


def is_secret(obj: Mapping[str, Json]) -> bool:
    """Whether an object is a Secret of Kubernetes."""
    return obj.get("kind") == "Secret" and obj.get("apiVersion") == "v1"


def without_secrets(obj: Mapping[str, Json]) -> Mapping[str, Json]:
    """The object; a Secret is copied, with its keys and without its values and annotations' values.

    An annotation may have the whole Secret, as `kubectl.kubernetes.io/last-applied-configuration` does.
    """
    if not is_secret(obj):
        return obj
    copied = _with_hidden(obj, ("data", "stringData"))
    if isinstance(metadata := obj.get("metadata"), Mapping):
        copied["metadata"] = _with_hidden(cast("Mapping[str, Json]", metadata), ("annotations",))
    return copied


def _with_hidden(fields: Mapping[str, Json], names: Sequence[str]) -> dict[str, Json]:
    """A copy in which the maps of these names have no values."""
    copied: dict[str, Json] = dict(fields.items())
    for name in names:
        if name in copied:
            values = copied[name]
            keys = list(cast("Mapping[str, Json]", values)) if isinstance(values, Mapping) else []
            copied[name] = dict.fromkeys(keys, hidden())
    return copied


def _difference(path: Path, old: Json, new: Json, *, secret: bool) -> Difference:
    is_time = isinstance(new, str) and _TIME.fullmatch(new)
    # Python's hash has a secret of the process, so that it tells nothing of a password.
    digest = "" if is_time else f"{hash(UNSET if new is _ABSENT else json.dumps(new, default=str)):x}"
    if secret and _written(path).startswith(_SECRET_FIELDS):
        before, after = (UNSET if value is _ABSENT else hidden() for value in (old, new))
        return Difference(path, before, after, digest)
    return Difference(path, _shown(old), _shown(new), digest)


def _shown(value: Json) -> str:
    if value is _ABSENT:
        return UNSET
    text = " ".join(plain_text(value).split())
    return text if len(text) <= _LONGEST_VALUE else f"{text[: _LONGEST_VALUE - 1]}…"


def _between(path: Path, old: Json, new: Json) -> Iterator[tuple[Path, Json, Json]]:
    if old == new:
        return
    before, after = _fields(old, new), _fields(new, old)
    if before is None or after is None:
        yield path, old, new
        return
    for step in dict.fromkeys([*after, *before]):
        yield from _between((*path, step), before.get(step, _ABSENT), after.get(step, _ABSENT))


def _fields(value: Json, other: Json) -> Mapping[str, Json] | None:
    """The parts of a value by step; None if it is a leaf, or has another shape than `other`."""
    if isinstance(value, Mapping) and isinstance(other, Mapping):
        fields = cast("Mapping[str, Json]", value)
        return {f"[{name}]" if re.search(r"[./\[\]]", name) else name: fields[name] for name in fields}
    if isinstance(value, list) and isinstance(other, list):
        items, others = cast("list[Json]", value), cast("list[Json]", other)
        for name in _IDENTITIES:
            if _identify(name, items) and _identify(name, others):
                return {f"[{item[name]}]": item for item in items}
    return None


def _identify(name: str, items: list[Json]) -> bool:
    """Whether each item has another text under this name."""
    values = [item.get(name) if isinstance(item, Mapping) else None for item in items]
    return all(isinstance(value, str) for value in values) and len(set(values)) == len(values)


def _written(path: Path) -> str:
    return "".join(step if step.startswith("[") or not at else f".{step}" for at, step in enumerate(path))
