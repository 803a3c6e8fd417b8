"""A handler that counts, in a worker thread."""

from counting import counter, listen

from declctl import hookimpl


@hookimpl
def declctl_startup() -> None:
    """Once in the life of the process: the counter outlives reloads."""
    listen()


@hookimpl
def declctl_added() -> None:
    """A first notification."""
    counter.added()


@hookimpl
def declctl_modified(obj: object) -> None:
    """A change."""
    counter.changed(obj)
