"""The generations that were live before the active one, and to which `declctl rollback` can go back.

A generation is kept as the bytes of its files, and not as loaded code: its code is freed when it is retired.
To go back to it is a reload of these bytes.
"""

from collections.abc import Sequence
from itertools import accumulate

from declctl.kit.files import BUNDLE_BYTES
from declctl.runtime.checking.inputs import Inputs

MOST_KEPT = 3  # generations
KEPT_BYTES = BUNDLE_BYTES  # of all that are kept; the newest one is kept in any case


class EarlierGenerations:
    """The inputs of the newest generations that were replaced. Used on the machinery loop."""

    def __init__(self) -> None:
        self._inputs: dict[int, Inputs] = {}  # by number of the generation, the newest last

    @property
    def numbers(self) -> Sequence[int]:
        """The numbers of the kept generations, the newest last."""
        return tuple(self._inputs)

    def get(self, number: int) -> Inputs | None:
        """The inputs of a generation; None if it is not kept."""
        return self._inputs.get(number)

    def add(self, number: int, inputs: Inputs) -> None:
        """Keep a generation that was replaced just now, and drop old ones that are too many or too large.

        No older generation is kept than one that was dropped: to go back skips none.
        """
        self._inputs[number] = inputs
        newest_first = list(self._inputs.items())[::-1][:MOST_KEPT]
        sizes = accumulate(each.memory for _, each in newest_first)
        kept = 1 + sum(size <= KEPT_BYTES for size in list(sizes)[1:])
        self._inputs = dict(newest_first[:kept][::-1])

    def forget(self, number: int) -> None:
        """Forget a generation that runs again, under another number."""
        self._inputs.pop(number, None)
