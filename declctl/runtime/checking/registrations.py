"""What an import registers in the process, beyond its own modules."""

import atexit
import logging
import weakref

import msgspec


class Registrations(msgspec.Struct, frozen=True):
    """What an import has registered in the process that does not show whose it is.

    `handlers` are of the root logger. `at_exit` says that functions were registered with `atexit`, which can
    be counted, and not looked at.
    """

    handlers: tuple[weakref.ref[logging.Handler], ...] = ()
    at_exit: bool = False

    @property
    def attached(self) -> list[logging.Handler]:
        """The handlers that the root logger still has."""
        there = logging.getLogger().handlers
        return [handler for made in self.handlers if (handler := made()) is not None and handler in there]


class RegistrationWatch:
    """Finds out what is registered from now on until `registrations`. Others may register, too."""

    def __init__(self) -> None:
        self._handlers = tuple(logging.getLogger().handlers)
        self._at_exit = _registered_at_exit()

    def registrations(self) -> Registrations:
        """What has come since."""
        new = [handler for handler in logging.getLogger().handlers if handler not in self._handlers]
        return Registrations(tuple(map(weakref.ref, new)), _registered_at_exit() > self._at_exit)


def _registered_at_exit() -> int:
    """How many functions Python calls at its end; 0 where it does not say so."""
    count = getattr(atexit, "_ncallbacks", None)
    return count() if count is not None else 0
