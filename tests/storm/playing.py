"""A storm: numbered changes are made in one thread, edits in another, and a controller runs in between."""

import random
import threading
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from tests.pieces import Pieces
from tests.storm.edits import HANDLERS, Edits
from tests.storm.generator import Generator, Writer
from tests.storm.verdict import Row, Verdict, rows_of

_IDLE_SECONDS = 120.0


class Controller(Protocol):
    """What runs the bundle, in this process or in one of its own. Figures have the names of the status."""

    def reload(self) -> Any:
        """Ask for a reload; what became of it: `result`, `generation`, `lists`, `line`."""
        ...

    def generation(self) -> int:
        """The one that runs."""
        ...

    def order(self) -> list[str]:
        """The handlers, in the order of the status."""
        ...

    def handler(self, name: str) -> Any:
        """The figures of a handler."""
        ...

    def resource(self, name: str) -> Any:
        """The figures of a resource."""
        ...

    def wait_idle(self, seconds: float) -> None:
        """Return when every change that was made has been dealt with by every handler."""
        ...


class World(Protocol):
    """Where a storm takes place."""

    pieces: Pieces
    writer: Writer

    def start(self) -> Controller:
        """Run what is written, and return when its caches are filled."""
        ...

    def asked(self) -> object:
        """The LISTs and WATCHes that the API server was asked for, in any form that can be compared."""
        ...

    def told(self, what: str) -> list[tuple[Any, ...]]:
        """The rows that handlers have written down and that begin so."""
        ...


class Storm(NamedTuple):
    """What a storm leaves: what was made, what was written down, and what handlers counted."""

    generator: Generator
    rows: Mapping[str, list[Row]]
    statistics: Mapping[str, Any]

    def faults(self, *, fenced: bool = True) -> list[str]:
        """All that was lost, doubled, moved or miscounted; `fenced` is told apart in Verdict."""
        verdict = Verdict(self.generator, self.rows, fenced=fenced)
        return [*verdict.faults(), *verdict.figures(self.statistics)]


def play(
    world: World, seed: int, *, changes: int, reloads: int, policy: str = "Fence", where: str = ""
) -> Storm:
    """A storm with edits at random moments; every reload ends as it has to, and nothing is asked for again.

    `seed` repeats the changes, the edits and the moments at which they meet. `where` is what the resource
    is restricted to.
    """
    print(f"DECLCTL_SEED={seed}")
    chance = random.Random(seed)
    edits = Edits(world.pieces, chance, policy=policy, where=where)
    edits.write()
    controller = world.start()
    before = world.asked()
    moments = sorted(chance.randrange(100, changes) for _ in range(reloads))
    generator = Generator(world.writer, random.Random(seed + 1), moments)
    storm = threading.Thread(target=generator.play, args=(changes,), name="storm", daemon=True)
    storm.start()
    applied = 1
    for _ in range(reloads):
        generator.wait_for_moment()
        what, result = edits.make_one()
        generator.go_on()
        outcome = controller.reload()
        assert (outcome.result, outcome.lists) == (result, 0), f"{what}: {outcome.line}"
        if result == "Refused":
            edits.mend()
            assert controller.reload().result == "Unchanged"
        applied += result == "Applied"
        assert outcome.generation == applied
        assert controller.order() == edits.order
    storm.join()
    assert len(generator.wrote) == changes
    controller.wait_idle(_IDLE_SECONDS)
    assert world.asked() == before
    assert controller.resource("maps").relists == 0
    assert controller.generation() == applied > 1
    rows = rows_of(world.told("storm"))
    assert set(rows) == {*HANDLERS, *edits.extras}
    assert len({row.generation for row in rows["plain"]}) > 2  # the edits did meet the changes
    assert controller.handler("faulty").retried == len(world.told("failed")) > 0
    return Storm(generator, rows, {name: controller.handler(name) for name in HANDLERS})
