"""A store with indexes, against a model that keeps plain objects and looks at every one of them each time."""

import functools
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from declctl.decoding import Projection
from declctl.errors import CacheError, TransactionError, UnknownIndex
from declctl.informer import (
    NAMESPACE_INDEX,
    FieldIndex,
    Indexer,
    IndexFunc,
    field_index,
    function_index,
    namespace_index,
)
from declctl.informer.stores.indices import IndexBuild, StaleObjects
from declctl.informer.stores.store_snapshot import StoreSnapshot
from declctl.objects import Delta, DeltaType, FieldPath, ObjectView, Record


class Pod(NamedTuple):
    """An object as the model has it."""

    name: str
    namespace: str | None
    version: str
    node: str | None
    zones: tuple[str, ...]
    bad: bool
    projected: bool

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


PROJECTIONS = {
    True: Projection(api_version="v1", kind="Pod", paths=[FieldPath.parse("spec.nodeName")]),
    False: Projection(api_version="v1", kind="Pod"),
}
PODS = st.builds(
    Pod,
    name=st.sampled_from("abc"),
    namespace=st.sampled_from(["x", "xy", None]),
    version=st.sampled_from(["", "1", "2", "30"]),
    node=st.sampled_from([None, "", "n1", "n2"]),
    zones=st.lists(st.sampled_from(["", "z1", "z2"]), max_size=3).map(tuple),
    bad=st.booleans(),
    projected=st.booleans(),
)


@functools.cache
def record(pod: Pod) -> Record:
    metadata: dict[str, Any] = {"name": pod.name, "namespace": pod.namespace, "resourceVersion": pod.version}
    metadata["annotations"] = {"zones": ",".join(pod.zones), "many": str(len(pod.zones))}
    metadata["labels"] = {"bad": "yes"} if pod.bad else {}
    spec = {} if pod.node is None else {"nodeName": pod.node}
    made = PROJECTIONS[pod.projected].record(msgspec.json.encode({"metadata": metadata, "spec": spec}))
    assert made is not None
    return made


def zones(obj: ObjectView) -> list[str]:
    return obj.annotations["zones"].split(",") if obj.annotations["many"] != "0" else []


def zones_or_raise(obj: ObjectView) -> list[str]:
    if obj.labels:
        raise RuntimeError("a bad one")
    return zones(obj)


def name_or_wrong(obj: ObjectView) -> Any:
    return obj.name if obj.labels else [obj.name]


# By name: the index function, and what the model says of a pod.
INDEXES: dict[str, tuple[IndexFunc, Callable[[Pod], Sequence[str]]]] = {
    "node": (field_index("spec.nodeName"), lambda pod: () if pod.node is None else (pod.node,)),
    "bad": (field_index("metadata.labels.bad"), lambda pod: ("yes",) if pod.bad else ()),
    "zones": (function_index(zones), lambda pod: pod.zones),
    "none": (function_index(lambda obj: None), lambda pod: ()),
    "empty": (function_index(lambda obj: [""]), lambda pod: ("",)),
    "raises": (function_index(zones_or_raise), lambda pod: () if pod.bad else pod.zones),
    "wrong": (function_index(name_or_wrong), lambda pod: () if pod.bad else (pod.name,)),
    NAMESPACE_INDEX: (namespace_index(), lambda pod: (pod.namespace or "",)),
}
FAILS = {"raises", "wrong"}
MOODY = "moody"
NAMES = st.sampled_from([*INDEXES, MOODY])


class Moody:
    """An index function that never says the same twice, and remembers what it said last."""

    def __init__(self) -> None:
        self.said: dict[str, str] = {}
        self._asked = 0

    def __call__(self, record: Record) -> list[str]:
        self._asked += 1
        self.said[record.key] = f"m{self._asked % 3}"
        return [self.said[record.key]]


class Building(NamedTuple):
    """An index that is being filled."""

    name: str
    function: IndexFunc
    build: IndexBuild


class Taken(NamedTuple):
    """A snapshot, and what the model had when it was taken."""

    snapshot: StoreSnapshot
    records: Mapping[str, Record]
    indexes: Mapping[str, Mapping[str, Mapping[str, Record]]]  # by name and value


