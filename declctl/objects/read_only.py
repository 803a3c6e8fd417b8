"""Views: an object as a handler reads it, with dictionaries and lists that refuse every write.

A write there would change a copy that is sent nowhere, and would be lost without a word. So it raises
TypeError, at the line that writes. All that is read from a view, in whatever way, is read-only as well.

Both types are real dictionaries and lists: JSON encoders, validators, patterns and comparisons take them as
such. A shallow copy is plain, with read-only values in it; a deep copy and a pickle are plain all through.
Only code that asks for the very type (`type(x) is dict`, `marshal`) can tell, and takes `to_dict()`.

A dictionary makes a value read-only when the value is read, a list makes its elements so when it is made
itself. To do it for a whole pod at once would cost twice what decoding it does, and most readers look at a
few fields. That is why a dictionary overrides each method that gives values, and a list none.
"""

import copy
import functools
from collections.abc import ItemsView, Iterator, ValuesView
from typing import TYPE_CHECKING, Any, NoReturn, SupportsIndex

if TYPE_CHECKING:
    from yaml.representer import SafeRepresenter

# Methods of what is built upon, without the search that `super()` is.
_item = dict[str, Any].__getitem__
_set = dict[str, Any].__setitem__
_get = dict[str, Any].get
_items = dict[str, Any].items
_values = dict[str, Any].values
_keys = dict[str, Any].__iter__

READ_ONLY = (
    "an object is read-only, and a change here would be lost; obj.to_dict() gives a private copy, "
    "which may be changed"
)


def refuse(*_: Any, **__: Any) -> NoReturn:
    """In the place of what changes something. Raises TypeError, which says what to do instead."""
    raise TypeError(READ_ONLY)


def read_only(value: Any) -> Any:
    """A value of JSON that refuses writes; a dictionary or list that is plain is copied for that."""
    kind = type(value)
    return ReadOnlyDict(value) if kind is dict else _list(value) if kind is list else value


class ReadOnlyDict(dict[str, Any]):
    """A dictionary, and all that stands in it, that raises TypeError when somebody writes."""

    __slots__ = ()

    def __getitem__(self, key: str) -> Any:
        # `read_only` written out: calling it would cost as much again.
        value = _item(self, key)
        kind = type(value)
        if kind is dict:
            value = ReadOnlyDict(value)
            _set(self, key, value)
        elif kind is list:
            value = _list(value)
            _set(self, key, value)
        return value

    def get(self, key: str, default: Any = None) -> Any:
        """What stands there; `default` if nothing does."""
        value = _get(self, key, default)
        kind = type(value)
        return self[key] if (kind is dict or kind is list) and value is not default else value

    def items(self) -> ItemsView[str, Any]:  # type: ignore[override] - what a dictionary gives
        """Keys and values, as of any dictionary."""
        for key, value in _items(self):
            kind = type(value)
            if kind is dict:
                _set(self, key, ReadOnlyDict(value))
            elif kind is list:
                _set(self, key, _list(value))
        return _items(self)

    def values(self) -> ValuesView[Any]:  # type: ignore[override] - what a dictionary gives
        """Its values, as of any dictionary."""
        self.items()
        return _values(self)

    def __iter__(self) -> Iterator[str]:
        # `dict(…)`, `{**…}` and `f(**…)` copy past a subclass's methods only where this one is inherited.
        return _keys(self)

    def copy(self) -> dict[str, Any]:
        """A plain dictionary; what stands in it is read-only still."""
        return dict(self)

    def __or__(self, other: Any) -> Any:
        return dict(self) | other

    def __copy__(self) -> dict[str, Any]:
        return dict(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> dict[str, Any]:
        return _plain(self, memo)

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Any, ...]:
        return dict, (dict(self),)

    fromkeys = dict.fromkeys  # type: ignore[assignment] - what it makes is plain
    __setitem__ = __delitem__ = __ior__ = refuse  # type: ignore[assignment]
    clear = pop = popitem = setdefault = update = refuse  # type: ignore[assignment]


class ReadOnlyList(list[Any]):
    """A list that raises TypeError when somebody writes; made by `read_only`, as are its elements."""

    __slots__ = ()

    def __copy__(self) -> list[Any]:
        return list(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> list[Any]:
        return _plain(self, memo)

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Any, ...]:
        return list, (list(self),)

    __setitem__ = __delitem__ = __iadd__ = __imul__ = refuse  # type: ignore[assignment]
    append = clear = extend = insert = pop = remove = reverse = sort = refuse  # type: ignore[assignment]


def _list(value: list[Any]) -> ReadOnlyList:
    return ReadOnlyList(
        [
            ReadOnlyDict(each) if (kind := type(each)) is dict else _list(each) if kind is list else each
            for each in value
        ]
    )


def _plain(value: Any, memo: dict[int, Any]) -> Any:
    # `copy.deepcopy` of each text and number would take four times as long.
    kind = type(value)
    if kind is str:
        return value
    if kind is dict or kind is ReadOnlyDict:
        return {key: _plain(each, memo) for key, each in _items(value)}
    if kind is list or kind is ReadOnlyList:
        return [_plain(each, memo) for each in value]
    return copy.deepcopy(value, memo)


@functools.cache
def teach_yaml() -> None:
    """Let PyYAML write both types as it writes dictionaries and lists: it looks for the very type.

    It costs the import of yaml (30 ms) the first time, and nothing after that.
    """
    from yaml.representer import SafeRepresenter  # late: `import declctl` does without yaml

    teach(SafeRepresenter)


def teach(representer: "type[SafeRepresenter]") -> None:
    """Let a class of PyYAML's representers, and all that derive from it, write both types."""
    # A writer with a table of its own has a copy of the one it inherits from.
    table = representer.__dict__.get("yaml_representers")
    if table is not None:
        representer.add_representer(ReadOnlyDict, lambda to, data: to.yaml_representers[dict](to, data))
        representer.add_representer(ReadOnlyList, lambda to, data: to.yaml_representers[list](to, data))
    for each in representer.__subclasses__():
        teach(each)
