"""`declctl version`. Nothing is imported for it but the metadata of the installed package."""

import sys


def version() -> None:
    """Say which declctl this is, and on which Python."""
    from declctl import __version__  # late: it reads the metadata

    python = ".".join(str(part) for part in sys.version_info[:3])
    sys.stdout.write(f"declctl {__version__} (Python {python})\n")
