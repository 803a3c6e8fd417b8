"""Where a thread is in foreign code: what to name when that does not return."""

import sys
import sysconfig
from pathlib import Path
from types import FrameType

_HOST = f"{Path(__file__).resolve().parents[1]}/"
_STANDARD_LIBRARY = f"{sysconfig.get_path('stdlib')}/"
_INSTALLED = "/site-packages/"  # may lie in the folder of the standard library


def foreign_place(thread: int | None) -> str:
    """The function of foreign code that a thread has called first, as `file:line in name`; empty if in none.

    The line is the one that the function is at. `thread` is the identifier of a thread; from any thread.
    """
    # There is no other way to look at a thread.
    frame = None if thread is None else sys._current_frames().get(thread)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    called: FrameType | None = None
    while frame is not None:  # outwards: what foreign code has called in its turn is its own business
        if _is_foreign(frame.f_code.co_filename):
            called = frame
        frame = frame.f_back
    if called is None:
        return ""
    return f"{called.f_code.co_filename}:{called.f_lineno} in {called.f_code.co_name}"


def _is_foreign(file: str) -> bool:
    if file.startswith((_HOST, "<frozen ")):
        return False
    return _INSTALLED in file or not file.startswith(_STANDARD_LIBRARY)
