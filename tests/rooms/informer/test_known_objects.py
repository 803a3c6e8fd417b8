"""A listener that knows objects of an earlier process: it hears what is otherwise now, and a newcomer all."""

import pytest

from tests.rooms.informer.shapes import Informed, Recorder, informed, pod


async def _first(names: str = "abc"):
    """A source, and what a first process has kept of it."""
    async with informed(*names) as first:
        await first.rest()
    informer = first.informer
    records = {each.key: each for each in informer.indexer.list()}
    return first.source, records, informer.last_sync_resource_version


class _Next:
    """The next process: a listener that knows the kept objects, and one that is new."""

    def __init__(self, source, kept, version, *, whole: bool = True, same_cluster: bool = False) -> None:
        self.made = Informed(source=source)
        self.informer, self.newcomer, self.knows = self.made.informer, self.made.listener, Recorder()
        self.knows.folded = dict(kept)
        self.informer.begin_with(list(kept.values()), version, whole=whole, same_cluster=same_cluster)
        self.registration = self.informer.add_listener(self.knows, knows=lambda: kept)


@pytest.mark.parametrize("compacted", [False, True])
async def test_who_knows_objects_hears_what_is_otherwise_now(compacted):
    """With the states that it knows as the old ones, also where the server has compacted their version."""
    source, kept, version = await _first()
    source.modify(pod("a", node="n"))
    source.delete("demo/b")
    source.add(pod("d"))
    if compacted:
        source.compact()
    process = _Next(source, kept, version)
    assert not process.registration.received_initial.is_open
    async with process.made.runs():
        await process.made.clock.advance(5)
        assert sorted(process.knows.lines()) == ["Added demo/d", "Deleted demo/b", "Modified demo/a"]
        assert not any(each.initial for each in process.knows.told)
        assert [each.final_state_unknown for each in process.knows.told if each.key == "demo/b"] == [True]
        assert sorted(process.newcomer.lines()) == ["Added demo/a", "Added demo/c", "Added demo/d"]
        assert process.registration.received_initial.is_open
        source.modify(pod("c", node="n"))
        await process.made.rest()
        assert process.knows.lines()[-1] == process.newcomer.lines()[-1] == "Modified demo/c"
    assert process.knows.faults == process.newcomer.faults == []


@pytest.mark.parametrize("whole", [True, False])
async def test_what_came_and_went_may_be_known_after_a_kill(whole):
    """The killed process may have told of it, and not have kept it; one that ended in order has kept all."""
    source, kept, version = await _first("a")
    source.add(pod("short"))
    source.modify(pod("short", node="n"))
    source.delete("demo/short")
    source.delete("demo/a")
    process = _Next(source, kept, version, whole=whole)
    process.knows.folded["demo/short"] = kept["demo/a"]  # in some state
    async with process.made.runs():
        await process.made.clock.advance(5)
        lines = [] if whole else ["Deleted demo/short"]
        assert sorted(process.knows.lines()) == ["Deleted demo/a", *lines]
        assert process.newcomer.lines() == []


async def test_an_object_that_was_made_anew_is_another_one():
    """Its name alone is known."""
    source, kept, version = await _first("ab")
    source.delete("demo/a")
    source.add(pod("a", uid="other"))
    process = _Next(source, kept, version)
    async with process.made.runs():
        await process.made.clock.advance(5)
        assert process.knows.lines() == ["Deleted demo/a", "Added demo/a"]
    assert process.knows.faults == []


async def test_of_a_server_that_was_put_back_the_differences_are_heard():
    """As by a process that has run all the time: what is lost is deleted, also of one version used again."""
    source, _, _ = await _first("a")
    backup = source.save()
    source.add(pod("lost"))
    source.modify(pod("a", node="first"))
    again = Informed(source=source)
    async with again.runs():
        await again.rest()
    kept = {each.key: each for each in again.informer.indexer.list()}
    source.restore(backup)
    source.advance()
    source.modify(pod("a", node="other"))
    process = _Next(source, kept, again.informer.last_sync_resource_version)
    async with process.made.runs():
        await process.made.clock.advance(10)
        assert sorted(process.knows.lines()) == ["Deleted demo/lost", "Modified demo/a"]
    assert process.knows.faults == []


@pytest.mark.parametrize("same_cluster", [False, True])
async def test_of_another_cluster_all_is_heard_as_of_a_first_list(same_cluster):
    """Nothing is deleted that was never here. In the same cluster, a kind that was defined anew looks so."""
    _, kept, version = await _first("ab")
    other, _, _ = await _first("a")
    other.delete("demo/a")
    other.add(pod("a", uid="of the other cluster"))
    process = _Next(other, kept, version, same_cluster=same_cluster)
    process.knows.folded = dict(kept) if same_cluster else {}
    async with process.made.runs():
        await process.made.clock.advance(10)
        assert process.newcomer.lines() == ["Added demo/a"]
        gone = ["Deleted demo/a", "Deleted demo/b"] if same_cluster else []
        assert sorted(process.knows.lines()) == ["Added demo/a", *gone]
        assert all(each.initial is not same_cluster for each in process.knows.told)
    assert process.knows.faults == []


async def test_who_comes_after_the_sync_hears_the_differences_at_once():
    """A handler that a leader starts later than its caches."""
    source, kept, version = await _first("ab")
    process = _Next(source, kept, version)
    async with process.made.runs():
        await process.made.clock.advance(5)
        source.modify(pod("a", node="n"))
        await process.made.rest()
        late = Recorder()
        late.folded = dict(kept)
        process.informer.add_listener(late, knows=lambda: kept)
        await process.made.rest()
        assert late.lines() == ["Modified demo/a"]
    assert late.faults == []
