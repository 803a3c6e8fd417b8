"""The source of a manifest: a file, a folder, standard input, or bytes that the caller has read."""

import errno
import re
import sys
from collections.abc import Sequence
from pathlib import Path as FilePath

import msgspec

from declctl import codes
from declctl.errors import ManifestErrors
from declctl.kit import files as reader
from declctl.manifest.diagnostics import Diagnostic, Position, SourceText

_SUFFIXES = (".yaml", ".yml")
_UNPRINTABLE = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class ManifestSource(msgspec.Struct, frozen=True):
    """The names and bytes of one or more files.

    `name` and `data` belong to the first file; `others` are the further files of a folder.
    """

    name: str
    data: bytes
    others: tuple["ManifestSource", ...] = ()

    @classmethod
    def read(cls, manifest: str, *, at: FilePath | None = None) -> "ManifestSource":
        """Reads the MANIFEST of a command line: a file, a folder, or `-` for standard input.

        Messages show `manifest`. The files are read at `at`, by default `manifest` itself: an absolute path
        there stays valid when the current folder changes. Raises ManifestErrors if it can't be read.
        """
        if manifest == "-":
            # Endless input must not be read to its end: one byte beyond the limit is enough to refuse it.
            return cls("<stdin>", sys.stdin.buffer.read(reader.MANIFEST_BYTES + 1))
        path = FilePath(manifest)
        at = path if at is None else at
        if not at.is_dir():
            return _file(path, at)
        files = _folder(path, at)
        if not files:
            message = f"the folder {manifest} holds no YAML file"
            raise ManifestErrors(
                [_unreadable(manifest, message, "name a file, or a folder that holds a *.yaml file")]
            )
        return cls(files[0].name, files[0].data, tuple(files[1:]))

    @classmethod
    def of(cls, files: Sequence[tuple[str, bytes]]) -> "ManifestSource":
        """A source of files that the caller has read: (name, bytes), at least one; several are a folder."""
        (name, data), *others = files
        return cls(name, data, tuple(cls(*other) for other in others))

    @property
    def files(self) -> tuple["ManifestSource", ...]:
        """A source for each file, in order."""
        return (ManifestSource(self.name, self.data), *self.others)

    @property
    def is_folder(self) -> bool:
        """Whether there are several files."""
        return bool(self.others)


def decode(file: ManifestSource) -> SourceText:
    """The text of one file. Raises ManifestErrors if it is too large or not text."""
    if len(file.data) > reader.MANIFEST_BYTES:
        message = f"it has more than {reader.MANIFEST_BYTES:,} bytes, which is the limit for a manifest"
        raise ManifestErrors([_unreadable(file.name, message, "is it the right file?")])
    try:
        source = SourceText(file.name, file.data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        before = SourceText(file.name, file.data[: error.start].decode("utf-8", "replace"))
        message = f"the byte 0x{file.data[error.start]:02x} is not UTF-8"
        position = before.position_of(len(before.text))
        fault = before.fault(codes.UNREADABLE_TEXT, position, message, suggestion="save the file as UTF-8")
        raise ManifestErrors([fault]) from error
    # The YAML parser would refuse the character, too, but its message does not name it.
    if found := _UNPRINTABLE.search(source.text):
        message = f"the character U+{ord(found.group()):04X} is not allowed in YAML"
        position = source.position_of(found.start())
        fault = source.fault(codes.UNREADABLE_TEXT, position, message, suggestion="remove it")
        raise ManifestErrors([fault])
    return source


def _is_manifest(file: FilePath) -> bool:
    return file.suffix in _SUFFIXES and not file.name.startswith(".") and file.is_file()


def _folder(path: FilePath, at: FilePath) -> list[ManifestSource]:
    try:
        names = [file for file in sorted(at.iterdir()) if _is_manifest(file)]
    except OSError as error:
        raise ManifestErrors([_not_read(path, error)]) from error
    files: list[ManifestSource] = []
    size = 0
    for name in names:
        # Checked after each file: a wrong folder may contain any number of files.
        files.append(file := _file(path / name.name, name))
        size += len(file.data)
        if len(files) > reader.MANIFEST_FILES or size > reader.BUNDLE_BYTES:
            message = (
                f"the folder {reader.shown(path)} has more than {reader.MANIFEST_FILES:,} YAML files or "
                f"{reader.BUNDLE_BYTES:,} bytes of YAML"
            )
            advice = "name the file that holds the Controller, or keep it in a folder of its own"
            raise ManifestErrors([_unreadable(reader.shown(path), message, advice)])
    return files


def _file(path: FilePath, at: FilePath) -> ManifestSource:
    try:
        data = reader.read_file(at, most=reader.MANIFEST_BYTES)
    except OSError as error:
        raise ManifestErrors([_not_read(path, error)]) from error
    return ManifestSource(reader.shown(path), data)


def _not_read(path: FilePath, error: OSError) -> Diagnostic:
    reason = (error.strerror or "it can't be read").lower()
    advice = "check the name; a manifest is a file, a folder or - for standard input"
    if error.errno == errno.EFBIG:
        advice = "is it the right file?"
    return _unreadable(reader.shown(path), f"the manifest can't be read: {reason}", advice)


def _unreadable(name: str, message: str, suggestion: str) -> Diagnostic:
    return Diagnostic(name, *Position(1, 1), code=codes.UNREADABLE, message=message, suggestion=suggestion)
