"""`declctl generate crd`: the CustomResourceDefinitions of classes, as YAML."""

from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import typer

from declctl.cli.generate.objects import rendered
from declctl.cli.options import checked
from declctl.cli.report import count, show_faults
from declctl.cli.terminal import line, print_or_write
from declctl.errors import UsageError
from declctl.hooks.bundle import Bundle, closure
from declctl.kit.files import shown
from declctl.manifest import Diagnostic
from declctl.manifest.diagnostics import in_order
from declctl.manifest.values import EntryPoint, parse_entry_point
from declctl.runtime.checking.check import import_definitions
from declctl.runtime.checking.declaration import Fault

IMPORT_SECONDS: Final = 30.0
"""The time limit of the import, as reload.preflightTimeout has it by default."""


def show_definitions(classes: Sequence[str], *, folder: Path, output: Path | None) -> None:
    """Print the definitions of classes such as `models:Preview`, or write them to a file.

    Their modules are looked for in `folder`, then among installed packages, and are imported in a child
    process. Raises typer.Exit for faults of the classes, which are printed on stderr, and UsageError.
    """
    entries = [checked(partial(parse_entry_point, needs="class"), each, "CLASS") for each in classes]
    try:
        bundle = closure(
            folder, [each.module for each in entries], display=shown(folder), folder=folder.absolute()
        )
    except OSError as error:
        raise UsageError(f"{shown(folder)} can't be read: {error.strerror or error}") from error
    definitions, faults = import_definitions(bundle, entries, timeout=IMPORT_SECONDS)
    if faults:
        found = in_order(_located(faults, bundle, entries))
        show_faults(found)
        if any(each.severity == "error" for each in found):
            line(count(found), err=True)
            raise typer.Exit(1)
    print_or_write(rendered(definitions), output)


def _located(faults: Iterable[Fault], bundle: Bundle, entries: Sequence[EntryPoint]) -> Iterable[Diagnostic]:
    """The faults as diagnostics; one without a place is that of the command line."""
    for fault in faults:
        file = fault.file or str(entries[0])
        source = (bundle.source(file) or "").splitlines()
        line_number = fault.line or 1
        yield Diagnostic(
            file,
            line_number,
            fault.column or 1,
            fault.code,
            fault.message,
            fault.suggestion,
            fault.severity,
            source[line_number - 1] if line_number <= len(source) else None,
        )
