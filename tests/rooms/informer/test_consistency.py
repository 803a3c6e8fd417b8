"""The check of streaming lists: a LIST at exactly their version."""

import asyncio
import logging

import pytest

from declctl.decoding import Projection
from declctl.errors import Expired, InvalidRequest, ServerError
from declctl.informer import FakeControllerSource, SharedIndexInformer
from declctl.informer.reflector.faults import Inconsistent
from declctl.informer.reflector.reflector import ReflectorOptions
from declctl.kit import ManualClock
from tests.rooms.informer.reflecting import EXPIRED, bench
from tests.rooms.informer.shapes import fresh_projection, pod, rest, running

FAILS = ServerError(500, "InternalError", "no")


def loses(source, *keys):
    """Streams of this source leave objects out."""

    async def watch(options, *, known=None, _watch=source.watch):
        async for batch in _watch(options, known=known):
            yield [
                e for e in batch if not (e.record and options.send_initial_events and e.record.key in keys)
            ]

    source.watch = watch


@pytest.mark.client_go(145, 163, "Data consistency detector")
@pytest.mark.parametrize("queue", ["RealFIFO", "DeltaFIFO"])
@pytest.mark.parametrize("transform", [None, lambda obj: obj if obj["metadata"]["name"] != "b" else None])
@pytest.mark.parametrize("objects", [(), ("a", "b", "c")])
async def test_what_is_consistent_is_not_talked_about(queue, transform, objects, caplog):
    """With and without a transform, empty or not: one LIST at exactly that version, and nothing else."""
    clock = ManualClock()
    source = FakeControllerSource(projection=Projection(api_version="v1", kind="Pod", transform=transform))
    for name in objects:
        source.add(pod(name))
    options = ReflectorOptions(check_consistency=True)
    informer = SharedIndexInformer(source, name="pods", clock=clock, queue=queue, options=options)
    with caplog.at_level(logging.INFO, logger="declctl.informer"):
        async with running(informer, clock):
            source.add(pod("d"))
            await rest(clock)
            assert informer.statistics().error is None
            version = str(len(objects))
            asked = [(r.resource_version, r.resource_version_match) for r in source.lists()]
            assert asked == ([(version, "Exact")] if objects else [])
            assert len(source.watches()) == 1
    assert caplog.records == []


@pytest.mark.client_go(163, "Data consistency detector")
@pytest.mark.parametrize(("lost", "named"), [(1, "p00"), (10, "p09"), (15, "p09 and 5 more")])
async def test_a_difference_is_told_and_everything_is_listed_anew(caplog, lost, named):
    """Where client-go ends the process: some keys are named in one line, and the cache is repaired."""
    with caplog.at_level(logging.ERROR, logger="declctl.informer"):
        names = [f"p{n:02}" for n in range(15)]
        async with bench(objects=names, begin=False, check_consistency=True) as b:
            loses(b.source, *(f"demo/{name}" for name in names[:lost]))
            await b.begin()
            assert b.names == names[lost:]
            await b.advance(1)
            assert b.agrees()
            assert (b.figures.consistency_checks, b.figures.inconsistencies) == (1, 1)
            assert [type(fault) for fault in b.faults] == [Inconsistent]
            assert b.source.lists()[-1].resource_version is None
            b.source.add(pod("d"))
            await b.settle()
            assert (b.agrees(), b.figures.error, b.figures.state) == (True, None, "Watching")
    [message] = caplog.messages
    assert message.startswith("Pod: the streaming list differs from a LIST at its version 15 in demo/p00")
    assert message.endswith(f"demo/{named}")


async def test_the_watch_goes_on_while_it_is_checked():
    """A LIST that takes its time delays nothing; a difference is met while a wait is on, too."""
    async with bench(objects="abc", begin=False, check_consistency=True) as b:
        answer = asyncio.Event()

        async def slow(options, *, known, _list=b.source.list):
            await answer.wait()
            return await _list(options, known=known)

        loses(b.source, "demo/b")
        b.source.list = slow
        await b.begin()
        b.source.add(pod("d"))
        await b.settle()
        assert b.names == ["a", "c", "d"]
        b.source.cut(FAILS)
        await b.settle()
        answer.set()
        await b.settle()
        assert (b.figures.state, b.figures.inconsistencies) == ("BackingOff", 1)
        await b.advance(10)
        assert b.agrees()


@pytest.mark.client_go(163, "Data consistency detector")
@pytest.mark.parametrize(("failures", "checked"), [(0, 1), (1, 1), (4, 1), (5, 0), (50, 0)])
async def test_a_list_that_fails_is_tried_again_a_few_times(failures, checked):
    """Five times, with growing waits; then it is left at that."""
    async with bench(begin=False, check_consistency=True) as b:
        b.source.fail_next(FAILS, verb="list", times=failures)
        await b.begin()
        await b.advance(80)
        assert b.figures.consistency_checks == checked
        assert len(b.source.lists()) == min(failures + 1, 5)
        assert (b.figures.error, b.figures.failures, len(b.source.watches())) == (None, 0, 1)


@pytest.mark.parametrize("fault", [Expired(410, "Expired", ""), InvalidRequest(400, "BadRequest", "")])
async def test_a_version_that_is_gone_is_not_compared(fault):
    """Asking again would not help."""
    async with bench(begin=False, check_consistency=True) as b:
        b.source.fail_next(fault, verb="list")
        await b.begin()
        await b.advance(60)
        assert (b.figures.consistency_checks, len(b.source.lists()), b.figures.error) == (0, 1, None)


async def test_another_projection_meanwhile_is_no_difference():
    """A new transform may leave out other objects."""
    async with bench(begin=False, check_consistency=True) as b:

        async def exchanges(options, *, known, _list=b.source.list):
            page = await _list(options, known=known)
            b.source.projection = fresh_projection()
            return type(page)([], page.resource_version, "", None)

        b.source.list = exchanges
        await b.begin()
        assert (b.figures.consistency_checks, b.figures.inconsistencies) == (0, 0)


async def test_a_relist_gives_up_what_was_being_checked():
    async with bench(begin=False, check_consistency=True) as b:
        b.source.fail_next(FAILS, verb="list")
        await b.begin()
        b.source.cut(EXPIRED)
        await b.advance(0.9)
        assert b.figures.relists == 1
        await b.advance(60)
        assert b.figures.consistency_checks == 1
        assert len(b.source.lists()) == 2
