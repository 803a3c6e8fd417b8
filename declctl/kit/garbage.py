"""Code in which no garbage collection begins."""

import gc
import threading
from collections.abc import Generator
from contextlib import contextmanager

_lock = threading.RLock()  # a finalizer may come here, too
_blocks = 0  # that run now
_collects = False  # whether collections were on before the first of them


@contextmanager
def without_collections() -> Generator[None]:
    """Let no garbage collection begin in this block, in any thread.

    For C functions during which nothing else may run. Before Python 3.12, any allocation in them may begin a
    collection, and that may run code and other threads: `ast.parse` fails then (gh-106905), and
    `sys._current_frames` waits for ever (gh-106883).
    """
    global _blocks, _collects  # noqa: PLW0603 - the collector is the process's, too
    with _lock:
        if not _blocks:
            _collects = gc.isenabled()
            gc.disable()
        _blocks += 1
    try:
        yield
    finally:
        with _lock:
            _blocks -= 1
            if not _blocks and _collects:
                gc.enable()
