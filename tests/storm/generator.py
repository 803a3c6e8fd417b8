"""Numbered changes to the ConfigMaps of a namespace, and what an ideal observer hears of them."""

import random
import threading
from typing import Any, NamedTuple, Protocol

NAMES = tuple(f"m{number:02}" for number in range(48))
SIDES = ("in", "out")


class Writer(Protocol):
    """Writes the ConfigMaps of one namespace, by whatever client."""

    def create(self, config_map: dict[str, Any]) -> dict[str, Any]:
        """Create one, whose namespace is not said; returns it as it is stored."""
        ...

    def patch(self, name: str, patch: dict[str, Any]) -> None:
        """A JSON merge patch."""
        ...

    def delete(self, name: str) -> None:
        """Delete one."""
        ...


class Heard(NamedTuple):
    """One change as a handler hears it. `seq` is the number of the write that the object came from."""

    type: str
    uid: str
    seq: int


class Wrote(NamedTuple):
    """One change as it was made; `side` is the label that a filter looks at, `before` the one it had."""

    type: str
    name: str
    uid: str
    seq: int
    side: str
    before: "Wrote | None"

    @property
    def heard(self) -> Heard:
        """By everybody."""
        return Heard(self.type, self.uid, self.seq)

    @property
    def filtered(self) -> Heard | None:
        """By a handler that only hears of the side `in`: crossing it is coming and going."""
        now = self.side == "in"
        before = self.before is not None and self.before.side == "in"
        if self.type != "Modified" or before == now:
            return self.heard if now else None
        if now:
            return Heard("Added", self.uid, self.seq)
        assert self.before is not None
        return Heard("Deleted", self.uid, self.before.seq)


class Generator:
    """Creates, patches and deletes ConfigMaps, one after the other; `wrote` is what it has done so far.

    At each of the `moments`, which are positions in its history, it waits until `go_on` was called as
    often: a reload that begins there meets the changes that follow.
    """

    def __init__(self, writer: Writer, chance: random.Random, moments: list[int]) -> None:
        self.wrote: list[Wrote] = []
        self.alive: dict[str, Wrote] = {}
        self._writer = writer
        self._chance = chance
        self._moments = moments
        self._passed = threading.Semaphore(0)
        self._arrived = threading.Semaphore(0)

    def play(self, changes: int) -> None:
        """Make that many changes."""
        moments = iter([*self._moments, changes])
        next_moment = next(moments)
        for number in range(changes):
            while number == next_moment:
                self._arrived.release()
                assert self._passed.acquire(timeout=60)
                next_moment = next(moments)
            self.wrote.append(self._step(number))

    def wait_for_moment(self) -> None:
        """Return when the next moment has come: its changes wait for `go_on`."""
        assert self._arrived.acquire(timeout=60)

    def go_on(self) -> None:
        """Let the changes after the moment be made."""
        self._passed.release()

    def state(self, count: int) -> dict[str, Heard]:
        """What is there after the first `count` changes, by uid, as somebody hears it who comes then."""
        there: dict[str, Heard] = {}
        for wrote in self.wrote[:count]:
            if wrote.type == "Deleted":
                del there[wrote.uid]
            else:
                there[wrote.uid] = Heard("Added", wrote.uid, wrote.seq)
        return there

    def _step(self, seq: int) -> Wrote:
        name = self._chance.choice(NAMES)
        before = self.alive.get(name)
        if before is None:
            return self._create(name, seq)
        if self._chance.random() < 0.1:
            self._writer.delete(name)
            del self.alive[name]
            return before._replace(type="Deleted", before=before)
        return self._patch(name, seq, before)

    def _create(self, name: str, seq: int) -> Wrote:
        side = self._chance.choice(SIDES)
        stored = self._writer.create(_config_map(name, seq, side))
        self.alive[name] = wrote = Wrote("Added", name, stored["metadata"]["uid"], seq, side, None)
        return wrote

    def _patch(self, name: str, seq: int, before: Wrote) -> Wrote:
        side = self._chance.choice(SIDES) if self._chance.random() < 0.2 else before.side
        patch = {"metadata": {"labels": {"side": side}}, "data": {"seq": str(seq)}}
        self._writer.patch(name, patch)
        wrote = Wrote("Modified", name, before.uid, seq, side, before._replace(before=None))
        self.alive[name] = wrote
        return wrote


def _config_map(name: str, seq: int, side: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "labels": {"side": side}},
        "data": {"seq": str(seq)},
    }
