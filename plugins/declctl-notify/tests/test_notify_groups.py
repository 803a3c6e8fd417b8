"""Which changes become one message, and when."""

# The package is found beside the tests, whether it is installed or not.
# pyright: reportMissingImports=false

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import declctl_notify.groups
from declctl_notify.groups import Entry, GroupKey, Groups, Message, Timing

TIMING = Timing(group_wait=10.0, group_interval=300.0, repeat_interval=3600.0)
SHOP, BANK = GroupKey("rule", (("namespace", "shop"),)), GroupKey("rule", (("namespace", "bank"),))


def _add(
    groups: Groups,
    now: float,
    name: str = "a",
    *,
    key: GroupKey = SHOP,
    timing: Timing = TIMING,
    max_changes: int = 20,
) -> bool:
    entry = Entry((name, ""), f"{name} at {now:g}", "")
    return groups.add(key, entry, severity="info", timing=timing, max_changes=max_changes, now=now)


def _shown(messages: list[Message]) -> list[list[str]]:
    return [[f"{one.title} x{one.changes}" for one in message.entries] for message in messages]


def test_changes_within_group_wait_become_one_message() -> None:
    """A rollout that changes five objects is one message, ten seconds after its first change."""
    groups = Groups()
    _add(groups, 0.0, "a")
    _add(groups, 9.0, "b")
    assert groups.next_due == 10.0
    assert groups.due(9.9) == []
    assert _shown(groups.due(10.0)) == [["a at 0 x1", "b at 9 x1"]]
    assert groups.due(10.0) == []


def test_other_groups_do_not_wait_for_each_other() -> None:
    """Namespaces have messages of their own, each at its own time."""
    groups = Groups()
    _add(groups, 0.0, key=SHOP)
    _add(groups, 4.0, key=BANK)
    assert [message.group for message in groups.due(10.0)] == [SHOP]
    assert [message.group for message in groups.due(14.0)] == [BANK]


def test_the_next_message_of_a_group_waits_for_group_interval() -> None:
    """A busy namespace sends a message each five minutes, and not each ten seconds."""
    groups = Groups()
    _add(groups, 0.0, "a")
    groups.due(10.0)
    _add(groups, 20.0, "b")
    assert groups.next_due == 310.0
    assert groups.due(309.0) == []
    assert _shown(groups.due(310.0)) == [["b at 20 x1"]]


def test_a_group_that_was_quiet_waits_for_group_wait_again() -> None:
    """After a quiet hour, the first change is told within ten seconds again."""
    groups = Groups()
    _add(groups, 0.0, "a")
    groups.due(10.0)
    _add(groups, 4000.0, "b")
    assert groups.next_due == 3610.0  # the mark of "a" ends
    assert groups.due(4000.0) == []
    assert groups.next_due == 4010.0


def test_a_flapping_object_is_told_once_and_then_counted() -> None:
    """The same change comes forty times: one message, and one about the others after repeat_interval."""
    groups = Groups()
    _add(groups, 0.0)
    assert len(groups.due(10.0)) == 1
    for second in range(20, 2420, 60):
        _add(groups, float(second))
        assert groups.due(float(second)) == []
    assert groups.waiting == 40
    (message,) = groups.due(3610.0)
    assert _shown([message]) == [["a at 2360 x40"]]
    assert message.entries[0].repeats
    assert groups.waiting == 0


def test_a_flapping_object_does_not_hide_other_changes() -> None:
    """While repeats are counted, a change of another kind is told as always."""
    groups = Groups()
    _add(groups, 0.0, "a")
    groups.due(10.0)
    _add(groups, 20.0, "a")
    _add(groups, 21.0, "b")
    assert _shown(groups.due(310.0)) == [["b at 21 x1"]]
    assert _shown(groups.due(3610.0)) == [["a at 20 x1"]]


def test_equal_changes_that_wait_are_one_line() -> None:
    """Three equal changes within group_wait are a line with its number, in the newest words."""
    groups = Groups()
    for second in (0.0, 1.0, 2.0):
        _add(groups, second)
    assert _shown(groups.due(10.0)) == [["a at 2 x3"]]


def test_a_repeat_interval_of_zero_repeats_all() -> None:
    """`repeatInterval: 0s` for a rule of which each change counts."""
    groups, timing = Groups(), Timing(0.0, 0.0, 0.0)
    for second in (1.0, 2.0):
        _add(groups, second, timing=timing)
        assert _shown(groups.due(second)) == [[f"a at {second:g} x1"]]


