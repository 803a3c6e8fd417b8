r"""How large an answer of a server may be: every limit on what is held of one, in one place.

A limit is for what has to be held before it can be used, never for what is used as it comes: a LIST of
a gigabyte is read item by item, and its size is not limited. etcd takes requests of 1.5 MiB by default,
and up to some 3 MiB where it is configured so; JSON may need six bytes for one of them (`\u0001`).
"""

OBJECT_BYTES = 32 * 1024 * 1024
"""One object: an item of a LIST, or a line of a WATCH with its event."""

BODY_BYTES = 128 * 1024 * 1024
"""A whole answer that is neither a LIST nor a WATCH of a source: discovery, one object, OpenAPI."""

LIST_BYTES = 256 * 1024 * 1024
"""A LIST that is not written as API servers write it, so that it is decoded when all of it is here."""

ERROR_BYTES = 1024 * 1024
"""The body of an answer that is no success; what is longer is cut."""

CHUNK_HEADER_BYTES = 4096
"""The size and the extensions of one chunk (RFC 9112, 7.1); servers write ten bytes."""

MESSAGE_CHARACTERS = 4096
"""The message of a Status, as errors and logs show it; what is longer is cut."""

RETRY_AFTER_SECONDS = 300.0
"""The longest wait that a server may ask for (Retry-After); one that asks for more is asked again then."""


def in_mebibytes(count: int) -> str:
    """A limit, as messages write it: `32 MiB`."""
    return f"{count // (1024 * 1024)} MiB" if count >= 1024 * 1024 else f"{count} bytes"
