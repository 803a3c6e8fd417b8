"""The generations to which a rollback can go back."""

from types import SimpleNamespace
from typing import Any

import pytest

from declctl.runtime.reloading.earlier import KEPT_BYTES, EarlierGenerations

HALF = KEPT_BYTES // 2


@pytest.mark.guarantee("G21")
@pytest.mark.parametrize(
    ("sizes", "kept"),
    [
        ([1] * 5, (3, 4, 5)),
        ([1, 1, 2 * KEPT_BYTES], (3,)),
        ([1, HALF, HALF], (2, 3)),
        ([HALF, 9, HALF], (2, 3)),
    ],
)
def test_three_are_kept_and_fewer_if_they_are_large(sizes: list[int], kept: tuple[int, ...]) -> None:
    """The one before can always come back, and none is kept that is older than one that is not."""
    earlier = EarlierGenerations()
    for number, size in enumerate(sizes, 1):
        inputs: Any = SimpleNamespace(memory=size)
        earlier.add(number, inputs)
    assert earlier.numbers == kept
