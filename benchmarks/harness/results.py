"""The results of a measurement, which are stored in .build/results.json."""

import statistics
from collections.abc import Collection, Mapping
from pathlib import Path

import msgspec


class Record(msgspec.Struct, frozen=True):
    """One run of one peer in one scenario: its `figures`, and in `failed` the reason if a step failed."""

    scenario: str
    kind: str
    objects: int
    peer: str
    run: int
    figures: Mapping[str, float]
    failed: str = ""


class Results(msgspec.Struct):
    """All results. By the key of a peer, `peers` has titles, `versions` versions, and `left_out` reasons."""

    plan: str
    date: str
    machine: Mapping[str, str]
    peers: dict[str, str] = msgspec.field(default_factory=dict[str, str])
    versions: dict[str, str] = msgspec.field(default_factory=dict[str, str])
    left_out: dict[str, str] = msgspec.field(default_factory=dict[str, str])
    records: list[Record] = msgspec.field(default_factory=list[Record])

    def write(self, file: Path) -> None:
        """Writes the results to a file, atomically."""
        file.parent.mkdir(exist_ok=True)
        new_file = file.with_suffix(".new")
        new_file.write_bytes(msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n")
        new_file.replace(file)

    @classmethod
    def read(cls, file: Path) -> "Results":
        """Reads a file of `write`."""
        return msgspec.json.decode(file.read_bytes(), type=cls)

    def forget(self, scenarios: Collection[str], peers: Collection[str] = ()) -> None:
        """Removes the records of these scenarios, for these peers; empty means all peers."""
        self.records = [
            record
            for record in self.records
            if record.scenario not in scenarios or (peers and record.peer not in peers)
        ]

    def of(self, scenario: str, peer: str, *, kind: str = "", objects: int = 0) -> list[Record]:
        """The runs of a peer in a scenario."""
        return [
            record
            for record in self.records
            if record.scenario == scenario
            and record.peer == peer
            and kind in ("", record.kind)
            and objects in (0, record.objects)
        ]

    def figure(
        self, scenario: str, peer: str, name: str, *, kind: str = "", objects: int = 0
    ) -> float | None:
        """The median of a figure over the runs; None if no run has it."""
        found = [record.figures.get(name) for record in self.of(scenario, peer, kind=kind, objects=objects)]
        values = [value for value in found if value is not None]
        return statistics.median(values) if values else None

    def failed(self, scenario: str, peer: str, *, kind: str = "", objects: int = 0) -> str:
        """The reason why a peer failed in a scenario; empty if it did not fail."""
        found = self.of(scenario, peer, kind=kind, objects=objects)
        return next((record.failed for record in found if record.failed), "")

    def size(self, scenario: str) -> int:
        """The largest number of objects in a scenario."""
        return max((record.objects for record in self.records if record.scenario == scenario), default=0)
