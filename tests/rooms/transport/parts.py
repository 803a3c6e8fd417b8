"""A sink that the tests of this room share."""


class Parts(list[bytes]):
    """Keeps what a body brings, part by part."""

    def feed(self, part: memoryview) -> None:
        self.append(bytes(part))

    @property
    def body(self) -> bytes:
        return b"".join(self)
