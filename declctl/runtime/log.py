"""What the runtime needs of a logger.

Structlog's bound loggers have it, and so has a list in a test.
"""

from typing import Any, Protocol


class Log(Protocol):
    """A structured logger: the event is a sentence for people, the fields are for machines."""

    def info(self, event: str, **fields: Any) -> Any:
        """Tell of something that went as it should."""
        ...

    def warning(self, event: str, **fields: Any) -> Any:
        """Tell of something that may want looking at."""
        ...

    def error(self, event: str, **fields: Any) -> Any:
        """Tell of something that failed."""
        ...

    def bind(self, **fields: Any) -> "Log":
        """The same logger with more fields."""
        ...
