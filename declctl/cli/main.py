"""The entry point: errors become sentences and exit statuses here, and nowhere else.

0 done; 1 the user's input or a handler failed; 2 usage or no cluster; 3 internal error, with a request to
report it.
"""

import gc
import os
import sys
from collections.abc import Sequence
from enum import IntEnum
from typing import NoReturn

from declctl.errors import ApiError, DeclctlError, LocatedFault, ManifestErrors, ReloadRefused, UsageError


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
    gc.disable()  # imports make no garbage: a search for it takes a tenth of a short command's time
    _have_home()
    sys.exit(status_of(arguments, is_process=True))


def status_of(arguments: Sequence[str] | None = None, *, is_process: bool = False) -> int:
    """Run a command and return its exit status. Raises nothing but KeyboardInterrupt and the like.

    With `is_process`, the process ends with the command, and `run` sees to it that it does.
    """
    given = sys.argv[1:] if arguments is None else list(arguments)
    try:
        status = _run(given, is_process=is_process)
    except SystemExit as ended:
        return _flushed(_status_of_exit(ended))
    except Exception as error:  # noqa: BLE001 - the last handler: an unforeseen fault is shown with its traceback
        return _reported(_only(error))
    return _flushed(status)


def _have_home() -> None:
    """Set HOME to / for a user who has none, such as a numeric user whom no /etc/passwd has.

    Most container runtimes do the same. The official client can't be imported otherwise, also by handlers.
    """
    # With HOME or an entry in /etc/passwd, the ~ is gone.
    if os.path.expanduser("~") == "~":  # noqa: PTH111 - Path.home() raises RuntimeError
        os.environ["HOME"] = "/"


def _run(arguments: Sequence[str], *, is_process: bool) -> int:
    if arguments in (["version"], ["--version"]):
        # Without the parser, which takes ten times as long as the answer.
        from declctl.cli.version import version

        version()
        return ExitStatus.DONE
    from declctl.cli.app import invoke

    return invoke(arguments, is_process=is_process)


def _status_of_exit(ended: SystemExit) -> int:
    """The exit status as Python has it: a text, as of `sys.exit("no channel")`, is a fault to be printed."""
    if ended.code is None or isinstance(ended.code, int):
        return ended.code or ExitStatus.DONE
    from declctl.cli.terminal import block

    block(f"{ended.code}\n", err=True)
    return ExitStatus.FAILED


def _reported(error: Exception) -> ExitStatus:
    match error:
        case ManifestErrors():
            _show(error.diagnostics)
            return ExitStatus.FAILED
        case ReloadRefused() if error.diagnostics:  # of a start: the errors stand in files
            _show([each for each in error.diagnostics if getattr(each, "severity", "error") == "error"])
            return ExitStatus.FAILED
        case UsageError() | ApiError():  # no answer of the cluster, or a refusal
            _say(error)
            return ExitStatus.USAGE
        case DeclctlError():
            _say(error)
            return ExitStatus.FAILED
        case BrokenPipeError():
            return _without_reader()
        case _:
            return _internal(error)


def _only(error: Exception) -> Exception:
    """The exception in an ExceptionGroup of one; other exceptions as they are."""
    while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


def _show(diagnostics: Sequence[LocatedFault]) -> None:
    from declctl.cli.report import show_faults

    show_faults(diagnostics)


def _say(error: Exception) -> None:
    from declctl.cli.terminal import line

    line(f"declctl: {error}", err=True)


def _internal(error: Exception) -> ExitStatus:
    import traceback
    from textwrap import indent

    from declctl.cli.terminal import block, line

    # Indented, so that no line of the message looks like a line of declctl.
    block(indent("".join(traceback.format_exception(error)), "  "), err=True)
    line(err=True)
    line(f"declctl: {_REPORT}", err=True)
    return ExitStatus.INTERNAL


def _flushed(status: int) -> int:
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        return _without_reader()
    return status


def _without_reader() -> ExitStatus:
    """The reader of stdout is gone (`declctl schema | head`): end without a message."""
    # Python flushes stdout once more at its end, which would raise again.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return ExitStatus.DONE
