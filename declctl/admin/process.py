"""What the admin address needs of the process: the runtime has it, and so has a fake in a test."""

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from declctl.manifest import Plan
from declctl.objects import ObjectKey, ObjectView
from declctl.runtime.reporting.status import Status


class Reading(Protocol):
    """A view of a cache; any thread may ask it."""

    def get(self, key: str) -> ObjectView | None:
        """The object of a key."""
        ...

    def keys(self) -> Sequence[ObjectKey]:
        """Every key."""
        ...

    def list(self, *, namespace: str | None = None, selector: str | None = None) -> Sequence[ObjectView]:
        """The objects of a namespace, or that a label selector matches."""
        ...

    def by_index(self, name: str, value: str) -> Sequence[ObjectView]:
        """The objects under a value of an index; raises UnknownIndex."""
        ...

    def index_values(self, name: str) -> Iterable[str]:
        """The values of an index; raises UnknownIndex."""
        ...


class Told(Protocol):
    """What became of a reload."""

    @property
    def result(self) -> str:
        """Applied, Unchanged, Refused or RolledBack."""
        ...

    @property
    def line(self) -> str:
        """The outcome as one line."""
        ...

    def document(self) -> dict[str, Any]:
        """The outcome as JSON has it."""
        ...


class Running(Protocol):
    """What another manifest can be compared with."""

    def document(self) -> dict[str, Any]:
        """The same as JSON has it."""
        ...


class Controlled(Protocol):
    """A running controller. Asked on the machinery loop."""

    @property
    def plan(self) -> Plan:
        """The plan that runs."""
        ...

    def status(self) -> Status:
        """The figures of this moment."""
        ...

    def running(self) -> Running | None:
        """What runs, to be compared with another manifest; None while nothing does."""
        ...

    def lister(self, resource: str) -> Reading | None:
        """The cache of a resource; None if there is no such resource."""
        ...

    async def reload(self, *, asked: bool = True, force: bool = False) -> Told:
        """Read the files again; with `force` make all code anew, although they have not changed."""
        ...

    async def rollback(self, number: int | None = None) -> Told:
        """Let the generation before run again, or the one of that number."""
        ...

    def history(self) -> dict[str, Any]:
        """What became of the newest attempts, as JSON has it."""
        ...
