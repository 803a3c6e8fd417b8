"""The states of a reflector, as data. Each names the request that comes next."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Starting:
    """Ask for everything, by a streaming list if the server has them. `quorum` as in Listing."""

    quorum: bool = False


@dataclass(frozen=True, slots=True)
class Streaming:
    """Open a watch that brings everything first (WatchList), and goes on as a watch."""

    quorum: bool = False


@dataclass(frozen=True, slots=True)
class Listing:
    """List everything, page by page, then watch from the version of the list.

    `quorum` asks for the most recent state. Without it, a state is enough that is not older than the version
    that was seen.
    """

    quorum: bool = False


@dataclass(frozen=True, slots=True)
class Watching:
    """Watch from a version."""

    resource_version: str


@dataclass(frozen=True, slots=True)
class BackingOff:
    """Wait `seconds` because of `reason`, then go on with `then`.

    `shared`: the server, or the network, has failed. All watches wait for it together, and go on when it is
    back.
    """

    reason: str
    seconds: float
    then: "State"
    shared: bool = False


State = Starting | Streaming | Listing | Watching | BackingOff
