"""An exception that raises whatever it is asked."""


class Unreadable(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)

    @property
    def __cause__(self) -> BaseException:
        raise SystemExit(4)

    @property
    def __context__(self) -> BaseException:
        raise SystemExit(5)

    @property
    def body(self) -> bytes:
        raise SystemExit(6)
