"""The one place where errors become sentences and exit statuses.

0 done; 1 the user's input or a handler failed; 2 usage or no cluster; 3 internal error, with a request to
report it.
"""

import gc
import os
import sys
from collections.abc import Sequence
from enum import IntEnum
from typing import NoReturn

from declctl.errors import ApiError, DeclctlError, Located, ManifestErrors, UsageError


class ExitStatus(IntEnum):
    """The exit statuses of the contract."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    INTERNAL = 3


_REPORT = (
    "This is a fault in declctl, not in your manifest or handlers. Please report it with the traceback above "
    "and the output of `declctl version`."
)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command that `arguments` (by default the process's) name, and exit with its status."""
    gc.disable()  # what imports make is not garbage: looking for it costs a tenth of a short command's time
    sys.exit(status_of(arguments))


def status_of(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status; raises nothing but what ends the process anyway."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    try:
        status = _run(given)
    except SystemExit as ended:
        return _flushed(ended.code if isinstance(ended.code, int) else ExitStatus.DONE)
    except Exception as error:  # noqa: BLE001 - the last stop: what nobody expected is shown whole, with whom to tell
        return _told(_only(error))
    return _flushed(status)


def _run(arguments: Sequence[str]) -> int:
    if arguments in (["version"], ["--version"]):
        # Without the parser, which costs ten times as much as the answer.
        from declctl.cli.version import version

        version()
        return ExitStatus.DONE
    from declctl.cli.app import invoke

    return invoke(arguments)


def _told(error: Exception) -> ExitStatus:
    match error:
        case ManifestErrors():
            _show(error.diagnostics)
            return ExitStatus.FAILED
        case UsageError() | ApiError():  # the cluster that is configured doesn't answer, or not to us
            _say(error)
            return ExitStatus.USAGE
        case DeclctlError():
            _say(error)
            return ExitStatus.FAILED
        case BrokenPipeError():
            return _deaf()
        case _:
            return _internal(error)


def _only(error: Exception) -> Exception:
    """What a task group raised, if it was one thing."""
    while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


def _show(diagnostics: Sequence[Located]) -> None:
    from declctl.cli.report import show_faults

    show_faults(diagnostics)


def _say(error: Exception) -> None:
    from declctl.cli.terminal import line

    line(f"declctl: {error}", err=True)


def _internal(error: Exception) -> ExitStatus:
    import traceback
    from textwrap import indent

    from declctl.cli.terminal import block, line

    # Indented: a message of several lines is not taken for ours.
    block(indent("".join(traceback.format_exception(error)), "  "), err=True)
    line(err=True)
    line(f"declctl: {_REPORT}", err=True)
    return ExitStatus.INTERNAL


def _flushed(status: int) -> int:
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        return _deaf()
    return status


def _deaf() -> ExitStatus:
    """Nobody reads any longer (`declctl schema | head`): end quietly, Python's own last flush included."""
    # Python flushes stdout once more at its end, and would complain of the pipe there.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return ExitStatus.DONE
