"""The informer against a server that changes, breaks off and forgets as it likes, and a model that folds.

Whatever happens, each listener's notifications add up to the store, the store to the server, and
the indexes to what a look at every record gives; a library handler hears the same, late and merged
if its buffer is full.
"""

import asyncio
import os
from typing import Any

import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

from declctl.informer import FakeControllerSource, ReflectorOptions, SharedIndexInformer
from declctl.kit import ManualClock
from declctl.objects import ChangeType
from tests.properties.folding import Folding
from tests.properties.histories import Figures, History, by_chance, play, shortest
from tests.properties.informer_world import ACTIONS, NAMES, Beginning

_QUEUES = ("RealFIFO", "DeltaFIFO")
_LENGTH = 500  # steps
_ORDINARY = 15  # histories for each queue
_STEPS = st.one_of(
    [
        st.tuples(st.just(name), st.fixed_dictionaries({k: st.sampled_from(v) for k, v in a.choices.items()}))
        for name, a in ACTIONS.items()
    ]
)


@pytest.mark.client_go(164, 187, 202, "Core guarantee", "Late joiner", "HasSynced (handler)")
@pytest.mark.timeout(0)
@pytest.mark.parametrize("queue", ["RealFIFO", pytest.param("DeltaFIFO", marks=pytest.mark.thorough)])
def test_whatever_happens_cache_listeners_and_handlers_know_the_truth(
    queue: Any, capsys: Any, seed: int
) -> None:
    """Random histories of 500 steps: 15 for each queue, and as many as DECLCTL_SOAK says in a soak."""
    figures = Figures()
    for number in range(seed, seed + int(os.environ.get("DECLCTL_SOAK") or _ORDINARY)):
        history = by_chance(number, queue, _LENGTH)
        try:
            play(history, figures)
        except Exception:
            print(f"DECLCTL_SEED={number}; in short:", *shortest(history).lines(), sep="\n")
            raise
    assert figures.steps.total() == figures.histories * _LENGTH
    with capsys.disabled():
        if "DECLCTL_SOAK" in os.environ:
            print(f"\n{queue}:", *figures.lines(), sep="\n  ")


@given(
    beginning=st.builds(
        Beginning,
        st.sampled_from(_QUEUES),
        st.booleans(),
        st.booleans(),
        st.builds(ReflectorOptions, page_size=st.sampled_from([None, 1, 2]), watch_list=st.booleans()),
    ),
    steps=st.lists(_STEPS, max_size=60),
)
@settings(max_examples=60, deadline=None)
def test_short_histories_too(beginning, steps):
    """Hypothesis looks for the shortest history that goes wrong."""
    history = History(beginning, steps)
    note("\n".join(history.lines()))
    play(history)


@pytest.mark.client_go(165, "Core guarantee")
@pytest.mark.parametrize("queue", _QUEUES)
@given(
    changes=st.lists(
        st.tuples(st.sampled_from(NAMES), st.sampled_from(["put", "put", "delete"])), max_size=40
    ),
    pauses=st.sets(st.integers(0, 40)),
)
@settings(max_examples=60, deadline=None)
def test_every_change_is_told_once_and_in_order(queue, changes, pauses):
    """While a watch lasts, a listener hears every change of each object, once and in its order."""

    async def scenario() -> None:
        clock, server = ManualClock(), FakeControllerSource()
        informer = SharedIndexInformer(server, name="pods", clock=clock, queue=queue)
        listener = Folding(informer)
        listener.registration = informer.add_listener(listener)
        task = asyncio.create_task(informer.run())
        await clock.settle()
        expected: list[tuple[ChangeType, str, str]] = []
        for number, (name, what) in enumerate(changes):
            there = f"team-a/{name}" in server.objects
            if what == "put":
                put = server.modify if there else server.add
                stored = put({"metadata": {"namespace": "team-a", "name": name}})
                kind = ChangeType.MODIFIED if there else ChangeType.ADDED
                expected.append((kind, f"team-a/{name}", stored["metadata"]["resourceVersion"]))
            elif there:
                stored = server.delete(f"team-a/{name}")
                expected.append((ChangeType.DELETED, f"team-a/{name}", stored["metadata"]["resourceVersion"]))
            if number in pauses:
                await clock.settle()
        for _ in range(3):
            await clock.settle()
        task.cancel()
        await asyncio.wait([task])

        assert listener.wrong == []
        if queue == "RealFIFO":
            assert listener.told == expected
        else:  # in order for each key
            assert sorted(listener.told, key=lambda t: t[1]) == sorted(expected, key=lambda t: t[1])

    asyncio.run(scenario())
