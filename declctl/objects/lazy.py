"""Dictionaries whose values are decoded when somebody reads them.

To Python they are dictionaries. C code may look into one past its methods, as orjson and pydantic do. It
finds `msgspec.Raw` where a value has not been read, and usually refuses that. So whoever gives one away has
to give a plain one instead where its reader raises, or seems not to have read it: `SelectiveReader.ask`.
"""

from collections.abc import Callable, Mapping
from typing import Any, SupportsIndex

import msgspec

_Raw = msgspec.Raw
_decode = msgspec.json.Decoder().decode
# Methods of what is built upon, without the search that `super()` is.
_item = dict[str, Any].__getitem__
_set = dict[str, Any].__setitem__
_items = dict[str, Any].items


def _walking(method: Callable[..., Any]) -> Any:
    """A method of a dictionary, to be called when all of it is decoded."""

    def walk_first(self: "LazyDict", *arguments: Any) -> Any:
        self.read = self.walked = True
        for key, value in _items(self):
            if type(value) is _Raw:
                _set(self, key, _decode(value))
        return method(self, *arguments)

    return walk_first


class LazyDict(dict[str, Any]):
    """A dictionary of what msgspec left raw; made by `lazily`.

    Who reads a value decodes it, once; who walks over it, compares or copies it decodes all. A copy is
    plain. Raises msgspec.MsgspecError or UnicodeDecodeError where a value can't be decoded.

    `field` is where it stands. `read` says whether somebody has looked into it, and is None until its
    maker has given it away; `walked` says whether all of it was decoded.
    """

    __slots__ = ("field", "read", "walked")
    field: str
    read: bool | None
    walked: bool

    def __getitem__(self, key: str) -> Any:
        self.read = True
        value = _item(self, key)
        if type(value) is _Raw:
            value = _decode(value)
            _set(self, key, value)
        return value

    def get(self, key: str, default: Any = None) -> Any:
        """What stands there; `default` if nothing does."""
        try:
            return self[key]
        except KeyError:
            return default

    def __contains__(self, key: object) -> bool:
        self.read = True
        return super().__contains__(key)

    def __len__(self) -> int:
        self.read = True
        return super().__len__()

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Any, ...]:
        return dict, (self.copy(),)  # for `copy`, `deepcopy` and `pickle`

    # `dict(…)`, `{**…}` and `f(**…)` copy past a subclass's methods only where this one is inherited.
    __iter__ = _walking(dict.__iter__)
    __reversed__ = _walking(dict.__reversed__)
    __eq__ = _walking(dict.__eq__)
    __ne__ = _walking(dict.__ne__)
    __hash__ = None  # type: ignore[assignment]
    __or__ = _walking(dict.__or__)
    __repr__ = _walking(dict.__repr__)
    copy = _walking(dict.copy)
    items = _walking(dict.items)
    keys = _walking(dict.keys)
    pop = _walking(dict.pop)
    popitem = _walking(dict.popitem)
    setdefault = _walking(dict.setdefault)
    values = _walking(dict.values)


def lazily(field: str, raw: Mapping[str, msgspec.Raw]) -> LazyDict:
    """A lazy dictionary that nobody has."""
    made = LazyDict(raw)
    made.field = field
    made.read = None
    made.walked = False
    return made
