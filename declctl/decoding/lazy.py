"""Dictionaries whose values are decoded when somebody reads them.

To Python they are dictionaries, and as read-only as others of a view. C code may look into one past its
methods, as orjson and pydantic do. It finds something else than JSON where a value has not been read, and
where keys are missing, and usually refuses that. So whoever gives one away has to give one with all decoded
instead where its reader raises, or seems not to have read it: `SelectiveReader.ask`.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, SupportsIndex

import msgspec

from declctl.objects.read_only import read_only, refuse

_Raw = msgspec.Raw
_decode = msgspec.json.Decoder().decode
# Methods of what is built upon, without the search that `super()` is.
_item = dict[str, Any].__getitem__
_set = dict[str, Any].__setitem__
_items = dict[str, Any].items
_get = dict[str, Any].get
_clear = dict[str, Any].clear
_update = dict[str, Any].update


def _whole(method: Callable[..., Any], *, walks: bool = True) -> Any:
    """A method that reads, to be called when all keys are there; decoded, if it walks over them."""

    def complete_first(self: "LazyDict", *arguments: Any, **more: Any) -> Any:
        self.read = True
        self.complete()
        if walks:
            self.walked = True
            for key, value in _items(self):
                _set(self, key, read_only(_decode(value) if type(value) is _Raw else value))
        return method(self, *arguments, **more)

    return complete_first


class _Rest:
    """What stands for the keys that were not looked for: no JSON, so that nobody takes the others for all."""

    def __repr__(self) -> str:
        return "…"


_REST = _Rest()


class Source(NamedTuple):
    """Where lazy dictionaries of one field come from.

    `decode` gives an object's fields, of which `field` is one, each value raw. `sought` are the keys that
    are looked for there; empty for all of them.
    """

    field: str
    sought: frozenset[str]
    decode: Callable[[Any], Mapping[str, Mapping[str, Any]]]


class LazyDict(dict[str, Any]):
    """A dictionary of what msgspec left raw, or of a few of its keys; made by `lazily`.

    Who reads a value decodes it, once; who looks for a key that was not looked for before gets all of
    them; who walks over it, compares or copies it decodes all. A copy is plain. Raises
    msgspec.MsgspecError or UnicodeDecodeError where a value can't be decoded, and TypeError where
    somebody writes; values are read-only as well.

    `source` says where it stands. `read` says whether somebody has looked into it, and is None until its
    maker has given it away; `walked` says whether all of it was decoded. `plain` is the JSON of the whole
    object, and None once all keys are there. `also` is a key that was looked for and was not there.
    """

    __slots__ = ("also", "plain", "read", "source", "walked")
    source: Source
    plain: Any
    read: bool | None
    walked: bool
    also: str | None

    def __getitem__(self, key: str) -> Any:
        self.read = True
        value = _get(self, key, _REST)
        if value is _REST:
            self._look_for(key)
            value = _item(self, key)
        if type(value) is _Raw:
            value = _decode(value)
            _set(self, key, value)
        if type(value) is dict or type(value) is list:
            value = read_only(value)
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
        if super().__contains__(key):
            return True
        self._look_for(key)
        return super().__contains__(key)

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Any, ...]:
        return dict, (self.copy(),)  # for `copy`, `deepcopy` and `pickle`

    def keys_read(self) -> frozenset[str]:
        """The keys that were read, or looked for in vain, as far as that is known; all must be there."""
        read = {key for key, value in _items(self) if type(value) is not _Raw}
        return frozenset(read if self.also is None else {*read, self.also})

    def complete(self) -> None:
        """Let all keys be there, in their order."""
        if self.plain is None:
            return
        have = {key: value for key, value in _items(self) if value is not _REST}
        every = {**self.source.decode(self.plain)[self.source.field], **have}
        self.plain = None
        _clear(self)
        _update(self, every)

    def _look_for(self, key: object) -> None:
        if key not in self.source.sought:
            self.also = key if isinstance(key, str) else None
            self.complete()

    # `dict(…)`, `{**…}` and `f(**…)` copy past a subclass's methods only where this one is inherited.
    __iter__ = _whole(dict.__iter__)
    __reversed__ = _whole(dict.__reversed__)
    __eq__ = _whole(dict.__eq__)
    __ne__ = _whole(dict.__ne__)
    __hash__ = None  # type: ignore[assignment]
    __or__ = _whole(dict.__or__)
    __len__ = _whole(dict.__len__, walks=False)
    __repr__ = _whole(dict.__repr__)
    fromkeys = dict.fromkeys  # type: ignore[assignment] - what it makes is plain
    copy = _whole(dict.copy)
    items = _whole(dict.items)
    keys = _whole(dict.keys)
    values = _whole(dict.values)
    __setitem__ = __delitem__ = __ior__ = refuse  # type: ignore[assignment]
    clear = pop = popitem = setdefault = update = refuse  # type: ignore[assignment]


def lazily(source: Source, raw: Mapping[str, Any], plain: Any) -> LazyDict:
    """A lazy dictionary that nobody has, of what was found of a field in the JSON of an object."""
    made = LazyDict(raw)
    made.source = source
    made.read = made.also = None
    made.walked = False
    if source.sought:
        made.plain = plain
        _set(made, _REST, _REST)  # type: ignore[arg-type] - no string: that is the point
    else:
        made.plain = None
    return made
