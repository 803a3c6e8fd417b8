"""Own writes do not loop: what is recognised, and what is found to be a loop."""

from typing import Any

import pytest

from declctl.kit import ManualClock
from declctl.kit.pending import ItemState
from declctl.objects import Cause, GroupVersionKind, ObjectKey
from declctl.runtime.handling.write_loops import LONGEST_DELAY, MOST_IN_A_MINUTE, WriteLoops
from declctl.runtime.reconciling.unseen_writes import UnseenWrites
from declctl.workqueue import Reasons, ReconcileQueue
from declctl.writes import WriteOrigin, WriteVerb, Written

POD = GroupVersionKind.of("v1", "Pod")
CHANGED = Cause("Modified", "pods", "a/web", "Watch")


class Scene:
    """Two handlers of pods, whose writes get versions that grow."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.reports: list[str] = []
        self.loops = WriteLoops(clock=self.clock, report=self.reports.append)
        self.version = 100

    def write(
        self,
        handler: str = "web",
        *,
        reasons: Any = None,
        based_on: str | None = "current",
        digest: int | None = None,
        reads: tuple[str, str] | None = None,
        **more: Any,
    ) -> tuple[str, str]:
        """One call of a handler for a/web that writes; returns the version that it makes.

        `based_on` None is an apply, whose managed fields have the time `time`.
        """
        if reads is None:
            self.loops.begin(handler, "a/web", reasons)
        if based_on == "current":
            based_on = str(self.version)
        advances = more.pop("advances", 1)
        self.version += advances
        self.write_again(handler, based_on=based_on, digest=digest, reads=reads, changed=advances > 0, **more)
        return "u", str(self.version)

    def write_again(self, handler: str = "web", **given: Any) -> None:
        based_on, digest, time = given["based_on"], given.get("digest"), given.get("time", "")
        entry = {"manager": f"declctl/x/{handler}", "operation": "Apply", "time": time}
        obj = given.get(
            "obj", {"metadata": {"generation": 2, "managedFields": [entry]}, "status": {"seen": self.version}}
        )
        written = Written(
            WriteVerb.PATCH_STATUS if based_on else WriteVerb.APPLY,
            POD,
            ObjectKey("a/web"),
            "u",
            str(self.version),
            obj,
            given.get("changed", True),
            manager=f"declctl/x/{handler}",
            based_on=based_on or "",
            digest=self.version if digest is None else digest,
        )
        origin = WriteOrigin(handler, 1, key="a/web", reads=given.get("reads"))
        before = given.get("before", {"metadata": {"generation": 1}, "status": {"seen": 0}})
        self.loops.note(written, origin, before=lambda: before)


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_the_event_of_an_own_conditional_write_is_recognised(scene) -> None:
    """The status that a handler has written tells it nothing new."""
    own = scene.write()
    assert scene.loops.is_own("web", "a/web", [own])
    assert not scene.loops.is_own("web", "a/web", [own, ("u", "999")])  # something else has changed, too
    assert not scene.loops.is_own("web", "a/db", [own])
    assert not scene.loops.is_own("other", "a/web", [own])
    assert not scene.loops.is_own("web", "a/web", None)
    assert not scene.loops.is_own("web", "a/web", [])


@pytest.mark.parametrize("how", [{"advances": 0}, {"based_on": None}], ids=str)
def test_the_event_of_a_version_that_somebody_else_may_have_made_is_not_an_own_one(scene, how) -> None:
    """A write that changed nothing makes no version; changes of others may lie before an apply."""
    assert not scene.loops.is_own("web", "a/web", [scene.write(**how)])


def test_handlers_that_feed_each_other_are_a_loop(scene) -> None:
    """Each writes a time whenever the other one has written: no single event shows it."""
    version = scene.write("web")
    for _ in range(MOST_IN_A_MINUTE + 3):
        version = scene.write("other", reasons=[version])
        version = scene.write("web", reasons=[version])
    found = scene.loops.loops()
    assert [(each.handler, each.key, each.fights, each.fields) for each in found] == [
        ("other", "a/web", False, ("status.seen",)),
        ("web", "a/web", False, ("status.seen",)),
    ]
    assert len(scene.reports) == 2
    assert scene.reports[0].startswith(
        "other a/web: its writes to v1 Pod a/web lead to its next call, as do those of web a/web, more than"
    )
    assert "(fields: status.seen); let one handler alone write these fields" in scene.reports[0]
    assert scene.reports[0].endswith("; it is called with growing delays from now on")
    assert scene.loops.delay("web", "a/web") > 0
    assert scene.loops.delay("web", "a/db") == 0


def test_a_pipeline_is_no_loop(scene) -> None:
    """A handler that follows another one, which follows a busy user, is called often and rightly."""
    for _ in range(50):
        version = scene.write("web", reasons=None)
        scene.write("other", reasons=[version])
    assert scene.loops.loops() == []


@pytest.mark.parametrize(("every", "pause"), [(MOST_IN_A_MINUTE, 0), (1000, 30)], ids=["anew", "slowly"])
def test_a_change_from_outside_begins_anew_and_slow_feedback_is_no_loop(scene, every, pause) -> None:
    """Ten calls in a row, a change of a user, and ten again; once in a minute is a rhythm without a cost."""
    version = scene.write()
    for number in range(40):
        scene.clock.set(pause)
        version = scene.write(reasons=None if number and number % every == 0 else [version])
    assert scene.loops.loops() == []


@pytest.mark.parametrize("pace", [0.01, 0.3, 5])
@pytest.mark.parametrize("based_on", ["current", None])
def test_a_write_that_somebody_reverts_again_and_again_is_a_fight(scene, based_on, pace) -> None:
    """Another manager sets the field back: the handler writes the same, and changes something each time."""
    for _ in range(MOST_IN_A_MINUTE + 2):
        scene.clock.set(pace)
        scene.version += 1  # the other manager
        scene.write(based_on=based_on, digest=7, time=str(int(scene.clock.monotonic())))
    (loop,) = scene.loops.loops()
    assert (loop.fights, loop.handler) == (True, "web")
    assert "somebody reverts what it writes to v1 Pod a/web" in scene.reports[0]


@pytest.mark.parametrize("manager", ["declctl/x/web", "kubectl"])
@pytest.mark.parametrize("is_cached", [True, False])
def test_a_fight_with_a_process_of_the_same_name_is_named(scene, manager: str, is_cached: bool) -> None:
    """Two installs in two namespaces are one manager for the server: its fields had values of the other.

    A cache without managedFields does not show it: then the object is read once.
    """
    entry = {"operation": "Apply", "fieldsV1": {"f:spec": {"f:seen": {}}}}
    after = {"metadata": {"managedFields": [{**entry, "manager": "declctl/x/web"}]}, "spec": {"seen": 1}}
    live = {"metadata": {"managedFields": [{**entry, "manager": manager}]}, "spec": {"seen": 2}}
    reads = 0
    for _ in range(MOST_IN_A_MINUTE + 2):
        scene.version += 1
        is_read = scene.loops.wants_live(WriteOrigin("web", 1, key="a/web"))
        reads += is_read
        before = live if is_cached or is_read else {"metadata": {}, "spec": {"seen": 2}}
        scene.write(based_on=None, digest=7, obj=after, before=before)
    other = "somebody" if manager == "kubectl" else f"another process with the field manager {manager} (such"
    assert f"a/web: {other}" in scene.reports[0]
    assert reads == (0 if is_cached else 1)


def test_an_apply_that_changes_nothing_is_no_fight(scene) -> None:
    """Level-triggered reconcilers apply the same in each call; others change the object meanwhile."""
    for _ in range(50):
        scene.clock.set(1.1)
        scene.version += 1
        scene.write(based_on=None, digest=7, time="00:00:01")
    assert scene.loops.loops() == []


def test_several_writes_of_one_call_count_once(scene) -> None:
    """A call that writes five children of its own is one turn of a loop."""
    version = scene.write()
    for _ in range(3):
        version = scene.write(reasons=[version])
        for _ in range(5):
            based_on = str(scene.version)
            scene.version += 1
            scene.write_again(based_on=based_on)
    assert scene.loops.loops() == []


def test_a_handler_of_changes_that_feeds_itself_is_a_loop(scene) -> None:
    """It receives each change, its own too: the version that it was called with is its reason."""
    version = scene.write(reads=("u", "100"))
    for _ in range(MOST_IN_A_MINUTE + 2):
        version = scene.write(reads=version)
    assert [each.handler for each in scene.loops.loops()] == ["web"]


@pytest.mark.client_go(256, 257, 259, "Backoff")
def test_the_delay_grows_and_ends_with_the_loop(scene) -> None:
    """One, two, four seconds, up to a minute; after a while of rest the handler is as before."""
    version, delays = scene.write(), []
    for _ in range(MOST_IN_A_MINUTE + 9):
        version = scene.write(reasons=[version])
        delays.append(scene.loops.delay("web", "a/web"))
    assert [delay for delay in delays if delay] == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    scene.clock.set(LONGEST_DELAY + 61)
    assert scene.loops.delay("web", "a/web") == 0
    assert scene.loops.loops() == []
    assert scene.reports[-1] == "web a/web does not feed itself any longer"


@pytest.mark.client_go(258, 259, 260, "Backoff")
def test_a_delay_counts_from_the_last_write_and_stays_while_the_rest_is_short(scene) -> None:
    """A key that loops goes on with its delay after less than two minutes, and begins anew after more."""
    version = scene.write()

    def turn() -> float:
        nonlocal version
        version = scene.write(reasons=[version])
        return scene.loops.delay("web", "a/web")

    while turn() < LONGEST_DELAY:
        pass
    scene.clock.set(59)
    assert scene.loops.delay("web", "a/web") == pytest.approx(1)
    assert turn() == LONGEST_DELAY
    scene.clock.set(2 * LONGEST_DELAY - 1)
    assert len(scene.loops.loops()) == 1
    assert scene.loops.delay("web", "a/web") == 0
    assert turn() == LONGEST_DELAY
    scene.clock.set(2 * LONGEST_DELAY + 1)
    assert scene.loops.loops() == []
    assert turn() == 0


@pytest.fixture
def gate(scene) -> UnseenWrites:
    """The gate of the handler web."""
    made = UnseenWrites("web", clock=scene.clock, report=scene.reports.append)
    made.loops = scene.loops
    return made


@pytest.fixture
def queue(scene, gate) -> ReconcileQueue[str]:
    """Its queue."""
    return ReconcileQueue(clock=scene.clock, gate=gate)


def changed(*versions) -> Reasons:
    """A change of an object, whose version is known."""
    return Reasons({CHANGED: None}, versions or None)


def taken(queue: ReconcileQueue) -> str | None:
    """The key that a worker gets, and is done with at once."""
    item = queue.take()
    if item is None:
        return None
    queue.done(item)
    return item.key


def test_a_key_is_not_taken_because_of_its_own_write(scene, gate, queue) -> None:
    """And a change of anything else in between leads to a call."""
    own = scene.write()
    queue.add("a/web", changed(own))
    assert (taken(queue), gate.own_writes, queue.idle) == (None, 1, True)
    queue.add("a/web", changed(own))
    queue.add("a/web", changed(("u", "999")))
    assert taken(queue) == "a/web"
    queue.add("a/web", changed(own))
    queue.add("a/web", changed())
    assert taken(queue) == "a/web"


def test_a_retry_and_a_requeue_come_at_their_time_whatever_the_key_has_written(scene, queue) -> None:
    """A failed call has written before it failed: that neither ends its back-off nor replaces its retry."""
    own = scene.write()
    queue.add("a/web", changed())
    item = queue.take()
    queue.add("a/web", changed(own))
    queue.retry(item, 5.0)
    assert queue.take() is None
    queue.add("a/web", changed(own))
    assert queue.take() is None
    scene.clock.set(6)
    item = queue.take()
    assert (item.attempts, item.value.versions) == (1, None)
    queue.requeue(item, 5.0, Cause("Requeue", "pods", "a/web", "Requested"))
    queue.done(item)
    scene.clock.set(12)
    queue.add("a/web", changed(own))
    assert taken(queue) == "a/web"


def test_a_loop_is_seen_also_while_its_calls_fail(scene, queue) -> None:
    """The call was led to by what has ended the back-off, not by the failure."""
    version = scene.write("other")
    for _ in range(MOST_IN_A_MINUTE + 3):
        queue.add("a/web", changed(version))
        if (item := queue.take()) is None:
            break  # held back
        scene.version += 1
        scene.write_again(based_on=str(scene.version - 1))
        queue.retry(item, 60.0)
        version = scene.write("other", reasons=[("u", str(scene.version))])
    assert scene.loops.delay("web", "a/web") > 0


def test_a_key_that_loops_waits_for_its_delay_and_others_do_not(scene, queue) -> None:
    """The queue says when it has to be looked at again, and that the key waits for nothing else."""
    version = scene.write()
    for _ in range(MOST_IN_A_MINUTE + 1):
        version = scene.write(reasons=[version])
    queue.add("a/web", changed())
    queue.add("a/db", changed())
    assert (taken(queue), taken(queue)) == ("a/db", None)
    assert [(item.key, item.state, item.due) for item in queue.snapshot(9)[1]] == [
        ("a/web", ItemState.WRITE_LOOP, pytest.approx(scene.clock.monotonic() + 1.0))
    ]
    assert queue.next_due() == pytest.approx(1.0)
    scene.clock.set(1.1)
    assert taken(queue) == "a/web"