class StoreMachine(RuleBasedStateMachine):
    """Everything that may be done to a store, in any order."""

    @initialize(names=st.sets(NAMES, max_size=4))
    def start(self, names: set[str]) -> None:
        self.pods: dict[str, Pod] = {}
        self.version = ""
        self.readable = {name: self.function(name) for name in names}
        self.building: dict[str, Building] = {}
        self.given_up: list[IndexBuild] = []
        self.asked: list[
            tuple[IndexBuild, StaleObjects, Sequence[Any]]
        ] = []  # by threads; the answers are to come
        self.faults = dict.fromkeys(self.readable, 0)  # of the indexes whose faults can be foretold
        self.taken: list[Taken] = []
        self.store = Indexer(self.readable)

    @staticmethod
    def function(name: str) -> IndexFunc:
        return Moody() if name == MOODY else INDEXES[name][0]

    def hold(self, pod: Pod) -> None:
        self.pods[pod.key] = pod
        for name in self.faults:
            self.faults[name] += name in FAILS and pod.bad

    def reach(self, version: str) -> None:
        self.version = version or self.version

    @rule(pod=PODS)
    def put(self, pod: Pod) -> None:
        self.store.put(pod.key, record(pod))
        self.hold(pod)

    @rule(pods=st.dictionaries(st.sampled_from("abcdef"), PODS, max_size=4))
    def put_new(self, pods: dict[str, Pod]) -> None:
        new = {pod.key: pod for pod in (pod._replace(name=name) for name, pod in pods.items())}
        put = self.store.put_new({key: record(pod) for key, pod in new.items()})
        assert put is not bool(new.keys() & self.pods.keys())
        for pod in new.values() if put else ():
            self.hold(pod)

    @rule(pod=PODS, update=st.booleans())
    def add(self, pod: Pod, update: bool) -> None:
        (self.store.update if update else self.store.add)(record(pod))
        self.hold(pod)
        self.reach(pod.version)

    @rule(pod=PODS, known=st.booleans())
    def delete(self, pod: Pod, known: bool) -> None:
        held = self.pods.pop(pod.key, None)
        gone = self.store.delete(record(pod)) if known else self.store.take(pod.key)
        assert gone is (None if held is None else record(held))
        self.reach(pod.version if known else "")

    @rule(pods=st.lists(PODS, max_size=5), version=st.sampled_from(["", "7"]))
    def replace(self, pods: list[Pod], version: str) -> None:
        self.store.replace([record(pod) for pod in pods], version)
        self.pods = {}
        for pod in {pod.key: pod for pod in pods}.values():
            self.hold(pod)
        self.version = version

    @rule(
        changes=st.lists(
            st.tuples(st.sampled_from(["put", "delete", "forget", "leave", "bad"]), PODS), max_size=6
        )
    )
    def transaction(self, changes: list[tuple[str, Pod]]) -> None:
        deltas: list[Delta] = []
        for what, pod in changes:
            kind = DeltaType.ADDED if what in ("put", "bad") else DeltaType.DELETED
            with_record = what in ("put", "delete", "leave")
            deltas.append(
                Delta(kind, pod.key, record(pod) if with_record else None, out_of_scope=what == "leave")
            )
            if what == "put":
                self.hold(pod)
            elif what != "bad":
                self.pods.pop(pod.key, None)
            self.reach(pod.version if what in ("put", "delete") else "")
        good = [position for position, (what, _) in enumerate(changes) if what != "bad"]
        if len(good) == len(changes):
            self.store.transaction(deltas)
        else:
            with pytest.raises(TransactionError) as caught:
                self.store.transaction(deltas)
            assert caught.value.succeeded == tuple(good)
            assert caught.value.total == len(changes)

    @rule(version=st.sampled_from(["", "99"]))
    def bookmark(self, version: str) -> None:
        self.store.bookmark(version)
        self.reach(version)

    @rule(names=st.sets(NAMES, min_size=1, max_size=3))
    def add_indexers(self, names: set[str]) -> None:
        functions = {name: self.function(name) for name in names}
        if names & self.readable.keys():
            with pytest.raises(CacheError, match="exists already"):
                self.store.add_indexers(functions)
            return
        self.store.add_indexers(functions)
        self.give_up(names)
        self.readable |= functions
        bad = sum(pod.bad for pod in self.pods.values())
        self.faults |= {name: bad if name in FAILS else 0 for name in names}

    @rule(names=st.sets(NAMES, max_size=3))
    def remove_indexers(self, names: set[str]) -> None:
        self.store.remove_indexers(names)
        self.give_up(names)
        for name in names:
            self.readable.pop(name, None)
            self.faults.pop(name, None)

    @rule(name=NAMES)
    def build_index(self, name: str) -> None:
        function = self.function(name)
        if name in self.readable:
            with pytest.raises(CacheError, match="exists already"):
                self.store.build_index(name, function)
            return
        self.give_up({name})
        self.building[name] = Building(name, function, self.store.build_index(name, function))

    @precondition(lambda self: self.building)
    @rule(data=st.data(), budget=st.integers(1, 4))
    def step(self, data: st.DataObject, budget: int) -> None:
        under_way = data.draw(st.sampled_from(sorted(self.building)))
        name, function, build = self.building[under_way]
        self.asked = [asked for asked in self.asked if asked[0] is not build]  # nobody waits for those
        if build.step(budget):
            del self.building[name]
            self.readable[name] = function

    @precondition(lambda self: self.unasked_builds())
    @rule(data=st.data(), most=st.integers(1, 4))
    def begin_to_ask(self, data: st.DataObject, most: int) -> None:
        """A thread is asked about some objects, as they are now; what it says comes later."""
        build = self.building[data.draw(st.sampled_from(self.unasked_builds()))].build
        stale_objects = build.stale_objects(most)
        self.asked.append((build, stale_objects, build.compute(stale_objects)))

    def unasked_builds(self) -> list[str]:
        """The builds that no thread is asked for: one at a time is. Nobody asks for a field."""
        busy = [build for build, _, _ in self.asked]
        return sorted(
            name
            for name, each in self.building.items()
            if each.build not in busy and not isinstance(each.function, FieldIndex)
        )

    @precondition(lambda self: self.asked)
    @rule()
    def enter_what_was_said(self) -> None:
        build, stale_objects, values = self.asked.pop(0)
        build.enter(stale_objects, values)

    @precondition(lambda self: any(not each.build.stale for each in self.building.values()))
    @rule()
    def finish(self) -> None:
        """Nothing is stale: what can be read then is complete, and nothing is asked for it."""
        name, function, build = next(each for each in self.building.values() if not each.build.stale)
        build.finish()
        del self.building[name]
        self.readable[name] = function

    def give_up(self, names: set[str]) -> None:
        self.given_up += [self.building.pop(name).build for name in sorted(names & self.building.keys())]

    @precondition(lambda self: self.given_up)
    @rule()
    def step_what_was_given_up(self) -> None:
        if self.given_up[0].step(3):
            self.given_up.pop(0)

    def values(self, name: str, pod: Pod) -> Sequence[str]:
        function = self.readable[name]
        return [function.said[pod.key]] if isinstance(function, Moody) else INDEXES[name][1](pod)

    def expected(self, name: str) -> Mapping[str, Mapping[str, Record]]:
        found: dict[str, dict[str, Record]] = {}
        for key, pod in self.pods.items():
            for value in self.values(name, pod):
                found.setdefault(value, {})[key] = record(pod)
        return found

    @rule()
    def take_a_snapshot(self) -> None:
        records = {key: record(pod) for key, pod in self.pods.items()}
        indexes = {name: self.expected(name) for name in self.readable}
        self.taken.append(Taken(self.store.snapshot(), records, indexes))

    @precondition(lambda self: self.taken)
    @rule(data=st.data())
    def drop_a_snapshot(self, data: st.DataObject) -> None:
        del self.taken[data.draw(st.integers(0, len(self.taken) - 1))]

    @invariant()
    def a_snapshot_stays_as_it_was(self) -> None:
        assert self.store.snapshots == len({id(each.snapshot) for each in self.taken})
        for snapshot, records, indexes in self.taken:
            assert {each.key: each for each in snapshot.list()} == records
            assert sorted(snapshot.list_keys()) == sorted(records)
            assert len(snapshot) == len(records)
            for key in [f"{namespace}/{name}" for namespace in ("x", "xy") for name in "abcdef"]:
                assert snapshot.get_by_key(key) is records.get(key)
                assert (key in snapshot) is (key in records)
            assert set(snapshot.get_indexers()) == set(indexes)
            for name, expected in indexes.items():
                assert sorted(snapshot.list_index_func_values(name)) == sorted(expected)
                for value in {*expected, "", "z1", "nobody"}:
                    found = {each.key: each for each in snapshot.by_index(name, value)}
                    assert found == expected.get(value, {})
            listed = sorted(each.key for each in snapshot.list_by_namespace("x"))
            assert listed == sorted(key for key in records if key.startswith("x/"))

    @invariant()
    def every_index_has_what_a_look_at_every_object_finds(self) -> None:
        assert set(self.store.get_indexers()) == set(self.readable)
        for name in self.readable:
            expected = self.expected(name)
            assert sorted(self.store.list_index_func_values(name)) == sorted(expected)
            for value in {*expected, "", "z1", "nobody"}:
                there = expected.get(value, {})
                keys, records = self.store.index_keys(name, value), self.store.by_index(name, value)
                assert dict(zip(keys, records, strict=True)) == there
                assert all(there[each.key] is each for each in records)

    @invariant()
    def what_is_not_complete_can_not_be_read(self) -> None:
        for name in {*INDEXES, MOODY} - self.readable.keys():
            with pytest.raises(UnknownIndex, match=name):
                self.store.by_index(name, "n1")

    @invariant()
    def the_table_is_the_models(self) -> None:
        held = {key: record(pod) for key, pod in self.pods.items()}
        assert {each.key: each for each in self.store.list()} == held
        assert sorted(self.store.list_keys()) == sorted(held)
        assert self.store.bytes == sum(len(each.frame) for each in held.values())
        assert self.store.last_store_sync_resource_version == self.version
        for namespace in ("x", "xy", "nowhere"):
            listed = sorted(each.key for each in self.store.list_by_namespace(namespace))
            assert listed == sorted(key for key, pod in self.pods.items() if pod.namespace == namespace)

    @invariant()
    def faults_are_counted_one_by_one(self) -> None:
        counted = {name: count for name, (count, _) in self.store.index_faults().items()}
        assert {name: counted.get(name, 0) for name in self.faults} == self.faults

    @rule(pod=PODS)
    def ask_by_example(self, pod: Pod) -> None:
        for name in self.readable.keys() - {MOODY}:
            if name in FAILS and pod.bad:
                with pytest.raises((RuntimeError, CacheError)):
                    self.store.index(name, record(pod))
                continue
            expected = self.expected(name)
            found = {each.key: each for each in self.store.index(name, record(pod))}
            shared = [expected.get(value, {}) for value in self.values(name, pod)]
            assert found == {key: each for bucket in shared for key, each in bucket.items()}


