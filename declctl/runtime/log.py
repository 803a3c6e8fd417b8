"""The logger that the runtime needs, as a protocol.

The bound loggers of structlog satisfy it; tests use a list.
"""

from typing import Any, Protocol


class Log(Protocol):
    """A structured logger: the event is a sentence for people, the fields are for machines."""

    def info(self, event: str, **fields: Any) -> Any:
        """Log something that went as it should."""
        ...

    def warning(self, event: str, **fields: Any) -> Any:
        """Log something that may need attention."""
        ...

    def error(self, event: str, **fields: Any) -> Any:
        """Log a failure."""
        ...

    def bind(self, **fields: Any) -> "Log":
        """A logger that adds these fields to each line."""
        ...
