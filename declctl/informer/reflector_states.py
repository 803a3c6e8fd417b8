"""The states of a reflector, as data. Each says what is asked of the server next, and why."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Listing:
    """List everything, page by page, then watch from the version of the list.

    `whole` asks for one page only.
    """

    whole: bool = False


@dataclass(frozen=True, slots=True)
class Streaming:
    """Ask a watch for everything first (WatchList), then let the same watch go on."""


@dataclass(frozen=True, slots=True)
class Watching:
    """Watch from a version. `malformed` counts broken answers in a row at this version."""

    resource_version: str
    malformed: int = 0


@dataclass(frozen=True, slots=True)
class BackingOff:
    """Wait, then go on with `then`."""

    seconds: float
    then: "State"


State = Listing | Streaming | Watching | BackingOff