@pytest.mark.client_go(80, 82, 83, 84, 85, 86, 87, 90, 92, 93)
@pytest.mark.client_go("ThreadSafeStore indices", "Index queries", "Store RV", "Transactions")
class TestStore(StoreMachine.TestCase):
    """Whatever is done to a store, its indexes have what a look at every object finds."""

    settings = settings(max_examples=30, stateful_step_count=30)


NODES = {name: (f"{name}1", f"{name}2") for name in "abcdef"}


def look(store: Indexer) -> None:
    """Nothing that is read is broken, in a bucket it was never in, or missing where it always is."""
    for value in store.list_index_func_values("node"):
        for found in store.by_index("node", value):
            assert found.field(FieldPath.parse("spec.nodeName")) == (value,)
            assert value in NODES[found.key[-1]]
    for name in NODES:
        assert [found.key for found in store.by_index("name", name)] == [f"x/{name}"]
    assert len(store.list()) == len(NODES)


@pytest.mark.client_go("ThreadSafeStore indices")
def test_a_reader_in_another_thread_never_finds_an_object_under_a_value_it_never_had() -> None:
    """One writes, others read: no copy breaks, no bucket has a stranger, none that stays is missing."""
    states = {
        name: [record(Pod(name, "x", str(n), node, (), False, True)) for n, node in enumerate(nodes)]
        for name, nodes in NODES.items()
    }
    store = Indexer({"node": field_index("spec.nodeName"), "name": function_index(lambda obj: [obj.name])})
    store.replace([first for first, _ in states.values()])
    faults: list[Exception] = []
    done = threading.Event()

    def read() -> None:
        while not done.is_set() and not faults:
            try:
                look(store)
            except Exception as fault:
                faults.append(fault)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for turn in range(300):
        for pair in states.values():
            store.update(pair[turn % 2])
        if turn % 10 == 0:
            store.transaction([Delta(DeltaType.ADDED, pair[0].key, pair[0]) for pair in states.values()])
    done.set()
    for reader in readers:
        reader.join()
    assert faults == []


