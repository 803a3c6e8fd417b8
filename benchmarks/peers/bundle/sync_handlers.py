"""A handler that counts, in a worker thread."""

from counting import counter, listen

from declctl import hookimpl


@hookimpl
def declctl_startup() -> None:
    """Starts the counter once in the life of the process; it survives reloads."""
    listen()


@hookimpl
def declctl_added() -> None:
    """Counts a first notification."""
    counter.added()


@hookimpl
def declctl_modified(obj: object) -> None:
    """Counts a change."""
    counter.changed(obj)
