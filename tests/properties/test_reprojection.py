"""A cache that is decoded anew out of its frames ends as one that was filled by the last decoder.

Objects come, change and go, lists are made, what was decoded waits in a queue, and other projections are
staged, given up or take over in between. Listeners hear the true changes, and of projections nothing.
"""

import asyncio
import json
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from declctl.decoding import MANAGED_FIELDS, Projection
from declctl.decoding.projection import RecordRemaker
from declctl.informer import Reprojection, SharedIndexInformer, field_index
from declctl.informer.queues.real_fifo import Replacement
from declctl.kit import ManualClock
from declctl.objects import Codec, Delta, DeltaType, FieldPath, FrameCodec, Notification, ObjectCodec

NAMES = ("a", "b", "c")
PATHS = ("spec.nodeName", "spec.zone", "status.phase")
DROPS = ("spec.secret", "status", "metadata.annotations")
STEPS = st.one_of(
    st.tuples(st.just("put"), st.sampled_from(NAMES), st.sampled_from(("n1", "n2"))),
    st.tuples(st.just("change"), st.sampled_from(NAMES), st.sampled_from(("n1", "n2"))),
    st.tuples(st.just("delete"), st.sampled_from(NAMES)),
    st.tuples(st.just("list")),
    st.tuples(st.just("process"), st.integers(1, 3)),
    st.tuples(st.just("begin"), st.sets(st.sampled_from(PATHS)), st.integers(0, 3), st.booleans()),
    st.tuples(st.just("step"), st.integers(1, 9)),
    st.tuples(st.just("take over")),
    st.tuples(st.just("take over first")),
    st.tuples(st.just("breathe")),
)


class World:
    """An informer, what the server has, and what waits in between."""

    def __init__(self) -> None:
        self.version = 0
        self.server: dict[str, dict[str, Any]] = {}
        self.codec: Codec = FrameCodec()
        self.dropped = 0
        self.paths: frozenset[str] = frozenset()
        source = SimpleNamespace(projection=self.projection(self.paths, 0, self.codec))
        self.informer = SharedIndexInformer(
            source,  # type: ignore[arg-type] - it is never asked, and decodes
            name="pods",
            clock=ManualClock(),
            indexers={"byNode": field_index("spec.nodeName")},
        )
        self.informer.add_listener(self)
        self.queue: list[Delta | Replacement] = []
        self.staged: tuple[Reprojection, frozenset[str], int, Codec] | None = None
        self.stepped = False  # whether something of that was made
        self.filling: Reprojection | None = None  # has taken over first
        self.expected: list[tuple[str, str]] = []
        self.model: dict[str, str] = {}
        self.told: list[tuple[str, str]] = []
        self.comparable = True  # both states of each change, field by field

    def add_all(self, told: Sequence[Notification]) -> None:
        """What the informer tells: the type, and which state."""
        for each in told:
            self.told.append((str(each.type), each.record.resource_version))
            self.comparable &= each.old is None or each.old.layout is each.record.layout

    def initial_complete(self) -> None:
        """The cache has been told; it was empty."""

    @staticmethod
    def projection(paths: frozenset[str], dropped: int, codec: Codec) -> Projection:
        """A decoder that drops the first so many fields, and managedFields."""
        drops = [MANAGED_FIELDS, *map(FieldPath.parse, DROPS[:dropped])]
        return Projection(
            api_version="v1",
            kind="Pod",
            paths=map(FieldPath.parse, sorted(paths)),
            drop_fields=drops,
            codec=codec,
        )

    def put(self, name: str, node: str) -> None:
        """An object comes or changes: decoded now, applied later."""
        self.version += 1
        kind = DeltaType.UPDATED if name in self.server else DeltaType.ADDED
        uid = self.server[name]["metadata"]["uid"] if name in self.server else f"u{self.version}"
        self.server[name] = {
            "metadata": {
                "name": name,
                "uid": uid,
                "resourceVersion": str(self.version),
                "annotations": {"note": node},
                "managedFields": [{"manager": "m"}],
            },
            "spec": {"nodeName": node, "zone": f"z-{node}", "secret": "x"},
            "status": {"phase": "Running"},
        }
        self._arrive(kind, name)

    def change(self, name: str, node: str) -> None:
        """The same, applied at once."""
        self.put(name, node)
        self.process(len(self.queue))

    def delete(self, name: str) -> None:
        """An object goes."""
        if name in self.server:
            self.version += 1
            self.server[name]["metadata"]["resourceVersion"] = str(self.version)
            self._arrive(DeltaType.DELETED, name)
            del self.server[name]

    def list(self) -> None:
        """Everything comes again, compared with what the cache holds now."""
        known = self.informer.indexer.known().get
        decode = self.informer.source.projection.record
        records = [decode(json.dumps(obj).encode(), known=known) for obj in self.server.values()]
        self.queue.append(Replacement([r for r in records if r is not None], str(self.version), False))

    def process(self, number: int) -> None:
        """What came first is applied."""
        for entry in self.queue[:number]:
            self._expect(entry)
            for _ in self.informer.process([entry] if isinstance(entry, Delta) else entry):
                pass
        del self.queue[:number]

    def begin(self, paths: frozenset[str], dropped: int, objects: bool) -> None:
        """Another projection is staged; what was staged before is given up."""
        dropped = max(dropped, self.dropped)
        codec = self.codec
        if isinstance(codec, ObjectCodec) is not objects:
            codec = ObjectCodec(api_version="v1", kind="Pod") if objects else FrameCodec()
        before, after = self.informer.source.projection, self.projection(paths, dropped, codec)
        same = codec is self.codec and dropped == self.dropped
        drops = [MANAGED_FIELDS, *map(FieldPath.parse, DROPS[:dropped])]
        remake = RecordRemaker(after.layout, drop_fields=drops, alike=before.layout if same else None)
        self.staged = (self.informer.begin_reprojection(after, remake), paths, dropped, codec)
        self.stepped = False

    def step(self, budget: int) -> None:
        """A slice of what has taken over first, or else of what is staged."""
        if self.filling is not None and not self.filling.is_over:
            self.filling.step(budget)
        elif self.staged is not None:
            self.stepped = True
            self.staged[0].step(budget)

    def take_over(self) -> None:
        """What is staged is committed, whatever is missing of it."""
        if self.staged is not None:
            reprojection, self.paths, self.dropped, self.codec = self.staged
            self.informer.take_over(reprojection)
            self.staged = None

    def take_over_first(self) -> None:
        """What is staged decodes from now on, and nothing of it is made."""
        if self.staged is not None and not self.stepped:
            self.filling, self.paths, self.dropped, self.codec = self.staged
            self.informer.take_over_first(self.filling)
            self.staged = None

    def _arrive(self, kind: DeltaType, name: str) -> None:
        record = self.informer.source.projection.record(json.dumps(self.server[name]).encode())
        assert record is not None
        self.queue.append(Delta(kind, record.key, record))

    def _expect(self, entry: Delta | Replacement) -> None:
        """What a cache that was never reprojected would tell of it."""
        if isinstance(entry, Replacement):
            there = {record.key: record for record in entry.records}
            for key in [key for key in self.model if key not in there]:
                self.expected.append(("Deleted", self.model.pop(key).partition("\n")[2]))
            changes = [(record.key, record) for record in entry.records]
        elif entry.type is DeltaType.DELETED:
            assert entry.record is not None
            if self.model.pop(entry.key, None) is not None:
                self.expected.append(("Deleted", entry.record.resource_version))
            return
        else:
            changes = [(entry.key, entry.record)]
        for key, record in changes:
            assert record is not None
            before = self.model.get(key)
            if before == record.revision:
                continue
            if before is not None and before.partition("\n")[0] != record.uid:
                self.expected.append(("Deleted", before.partition("\n")[2]))
                before = None
            self.expected.append(("Added" if before is None else "Modified", record.resource_version))
            self.model[key] = record.revision


