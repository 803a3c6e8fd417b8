"""What `status` says of a resource's decoder."""

import asyncio
import json

import pytest
from msgspec.structs import replace

from declctl.informer import FakeControllerSource, InformerStatistics, SharedIndexInformer
from declctl.kit import ManualClock
from declctl.runtime.reporting.reporter import resource_status
from declctl.runtime.reporting.status import DecodingStatus, decoding_status
from tests.rooms.informer.shapes import fresh_projection, pod

DEEP = b'{"metadata":{"name":"deep","namespace":"demo","resourceVersion":"1"},"spec":%b}' % (
    b"[" * 1_000_000 + b"]" * 1_000_000
)


def _watched(*objects: dict, deep: bool = False) -> InformerStatistics:
    """The figures of an informer that has synced."""

    async def scenario() -> InformerStatistics:
        clock, source = ManualClock(), FakeControllerSource(projection=fresh_projection())
        for obj in objects:
            source.add(obj)
        if deep:
            source.add(pod("deep"))
            source.corrupt("demo/deep", DEEP)
        informer = SharedIndexInformer(source, name="pods", clock=clock)
        task = asyncio.create_task(informer.run())
        await clock.settle()
        assert informer.has_synced
        task.cancel()
        await asyncio.wait([task])
        return informer.statistics()

    return asyncio.run(scenario())


@pytest.fixture(name="parts")
def _parts() -> list[InformerStatistics]:
    """Two watches, with one object that has a field of another type, and one that nobody can decode."""
    return [_watched(pod("a"), pod("b"), deep=True), _watched(pod("odd") | {"spec": 7})]


def test_the_watches_of_a_resource_are_added_up(parts):
    """Objects, and those that can't be decoded, are counted over all of them."""
    found = decoding_status(parts, transformed=False)
    assert (found.objects, found.projected, found.whole, found.unexpected) == (4, 3, 1, 1)
    assert found.unread == 1
    document = replace(resource_status("pods", parts), decoding=found).document()["decoding"]
    assert json.loads(json.dumps(document)) == document
    assert document["frameRatio"] > 0


def test_with_a_transform_nobody_expects_objects_to_be_projected(parts):
    """It is given whole objects: that they are decoded is no news."""
    assert decoding_status(parts, transformed=True).unexpected == 0


def test_a_resource_without_a_watch_has_decoded_nothing():
    """Every figure is there all the same, and zero."""
    assert decoding_status([], transformed=False) == resource_status("pods", []).decoding == DecodingStatus()
