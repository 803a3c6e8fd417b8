"""structlog, without the pretty tracebacks that it would load rich for.

Nobody here prints those, and they cost a process 6 MB that has nothing else to do. Whoever wants rich imports
it as usual: it is hidden only while structlog looks for it.
"""

import sys

_HIDDEN = "rich"

if _HIDDEN in sys.modules:
    import structlog
else:
    sys.modules[_HIDDEN] = None  # pyright: ignore[reportArgumentType] - what the import system takes for "not there"
    try:
        import structlog
    finally:
        del sys.modules[_HIDDEN]

__all__ = ["structlog"]
