"""What a handler was told, as the process that called it wrote it down."""

from pathlib import Path

import msgspec


class Call(msgspec.Struct, array_like=True, frozen=True):
    """One call of one hook implementation for one change.

    `process` is the process id, `version` the object's resource version. `initial` says that the change
    was part of a first sync. `received` is when the process got the change, in seconds since the epoch;
    `began` is when the call began, in seconds of the machine's monotonic clock. `memo` says whether the
    handler remembered anything of the object when the call began, and `memo_after` when it ended; both are
    None where it can't, because it doesn't take `ctx`.
    """

    process: int
    generation: int
    handler: str
    type: str
    resource: str
    key: str
    uid: str
    version: int
    initial: bool
    received: float
    began: float
    failed: bool
    memo: bool | None = None
    memo_after: bool | None = None


_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(Call)


def line(call: Call) -> bytes:
    """One call as a line."""
    return _ENCODER.encode(call) + b"\n"


class Calls:
    """The calls in a file that other processes append to; every look reads what is new."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.all: list[Call] = []
        self._offset = 0
        path.touch()

    def read(self) -> list[Call]:
        """The calls that have been written down since the last look."""
        with self.path.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        whole, _, _ = data.rpartition(b"\n")  # a line may be half written
        if not whole:
            return []
        self._offset += len(whole) + 1
        new = [_DECODER.decode(text) for text in whole.split(b"\n")]
        self.all += new
        return new
