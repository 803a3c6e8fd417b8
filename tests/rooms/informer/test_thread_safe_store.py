"""ThreadSafeStore: records by key and by index, read from any thread."""

import threading

import pytest

from declctl.errors import CacheError, TransactionError, UnknownIndex
from declctl.informer import ThreadSafeStore, field_index, function_index
from declctl.objects import Delta, DeltaType
from tests.rooms.informer.shapes import record

NODE = field_index("spec.nodeName")


def store(**names):
    made = ThreadSafeStore({"byNode": NODE})
    for name, node in names.items():
        made.add(f"demo/{name}", record(name, node=node))
    return made


def put(name, version=1, **more):
    return Delta(DeltaType.ADDED, f"demo/{name}", record(name, version, **more))


def gone(name, version=None):
    last = None if version is None else record(name, version)
    return Delta(DeltaType.DELETED, f"demo/{name}", last)


@pytest.mark.client_go(83, "Store RV")
def test_the_version_of_the_store():
    """Adds, and deletes with their object, move it (client-go 83); for the rest see `TestStore`."""
    made = ThreadSafeStore()
    made.add("demo/a", record("a", 10))
    assert made.delete("demo/a").key == "demo/a"
    assert made.last_store_sync_resource_version == "10"
    assert made.delete("demo/a", record("a", 12)) is None
    assert made.last_store_sync_resource_version == "12"


@pytest.mark.client_go(90, 93, "AddIndexers late", "Index queries")
def test_an_index_may_come_late_and_be_removed():
    """It is complete at once, and follows what comes; a name that is taken changes nothing (client-go 93).

    A typo in an index name is found at once, by an error that names those that there are (client-go 90).
    """
    made = store(a="n1")
    made.add_indexers({"byName": function_index(lambda obj: [obj.name])})
    made.add("demo/b", record("b", node="n1"))
    assert sorted(made.list_index_func_values("byName")) == ["a", "b"]
    with pytest.raises(CacheError, match="byNode"):
        made.add_indexers({"new": NODE, "byNode": NODE})
    with pytest.raises(UnknownIndex, match=r"no index 'byNod'; there are: byN"):
        made.by_index("byNod", "n1")
    made.remove_indexers(["byName", "other"])
    assert list(made.get_indexers()) == ["byNode"]
    made.remove_indexers(["byNode"])
    made.add("demo/c", record("c", node="n1"))
    with pytest.raises(UnknownIndex, match="there are: none"):
        made.by_index("byNode", "n1")


@pytest.mark.client_go("AddIndexers late")
def test_a_build_asks_nothing_again_that_was_put_meanwhile():
    """What was put again unchanged is in the index: a moody function has given its answer."""
    made, answers = store(a="n1"), iter(["x"])
    build = made.build_index("moody", function_index(lambda obj: [next(answers)]))
    made.put("demo/a", made.get("demo/a"))
    assert build.step(5)
    assert made.list_index_func_values("moody") == ["x"]
    assert [r.key for r in made.by_index("moody", "x")] == ["demo/a"]


def test_a_thread_asks_no_more_when_its_build_is_given_up():
    """It stops after the object that it is at, and nothing that it has heard is used."""
    made = store(**dict.fromkeys("abcd", "n1"))
    asked: list[str] = []

    def by_name(obj):
        asked.append(obj.name)
        made.remove_indexers(["byName"])
        return [obj.name]

    build = made.build_index("byName", function_index(by_name))
    stale_objects = build.stale_objects(4)
    build.enter(stale_objects, build.compute(stale_objects))
    assert len(set(asked)) == 1
    assert build.step(1)
    assert "byName" not in made.get_indexers()


def test_an_example_that_an_index_function_fails_on_is_the_askers_fault():
    """Who asks by example hears what is wrong with it; the store counts no fault for it.

    It tells of each index that failed, how often, and on what.
    """
    made = store(a="n1")
    made.add_indexers({"letters": function_index(lambda obj: obj.name), "bad": lambda obj: 1 / 0})
    before = made.index_faults()
    assert {name: count for name, (count, _) in before.items()} == {"letters": 1, "bad": 1}
    assert all("demo/a" in last for _, last in before.values())
    with pytest.raises(CacheError, match="gave the string 'z', not a list of strings"):
        made.index("letters", record("z"))
    with pytest.raises(ZeroDivisionError):
        made.index("bad", record("z"))
    assert made.index_faults() == before


@pytest.mark.client_go(92)
def test_a_change_without_a_record_is_named_and_the_others_are_made():
    """There is nothing to put; the rest of the transaction does not suffer for it."""
    made = store(a="n1")
    with pytest.raises(TransactionError, match="1 of 3 changes failed; the first: there is nothing to put"):
        made.transaction([put("b", 2), Delta(DeltaType.UPDATED, "demo/c", None), gone("a", 3)])
    assert list(made.list_keys()) == ["demo/b"]


class Meeting:
    """Where an index function, in the middle of a batch of writes, lets a reader in another thread ask."""

    def __init__(self, compute):
        self.asked, self.answers = threading.Event(), []
        self._ask = compute
        self._reader = threading.Thread(target=self._read)

    def __call__(self, obj):
        if obj.name == "b" and not self._reader.is_alive():
            self._reader.start()
            assert self.asked.wait(10)
        return [obj.name]

    def _read(self):
        self.asked.set()
        self.answers.append(self._ask())

    def over(self):
        self._reader.join(10)
        return self.answers


READS = {
    "count": lambda made: [f"demo/{letter}" for letter in "abc"[: len(made)]],
    "values": lambda made: sorted(f"demo/{value}" for value in made.list_index_func_values("meeting")),
    "list": lambda made: sorted(r.key for r in made.list()),
    "list_keys": lambda made: sorted(made.list_keys()),
    "by_index": lambda made: sorted(r.key for r in made.by_index("byNode", "n1")),
    "index_keys": lambda made: sorted(made.index_keys("byNode", "n1")),
    "index": lambda made: sorted(r.key for r in made.index("byNode", record("x", node="n1"))),
    "list_by_namespace": lambda made: sorted(r.key for r in made.list_by_namespace("demo")),
    "get_by_key": lambda made: [key for key in ("demo/a", "demo/b", "demo/c") if made.get_by_key(key)],
    "contains": lambda made: [key for key in ("demo/a", "demo/b", "demo/c") if key in made],
}


@pytest.mark.client_go("Transactions", "Store / Indexer")
@pytest.mark.parametrize("batch", ["transaction", "replace"])
@pytest.mark.parametrize("read", READS)
def test_a_reader_in_another_thread_meets_a_batch_as_a_whole(read, batch):
    """Whoever asks while a batch is written is answered when it is done."""
    made = store(old="n1")
    meeting = Meeting(lambda: READS[read](made))
    made.add_indexers({"meeting": function_index(meeting)})
    if batch == "transaction":
        made.transaction([gone("old"), *(put(name, node="n1") for name in "abc")])
    else:
        made.replace({f"demo/{name}": record(name, node="n1") for name in "abc"}, "5")
    assert meeting.over() == [["demo/a", "demo/b", "demo/c"]]


def test_an_index_function_may_read_the_store_that_asks_it():
    """It sees what is written so far, and nobody waits for anybody."""
    made = ThreadSafeStore()
    made.add_indexers({"before": function_index(lambda obj: made.list_keys())})
    made.transaction([put("a"), put("b")])
    assert list(made.index_keys("before", "demo/b")) == ["demo/b"]
