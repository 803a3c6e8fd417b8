"""What the log says of a resource that works, but not as it should."""

import asyncio

from msgspec.structs import replace

from declctl.informer import FakeControllerSource, SharedIndexInformer
from declctl.objects.differences import Mutation, ShownDifference
from declctl.runtime.reporting.reporter import ResourceWarnings, resource_status
from declctl.runtime.reporting.status import DecodingStatus
from tests.rooms.informer.shapes import pod


async def test_objects_that_are_skipped_are_told_when_it_begins_and_when_they_have_doubled(clock):
    """Somebody who reads the log learns what came and that it goes on, in a few lines."""
    told: list[list[str]] = []
    source, notes = FakeControllerSource(), ResourceWarnings()
    informer = SharedIndexInformer(source, name="pods", clock=clock)
    task = asyncio.create_task(informer.run())
    for number in range(1, 5):
        await clock.settle()
        told.append(list(notes.of(resource_status("pods", [informer.statistics()]))))
        source.tell(
            b'{"type":"ADDED","object":{"kind":"Secret","apiVersion":"v1","metadata":'
            b'{"name":"a","namespace":"b","resourceVersion":"%d"}}}' % (100 + number)
        )
    await clock.settle()
    told.append(list(notes.of(resource_status("pods", [informer.statistics()]))))
    task.cancel()
    await asyncio.wait([task])
    assert [len(lines) for lines in told] == [0, 1, 1, 0, 1]
    assert told[1][0].startswith("pods: 1 object was skipped; the last: ")
    assert "Secret" in told[1][0]
    assert told[4][0].startswith("pods: 4 objects were skipped; ")


def test_objects_that_readers_changed_are_told_and_what_to_do_instead(clock):
    """The line names the last of them; the next comes when they have doubled."""
    notes, status = ResourceWarnings(), resource_status("pods", [])
    last = Mutation("Pod", "demo/a", (ShownDifference("spec.nodeName", '"n1"', '"spoilt"'),))
    lines = [
        list(notes.of(replace(status, mutations=count, last_mutation=last if count else None)))
        for count in (0, 1, 1, 2, 3, 4)
    ]
    assert [len(each) for each in lines] == [0, 1, 0, 1, 0, 1]
    assert lines[1][0] == (
        "pods: 1 object was changed in the cache by a reader, and put right; the last: Pod demo/a: "
        'spec.nodeName was "n1" and became "spoilt". '
        "With cache.mode Objects all readers share an object: change what obj.to_dict() gives"
    )
    assert lines[3][0].startswith("pods: 2 objects were changed")


def test_objects_that_a_transform_fails_on_are_told(clock):
    """They are missing from the cache: the log says how many and why."""
    notes, status = ResourceWarnings(), resource_status("pods", [])
    fault = "the transform raised KeyError on a: 'x'"
    statuses = [replace(status, decoding=DecodingStatus(failed=n, last_fault=fault)) for n in (0, 1, 1, 2)]
    assert [list(notes.of(each)) for each in statuses] == [
        [],
        [f"pods: 1 object was left out of the cache; the last: {fault}"],
        [],
        [f"pods: 2 objects were left out of the cache; the last: {fault}"],
    ]


async def test_an_index_that_fails_is_told_by_the_name_that_the_manifest_has(clock):
    """The line says which index, how often, and what its function raised."""
    source = FakeControllerSource()
    source.add(pod("a"))
    indexers = {"byOwner@handlers#1234": lambda obj: [obj["nothing"]]}
    informer = SharedIndexInformer(source, name="pods", clock=clock, indexers=indexers)
    task = asyncio.create_task(informer.run())
    await clock.settle()
    told = list(ResourceWarnings().of(resource_status("pods", [informer.statistics()])))
    task.cancel()
    await asyncio.wait([task])
    (line,) = told
    assert line.startswith("pods: index byOwner failed once; the last: KeyError on demo/a")
