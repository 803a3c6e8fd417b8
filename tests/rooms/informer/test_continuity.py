"""A server that was put back to a backup: found out, said, and listed anew."""

import asyncio
import contextlib
import logging
import sys

import pytest

from declctl.errors import Expired, Forbidden, InvalidRequest, ServerError, Unreachable
from declctl.informer import FakeControllerSource
from declctl.informer.reflector.continuity import Sample, Witness, continuity
from declctl.transport import ServerHealth
from tests.rooms.informer.reflecting import EXPIRED, bench
from tests.rooms.informer.shapes import Recorder, fresh_projection, made, pod, rest, running

RESET = Unreachable("the connection was reset")


async def _restored(b, change, *, advance=5):
    """Some changes, back to the backup, other changes."""
    backup = b.source.save()
    b.source.modify(pod("a", node="lost"))
    b.source.add(pod("lost"))
    b.source.delete("demo/b")
    await b.advance(5)
    b.source.restore(backup)
    change(b.source)
    await b.advance(advance)


CHANGES = {
    "nothing": lambda source: None,
    "fewer": lambda source: source.modify(pod("b", node="kept")),
    "as many": lambda source: [source.add(pod(name)) for name in ("x", "y", "z")],
    "more": lambda source: [source.modify(pod("a", node=f"n{number}")) for number in range(20)],
    "deletes": lambda source: [source.delete(f"demo/{name}") for name in "ab"],
    "many and deletes": lambda source: [CHANGES[name](source) for name in ("more", "deletes")],
}


@pytest.mark.client_go("A storage that is put back to a backup")
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("streams", [True, False])
async def test_a_server_that_was_put_back_to_a_backup_is_listed_anew(change, streams):
    """Versions go back, whatever came after: the cache is true, and it was said and counted once."""
    async with bench(streams=streams) as b:
        await _restored(b, CHANGES[change])
        assert b.agrees()
        assert (b.figures.rollbacks, b.figures.error) == (1, None)
        b.source.add(pod("after"))
        await b.settle()
        assert b.agrees()


@pytest.mark.client_go("A storage that is put back to a backup")
async def test_what_handlers_hear_of_a_restore_is_the_true_difference(caplog):
    """An object that got the same version with other content, too: Modified; what was lost is Deleted."""
    caplog.set_level(logging.WARNING, "declctl.informer")
    source, informer, clock = made()
    for name in ("a", "b", "same"):
        source.add(pod(name))
    listener = Recorder()
    async with running(informer, clock):
        informer.add_listener(listener)
        await rest(clock)
        backup = source.save()
        source.modify(pod("a", node="lost"))
        source.add(pod("lost"))
        source.delete("demo/b")
        await clock.advance(5)
        listener.clear()
        source.restore(backup)
        source.modify(pod("a", node="found"))
        await clock.advance(5)
        told = sorted(listener.lines())
        held = {record.key: record.resource_version for record in informer.indexer.list()}
        faults, spec = listener.faults, informer.indexer.get_by_key("demo/a").decode()["spec"]
    assert told == ["Added demo/b", "Deleted demo/lost", "Modified demo/a"]
    assert (faults, spec) == ([], {"nodeName": "found"})
    assert held == {"demo/a": "4", "demo/b": "2", "demo/same": "3"}
    (said,) = [message for message in caplog.messages if "history" in message]
    assert "was its storage put back to a backup" in said.lower()


@pytest.mark.parametrize(
    ("objects", "selects", "asked"),
    [
        (2, False, (3, None, "")),
        (2, True, (1, "demo", "metadata.name=a")),
        (101, False, (1, "demo", "metadata.name=a")),
    ],
)
async def test_an_ordinary_interruption_costs_one_small_list_and_nothing_else(objects, selects, asked):
    """Up to 100 objects, or one by its name, exactly at the version that was seen; then the watch goes on."""
    names = ("a", "b", *(f"more-{number}" for number in range(objects - 2)))
    async with bench(objects=names) as b:
        b.source.has_selector = selects
        b.source.modify(pod("a"))
        await b.advance(5)
        b.source.cut(RESET)
        await b.settle()
        b.source.modify(pod("a"))  # what was held last has changed since
        await b.advance(5)
        (check,) = b.source.checks()
        assert (check.limit, check.namespace, check.field_selector) == asked
        assert (check.resource_version, check.resource_version_match) == (str(objects + 1), "Exact")
        assert (b.figures.rollbacks, b.figures.history_checks) == (0, 1)
        assert (b.figures.relists, b.source.lists(), b.agrees()) == (0, [], True)


