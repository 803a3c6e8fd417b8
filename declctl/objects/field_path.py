"""Field paths: where in an object a value stands.

`spec.nodeName`, `spec.containers[*].image`, `metadata.labels[app.kubernetes.io/name]`,
`status.conditions[0].type`. In brackets, a key that holds a dot or a slash, as keys of labels do, needs no
quotes.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast


class Wildcard:
    """The step `[*]`: every element of a list, or every value of a map."""

    def __repr__(self) -> str:
        return "[*]"


ALL: Final = Wildcard()
Step = str | int | Wildcard

_TOKEN = re.compile(
    r"""\[\*\]
      | \[(?P<index>\d+)\]
      | \[(?P<bare>[A-Za-z0-9_-]*[./][A-Za-z0-9_./-]*)\]
      | \[(?P<quote>['"])(?P<quoted>[^'"\]]+)(?P=quote)\]
      | (?P<name>[A-Za-z_$][\w$-]*)""",
    re.VERBOSE,
)
_DOTTED_KEY = re.compile(
    r"\.?(?P<map>metadata\.(?:labels|annotations))\.(?P<key>[\w-]*[./][\w./-]*)", re.ASCII
)


class FieldPathError(ValueError):
    """The text is no field path; `column` is the offset (from 0) at which it stops being one.

    `suggestion` is what to write instead, where that is known.
    """

    def __init__(self, message: str, column: int, *, suggestion: str | None = None) -> None:
        super().__init__(message)
        self.column = column
        self.suggestion = suggestion


@dataclass(frozen=True, slots=True)
class FieldPath:
    """A parsed path; equal paths read the same place, however they were written."""

    steps: tuple[Step, ...]

    @classmethod
    def parse(cls, text: str) -> "FieldPath":
        """The path that `text` writes; raises FieldPathError with the column of the fault."""
        _refuse_dotted_key(text)
        steps: list[Step] = []
        at = 1 if text.startswith(".") else 0
        while at < len(text):
            if steps and text[at] == ".":
                at += 1
            elif steps and text[at] != "[":
                raise FieldPathError(f"expected '.' or '[' at {text[at:]!r}", at)
            token = _TOKEN.match(text, at)
            if token is None:
                raise FieldPathError(_complaint(text, at), at)
            steps.append(_step(token))
            at = token.end()
        if not steps or text.endswith("."):
            raise FieldPathError("a field path names at least one field, such as spec.nodeName", len(text))
        return cls(tuple(steps))

    def values(self, obj: Mapping[str, Any]) -> tuple[str, ...]:
        """The scalars at this path, as strings (`true`, `3`).

        Empty where there are none. Lists at the end are read through.
        """
        return tuple(text for found in self.find(obj) for text in scalars(found))

    def find(self, obj: Any) -> Iterator[Any]:
        """Whatever stands at this path, once for each match."""
        yield from _walk(obj, self.steps)

    def remove_from(self, obj: Any) -> None:
        """Delete the field from a mutable object; nothing happens where it is absent."""
        for parent in _walk(obj, self.steps[:-1]):
            last = self.steps[-1]
            if isinstance(parent, dict):
                if last is ALL:
                    parent.clear()
                else:
                    cast("dict[Any, Any]", parent).pop(last, None)
            elif isinstance(parent, list):
                _remove_element(cast("list[Any]", parent), last)

    def __str__(self) -> str:
        text = ""
        for step in self.steps:
            if isinstance(step, str) and re.fullmatch(r"[A-Za-z_$][\w$-]*", step):
                text += f".{step}" if text else step
            elif isinstance(step, str):
                text += f"['{step}']"
            else:
                text += "[*]" if isinstance(step, Wildcard) else f"[{step}]"
        return text


def _refuse_dotted_key(text: str) -> None:
    """Labels and annotations are texts: what has dots below them is meant as one key."""
    found = _DOTTED_KEY.fullmatch(text)
    if found is not None:
        raise FieldPathError(
            f"the key {found['key']!r} has to stand in brackets, as it holds dots or slashes",
            found.start("key"),
            suggestion=f"write {found['map']}['{found['key']}']",
        )


def scalars(found: Any) -> Iterator[str]:
    """The scalar or the scalars of a list, as strings."""
    if isinstance(found, bool):
        yield "true" if found else "false"
    elif isinstance(found, str):
        yield found
    elif isinstance(found, int | float):
        yield str(found)
    elif isinstance(found, list):
        for element in cast("list[Any]", found):
            if not isinstance(element, list | dict):
                yield from scalars(element)


def _walk(obj: Any, steps: tuple[Step, ...]) -> Iterator[Any]:
    if not steps:
        yield obj
        return
    step, rest = steps[0], steps[1:]
    if isinstance(obj, Mapping):
        fields = cast("Mapping[Any, Any]", obj)
        if isinstance(step, Wildcard):
            for value in fields.values():
                yield from _walk(value, rest)
        elif step in fields:
            yield from _walk(fields[step], rest)
    elif isinstance(obj, list):
        elements = cast("list[Any]", obj)
        if isinstance(step, Wildcard):
            for element in elements:
                yield from _walk(element, rest)
        elif isinstance(step, int) and step < len(elements):
            yield from _walk(elements[step], rest)


def _remove_element(elements: list[Any], step: Step) -> None:
    if isinstance(step, Wildcard):
        elements.clear()
    elif isinstance(step, int) and step < len(elements):
        del elements[step]


def _step(token: re.Match[str]) -> Step:
    if token["name"]:
        return token["name"]
    if token["bare"] or token["quoted"]:
        return token["bare"] or token["quoted"]
    return int(token["index"]) if token["index"] else ALL


def _complaint(text: str, at: int) -> str:
    rest = text[at:]
    if rest.startswith("["):
        return f"{rest!r} is neither [*], [0] nor ['a-key']"
    return f"expected a field name at {rest!r}" if rest else "expected a field name at the end"
