"""YAML in, objects out: what people and kubectl write, read as Kubernetes reads it (timestamps stay text).

A text is looked at before anything is made of it: how deep it nests, and how many values it has when its
aliases are expanded. A kilobyte of aliases could stand for more than any memory holds.
"""

from typing import Any, Final

import yaml

from declctl.errors import SandboxError

MAX_DEPTH: Final = 100
"""Levels of a document; the schema of a large CustomResourceDefinition has some fifty."""

MAX_VALUES: Final = 2_000_000
"""Keys and values of a text, those of an alias counted each time: some 20,000 large objects."""

_TIMESTAMP: Final = "tag:yaml.org,2002:timestamp"
_Events: type[yaml.CSafeLoader] | type[yaml.SafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(yaml.SafeLoader):
    """YAML without dates: an object's times are strings."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != _TIMESTAMP]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def read_documents(text: str | bytes, *, name: str = "<objects>") -> list[Any]:
    """Every document of a YAML (or JSON) text.

    Raises SandboxError with the place of a fault, counted from 1; also where a document nests more than
    MAX_DEPTH levels, an alias stands for something that it is a part of, or there are more than MAX_VALUES.
    """
    try:
        _Bounds(name).check(text)
        return list(yaml.load_all(text, _Loader))
    except yaml.MarkedYAMLError as error:
        where = _place(name, error.problem_mark)
        raise SandboxError(f"{where}: the YAML can't be read: {error.problem}") from error
    except (yaml.YAMLError, ValueError) as error:
        raise SandboxError(f"{name}: the YAML can't be read: {error}") from error


class _Bounds:
    """Counts the values of a text by its events, as the parser meets them."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._values = 0  # so far, with aliases expanded
        self._weights: dict[str, int] = {}  # by anchor, of those that have ended
        self._open: list[tuple[str | None, int]] = []  # anchors of what is open, with the values before

    def check(self, text: str | bytes) -> None:
        """Raises SandboxError at the first bound that is passed, and YAMLError where it is no YAML."""
        for event in yaml.parse(text, _Events):
            if isinstance(event, yaml.DocumentStartEvent):
                self._weights = {}  # anchors are of one document
            elif isinstance(event, yaml.CollectionEndEvent):
                anchor, before = self._open.pop()
                if anchor is not None:
                    self._weights[anchor] = self._values - before
            elif isinstance(event, yaml.NodeEvent):
                self._count(event)

    def _count(self, event: yaml.NodeEvent) -> None:
        weight = 1
        if isinstance(event, yaml.AliasEvent):
            anchor = event.anchor or ""
            if any(each == anchor for each, _ in self._open):
                self._refuse(event, f"the alias *{anchor[:60]} refers to something that it is a part of")
            weight = self._weights.get(anchor, 1)  # one that is not known is told by the loader
        elif isinstance(event, yaml.CollectionStartEvent):
            self._open.append((event.anchor, self._values))
            if len(self._open) > MAX_DEPTH:
                self._refuse(event, f"it nests more than {MAX_DEPTH} levels deep")
        elif event.anchor is not None:
            self._weights[event.anchor] = 1
        self._values += weight
        if self._values > MAX_VALUES:
            self._refuse(event, f"it has more than {MAX_VALUES:,} values when its aliases are expanded")

    def _refuse(self, event: yaml.NodeEvent, what: str) -> None:
        raise SandboxError(f"{_place(self._name, event.start_mark)}: the YAML can't be read: {what}")


def _place(name: str, mark: Any) -> str:
    return f"{name}:{mark.line + 1}:{mark.column + 1}" if mark else name
