"""Read-only dictionaries and lists, of which the objects of handlers consist.

A write would change a copy that is sent nowhere. So it raises TypeError at the line that writes. All values
that are read from a view are read-only, too.

Both types are subclasses of dict and list, so that JSON encoders, validators, `match` and comparisons accept
them. A shallow copy is plain and has read-only values; a deep copy and a pickle are plain at every level.
Code that requires the exact type (`type(x) is dict`, `marshal`) needs `to_dict()`.

A dictionary converts a value when the value is read, a list converts its elements when the list is made.
Converting a whole pod would take twice the time of decoding it, and most readers read a few fields. Therefore
the dictionary overrides every method that returns values, and the list overrides none of them.
"""

import copy
import functools
from collections.abc import ItemsView, Iterator, ValuesView
from typing import TYPE_CHECKING, Any, NoReturn, SupportsIndex

if TYPE_CHECKING:
    from yaml.representer import SafeRepresenter

# The methods of dict, without the cost of `super()`.
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
    """Replaces every method that writes. Raises TypeError with the alternative."""
    raise TypeError(READ_ONLY)


def read_only(value: Any) -> Any:
    """The read-only form of a JSON value: a copy of a plain dictionary or list, else the value itself."""
    kind = type(value)
    return ReadOnlyDict(value) if kind is dict else _list(value) if kind is list else value


class ReadOnlyDict(dict[str, Any]):
    """A dictionary whose writing methods raise TypeError; the values in it are read-only, too."""

    __slots__ = ()

    def __getitem__(self, key: str) -> Any:
        # `read_only` is inlined: a call would double the cost.
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
        """The value of a key; `default` if it is missing."""
        value = _get(self, key, default)
        kind = type(value)
        return self[key] if (kind is dict or kind is list) and value is not default else value

    def items(self) -> ItemsView[str, Any]:  # type: ignore[override] - what a dictionary gives
        """The keys and values."""
        for key, value in _items(self):
            kind = type(value)
            if kind is dict:
                _set(self, key, ReadOnlyDict(value))
            elif kind is list:
                _set(self, key, _list(value))
        return _items(self)

    def values(self) -> ValuesView[Any]:  # type: ignore[override] - what a dictionary gives
        """The values."""
        self.items()  # converts all of them
        return _values(self)

    def __iter__(self) -> Iterator[str]:
        # Overridden, so that `dict(…)`, `{**…}` and `f(**…)` call the methods above: they bypass them
        # otherwise.
        return _keys(self)

    def copy(self) -> dict[str, Any]:
        """A plain dictionary with the same read-only values."""
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
    """A list whose writing methods raise TypeError. `read_only` makes it, and converts its elements."""

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
    # `copy.deepcopy` of each string and number would take four times as long.
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
    """Let PyYAML write both types as dictionaries and lists. PyYAML looks types up by identity.

    The first call imports yaml (30 ms); further calls have no effect.
    """
    from yaml.representer import SafeRepresenter  # late: `import declctl` does without yaml

    teach(SafeRepresenter)


def teach(representer: "type[SafeRepresenter]") -> None:
    """Let a class of PyYAML's representers, and all that derive from it, write both types."""
    # A representer class with a table of its own has a copy of the inherited table.
    table = representer.__dict__.get("yaml_representers")
    if table is not None:
        representer.add_representer(ReadOnlyDict, lambda to, data: to.yaml_representers[dict](to, data))
        representer.add_representer(ReadOnlyList, lambda to, data: to.yaml_representers[list](to, data))
    for each in representer.__subclasses__():
        teach(each)
