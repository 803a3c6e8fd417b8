"""A cluster of our own: an API server in this process, with the objects that a manifest is about."""

from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import yaml

from declctl.bench.churn import Churn, label
from declctl.bench.objects import Maker, definitions
from declctl.manifest import Plan
from declctl.objects import KubeObject
from declctl.sandbox import Request, SandboxThread

CHANGES_PER_SECOND = 100.0
"""How often it changes, while it does."""

_APART = 20  # objects at most that `Churn` leaves alone, for those on which handlers fail


class Cluster:
    """The API server, which must run, with objects of each resource of a plan, as many of one as of another.

    `kubeconfig` is a file that leads to it. `objects` is how many it has of them.
    """

    def __init__(
        self, server: SandboxThread, plan: Plan, samples: Sequence[KubeObject], *, objects: int, folder: Path
    ) -> None:
        self._server = server
        self._makers = [Maker(resource, samples) for resource in plan.resources]
        server.load(definitions(plan, samples))
        filled = list(_taken(self._makers, objects))
        server.load(obj for _, obj in filled)
        self.objects = len(filled)
        apart = min(_APART, len(filled) // 2)
        self._apart, self._changing = filled[:apart], filled[apart:]
        self.kubeconfig = folder / "kubeconfig"
        self.kubeconfig.write_text(yaml.safe_dump(server.kubeconfig()), "utf-8")

    def churn(self) -> Churn:
        """Changes to it, which have not begun."""
        return Churn(self._server, self._changing, self._makers, rate=CHANGES_PER_SECOND)

    @contextmanager
    def labelled(self, name: str) -> Generator[int]:
        """Some objects have a label for the length of the context; gives how many."""
        for _, obj in self._apart:
            label(self._server, obj, name, "")
        try:
            yield len(self._apart)
        finally:
            for _, obj in self._apart:
                label(self._server, obj, name, None)

    def requests(self) -> tuple[Request, ...]:
        """Everything that it was asked for."""
        return self._server.ledger.requests()


def _taken(makers: Iterable[Maker], number: int) -> Iterator[tuple[str, KubeObject]]:
    """Objects with the names of their resources, one of each resource in turn, as long as there are any."""
    left = list(makers)
    while left and number > 0:
        maker = left.pop(0)
        obj = next(maker, None)
        if obj is not None:
            left.append(maker)
            number -= 1
            yield maker.resource, obj