def test_changes_beyond_the_limit_are_counted() -> None:
    """A message of 10,000 changes lists some, and has the number of the others."""
    groups = Groups()
    for number in range(25):
        _add(groups, 0.0, f"{number}", max_changes=3)
    (message,) = groups.due(10.0)
    assert (len(message.entries), message.more, message.changes) == (3, 22, 25)


def test_forgotten_groups_need_no_memory() -> None:
    """A controller that sees a million namespaces come and go keeps none of them."""
    groups, timing = Groups(), Timing(0.0, 0.0, 60.0)
    for number in range(1000):
        now = float(number)
        _add(groups, now, key=GroupKey("rule", (("namespace", f"{number}"),)), timing=timing)
        groups.due(now)
    assert groups.due(2000.0) == []
    assert (groups.next_due, groups.waiting) == (None, 0)


def test_too_many_groups_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A groupBy with too many values does not fill the memory; its changes are refused, and counted."""
    monkeypatch.setattr(declctl_notify.groups, "MOST_GROUPS", 2)
    groups = Groups()
    assert [_add(groups, 0.0, key=GroupKey("rule", (("n", n),))) for n in "abcb"] == [True, True, False, True]


def test_groups_in_which_nothing_waits_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """A group of each object: those that have sent their message are forgotten, and no change is refused."""
    monkeypatch.setattr(declctl_notify.groups, "MOST_GROUPS", 3)
    groups = Groups()
    for number in range(20):
        now = number * 20.0
        assert _add(groups, now, key=GroupKey("rule", (("n", f"{number}"),)))
        assert len(groups.due(now + 10.0)) == 1
    for number in range(3):
        assert _add(groups, 500.0, key=GroupKey("rule", (("m", f"{number}"),)))
    assert not _add(groups, 500.0, key=SHOP)
    assert len(groups.due(510.0)) == 3
    assert _add(groups, 510.0, key=SHOP)


def test_drain_leaves_nothing() -> None:
    """At the end of the process all that waits becomes messages, repeats too."""
    groups = Groups()
    _add(groups, 0.0, "a")
    groups.due(10.0)
    _add(groups, 20.0, "a")
    _add(groups, 20.0, "b")
    assert sorted(_shown(groups.drain())[0]) == ["a at 20 x1", "b at 20 x1"]
    assert (groups.waiting, groups.drain(), groups.next_due) == (0, [], None)


_TIMES = st.sampled_from([0.0, 1.0, 10.0, 60.0])
_STEPS = st.one_of(
    st.tuples(st.just("add"), st.sampled_from("abc"), st.sampled_from("xyz")),
    st.tuples(st.just("wait"), st.floats(0.0, 100.0), st.none()),
)


@settings(deadline=None)
@given(
    st.lists(_STEPS, max_size=60),
    st.builds(Timing, _TIMES, _TIMES, _TIMES),
    st.integers(1, 3),
)
def test_no_change_is_lost_and_no_time_is_missed(
    steps: list[tuple[str, Any, Any]], timing: Timing, most: int
) -> None:
    """Whatever comes when: each change is in a message, or waits. Messages keep their distance."""
    groups, now, added, told = Groups(), 0.0, 0, 0
    last: dict[GroupKey, float] = {}
    shown: dict[tuple[GroupKey, tuple[str, str]], float] = {}

    def look() -> int:
        changes = 0
        for message in groups.due(now):
            changes += message.changes
            assert message.changes > 0
            assert len(message.entries) <= most
            assert now >= last.get(message.group, -1e9) + timing.group_interval
            last[message.group] = now
            for entry in message.entries:
                mark = (message.group, entry.identity)
                assert now >= shown.get(mark, -1e9) + timing.repeat_interval
                shown[mark] = now
        return changes

    for step, what, name in steps:
        if step == "add":
            key = GroupKey("rule", (("namespace", what),))
            added += _add(groups, now, name, key=key, timing=timing, max_changes=most)
            continue
        end = now + what
        # As the thread of a target does: look at each time that is due.
        while (due := groups.next_due) is not None and due <= end:
            now = max(now, due)
            told += look()
            assert (after := groups.next_due) is None or after > now
        now = end
        assert told + groups.waiting == added
    # Whatever waits is told in a bounded time.
    for _ in range(200):
        if (due := groups.next_due) is None:
            break
        now = max(now, due)
        told += look()
    assert (told, groups.waiting, groups.next_due) == (added, 0, None)