async def test_a_watch_that_ends_as_it_should_is_not_looked_into():
    """Servers end watches every few minutes: nothing is asked for that."""
    async with bench() as b:
        for _ in range(3):
            await b.advance(5)
            b.source.cut()
            await b.settle()
        assert (b.source.checks(), len(b.source.watches())) == ([], 4)


@pytest.mark.parametrize(
    "fault", [Forbidden(403, "Forbidden", "no"), InvalidRequest(400, "BadRequest", "what is Exact?")]
)
async def test_a_server_that_does_not_tell_is_trusted(fault):
    """Where looking is refused, it is as it was: the watch goes on, and nothing is repeated."""
    async with bench() as b:
        await b.advance(5)
        b.source.fail_next(fault, verb="list", times=2)
        b.source.cut(RESET)
        b.source.add(pod("c"))
        await b.advance(5)
        assert (b.agrees(), b.figures.rollbacks, b.figures.relists) == (True, 0, 0)
        assert b.figures.error is None


async def test_what_one_watch_has_found_is_true_for_the_others_of_its_server():
    """A quiet resource, which could not find out by itself, is listed anew because a busy one has."""
    async with bench() as busy, bench() as quiet:
        health = ServerHealth(_answers, url="https://there", clock=busy.clock)
        for b in (busy, quiet):
            await b.stop()
            b.source.health = health
            await b.begin()
        lists = quiet.figures.relists
        await _restored(busy, CHANGES["more"])
        await quiet.advance(5)
        assert (busy.figures.rollbacks, quiet.figures.rollbacks) == (1, 1)
        assert quiet.figures.relists == lists + 1
        assert health.status().rollbacks == 1
        assert quiet.figures.error is None


@pytest.mark.client_go("A storage that is put back to a backup")
@pytest.mark.parametrize("streams", [True, False])
async def test_a_rollback_that_another_watch_finds_while_a_list_is_under_way(streams):
    """What the list brought before is not used: an object of the same version may be another state."""
    async with bench(begin=False) as b:
        b.source.health = health = ServerHealth(_answers, url="https://there", clock=b.clock)
        b.source.streams = streams
        await b.begin()
        backup = b.source.save()
        b.source.modify(pod("a", node="lost"))
        await b.advance(5)
        lists = len(b.source.lists()) + len(b.source.watches())

        def put_back():
            b.source.restore(backup)
            b.source.modify(pod("a", node="found"))
            health.history_replaced("another watch has proven it")

        _RecordsOfLists(b.source, then=put_back)
        b.source.fail_next(EXPIRED)
        b.source.cut()
        await b.advance(5)
        spec = b.store.get_by_key("demo/a").decode()["spec"]
        assert len(b.source.lists()) + len(b.source.watches()) > lists
        rollbacks, error, agrees = b.figures.rollbacks, b.figures.error, b.agrees()
    assert (error, agrees) == (None, True)
    assert (spec, rollbacks) == ({"nodeName": "found"}, 1)


async def _answers():
    pass


@pytest.mark.parametrize("streams", [True, False])
@pytest.mark.parametrize("ends_by", ["a rollback", "a fault"])
async def test_a_list_that_is_not_used_takes_no_memory_while_the_next_one_is_read(streams, ends_by):
    """The cache and one list are in memory then, and not all objects for a third time.

    The fault that ended half a list is shown until one is complete; what was read is not kept as long.
    """
    more = {} if ends_by == "a rollback" else {"check_consistency": False, "page_size": 2}
    async with bench(begin=False, objects=("a", "b", "c"), **more) as b:
        b.source.health = health = ServerHealth(_answers, url="https://there", clock=b.clock)
        b.source.streams = streams
        fault = ServerError(500, "InternalError", "etcd has no leader")

        def fail():
            b.source.ends_initial_events = True
            b.source.cut(fault) if streams else b.source.fail_next(fault, verb="list")  # the second page

        if ends_by == "a rollback":
            await b.begin()
            b.source.add(pod("unknown"))  # its record is not that of the cache, which the list gives back
            found = _RecordsOfLists(b.source, then=lambda: health.history_replaced("another has proven it"))
            b.source.fail_next(EXPIRED)
            b.source.cut()
        else:
            b.source.ends_initial_events = False
            found = _RecordsOfLists(b.source, then=fail)
            await b.begin()
            assert "etcd has no leader" in b.figures.error
        await b.advance(5)
        assert b.agrees()
        assert found.references == [_ONLY_THE_TEST]


_ONLY_THE_TEST = 2  # references: that of the test, and the argument of `sys.getrefcount`


