"""A user's function inside a cache, which outlives the code that the function is of.

Two generations may define an index or a transform alike, and the cache of the first serves the second.
The first is forgotten all the same, and what its functions would import after that is not there any more:
so they are exchanged for those of the second, which do the same.
"""

from collections.abc import Callable
from typing import Generic, TypeVar

from declctl.informer import FunctionIndex, IndexFunc, function_index

A = TypeVar("A")
R = TypeVar("R")


class Exchangeable(Generic[A, R]):
    """Calls `function`, whichever that is by then. Raises what it raises."""

    def __init__(self, function: Callable[[A], R]) -> None:
        self.function = function

    def __call__(self, argument: A) -> R:
        """The answer of the function of now."""
        return self.function(argument)


def exchangeable(function: IndexFunc) -> IndexFunc:
    """An index function that can be exchanged; one by field path is nobody's, and stays what it is."""
    return function_index(function.function) if isinstance(function, FunctionIndex) else function


def exchange(there: IndexFunc, function: IndexFunc) -> None:
    """Let what `exchangeable` made call another function from now on, of the same definition."""
    if isinstance(there, FunctionIndex) and isinstance(function, FunctionIndex):
        there.function = function.function
