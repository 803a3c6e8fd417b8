"""The states of a reflector, as data. Each says what is asked of the server next."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Starting:
    """Ask for everything, in the best way that the server knows. `quorum` as in Listing."""

    quorum: bool = False


@dataclass(frozen=True, slots=True)
class Streaming:
    """Ask a watch for everything first (WatchList), then let the same watch go on."""

    quorum: bool = False


@dataclass(frozen=True, slots=True)
class Listing:
    """List everything, page by page, then watch from the version of the list.

    `quorum` asks for the most recent state, whatever was seen before: for when the version that was
    seen is of no use.
    """

    quorum: bool = False


@dataclass(frozen=True, slots=True)
class Watching:
    """Watch from a version."""

    resource_version: str


@dataclass(frozen=True, slots=True)
class BackingOff:
    """Wait `seconds` because of `reason`, then go on with `then`."""

    reason: str
    seconds: float
    then: "State"


State = Starting | Streaming | Listing | Watching | BackingOff
