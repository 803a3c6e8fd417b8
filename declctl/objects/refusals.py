"""The texts of refused requests: what RBAC, a validation or the owner of a field says, in a sentence.

A cause is an entry of `details.causes` of a Status.
"""

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

_MOST_CAUSES: Final = 3  # of one sentence
_MOST_CHARACTERS: Final = 300  # of one cause, and of a message without causes
_MANAGER: Final = re.compile(r'conflict with "((?:[^"\\]|\\.)*)"')
_ACCOUNT: Final = re.compile(r'User "system:serviceaccount:([^":]+):([^":]+)" cannot ')


def granting_command(message: str) -> str | None:
    """The command that gives the ServiceAccount of a refused request the rights of its manifest.

    None if the message is not one of RBAC, or the user is no ServiceAccount: their rights have other owners.
    """
    found = _ACCOUNT.search(message)
    if found is None:
        return None
    namespace, name = found.groups()
    return (
        f"declctl generate rbac MANIFEST --namespace {namespace} --name {name} | "
        "kubectl apply --server-side -f -"
    )


class RefusalCause(NamedTuple):
    """One cause of a refusal, such as `FieldValueInvalid`; a text is empty if the server has not sent it."""

    reason: str
    message: str
    field: str


def invalid_sentence(message: str, causes: Sequence[RefusalCause]) -> str:
    """What is invalid (422), in one sentence: an API server adds whole values, and differences of objects.

    A value is shown as a whole or not at all, so that values of Secrets are still recognized.
    """
    what, found, _ = message.partition(" is invalid: ")
    if not causes or not found:
        return _excerpt(message)
    shown = [_shown(cause) for cause in causes[:_MOST_CAUSES]]
    more = len(causes) - len(shown)
    return f"{_excerpt(what)} is invalid: {'; '.join(shown)}" + (f"; and {more} more" if more else "")


def field_owners(causes: Sequence[RefusalCause]) -> list[tuple[str, str]]:
    """The fields of an apply without force that others own, each with a manager. Empty for other refusals."""
    return [
        (cause.field, "" if (found := _MANAGER.search(cause.message)) is None else found[1])
        for cause in causes
        if cause.reason == "FieldManagerConflict"
    ]


def conflict_sentence(owners: Sequence[tuple[str, str]]) -> str:
    """The conflict of an apply without force, in one sentence."""
    shown = ", ".join(f"{field} ({manager})" for field, manager in owners[:_MOST_CAUSES])
    more = len(owners) - _MOST_CAUSES
    others = f" and {more} more" if more > 0 else ""
    return (
        f"other field managers own what the apply would change: {shown}{others}; leave these fields out, or "
        "apply with force"
    )


def _shown(cause: RefusalCause) -> str:
    line = cause.message.strip().partition("\n")[0]  # what follows is a difference of two objects
    if len(line) > _MOST_CHARACTERS:
        kind, _, rest = line.partition(": ")
        line = f"{kind}: …: {_excerpt(rest.rpartition(': ')[2])}"
    return f"{cause.field}: {line}" if cause.field else line


def _excerpt(text: str) -> str:
    """The beginning of a text, on one line."""
    short = " ".join(text[: 4 * _MOST_CHARACTERS].split())[:_MOST_CHARACTERS].rstrip()
    return short + ("…" if len(text) > _MOST_CHARACTERS else "")
