"""Files of objects, for the sandbox."""

import sys
from collections.abc import Sequence
from pathlib import Path

from declctl.errors import UsageError
from declctl.objects import KubeObject
from declctl.sandbox.documents import read_documents


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
        return sys.stdin.buffer.read()
    try:
        return Path(file).read_bytes()
    except OSError as error:
        reason = (error.strerror or "it can't be read").lower()
        raise UsageError(f"--objects {file}: {reason}; name a YAML file of Kubernetes objects.") from error
