"""An informer that begins with the objects of an earlier process: what listeners hear of the time between."""

import pytest

from declctl.objects import Record
from tests.rooms.informer.shapes import Informed, Recorder, informed, pod


async def _kept(names: str = "abc"):
    """A source, and what a first process has kept of it."""
    async with informed(*names) as first:
        await first.rest()
    informer = first.informer
    return first.source, informer.indexer.list(), informer.last_sync_resource_version


class _Next:
    """The next process: a listener that knows the kept objects, and one that is new."""

    def __init__(self, source, kept: list[Record], version: str) -> None:
        self.made = Informed(source=source)
        self.informer, self.newcomer, self.knows = self.made.informer, self.made.listener, Recorder()
        self.newcomer.clear()
        self.told_at_kept: list[str] = []
        self.informer.remove_event_handler(self.informer.processor.registrations(self.newcomer)[0])
        self.knows.folded = {each.key: each for each in kept}
        self.informer.begin_with(kept, version)
        self.informer.on_kept.append(lambda: self.told_at_kept.extend(sorted(self.informer.indexer.known())))
        self.registrations = [
            self.informer.add_listener(self.knows, initial=False),
            self.informer.add_listener(self.newcomer, deferred=True),
        ]


@pytest.mark.parametrize("compacted", [False, True])
async def test_who_knows_them_hears_what_is_otherwise_now_and_a_newcomer_all(compacted):
    """With the states that were kept as the old ones, also where the server has compacted their version."""
    source, kept, version = await _kept()
    source.modify(pod("a", node="n"))
    source.delete("demo/b")
    source.add(pod("d"))
    if compacted:
        source.compact()
    process = _Next(source, kept, version)
    async with process.made.runs():
        await process.made.clock.advance(5)
        assert process.told_at_kept == ["demo/a", "demo/b", "demo/c"]
        assert sorted(process.knows.lines()) == ["Added demo/d", "Deleted demo/b", "Modified demo/a"]
        assert not any(each.initial for each in process.knows.told)
        assert [each.final_state_unknown for each in process.knows.told if each.key == "demo/b"] == [True]
        assert sorted(process.newcomer.lines()) == ["Added demo/a", "Added demo/c", "Added demo/d"]
        assert all(each.initial for each in process.newcomer.told)
        assert all(each.received_initial.is_open for each in process.registrations)
        source.modify(pod("c", node="n"))
        await process.made.rest()
        assert process.knows.lines()[-1] == process.newcomer.lines()[-1] == "Modified demo/c"
    assert process.knows.faults == process.newcomer.faults == []


async def test_of_another_history_all_is_heard_as_of_a_first_list():
    """What was kept is of no object of this server: nothing is deleted that nobody can have known here."""
    source, _, _ = await _kept("a")
    backup = source.save()
    source.add(pod("lost"))
    kept = Informed(source=source)
    async with kept.runs():
        await kept.rest()
    records, version = kept.informer.indexer.list(), kept.informer.last_sync_resource_version
    source.restore(backup)
    source.modify(pod("a", node="n"))
    process = _Next(source, records, version)
    process.knows.folded = {}
    async with process.made.runs():
        await process.made.clock.advance(10)
        assert process.told_at_kept == []
        assert process.knows.lines() == process.newcomer.lines() == ["Added demo/a"]
        assert all(each.initial for each in (*process.knows.told, *process.newcomer.told))
    assert process.knows.faults == process.newcomer.faults == []
