"""Cutting a field out of the bytes of an object, without decoding and encoding the rest."""

_NAME = b"managedFields"
_KEY = b'"managedFields":'
_BACKSLASH = b"\\"
_COMMA = ord(",")
_BEFORE_A_KEY = b"{,"


def cut_managed_fields(raw: bytes, value: bytes) -> tuple[bytes, bool] | None:
    """`raw` without its first field `managedFields`, if that has this value, and whether it is surely it.

    None where the bytes can't be told for certain. What is cut is always one whole field of some
    object, since an unescaped quote begins or ends a JSON string. It is surely the one of the
    metadata if no other field can be: none is spelled the same, none is spelled with escapes.
    """
    name = raw.find(_NAME)
    at, start = name - 1, name + len(_NAME) + 2
    if not raw.startswith(_KEY, at) or raw[at - 1] not in _BEFORE_A_KEY:
        return None
    if value[:1] != b"[" or not raw.startswith(value, start):
        return None
    end = start + len(value)
    # Backwards, because bytes.rfind is twice as fast on needles of this length.
    sure = raw.rfind(_NAME) == name and raw.find(_BACKSLASH, end) < 0 and raw.find(_BACKSLASH, 0, at) < 0
    if raw[end] == _COMMA:
        return raw[:at] + raw[end + 1 :], sure
    return raw[: at - 1 if raw[at - 1] == _COMMA else at] + raw[end:], sure
