"""Cutting a field out of the bytes of an object, without decoding and encoding the rest.

An unescaped quote begins or ends a JSON string. So `"name":` after a brace or a comma is the key of a
field, whatever strings hold, and a value that is followed by a comma or a brace is a whole one.
"""

MANAGED_FIELDS = b"managedFields"
MANAGED_FIELDS_KEY = b'"managedFields":'
_BACKSLASH = b"\\"
ESCAPED_LETTER = b"\\u00"  # how a letter may be written that could be written as it is; nobody does
_COMMA = ord(",")
_BEFORE_A_KEY = b"{,"
_AFTER_A_VALUE = b",}"


def cut_field(raw: bytes, key: bytes, value: bytes) -> bytes | None:
    """JSON without its first field that has this key and value; None if it has none that is so spelled.

    `key` has its quotes and its colon. What is cut is always one whole field, of whatever object.
    """
    at = raw.find(key)
    while at > 0:
        start = at + len(key)
        end = start + len(value)
        before = raw[at - 1]
        if raw.startswith(value, start) and before in _BEFORE_A_KEY and raw[end] in _AFTER_A_VALUE:
            if raw[end] == _COMMA:
                return raw[:at] + raw[end + 1 :]
            return raw[: at - 1 if before == _COMMA else at] + raw[end:]
        at = raw.find(key, start)
    return None


def cut_managed_fields(raw: bytes, value: bytes) -> tuple[bytes, bool] | None:
    """`raw` without its first field `managedFields` of this value, and whether it is surely the right one.

    None where the bytes can't be told for certain. It is surely the one of the metadata if no other
    field can be: none is spelled the same, none is spelled with escapes.
    """
    cut = cut_field(raw, MANAGED_FIELDS_KEY, value)
    if cut is None:
        return None
    # Backwards, because bytes.rfind is twice as fast on needles of this length.
    return cut, cut.rfind(MANAGED_FIELDS) < 0 and (cut.find(_BACKSLASH) < 0 or cut.rfind(ESCAPED_LETTER) < 0)
