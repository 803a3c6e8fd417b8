"""What a broken server, proxy or object may send: it is counted, told, and costs as little as it can."""

import logging

import pytest

from declctl.decoding import Projection
from declctl.errors import Expired, MalformedAnswer
from declctl.objects import ObjectView
from tests.rooms.informer.broken_input import BROKEN_LINES, BROKEN_LISTS, DEEP, OTHER_KINDS, deep_pod, line
from tests.rooms.informer.reflecting import bench
from tests.rooms.informer.shapes import informed, pod

NAMELESS = b'{"metadata":{"resourceVersion":"3"}}'
SECRET = b'{"apiVersion":"v1","kind":"Secret","metadata":{"name":"b","namespace":"demo"}}'


@pytest.mark.client_go(121, "Type check")
@pytest.mark.parametrize("what", OTHER_KINDS)
async def test_an_object_of_another_kind_is_skipped(what, caplog):
    """It is counted, told once, never stored, and the watch goes on after it."""
    with caplog.at_level(logging.INFO, logger="declctl.informer"):
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
    assert len(caplog.records) == 1
    assert caplog.records[0].message.startswith("Pod: an object is a ")


@pytest.mark.client_go("Type check")
@pytest.mark.parametrize("what", BROKEN_LINES)
async def test_a_line_that_is_no_event_is_asked_for_again_and_then_gone_around(what, caplog):
    """It is told with the resource, the version and its beginning; nothing that happened is lost."""
    with caplog.at_level(logging.INFO, logger="declctl.informer"):
        async with bench() as b:
            b.source.tell(BROKEN_LINES[what])
            b.source.add(pod("c"))
            await b.advance(10)
            assert b.agrees()
            assert (b.figures.failures, b.figures.relists, b.figures.error) == (2, 1, None)
            assert all(isinstance(fault, MalformedAnswer) for fault in b.faults)
            assert all(len(str(fault)) < 400 for fault in b.faults)
    assert caplog.messages[0].startswith("Pod: a")
    assert caplog.messages[0].endswith("(after version 2)")
    assert caplog.messages[-1] == "Pod: works again"


@pytest.mark.client_go(144, "Type check")
@pytest.mark.parametrize("what", BROKEN_LISTS)
async def test_an_answer_that_is_no_list_never_empties_the_cache(what):
    """It is a fault, which is waited for; then the list is asked for again."""
    async with bench(watch_list=False) as b:
        b.source.body = BROKEN_LISTS[what]
        b.source.cut(Expired(410, "Expired", ""))
        await b.advance(5)
        assert b.names == ["a", "b"]
        assert "LIST" in b.figures.error
        b.source.calm()
        await b.advance(60)
        assert (b.agrees(), b.figures.error) == (True, None)


@pytest.mark.parametrize("streams", [True, False])
async def test_an_object_that_cannot_be_decoded_is_kept_as_it_is(streams, caplog):
    """Its name, version and labels are known; only who reads more of it meets the fault."""
    with caplog.at_level(logging.WARNING, logger="declctl.informer"):
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
    assert len(caplog.records) == 1


@pytest.mark.parametrize("streams", [True, False])
async def test_an_object_that_has_to_be_transformed_and_cannot_be_is_left_out(streams):
    """What a transform was to take away is not stored because the object is broken."""
    transforming = Projection(api_version="v1", kind="Pod", transform=lambda obj: obj)
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


@pytest.mark.parametrize("streams", [True, False])
@pytest.mark.parametrize("poison", [NAMELESS, DEEP, b'"text"', b"null", SECRET])
async def test_an_object_that_nobody_can_name_costs_only_itself(streams, poison):
    """Everything else is listed and watched, also around another kind; when it is repaired, it is there."""
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


async def test_an_object_without_a_version_is_stored_and_told_and_moves_nothing():
    """The next watch begins where the last version was.

    Two states without a version can't be told apart by it: each is taken for a change.
    """
    async with informed("a", "b") as i:
        i.listener.clear()
        for node in ("n1", "n2"):
            i.source.tell(line("MODIFIED", pod("c", uid="u", node=node)))
            await i.rest()
            assert ObjectView(i.informer.indexer.get_by_key("demo/c"))["spec"] == {"nodeName": node}
            assert i.informer.last_sync_resource_version == "2"
    assert i.listener.lines() == ["Added demo/c", "Modified demo/c"]
    assert ObjectView(i.listener.told[-1].record)["spec"] == {"nodeName": "n2"}


async def test_many_different_oddities_do_not_fill_the_log(caplog):
    with caplog.at_level(logging.WARNING, logger="declctl.informer"):
        async with bench() as b:
            for n in range(100):
                b.source.tell(line("ADDED", {"kind": f"Kind{n}", "metadata": {"name": "x"}}))
            await b.settle()
            assert b.figures.skipped == 100
    assert len(caplog.records) == 20
