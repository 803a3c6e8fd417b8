"""Faults of one peer. The measurement goes on with the other peers."""


class PeerUnavailable(Exception):
    """A peer can't be built or run here; the message has the reason."""


class PeerExited(Exception):
    """A peer ended too early; the message is its last line on standard error."""


class TimeLimitExceeded(Exception):
    """A peer exceeded its time limit; the message has the limit."""


class MemoryLimitExceeded(Exception):
    """A peer exceeded its memory limit; the message has the size."""
