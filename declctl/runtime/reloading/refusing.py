"""Why nothing was done, in words: what was wrong with a bundle, or why there is no way back."""

from declctl.errors import ReloadRefused
from declctl.runtime.checking.check import Checked

_REASONS = {
    "DCL042": "SyntaxError",
    "DCL043": "ImportFailed",
    "DCL044": "ImportFailed",
    "DCL045": "ImportTimeout",
    "DCL087": "RestartRequired",
}


def refusal(checked: Checked) -> ReloadRefused:
    """The errors as one refusal: the first in words, the others counted."""
    errors = checked.errors
    first = errors[0]
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    message = f"{first.file}:{first.line}: {first.message}{more}"
    return ReloadRefused(_REASONS.get(first.code, "Invalid"), message, checked.diagnostics)
