"""structlog without rich, which it would load for tracebacks that this program does not print.

Both are installed, as typer needs rich: 52 modules, a twentieth of the start of `declctl run`.
"""

import sys

__all__ = ["structlog"]

_RICH = "rich"
_is_hidden = _RICH not in sys.modules
if _is_hidden:
    sys.modules[_RICH] = None  # pyright: ignore[reportArgumentType]  # as Python documents it: the import fails
try:
    import structlog
finally:
    if _is_hidden:
        del sys.modules[_RICH]
