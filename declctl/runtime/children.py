"""The children that pre-flights are made in: begun before they are needed, used once, never left behind.

One begins when the process starts, and one whenever a changed file is first seen: it loads the host and
its libraries while the files settle, and no process waits about between two edits.
"""

import asyncio
import threading
from typing import TYPE_CHECKING

from declctl.runtime.aside import Aside

if TYPE_CHECKING:
    from declctl.runtime.check import Checked


class Children:
    """Holds the child that is begun and not yet used. `close` ends it."""

    def __init__(self) -> None:
        self._spare: Aside | None = None
        self._changing = threading.Lock()

    def warm(self) -> None:
        """Begin a child, unless one waits already; from any thread.

        Where no process can be started there is none: whoever needs it finds out, and says so.
        """
        with self._changing:
            if self._spare is not None and self._spare.is_waiting:
                return
            self._drop()
            try:
                self._spare = Aside()
            except OSError:
                self._spare = None

    async def import_aside(self, checked: "Checked") -> "Checked":
        """`check.import_aside` in a thread, with a child of its own; none is begun where nothing is imported.

        Cancelling ends the child, and returns when nothing of it is left.
        """
        if not checked.has_to_be_imported:
            await asyncio.to_thread(self.close)
            return checked
        await asyncio.to_thread(self.warm)
        from declctl.runtime.check import import_aside  # late: a child can be begun before all that is loaded

        child = self._take()
        work = asyncio.ensure_future(asyncio.to_thread(import_aside, checked, child))
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            if child is not None:
                child.close()
            await asyncio.wait([work])
            raise
        finally:
            if child is not None:
                child.close()  # it is used once

    def close(self) -> None:
        """End the child that nobody has used."""
        with self._changing:
            self._drop()

    def _take(self) -> Aside | None:
        with self._changing:
            child, self._spare = self._spare, None
            return child

    def _drop(self) -> None:
        if self._spare is not None:
            self._spare.close()
            self._spare = None
