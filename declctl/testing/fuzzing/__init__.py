"""`declctl fuzz`: random lives of a user's objects, and what must hold after each of them.

A *life* is a list of steps (`lives`): objects are created, edited and deleted, others interfere with their
children, requests fail, the controller ends and starts again. `World` plays a life, over an API server of its
own and with a clock that stands. `Judge` then lets time pass until nothing is left to do, and checks the
*invariants*: above all, what is there has to be what a fresh controller makes of the objects as they are at
the end. hypothesis draws lives, and finds the shortest one that breaks an invariant; it becomes a
ControllerTest document, whose last expectation fails as the life did.

Needs `declctl[fuzz]`.
"""

from declctl.testing.fuzzing.fuzzer import ALLOWED, RUNS, FuzzResult, LifeFailed, fuzz, run_lives
from declctl.testing.fuzzing.invariants import INVARIANTS, Violation

__all__ = ["ALLOWED", "INVARIANTS", "RUNS", "FuzzResult", "LifeFailed", "Violation", "fuzz", "run_lives"]
