"""The transform of a user, between the wire and the cache: checked and counted."""

from collections.abc import Callable

import msgspec

from declctl.kit.callbacks import refuse_async
from declctl.objects.record import KubeObject

Transform = Callable[[KubeObject], KubeObject | None]


class Transforming:
    """Applies a transform, or none. `dropped` and `failed` count objects that are not to be cached.

    Raises TypeError for a transform that is asynchronous.
    """

    def __init__(self, transform: Transform | None) -> None:
        refuse_async(transform, "the transform")
        self.transform = transform
        self.dropped = self.failed = 0
        self.last_fault: str | None = None

    def apply(self, obj: KubeObject, name: str) -> bytes | None:
        """The JSON of what the cache shall hold; None to drop the object."""
        # The result is written at once, so that what is no JSON is the transform's fault as well.
        if self.transform is None:
            return msgspec.json.encode(obj)
        try:
            result = self.transform(obj)
            if result is None:
                self.dropped += 1
                return None
            written = msgspec.json.encode(result)
        except Exception as fault:  # noqa: BLE001 - the user's function; the object is dropped, counted and told
            return self.failure(f"the transform raised {type(fault).__name__} on {name}: {fault}")
        if not written.startswith(b"{"):
            return self.failure(f"the transform returned a {type(result).__name__} for {name}, not an object")
        return written

    def failure(self, message: str) -> None:
        """An object can't be transformed: it is dropped, counted and told."""
        self.failed += 1
        self.last_fault = message