class _RecordsOfLists:
    """Keeps the newest record of the first list; what refers to it is counted when the second begins.

    `then` is called once, when the first list has been read: all of a streaming list, or one page.
    """

    def __init__(self, source, *, then):
        self.references = []
        self._records = []
        self._then = [then]
        self._list, self._watch = source.list, source.watch
        source.list, source.watch = self._listing, self._watching

    def _begins(self):
        if self._records and not self._then:
            self.references.append(sys.getrefcount(self._records[0]))
            self._records.clear()

    def _read(self, records):
        if self._then and records:
            self._records.append(records[-1])
            self._then.pop()()

    async def _listing(self, options, *, known, **_):
        if options.continue_token is None:
            self._begins()
        page = await self._list(options, known=known)
        self._read(page.records)
        return page

    async def _watching(self, options, *, known=None):
        if options.send_initial_events:
            self._begins()
        async with contextlib.aclosing(self._watch(options, known=known)) as batches:
            async for batch in batches:
                if options.send_initial_events:
                    self._read([event.record for event in batch if event.record is not None])
                yield batch


@pytest.mark.client_go("A storage that is put back to a backup")
async def test_a_rollback_is_found_by_what_a_quiet_watch_has_missed():
    """It has seen no change since the backup, and the server has outgrown it: all objects are compared."""
    async with bench() as b:
        backup = b.source.save()
        for _ in range(5):
            b.source.advance()  # other resources change
        b.source.bookmark()
        await b.advance(5)
        assert b.reflector.last_sync_resource_version == "7"
        b.source.restore(backup)
        b.source.modify(pod("b", node="missed"))
        for _ in range(20):
            b.source.advance()
        await b.advance(5)
        assert b.agrees()
        assert (b.figures.rollbacks, b.figures.error) == (1, None)


async def test_what_another_transform_leaves_out_is_no_rollback():
    """A reload may leave out objects that the last list had, the witness as well: they are not missing."""
    async with bench() as b:
        b.source.projection = b.source.projection.with_transform(lambda obj: None)
        b.source.cut(RESET)
        await b.advance(5)
        (check,) = b.source.checks()
        assert check.field_selector == "metadata.name=b"
        assert b.figures.rollbacks == 0


def _answer(source, version, witness, everything=None):
    return asyncio.run(continuity(source, version, Sample(witness, everything))).holds


def _source():
    source = FakeControllerSource(projection=fresh_projection())
    for name in ("a", "b"):
        source.add(pod(name))
    return source


A, B = Witness("demo/a", "uid-1\n1"), Witness("demo/b", "uid-2\n2")
ALL = {"demo/a": "uid-1\n1", "demo/b": "uid-2\n2"}


@pytest.mark.parametrize(
    ("version", "witness", "everything", "holds"),
    [
        ("2", B, None, True),
        ("2", A, None, True),
        ("2", Witness("demo/b", "uid-other\n2"), None, False),
        ("2", Witness("demo/b", None), None, False),
        ("2", Witness("demo/c", None), None, True),
        ("2", Witness("demo/c", "uid-9\n2"), None, False),
        ("2", None, None, False),
        ("3", B, None, False),
        ("opaque", B, None, None),
        ("0", B, None, None),
        ("2", B, ALL, True),
        ("3", B, ALL, False),
        ("2", B, {}, False),
        ("2", B, {"demo/a": "uid-1\n1"}, False),
        ("2", B, {**ALL, "demo/a": "uid-other\n1"}, False),
        ("2", B, {**ALL, "demo/gone": "uid-9\n1"}, False),
        ("opaque", B, ALL, None),
    ],
)
def test_the_proof_says_what_is_certain(version, witness, everything, holds):
    """True for what is there as it was, False for what can't be, None where nothing can be said.

    Few objects are all compared: one more, one less, or another state of one is another history.
    """
    assert _answer(_source(), version, witness, everything) is holds


@pytest.mark.parametrize(
    ("fault", "change", "holds"),
    [
        (Expired(410, "Expired", "compacted"), None, True),
        (Expired(410, "Expired", "compacted"), "demo/b", None),
        (ServerError(500, "InternalError", "required revision is a future revision"), None, True),
    ],
)
def test_a_version_that_can_not_be_read_exactly_is_compared_with_now(fault, change, holds):
    """A second small LIST, of the most recent state: what has not changed since is proven by it."""
    source = _source()
    if change is not None:
        source.delete(change)
    source.fail_next(fault, verb="list")
    assert _answer(source, "2", B) is holds
    assert len(source.checks()) == 2
