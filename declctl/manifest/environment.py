"""`${env:NAME}` inside text values: replaced by the variable of the process, `$${` for the plain characters.

Only text is replaced, never keys, and what comes out is text and is not read again. Other schemes
are refused, so that they can get a meaning later.
"""

import re
from collections.abc import Mapping

from declctl.manifest.suggestions import closest

_REFERENCE = re.compile(r"\$\$\{|\$\{(?P<scheme>[A-Za-z][A-Za-z0-9]*):(?P<name>[^{}]*)(?P<end>\}?)")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


class BadReference(ValueError):
    """A reference that can't be replaced; `offset` is where it begins in the text, from 0."""

    def __init__(self, message: str, *, offset: int, suggestion: str) -> None:
        super().__init__(message)
        self.offset = offset
        self.suggestion = suggestion


def has_reference(text: str) -> bool:
    """Whether there is anything to replace."""
    return "${" in text and _REFERENCE.search(text) is not None


def substitute(text: str, environ: Mapping[str, str]) -> str:
    """The text with its references replaced; raises BadReference at the first that can't be."""
    return _REFERENCE.sub(lambda found: _replacement(found, environ), text)


def _replacement(found: re.Match[str], environ: Mapping[str, str]) -> str:
    if found.group() == "$${":
        return "${"
    scheme, name = found["scheme"], found["name"]
    if scheme != "env":
        raise BadReference(
            f'"{scheme}" is not a kind of reference',
            offset=found.start(),
            suggestion=f"write ${{env:NAME}} for a variable, or $${{{scheme}:… for these characters",
        )
    if not found["end"] or not _NAME.fullmatch(name):
        raise BadReference(
            f"{found.group()} is not a whole reference",
            offset=found.start(),
            suggestion="write ${env:NAME}, with the name of an environment variable and a closing brace",
        )
    if name not in environ:
        raise BadReference(
            f"the environment variable {name} is not set",
            offset=found.start(),
            suggestion=_advice(name, environ),
        )
    return environ[name]


def _advice(name: str, environ: Mapping[str, str]) -> str:
    similar = closest(name, environ)
    advice = f"set {name} before you start declctl"
    return f'did you mean "{similar}"? Otherwise {advice}' if similar else advice