@pytest.mark.client_go("ThreadSafeStore indices")
def test_a_reader_in_another_thread_finds_nothing_in_an_index_that_the_store_lacks() -> None:
    """While many objects are put at once: an index never runs ahead of the store, nor counts one twice."""
    made = [record(Pod(f"p{n}", "x", "1", f"n{n % 5}", (), False, True)) for n in range(4000)]
    store = Indexer({"node": field_index("spec.nodeName"), "name": function_index(lambda obj: [obj.name])})
    faults: list[str] = []
    done = threading.Event()

    def read() -> None:
        while not done.is_set() and not faults:
            for value in store.list_index_func_values("node"):
                found = store.by_index("node", value)
                faults.extend(each.key for each in found if store.get_by_key(each.key) is not each)
                faults.extend(["twice"] * (len(found) - len({each.key for each in found})))

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for start in range(0, len(made), 100):
        assert store.put_new({each.key: each for each in made[start : start + 100]})
    done.set()
    for reader in readers:
        reader.join()
    assert faults == []
    assert [len(store.by_index("node", f"n{n}")) for n in range(5)] == [800] * 5
    assert len(store.list_index_func_values("name")) == len(made)


def at(name: str, number: int) -> Record:
    """An object whose version says in which round it was written."""
    return record(Pod(name, "x", str(number), f"n{number % 3}", (), False, True))


