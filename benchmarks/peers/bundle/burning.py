"""A handler that keeps a core busy from the first change on."""

from counting import burner

from declctl import hookimpl


@hookimpl
def declctl_modified() -> None:
    """Does not return from the first call."""
    burner.burn()