async def _play(steps: Sequence[tuple[Any, ...]]) -> None:
    world = World()
    for name, *arguments in steps:
        if name == "breathe":
            await asyncio.sleep(0)
        else:
            getattr(world, name.replace(" ", "_"))(*arguments)
    world.process(len(world.queue))
    while world.filling is not None and not world.filling.step(2):
        await asyncio.sleep(0)
    for _ in range(20):
        await asyncio.sleep(0)
    assert world.told == world.expected
    assert world.comparable
    fresh = World.projection(world.paths, world.dropped, FrameCodec())
    layout = world.informer.source.projection.layout
    assert {str(path) for path in layout.positions} == world.paths
    assert {record.key for record in world.informer.indexer.list()} == world.server.keys()
    for record in world.informer.indexer.list():
        other = fresh.record(json.dumps(world.server[record.key]).encode())
        assert other is not None
        assert record.layout is layout
        assert (record.revision, record.labels_json, record.values) == (
            other.revision,
            other.labels_json,
            other.values,
        )
        assert record.decode() == other.decode()
    for node in ("n1", "n2"):
        found = {record.key for record in world.informer.indexer.by_index("byNode", node)}
        assert found == {key for key, obj in world.server.items() if obj["spec"]["nodeName"] == node}


_STAGED = ("begin", frozenset({"spec.zone"}), 1, False)


@example([("change", "a", "n1"), _STAGED, ("step", 9), ("change", "a", "n2"), ("take over",), ("breathe",)])
@example([("put", "a", "n1"), ("list",), _STAGED, ("take over",), ("breathe",), ("breathe",), ("process", 2)])
@given(st.lists(STEPS, min_size=5, max_size=40))
@settings(max_examples=150, deadline=None)
def test_a_reprojected_cache_is_that_of_a_fresh_informer(steps: Sequence[tuple[Any, ...]]) -> None:
    """Any history ends with what the last projection alone would have made, and true changes were told."""
    asyncio.run(_play(steps))
