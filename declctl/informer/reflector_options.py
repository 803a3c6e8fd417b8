"""How a reflector asks: what may be set for one resource (client-go's ReflectorOptions)."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ReflectorOptions:
    """Times are in seconds.

    `idle_timeout`: a watch that says nothing for so long, not even a bookmark, is opened anew.
    `page_size`: objects on a page of a LIST.
    """

    idle_timeout: float = 90.0
    page_size: int = 500


DEFAULT_OPTIONS = ReflectorOptions()
