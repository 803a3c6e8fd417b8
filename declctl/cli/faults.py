"""Located faults, shown to a person."""

import sys
from collections.abc import Sequence

from declctl.cli.terminal import has_colour
from declctl.errors import Located
from declctl.manifest import Diagnostic, render_text


def show_faults(faults: Sequence[Located]) -> None:
    """Write faults to stderr, each with its source line, a caret and the help."""
    located = [fault for fault in faults if isinstance(fault, Diagnostic)]
    others = [fault for fault in faults if not isinstance(fault, Diagnostic)]
    sys.stderr.write(render_text(located, color=has_colour(sys.stderr)))
    sys.stderr.write("".join(f"{fault}\n" for fault in others))


def count(faults: Sequence[Diagnostic]) -> str:
    """How many errors and warnings there are, in words."""
    errors = sum(fault.severity == "error" for fault in faults)
    parts = [_number(errors, "error"), _number(len(faults) - errors, "warning")]
    return " and ".join(part for part in parts if part) or "no faults"


def _number(number: int, word: str) -> str:
    return f"{number} {word}{'s' * (number > 1)}" if number else ""
