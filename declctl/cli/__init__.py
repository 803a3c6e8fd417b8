"""The command line: parse, call, print, exit status.

The rooms below do the work of a command, so that programs can do the same. `app` imports the module of a
command when it is called, so that `declctl --help` and shell completion load only the parser. `main` turns
errors into sentences and exit statuses.
"""

from declctl.cli.main import main

__all__ = ["main"]
