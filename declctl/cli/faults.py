"""Located faults, shown to a person."""

import sys
from collections.abc import Sequence

from declctl.cli.terminal import has_colour, line, painted
from declctl.errors import Located
from declctl.manifest import Diagnostic, render_text
from declctl.manifest.codes import how_to_explain


def show_faults(faults: Sequence[Located]) -> None:
    """Write faults to stderr, each with its source line, a caret and the help."""
    located = [fault for fault in faults if isinstance(fault, Diagnostic)]
    others = [fault for fault in faults if not isinstance(fault, Diagnostic)]
    painted(render_text(located, color=has_colour(sys.stderr)), err=True)
    for fault in others:
        line(str(fault), err=True)


def count(faults: Sequence[Diagnostic]) -> str:
    """How many errors and warnings there are, and how to read more about them."""
    errors = sum(fault.severity == "error" for fault in faults)
    parts = [_number(errors, "error"), _number(len(faults) - errors, "warning")]
    counted = " and ".join(part for part in parts if part)
    if not counted:
        return "no faults"
    codes = list(dict.fromkeys(fault.code for fault in faults))
    told = "tells more about it" if len(codes) == 1 else "tells more about the first code"
    return f"{counted}; {how_to_explain(codes[0])} {told}"


def _number(number: int, word: str) -> str:
    return f"{number} {word}{'s' * (number > 1)}" if number else ""
