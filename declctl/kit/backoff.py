"""Back-off: the delay before what has failed is tried again."""

import msgspec


class Backoff(msgspec.Struct, frozen=True):
    """Growing delays in seconds: `initial`, then each `factor` times the one before, up to `maximum`.

    It has no state: the caller counts the attempts. Raises ValueError for a negative `initial`, a `maximum`
    below `initial`, or a `factor` below 1.
    """

    initial: float
    maximum: float
    factor: float = 2.0

    def __post_init__(self) -> None:
        if self.initial < 0 or self.maximum < self.initial:
            raise ValueError(
                f"a back-off needs 0 <= initial <= maximum; it has {self.initial:g} s and {self.maximum:g} s"
            )
        if self.factor < 1:
            raise ValueError(f"a back-off's factor is at least 1, so that delays grow; it is {self.factor:g}")

    def delay(self, attempt: int) -> float:
        """The seconds to wait after failed attempt number `attempt`; raises ValueError below 1."""
        if attempt < 1:
            raise ValueError(f"attempts are counted from 1; this is {attempt}")
        try:
            return min(self.maximum, self.initial * self.factor ** (attempt - 1))
        except OverflowError:  # far beyond any maximum
            return self.maximum if self.initial > 0 else 0.0
