"""A handler moves to another cache: what it hears, and when it may go (G15)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from declctl.objects import ChangeType, LabelSelector
from declctl.runtime.handling.moves import FreshnessProof, MoveDifferences
from tests.rooms.runtime.conftest import make_record
from tests.rooms.runtime.moving_caches import CLOCK, MadeUpCache, begun, proof_of


def _open_keys(proof: FreshnessProof) -> str | None:
    return None if proof.remaining_gap() is None else proof.remaining_gap().key


@pytest.mark.parametrize(
    ("heard", "seen", "version"),
    [
        *[(9, 8, "9"), (9, 9, None), (9, 10, None), (10, 9, "10"), (0, 9, None), (9, 0, None)],
        *[("abc", 1000, None), (1000, "abc", None)],
    ],
)
def test_a_target_has_to_reach_what_was_heard_before(heard, seen, version) -> None:
    """Versions are compared as numbers; what is no version says nothing."""
    gap = proof_of(MadeUpCache(seen=heard), MadeUpCache(seen=seen)).remaining_gap()
    assert (gap and gap.version) == version
    assert gap is None or not gap.key


def test_a_history_that_is_no_more_is_not_waited_for(record) -> None:
    """It can never be reached. A closed proof listens no more."""
    source, target = MadeUpCache(seen=100), MadeUpCache(seen=100)
    proof = proof_of(source, target)
    source.put(record("x", version=101))
    target.at(50)
    assert proof.remaining_gap() is not None
    source.at(49)
    assert proof.remaining_gap() is None
    proof.close()
    proof.close()
    assert source.listeners == []


def test_what_is_heard_meanwhile_has_to_be_seen(record) -> None:
    """By an event of the object, or by the version of the target: of what a list finds gone, by that."""
    source, target = MadeUpCache(seen=9), MadeUpCache(seen=9)
    proof = proof_of(source, target)
    source.put(record("a", version=10))
    assert _open_keys(proof) == "default/a"
    target.put(record("a", version=10))
    assert _open_keys(proof) is None
    source.put(record("b", version=11))
    source.remove("default/b", record("b", version=12))
    assert _open_keys(proof) == "default/b"  # what came and went is in neither of them
    target.at(11)
    assert _open_keys(proof) == "default/b"
    target.at(12)
    assert _open_keys(proof) is None
    source, target = MadeUpCache(record("a", version=5), seen=9), MadeUpCache(record("a", version=5), seen=9)
    proof = proof_of(source, target)
    source.at(20)
    source.remove("default/a")
    target.at(19)
    assert _open_keys(proof) == "default/a"
    target.at(20)
    assert _open_keys(proof) is None
    source, target = MadeUpCache(seen=9), MadeUpCache(seen=9, fields="spec.nodeName=a")
    proof = proof_of(source, target)
    source.put(record("x", version=10))
    assert _open_keys(proof) == "default/x"
    target.at(10)
    assert _open_keys(proof) is None
    source, target = MadeUpCache(seen=9), MadeUpCache(seen=9, namespace="a")
    proof = proof_of(source, target)
    source.put(record("x", version=10, namespace="b"))
    assert _open_keys(proof) is None
    source.put(record("x", version=11, namespace="a"))
    assert _open_keys(proof) == "a/x"


def test_objects_that_labels_leave_out_are_waited_for_where_the_target_holds_them(record) -> None:
    """It will be told that they leave; of others it is told nothing. A gap says which cache lags and why."""
    web, other = {"tier": "web"}, {"tier": "other"}
    held = record("held", version=3, labels=web)
    source, target = MadeUpCache(seen=9), MadeUpCache(held, seen=9, labels="tier=web")
    proof = proof_of(source, target)
    source.put(record("out", version=10, labels=other))
    assert _open_keys(proof) is None
    source.put(record("held", version=11, labels=other))
    assert _open_keys(proof) == "default/held"
    target.remove("default/held", record("held", version=11, labels=web))
    assert _open_keys(proof) is None
    source.put(record("leaves", version=12, labels=web))
    source.put(record("leaves", version=13, labels=other))
    target.at(12)
    assert _open_keys(proof) == "default/leaves"
    gap = proof_of(MadeUpCache(seen=9), MadeUpCache(seen=8, namespace="b")).remaining_gap()
    assert str(gap.refusal(3)) == (
        "tell would go back in time: after 3 s the cache of v1 Pod in b is at version 8, and they have "
        "received newer ones: its watch brings nothing newer"
    )


_TIERS = ("web", "api", "none")
_EVENTS = st.lists(
    st.tuples(st.sampled_from("abc"), st.sampled_from(["remove", "remake", *_TIERS])), max_size=15
)
_SCOPES = st.sampled_from([("", ""), ("", "tier=web"), ("tier=web", ""), ("tier=web", "tier in (web,api)")])


class _Watched(MadeUpCache):
    """A cache that is filled by a watch with a label selector, one event at a time."""

    def __init__(self, history, labels: str) -> None:
        super().__init__(seen=1, labels=labels)
        self._history = history
        self._selector = LabelSelector.parse(labels)
        self._next = 0

    @property
    def is_done(self) -> bool:
        return self._next == len(self._history)

    def advance(self) -> None:
        """The next event of the server, if this watch is told of it, or a bookmark of its version."""
        if self.is_done:
            return
        version, key, state = self._history[self._next]
        self._next += 1
        self.at(version)
        if self._covers(state):
            self.put(state)
        elif (held := self.store.get(key)) is not None:  # what leaves has its old content
            labels = held.labels
            self.remove(key, make_record(key.split("/")[1], uid=held.uid, version=version, labels=labels))

    def skip_what_is_out_of_scope(self) -> None:
        """What the server does not tell: the version stays."""
        while not self.is_done:
            _, key, state = self._history[self._next]
            if key in self.store or self._covers(state):
                return
            self._next += 1

    def _covers(self, state) -> bool:
        return state is not None and self._selector.matches(state.labels)


def _history(events):
    """What a server tells: version, key, and the state; None where it is deleted."""
    uids, live, found = dict.fromkeys("abc", 0), set(), []
    for name, what in events:
        key = f"default/{name}"
        if name in live and what in ("remove", "remake"):
            live.remove(name)
            uids[name] += 1
            found.append((len(found) + 2, key, None))
        if what != "remove":
            live.add(name)
            labels = {"tier": "web" if what == "remake" else what}
            version = len(found) + 2
            state = make_record(name, uid=f"{name}{uids[name]}", version=version, labels=labels)
            found.append((version, key, state))
    return found


class _Ear:
    """What a handler knows, and whether each thing that it hears can follow."""

    def __init__(self) -> None:
        self.known: dict[str, tuple[str, str]] = {}
        self.newest: dict[str, int] = {}

    def add_all(self, notifications) -> None:
        for n in notifications:
            version = int(n.record.resource_version)
            assert version >= self.newest.get(n.key, 0), (n, "is of the past")
            assert (n.type is ChangeType.ADDED) == (n.key not in self.known), n
            self.newest[n.key] = version
            if n.type is ChangeType.DELETED:
                del self.known[n.key]
            else:
                self.known[n.key] = n.record.revision


@pytest.mark.guarantee("G15")
@given(
    events=_EVENTS,
    scopes=_SCOPES,
    head_start=st.integers(0, 15),
    steps=st.lists(st.sampled_from(["old", "new", "skip"]), max_size=40),
    begins=st.integers(0, 20),
)
def test_a_handler_that_moves_hears_what_one_watch_would_tell(
    events, scopes, head_start, steps, begins
) -> None:
    """Two watches get on at different times; before, at and after the move nothing is of the past.

    What is told closes exactly the gap between them, and what the new one tells then follows it.
    """
    history = _history(events)
    old, new = _Watched(history, scopes[0]), _Watched(history, scopes[1])
    ear, proof = _Ear(), FreshnessProof(["tell"], [old], new)
    move = MoveDifferences([old], [new], clock=CLOCK)
    old.listeners.append(ear)
    for _ in range(head_start):
        old.advance()
    for number, step in enumerate([*steps, *["old"] * (begins + 1 - len(steps))]):
        if number == begins:
            proof.begin()
            begun(move)
        if step == "old":
            old.advance()
        elif step == "new":
            new.advance()
        else:
            new.skip_what_is_out_of_scope()
    while (gap := proof.remaining_gap()) is not None:
        if new.is_done:
            assert not gap.key  # what it waits for by an object comes; else a list is requested
            new.at(int(gap.version))
        new.advance()
    old.listeners.remove(ear)
    ear.add_all(move.notifications)
    proof.close()
    move.close()
    assert old.listeners == new.listeners == []
    assert ear.known == {key: record.revision for key, record in new.store.items()}
    new.listeners.append(ear)
    while not new.is_done:
        new.advance()
    assert ear.known == {key: record.revision for key, record in new.store.items()}


def _told(gone, come):
    found = begun(MoveDifferences(gone, come, clock=CLOCK)).notifications
    return [(str(n.type), n.key, str(n.reason)) for n in found]


def test_only_true_differences_are_told(record) -> None:
    """New is Added, newer Modified, gone OutOfScope; another uid is two changes. Nothing is of the past."""
    before = MadeUpCache(record("same", version=1), record("newer", version=2), record("gone", version=3))
    after = MadeUpCache(record("same", version=1), record("newer", version=5), record("new", version=4))
    assert _told([before], [after]) == [
        ("Modified", "default/newer", "Relist"),
        ("Deleted", "default/gone", "OutOfScope"),
        ("Added", "default/new", "Initial"),
    ]
    notifications = begun(MoveDifferences([before], [after], clock=CLOCK)).notifications
    assert [n.received_at for n in notifications] == [CLOCK.now().timestamp()] * 3
    before, after = MadeUpCache(record("a", uid="1")), MadeUpCache(record("a", uid="2"))
    assert [row[0] for row in _told([before], [after])] == ["Deleted", "Added"]
    assert _told([MadeUpCache(record("a", version=9))], [MadeUpCache(record("a", version=8))]) == []
    stays, goes = MadeUpCache(record("a", version=1)), MadeUpCache(record("b", version=1, namespace="b"))
    assert _told([stays, goes], [stays]) == [("Deleted", "b/b", "OutOfScope")]
