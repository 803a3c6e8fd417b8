"""The fast way into the cache: the object as nearly all of them are, read in one function.

It is compiled for one projection. An object that differs in any way is left to `Projection`, which reads it
as carefully as it takes; the record that both make of an object is the same.
"""

from collections.abc import Callable

import msgspec

from declctl.decoding.drop_fields import ESCAPED_LETTER, MANAGED_FIELDS, MANAGED_FIELDS_KEY
from declctl.decoding.partial import Interning, PartialDecoder
from declctl.objects.reading import UNREADABLE
from declctl.objects.record import REVISION_BREAK, Known, Layout, Record, nothing_known

_FIELD = MANAGED_FIELDS_KEY + b"["
_MARK = b"-0e-0"  # a value that nobody writes
_MARKED_FIELD = MANAGED_FIELDS_KEY + _MARK
_RAW_MARK, _NOTHING = msgspec.Raw(_MARK), msgspec.Raw()

UsualReader = Callable[[bytes, int, int, Known], Record | None]
"""Reads the object that is `text[start:stop]`; None if it is not as usual. `known` is as for a projection."""


# In one function, because for each object a call costs as much as what would be called.
def usual_reader(  # noqa: C901
    partial: PartialDecoder, interned: Interning, layout: Layout, *, drops_managed_fields: bool
) -> UsualReader:
    """The reader of objects of which nothing but `managedFields` is dropped, and nothing is transformed.

    `managedFields` are taken out before anything is decoded: they need not even be skipped. In their
    place stands a mark, and where the decoder finds that in the metadata, it was those of the metadata.
    What was taken for their value ends at the first bracket that closes. Where that one closes a list in
    the list, or is in a string, what is left has a bracket or a quote too many, and can't be decoded.
    """
    decode = partial.decode
    encode = layout.codec.encode
    known_labels, known_values = interned.known_labels, interned.known_values

    def read(text: bytes, start: int, stop: int, known: Known) -> Record | None:  # noqa: C901, PLR0912
        at = text.find(MANAGED_FIELDS, start, stop) - 1 if drops_managed_fields else -1
        if at < 0:
            head = tail = b""
            around, mark = text[start:stop], _NOTHING
        else:
            end = text.find(b"]", at, stop) + 1
            if (
                not end
                or not text.startswith(_FIELD, at)
                or (text.find(b"\\", start, at) >= 0 and text.find(ESCAPED_LETTER, start, at) >= 0)
            ):
                return None
            head, tail = text[start:at], text[end:stop]
            around, mark = head + _MARKED_FIELD + tail, _RAW_MARK
        try:
            meta, values = decode(around)
        except UNREADABLE:
            return None
        name, namespace, uid, version = meta.name, meta.namespace, meta.uid, meta.resourceVersion
        if not name or not version or REVISION_BREAK in uid:
            return None
        if drops_managed_fields and meta.managedFields != mark:
            return None
        key = f"{namespace}/{name}" if namespace else name
        revision = f"{uid}{REVISION_BREAK}{version}"
        if known is not nothing_known:
            held = known(key)
            if held is not None and held.revision == revision and held.layout is layout:
                return held
        if not head:
            plain = around
        elif head.endswith(b","):
            plain = head[:-1] + tail
        elif head.endswith(b"{") and tail.startswith(b","):
            plain = head + tail[1:]
        else:
            return None
        raw_labels = bytes(meta.labels)
        labels = known_labels(raw_labels)
        if labels is None:
            labels = interned.labels(raw_labels)
        same_values = known_values(values)
        if same_values is None:
            same_values = interned.values(values)
        return Record(key, revision, labels, same_values, encode(plain), layout)

    return read
