"""What the tests of the sockets share: generations made of texts, and a mark where a fault must show."""

import contextlib
import itertools
from textwrap import dedent

import pytest

from declctl.errors import EntryPointError
from declctl.hooks.bundle import Bundle
from declctl.hooks.loader import GenerationNamespace
from declctl.hooks.registry import PluginRegistry

MARK = "§"  # stands directly before the character at which a fault must be shown
_numbers = itertools.count(100)


def bundle_of(files: dict[str, str], root: str = "app") -> Bundle:
    """A bundle whose files are written down in a test."""
    return Bundle(root, {name: dedent(text).lstrip("\n").encode() for name, text in files.items()})


def without_mark(marked: str) -> tuple[str, tuple[int, int]]:
    """The text without its mark; and the line and the column of the mark."""
    before, _, behind = marked.partition(MARK)
    return before + behind, (before.count("\n") + 1, len(before.rpartition("\n")[2]) + 1)


@pytest.fixture(name="generation")
def _generation():
    """Makes namespaces of files, and closes them in the end."""
    with contextlib.ExitStack() as stack:

        def make(files, *, root="app", number=None):
            namespace = GenerationNamespace(
                next(_numbers) if number is None else number, bundle_of(files, root)
            )
            stack.callback(namespace.close)
            return namespace

        yield make


@pytest.fixture(name="listening")
def _listening(generation):
    """A table in which entry points of some files are registered, and their targets."""

    def make(files, *texts):
        namespace = generation(files)
        table = PluginRegistry(namespace.bundle)
        names = [table.add_entry(text, namespace.resolve(text)) for text in texts]
        return table, [table.target(name) for name in names]

    return make


@pytest.fixture(name="fault")
def _fault(generation):
    """The fault of an entry point; if a file has a mark, the fault must be shown there."""

    def of(files, text):
        plain, place = {}, None
        for name, marked in files.items():
            plain[name], found = without_mark(dedent(marked).lstrip("\n"))
            if MARK in marked:
                place = (f"app/{name}", *found)
        namespace = generation(plain)
        table = PluginRegistry(namespace.bundle)
        with pytest.raises(EntryPointError) as caught:
            table.target(table.add_entry(text, namespace.resolve(text)))
        error = caught.value
        assert (error.file, error.line, error.column) == (place or (None, None, None))
        assert "_declctl_gen" not in error.message
        return error

    return of
