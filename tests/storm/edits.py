"""The bundle that runs in a storm, and the edits that are made to it, legal and broken ones."""

import random
from typing import Any

from tests.pieces import Pieces

HANDLERS = {
    "plain": "",
    "asynchronous": "",
    "classy": 'entryPoint: "handlers:Classy"',
    "installed": "pluginRef: {name: stormy}",
    "keyed": "delivery: Keyed",
    "wide": "queue: {concurrency: 4}",
    "filtered": "filter: {labelSelector: 'side=in'}",
    "faulty": "retry: {maxAttempts: 5, initialBackoff: 5ms, maxBackoff: 10ms}",
}
CODE = """
import declctl
from blackboard import tell

VERSION = {version}

def note(who, change):
    tell("storm", who, str(change.type), change.obj.uid, int(change.obj["data"]["seq"]), VERSION,
         change.generation, change.initial)

def plain(change): note("plain", change)
{asynchronous} asynchronous(change): note("asynchronous", change)
def keyed(change): note("keyed", change)
def wide(change): note("wide", change)
def filtered(change): note("filtered", change)

def faulty(change):
    what = ("failed", str(change.type), change.obj.uid, change.obj.resource_version)
    if int(change.obj["data"]["seq"]) % 41 == 0 and change.obj.uid not in FAILED:
        FAILED.add(change.obj.uid)
        tell(*what)
        raise OSError("now and then")
    note("faulty", change)

FAILED = set()

class Classy:
    @declctl.hookimpl
    def declctl_event(self, change): note("classy", change)

def by_side(obj): return [obj.labels["side"]]
{extras}
"""
INDEXES = (
    "",
    "{name: it, fieldPath: data.seq}",
    '{name: it, entryPoint: "handlers:by_side"}',
    "{name: it, fieldPath: metadata.labels.side}",
)
_BROKEN_CODE = ("def plain(change:\n", "raise OSError('no disk')\n", "def plane(change): ...\n")


class Edits:
    """What the bundle is now. Each edit changes it at random and says how the reload has to end.

    `where` is more of the resource's line, such as its namespaces.
    """

    def __init__(
        self, pieces: Pieces, chance: random.Random, *, policy: str = "Fence", where: str = ""
    ) -> None:
        self._pieces = pieces
        self._where = where
        self._chance = chance
        self._deck: list[Any] = []
        self._version = 1
        self._asynchronous = True
        self._order = list(HANDLERS)
        self._policies = dict(HANDLERS)
        self.extras: list[str] = []  # handlers that came in the storm
        self._extra = ""
        self._index = 0
        self._resync = ""
        pieces.more = "  plugins:\n    - {name: stormy}\n"
        pieces.reload_policy = f"settle: 20ms, preflight: 'Off', drainTimeout: 60s, drainPolicy: {policy}"

    @property
    def order(self) -> list[str]:
        """The handlers as they stand in the manifest."""
        return list(self._order)

    @property
    def code(self) -> str:
        """The handlers' file."""
        extras = f"def {self._extra}(change): note('{self._extra}', change)" if self._extra else ""
        kind = "async def" if self._asynchronous else "def"
        return CODE.format(version=self._version, asynchronous=kind, extras=extras)

    def write(self) -> None:
        """Write the bundle as it is now."""
        index = f", indexers: [{INDEXES[self._index]}]" if self._index else ""
        rest = f"{self._where}{self._resync}{index}"
        self._pieces.resources = [f"- {{name: maps, apiVersion: v1, kind: ConfigMap{rest}}}"]
        self._pieces.handlers = []
        for name in self._order:
            policy = self._policies.get(name, "")
            whom = "" if "pluginRef" in policy or "entryPoint" in policy else f'entryPoint: "handlers:{name}"'
            more = ", ".join(part for part in (whom, policy) if part)
            self._pieces.handlers.append(f"- {{name: {name}, resourceRef: {{name: maps}}, {more}}}")
        self._pieces.write(self.code)

    def make_one(self) -> tuple[str, str]:
        """Edit something, and write it; returns what, and how the reload has to end."""
        if not self._deck:
            self._deck = [*_LEGAL, *_BROKEN]
            self._chance.shuffle(self._deck)
        edit = self._deck.pop()
        edit(self)
        return edit.__name__, "Refused" if edit in _BROKEN else "Applied"

    def mend(self) -> None:
        """Make a broken bundle what it was."""
        self.write()

    def change_code(self) -> None:
        self._version += 1
        self.write()

    def change_kind(self) -> None:
        self._asynchronous = not self._asynchronous
        self.change_code()

    def reorder(self) -> None:
        before = self.order
        while self._order == before:
            self._chance.shuffle(self._order)
        self.write()

    def add_or_remove(self) -> None:
        if self._extra:
            self._order.remove(self._extra)
            self._extra = ""
        else:
            self._extra = f"extra{len(self.extras) + 1}"
            self.extras.append(self._extra)
            self._order.insert(self._chance.randrange(len(self._order)), self._extra)
        self.change_code()

    def change_index(self) -> None:
        self._index = self._chance.choice([n for n in range(len(INDEXES)) if n != self._index])
        self.write()

    def change_resync(self) -> None:
        periods = ("", ", resyncPeriod: 10m", ", resyncPeriod: 20m")
        self._resync = self._chance.choice([period for period in periods if period != self._resync])
        self.write()

    def change_width(self) -> None:
        widths = [f"queue: {{concurrency: {n}}}" for n in (2, 3, 4, 6)]
        self._policies["wide"] = self._chance.choice([w for w in widths if w != self._policies["wide"]])
        self.write()

    def break_code(self) -> None:
        self._pieces.write(self._chance.choice(_BROKEN_CODE))

    def break_manifest(self) -> None:
        self._pieces.resources = ["- {name: maps, apiVersion: v1, knid: ConfigMap}"]
        self._pieces.write()


_LEGAL = (
    Edits.change_code,
    Edits.change_code,
    Edits.change_kind,
    Edits.reorder,
    Edits.add_or_remove,
    Edits.add_or_remove,
    Edits.change_index,
    Edits.change_resync,
    Edits.change_width,
)
_BROKEN = (Edits.break_code, Edits.break_manifest)
