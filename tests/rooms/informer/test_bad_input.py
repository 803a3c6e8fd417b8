"""What a broken server, proxy or object may send: it is counted, told, and costs as little as it can."""

import asyncio
import logging

import msgspec
import pytest

from declctl.decoding import Projection
from declctl.errors import (
    Expired,
    MalformedAnswer,
)
from declctl.objects import ObjectView
from tests.rooms.informer.broken_input import (
    BROKEN_LINES,
    BROKEN_LISTS,
    CODES,
    DEEP,
    OTHER_KINDS,
    deep_pod,
    line,
)
from tests.rooms.informer.reflecting import bench
from tests.rooms.informer.shapes import Recorder, made, pod, rest, running


@pytest.mark.client_go(121, "Type check")
@pytest.mark.parametrize("what", OTHER_KINDS)
def test_an_object_of_another_kind_is_skipped(what, caplog):
    """It is counted, told once, never stored, and the watch goes on after it."""

    async def scenario():
        async with bench() as b:
            for version in ("7", "8"):
                foreign = {"metadata": {"name": "a", "namespace": "demo", "resourceVersion": version}}
                b.source.tell(line("MODIFIED", foreign | OTHER_KINDS[what]))
            await b.settle()
            assert b.reflector.last_sync_resource_version == "8"
            assert (b.names, b.store.get_by_key("demo/a").resource_version) == (["a", "b"], "1")
            assert (b.figures.skipped, b.figures.events, b.figures.failures) == (2, {"SKIPPED": 2}, 0)
            assert OTHER_KINDS[what]["kind"] in b.figures.last_decode_warning
            assert len(b.source.requests) == 1

    with caplog.at_level(logging.INFO, logger="declctl.informer"):
        asyncio.run(scenario())
    assert len(caplog.records) == 1
    assert caplog.records[0].message.startswith("Pod: an object is a ")


@pytest.mark.client_go("Type check")
@pytest.mark.parametrize("what", BROKEN_LINES)
def test_a_line_that_is_no_event_is_asked_for_again_and_then_gone_around(what, caplog):
    """It is told with the resource, the version and its beginning; nothing that happened is lost."""

    async def scenario():
        async with bench() as b:
            b.source.tell(BROKEN_LINES[what])
            b.source.add(pod("c"))
            await b.advance(10)
            assert b.agrees()
            assert (b.figures.failures, b.figures.relists, b.figures.error) == (2, 1, None)
            assert all(isinstance(fault, MalformedAnswer) for fault in b.faults)
            assert all(len(str(fault)) < 400 for fault in b.faults)

    with caplog.at_level(logging.INFO, logger="declctl.informer"):
        asyncio.run(scenario())
    assert caplog.messages[0].startswith("Pod: a")
    assert caplog.messages[0].endswith("(after version 2)")
    assert caplog.messages[-1] == "Pod: works again"


@pytest.mark.client_go(144, "Type check")
@pytest.mark.parametrize("what", BROKEN_LISTS)
def test_an_answer_that_is_no_list_never_empties_the_cache(what):
    """It is a fault, which is waited for; then the list is asked for again."""

    async def scenario():
        async with bench(watch_list=False) as b:
            b.source.body = BROKEN_LISTS[what]
            b.source.cut(Expired(410, "Expired", ""))
            await b.advance(5)
            assert b.names == ["a", "b"]
            assert "LIST" in b.figures.error
            b.source.calm()
            await b.advance(60)
            assert (b.agrees(), b.figures.error) == (True, None)

    asyncio.run(scenario())


@pytest.mark.client_go(144)
@pytest.mark.parametrize("items", [b"null", b"[]"])
def test_a_list_of_nothing_is_one(items):
    """Go writes it as null or as []."""

    async def scenario():
        async with bench(watch_list=False, objects=()) as b:
            b.source.body = b'{"kind":"PodList","metadata":{"resourceVersion":"9"},"items":%b}' % items
            b.source.cut(Expired(410, "Expired", ""))
            await b.advance(5)
            assert (b.names, b.figures.error, b.figures.relists) == ([], None, 1)

    asyncio.run(scenario())


@pytest.mark.parametrize("streams", [True, False])
def test_an_object_that_cannot_be_decoded_is_kept_as_it_is(streams, caplog):
    """Its name, version and labels are known; only who reads more of it meets the fault."""

    async def scenario():
        async with bench(streams=streams, objects=("a", "deep", "z"), begin=False) as b:
            b.source.corrupt("demo/deep", deep_pod(version="2"))
            await b.begin()
            assert b.agrees()
            held = b.store.get_by_key("demo/deep")
            assert (held.uid, held.labels) == ("u", {"app": "x"})
            with pytest.raises(MalformedAnswer, match="demo/deep can't be decoded"):
                ObjectView(held)["status"]
            b.source.tell(b'{"type":"MODIFIED","object":%b}\n' % deep_pod(version="4"))
            await b.settle()
            assert b.store.get_by_key("demo/deep").resource_version == "4"
            assert (b.figures.kept_raw, b.figures.skipped, b.figures.failures) == (2, 0, 0)
            assert b.figures.last_decode_warning.startswith("deep is kept as it is")

    with caplog.at_level(logging.WARNING, logger="declctl.informer"):
        asyncio.run(scenario())
    assert len(caplog.records) == 1


