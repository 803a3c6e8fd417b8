"""What can go wrong without the rest being worth less."""


class LeftOut(Exception):
    """A peer can't be built or run here; the text says why."""


class Ended(Exception):
    """A peer ended before it was told to; the text is the last it said."""


class TooLong(Exception):
    """A peer took longer than it may; the text says for what."""


class TooLarge(Exception):
    """A peer took more memory than it may; the text says how much."""
