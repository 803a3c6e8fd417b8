"""What went wrong in a storm, in words: nothing, if every guarantee was kept."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tests.storm.generator import Generator, Heard

EVERYTHING = ("plain", "asynchronous", "classy", "installed", "wide", "faulty")  # who hears every change
IN_ORDER = ("plain", "asynchronous", "classy", "installed")  # one at a time, and never tried again


class Row(NamedTuple):
    """What a handler wrote down of one call."""

    who: str
    heard: Heard
    version: int
    generation: int
    initial: bool


def rows_of(told: Sequence[tuple[Any, ...]]) -> Mapping[str, list[Row]]:
    """By handler, in the order in which they were written."""
    rows: defaultdict[str, list[Row]] = defaultdict(list)
    for _, who, kind, uid, seq, version, generation, initial in told:
        rows[who].append(Row(who, Heard(kind, uid, seq), version, generation, initial))
    return rows


class Verdict:
    """Compares what handlers wrote down with what the generator has made.

    `fenced`: what was queued before an edit belongs to the old code, so that there is a cut to look at.
    """

    def __init__(self, generator: Generator, rows: Mapping[str, list[Row]], *, fenced: bool = True) -> None:
        self._generator = generator
        self._rows = rows
        self._fenced = fenced
        self._made = [wrote.heard for wrote in generator.wrote]
        self._generation = {row.heard: row.generation for row in rows["plain"]}

    def faults(self) -> list[str]:
        """All that is wrong."""
        found: list[str] = []
        for who in EVERYTHING:
            found += self._compared(who, self._made)
        filtered = [heard for wrote in self._generator.wrote if (heard := wrote.filtered) is not None]
        found += self._compared("filtered", filtered)
        found += self._keyed()
        found += self._mixed()
        if self._fenced:
            found += self._cuts()
            for who in self._rows:
                if who.startswith("extra"):
                    found += self._late(who)
        return found

    def figures(self, statistics: Mapping[str, Any]) -> list[str]:
        """Where delivered + merged + dropped + filtered is not the number of changes."""
        changes, found = len(self._made), []
        for who in (*EVERYTHING, "filtered", "keyed"):
            it, rows = statistics[who], len(self._rows[who])
            if it.delivered + it.merged + it.dropped + it.filtered != changes:
                found.append(f"{who}: {it} does not add up to {changes}")
            if (it.succeeded, it.failed, it.dropped) != (rows, 0, 0) or it.delivered != rows:
                found.append(f"{who}: {it}, but {rows} calls were written down")
        return found

    def _compared(self, who: str, expected: Sequence[Heard]) -> list[str]:
        heard = [row.heard for row in self._rows[who]]
        found = [f"{who} lost {what}" for what in (Counter(expected) - Counter(heard))]
        found += [f"{who} heard twice: {what}" for what in (Counter(heard) - Counter(expected))]
        if found:
            return found
        if who in IN_ORDER or who == "filtered":
            return [] if heard == expected else [f"{who} heard in another order"]
        uids = _by_uid(expected)
        return [f"{who} heard out of order: {uid}" for uid, of in _by_uid(heard).items() if of != uids[uid]]

    def _keyed(self) -> list[str]:
        """What is told and merged adds up to the truth; nobody goes back in time."""
        found: list[str] = []
        there: dict[str, int] = {}
        for row in self._rows["keyed"]:
            kind, uid, seq = row.heard
            if seq < there.get(uid, -1):
                found.append(f"keyed went back to {row.heard}")
            if kind == "Deleted":
                there.pop(uid, None)
            else:
                there[uid] = seq
        if there != {wrote.uid: wrote.seq for wrote in self._generator.alive.values()}:
            found.append("keyed does not know the end")
        return found

    def _cuts(self) -> list[str]:
        """A change belongs to one generation, whoever hears it; who failed may hear it later."""
        found: list[str] = []
        cuts = [self._generation.get(heard, 0) for heard in self._made]
        if cuts != sorted(cuts):
            found.append("a later change was heard by an earlier generation")
        for who in ("asynchronous", "classy", "installed", "wide"):
            found += [
                f"{who} of generation {row.generation} heard {row.heard}, which is of another"
                for row in self._rows[who]
                if row.generation != self._generation.get(row.heard)
            ]
        for row in self._rows["faulty"]:
            if row.generation < self._generation.get(row.heard, 0):
                found.append(f"faulty of generation {row.generation} heard {row.heard}")
        found += self._filtered_cuts()
        return found

    def _filtered_cuts(self) -> list[str]:
        generations = {
            wrote.filtered: self._generation.get(wrote.heard)
            for wrote in self._generator.wrote
            if wrote.filtered is not None
        }
        return [
            f"filtered of generation {row.generation} heard {row.heard}, which is of another"
            for row in self._rows["filtered"]
            if row.generation != generations.get(row.heard)
        ]

    def _mixed(self) -> list[str]:
        """One generation has one version of the code."""
        versions: defaultdict[int, set[int]] = defaultdict(set)
        for who, rows in self._rows.items():
            if who != "installed":
                for row in rows:
                    versions[row.generation].add(row.version)
        return [f"generation {number} ran {found}" for number, found in versions.items() if len(found) > 1]

    def _late(self, who: str) -> list[str]:
        """Who was added in the storm hears what is there, then what comes, until it is removed.

        It listens from a moment in its first generation on: what others of that generation have heard
        before that moment is in what it finds.
        """
        rows = self._rows[who]
        came, left = rows[0].generation, rows[-1].generation
        cuts = [self._generation.get(heard, 0) for heard in self._made]
        begin, end = sum(cut < came for cut in cuts), sum(cut <= left for cut in cuts)
        initial = {row.heard.uid: row.heard for row in rows if row.initial}
        live = [row.heard for row in rows if not row.initial]
        listens = end - len(live)
        found: list[str] = []
        if listens < begin or live != self._made[listens:end]:
            found.append(f"{who} heard {len(live)} of {end - begin} changes, or in another order")
        if len(initial) != sum(row.initial for row in rows) or initial != self._generator.state(listens):
            found.append(f"{who} was not told what was there when it came")
        return found


def _by_uid(heard: Sequence[Heard]) -> Mapping[str, list[Heard]]:
    found: defaultdict[str, list[Heard]] = defaultdict(list)
    for each in heard:
        found[each.uid].append(each)
    return found