@pytest.mark.parametrize("streams", [True, False])
def test_an_object_that_has_to_be_transformed_and_cannot_be_is_left_out(streams):
    """What a transform was to take away is not stored because the object is broken."""
    transforming = Projection(api_version="v1", kind="Pod", transform=lambda obj: obj)

    async def scenario():
        async with bench(streams=streams, objects=("a", "deep"), begin=False, projection=transforming) as b:
            b.source.corrupt("demo/deep", deep_pod())
            await b.begin()
            assert b.names == ["a"]
            b.source.tell(b'{"type":"ADDED","object":%b}\n' % deep_pod("a", "5"))
            await b.settle()
            assert b.names == []
            assert (b.figures.skipped, b.figures.kept_raw) == (2, 0)
            assert "can't be transformed" in b.figures.last_decode_warning
            assert transforming.statistics().failed == 2

    asyncio.run(scenario())


@pytest.mark.parametrize("streams", [True, False])
@pytest.mark.parametrize("poison", [b'{"metadata":{"resourceVersion":"3"}}', DEEP, b'"text"', b"null"])
def test_an_object_that_nobody_can_name_costs_only_itself(streams, poison):
    """Everything else is listed and watched; when it is repaired, it is there."""

    async def scenario():
        async with bench(streams=streams, objects=("a", "b", "c"), begin=False) as b:
            b.source.corrupt("demo/b", poison)
            await b.begin()
            await b.advance(5)
            b.source.add(pod("d"))
            await b.settle()
            assert b.names == ["a", "c", "d"]
            assert (b.figures.skipped, b.figures.error) == (1, None)
            b.source.modify(pod("b"))
            await b.settle()
            assert b.agrees()

    asyncio.run(scenario())


@pytest.mark.parametrize("streams", [True, False])
def test_a_list_of_other_kinds_among_ours_leaves_them_out(streams):
    """They are counted; what is ours is stored."""

    async def scenario():
        async with bench(streams=streams, begin=False) as b:
            secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "b", "namespace": "demo"}}
            b.source.corrupt("demo/b", msgspec.json.encode(secret))
            await b.begin()
            assert (b.names, b.figures.skipped) == (["a"], 1)

    asyncio.run(scenario())


def test_an_object_of_two_megabytes_is_one_like_any_other():
    """Larger than etcd holds: nothing here is."""

    async def scenario():
        async with bench() as b:
            b.source.add(pod("large", annotations={"a": "x" * 2_000_000}))
            await b.settle()
            assert b.agrees()
            assert len(ObjectView(b.store.get_by_key("demo/large")).annotations["a"]) == 2_000_000

    asyncio.run(scenario())


def test_an_object_without_a_version_is_stored_and_moves_nothing():
    """The next watch begins where the last version was."""

    async def scenario():
        async with bench() as b:
            b.source.tell(line("ADDED", pod("c", uid="u")))
            await b.settle()
            assert b.names == ["a", "b", "c"]
            assert b.reflector.last_sync_resource_version == "2"
            b.source.tell(line("MODIFIED", pod("c", uid="u", node="n1")))
            await b.settle()
            assert ObjectView(b.store.get_by_key("demo/c"))["spec"] == {"nodeName": "n1"}

    asyncio.run(scenario())


def test_many_different_oddities_do_not_fill_the_log(caplog):
    """All are counted, some are told."""

    async def scenario():
        async with bench() as b:
            for n in range(100):
                b.source.tell(line("ADDED", {"kind": f"Kind{n}", "metadata": {"name": "x"}}))
            await b.settle()
            assert b.figures.skipped == 100

    with caplog.at_level(logging.WARNING, logger="declctl.informer"):
        asyncio.run(scenario())
    assert len(caplog.records) == 20


@pytest.mark.client_go("Other watch errors")
@pytest.mark.parametrize("code", CODES)
def test_an_error_event_of_any_code_is_recovered_from(code):
    """Whatever a stream ends with: it is counted and told or followed by a list, and all is well again."""

    async def scenario():
        async with bench() as b:
            b.source.first_line = line("ERROR", {"kind": "Status", "code": code, "reason": "X"})
            await b.advance(5)
            b.source.add(pod("c"))
            b.source.cut()
            await b.settle()
            b.source.calm()
            b.source.add(pod("d"))
            await b.advance(60)
            assert (b.agrees(), b.figures.error, b.figures.state) == (True, None, "Watching")
            assert b.figures.failures + b.figures.relists >= 1

    asyncio.run(scenario())


def test_a_change_without_a_version_is_told_to_handlers():
    """Two states without a version can't be told apart by it: each is taken for a change."""
    source, informer, clock = made()
    listener = Recorder()
    informer.add_listener(listener)

    async def scenario():
        async with running(informer, clock):
            for node in ("n1", "n2"):
                source.tell(line("MODIFIED", pod("a", uid="u", node=node)))
            await rest(clock)

    asyncio.run(scenario())
    assert listener.lines() == ["Added demo/a", "Modified demo/a"]
    assert ObjectView(listener.told[-1].record)["spec"] == {"nodeName": "n2"}
