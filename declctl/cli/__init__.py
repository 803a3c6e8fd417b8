"""The command line: parse, call, print, exit status.

A command decides nothing that a program could want too: what it does is done by the rooms below, and
everything heavier than an argument is imported inside the command that needs it, so that `declctl
version` answers at once. Errors become sentences and exit statuses in one place, `main`.
"""

from declctl.cli.main import main

__all__ = ["main"]
