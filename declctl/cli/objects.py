"""Files of objects, for the sandbox."""

import sys
from collections.abc import Sequence

from declctl.errors import UsageError
from declctl.kit import files as reader
from declctl.objects import KubeObject
from declctl.sandbox.validation import read_documents


def read_objects(files: Sequence[str]) -> list[KubeObject]:
    """Every document of every file, in order; `-` is standard input.

    Raises UsageError for a file that can't be read, and SandboxError with the place of a fault in one.
    """
    documents: list[KubeObject] = []
    for file in files:
        documents += [
            document for document in read_documents(_bytes(file), name=file) if document is not None
        ]
    return documents


def _bytes(file: str) -> bytes:
    if file == "-":
        data = sys.stdin.buffer.read(reader.OBJECTS_BYTES + 1)
        if len(data) <= reader.OBJECTS_BYTES:
            return data
        raise UsageError(f"--objects -: it has more than {reader.OBJECTS_BYTES:,} bytes; load it in parts.")
    try:
        return reader.within(
            reader.READ_SECONDS,
            lambda: reader.read_file(file, most=reader.OBJECTS_BYTES),
            name="declctl-files",
        )
    except OSError as error:
        reason = (error.strerror or "it can't be read").lower()
        raise UsageError(f"--objects {file}: {reason}; name a YAML file of Kubernetes objects.") from error
