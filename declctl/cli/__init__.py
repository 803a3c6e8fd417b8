"""The command line: parse, call, print, exit status.

A command decides nothing that a program could want too: what it does is done by the rooms below, and
`app` imports the module of a command when it is called, so that `declctl --help` and a shell that completes
a word load the parser alone. Errors become sentences and exit statuses in one place, `main`.
"""

from declctl.cli.main import main

__all__ = ["main"]