def faults_of(snapshot: StoreSnapshot) -> list[str]:
    """What is wrong with a snapshot of a store in which, again and again, a is written, and then b."""

    def numbers(records: Sequence[Record | None]) -> dict[str, int]:
        return {each.key: int(each.resource_version) for each in records if each is not None}

    read = numbers([snapshot.get_by_key("x/a"), snapshot.get_by_key("x/b")])
    if not read["x/b"] <= read["x/a"] <= read["x/b"] + 1:
        return [f"a and b were never {read}"]
    listed = numbers(snapshot.list())
    values = snapshot.list_index_func_values("node")
    by_node = numbers([each for value in values for each in snapshot.by_index("node", value)])
    by_name = numbers([each for name in "ab" for each in snapshot.by_index("name", name)])
    if listed != by_node or len(listed) != len(snapshot) or by_name != read:
        return [
            f"{read} by key, {listed} by list, {by_node} and {by_name} by index, {len(snapshot)} by count"
        ]
    return []


def test_a_snapshot_in_another_thread_has_no_change_without_the_one_before_it() -> None:
    """Whatever is written meanwhile, all reads of one snapshot agree, and b is never newer than a."""
    store = Indexer({"node": field_index("spec.nodeName"), "name": function_index(lambda obj: [obj.name])})
    store.replace([at("a", 0), at("b", 0)])
    faults: list[str] = []
    done = threading.Event()

    def read() -> None:
        while not done.is_set() and not faults:
            snapshot = store.snapshot()
            for _ in range(3):
                faults.extend(faults_of(snapshot))

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    for turn in range(1, 400):
        store.update(at("a", turn))
        store.update(at("b", turn))
        # Objects that come and go are forgotten by snapshots that are read meanwhile.
        store.put_new({f"x/new{n}": at(f"new{n}", turn) for n in range(5)})
        for n in range(5):
            store.take(f"x/new{n}")
    done.set()
    for reader in readers:
        reader.join()
    assert faults == []
    assert store.snapshots == 0
