"""The watchdog of the machinery loop, which calls index functions and transforms of the user.

A function that does not return stops everything: events, probes and signals. No thread can stop it. The
main thread can log its place, and end the process on a signal.
"""

import msgspec

from declctl.kit import LoopThread
from declctl.kit.callbacks import user_code_place
from declctl.runtime.log import Log

LOOK_SECONDS = 1.0  # between two looks


class MachineryStatus(msgspec.Struct, frozen=True):
    """Blocks of the machinery of more than five seconds: how many, and the length and place of the last.

    `last_place` is the line of user code that blocked it, empty if it was in none.
    """

    blocked: int = 0
    last_seconds: float = 0.0
    last_place: str = ""


class Watchdog:
    """Looks at the machinery loop, and logs that it is blocked, at which line, and for how long.

    Used by one thread that is not the loop's; any thread may read `status`.
    """

    def __init__(self, machinery: LoopThread, log: Log) -> None:
        self.status = MachineryStatus()
        self.seconds = 0.0  # how long it has been blocked; counted in looks without an answer
        self._machinery = machinery
        self._log = log

    def look(self) -> None:
        """Check once. Called every LOOK_SECONDS."""
        before = self.seconds
        self._machinery.look()
        self.seconds = self._machinery.unanswered * LOOK_SECONDS if self._machinery.is_blocked else 0.0
        if self.seconds:
            self._blocked(is_new=not before)
        elif before:
            self._log.warning(f"the machinery goes on: it was blocked for {before:.0f} s")

    def _blocked(self, *, is_new: bool) -> None:
        place = user_code_place(self._machinery.thread) or ("" if is_new else self.status.last_place)
        self.status = MachineryStatus(self.status.blocked + is_new, self.seconds, place)
        if is_new:
            at = f" at {place}" if place else ""
            self._log.error(
                f"the machinery has been blocked for {self.seconds:.0f} s{at}: no event is delivered, and no "
                "probe answered. An index function or a transform is called for each event: it should "
                "return within microseconds, and wait for nothing",
                place=place,
            )
