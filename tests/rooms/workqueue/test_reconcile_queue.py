"""The queue of a reconciler, by hand and with a manual clock."""

import asyncio

import pytest

from declctl.kit.key_queue import EpochCounter
from declctl.objects import Cause
from declctl.workqueue import MOST_CAUSES, Admission, Priority, Reasons, ReconcileQueue

CHANGED = Cause("Modified", "pods", "a/web", "Watch")
INITIAL = Cause("Added", "pods", "a/web", "Initial")
REQUEUED = Cause("Requeue", "pods", "a/web", "Requested")
OWN = ("uid", "2")  # the version that the handler has written


@pytest.fixture
def epochs() -> EpochCounter:
    return EpochCounter()


class Gate:
    """Knows one version that the handler has written, and holds no key."""

    others = skipped = 0

    def judge(self, item):
        is_own = item.value.versions == (OWN,) and not item.attempts
        self.skipped += is_own
        return Admission.SKIP if is_own else Admission.CALL

    def begins(self, item):
        """Note nothing."""

    def take_released(self):
        return None

    def held(self):
        return []

    next_due = take_released

    def forget(self, key):
        """It holds none."""

    def clear(self):
        """It holds none."""

    def __len__(self):
        return 0


@pytest.fixture
def gate():
    return Gate()


@pytest.fixture
def keys(clock, epochs, gate) -> ReconcileQueue:
    """A queue for two workers."""
    made = Keys(clock=clock, epochs=epochs, gate=gate)
    made.max_running = 2
    return made


class Keys(ReconcileQueue):
    """A queue that is given one cause at a time."""

    def add(self, key, cause, priority, *, version=None, rests=True):
        return super().add(key, Reasons({cause: None}, version and (version,)), priority, rests=rests)


def causes(item):
    return tuple(item.value.causes)


def test_a_key_waits_once_with_all_its_causes_and_is_not_given_to_two_workers(keys):
    """Any number of changes lead to one call; one during it to another, after it (client-go 233 to 235)."""
    keys.add("a/web", INITIAL, Priority.BACKGROUND)
    keys.add("a/web", CHANGED, Priority.LIVE)
    item = keys.take()
    assert (item.key, causes(item), keys.take()) == ("a/web", (INITIAL, CHANGED), None)
    assert keys.statistics().merged == 1
    keys.add("a/web", CHANGED, Priority.LIVE)
    assert keys.take() is None
    assert keys.done(item)
    assert keys.take().key == "a/web"


@pytest.mark.client_go(313)
def test_a_failed_key_backs_off_and_a_change_ends_the_wait(keys, clock):
    """Its attempts are counted until one succeeds; a change leads to a call at once, as in client-go."""
    keys.add("a/web", CHANGED, Priority.LIVE)
    keys.retry(keys.take(), 60.0)
    assert keys.take() is None
    assert keys.next_due() == pytest.approx(60.0)
    keys.add("a/web", INITIAL, Priority.BACKGROUND)
    item = keys.take()
    assert (item.attempts, causes(item)) == (1, (CHANGED, INITIAL))
    keys.done(item)
    assert keys.idle
    assert keys.statistics().backing_off == 0
    asyncio.run(clock.advance(61.0))
    assert keys.take() is None  # the retry was made with the change (controller-runtime's priority queue)


def test_a_closed_queue_counts_what_it_drops(keys):
    """Waiting keys, and those that back off or rest; none that was reconciled, and asks to come again."""
    for name in ("a/zero", "a/one", "a/two", "a/three"):
        keys.add(name, CHANGED, Priority.LIVE)
    done = keys.take()
    keys.requeue(done, 60.0, CHANGED)
    keys.done(done)
    keys.retry(keys.take(), 60.0)
    keys.add("a/one", CHANGED, Priority.LIVE)  # it waits, and backs off no longer
    figures = keys.statistics()
    assert (figures.waiting, figures.backing_off, len(keys.snapshot(9)[1])) == (3, 0, 4)
    keys.debounce = 60.0
    keys.add("a/four", CHANGED, Priority.LIVE)
    assert keys.clear() == 5
    assert (keys.take(), keys.idle) == (None, True)
    figures = keys.statistics()
    assert (figures.dropped, figures.added, figures.taken) == (5, 6, 1)


def test_with_a_debounce_a_key_rests_until_nothing_leads_to_it(keys, clock):
    """It comes once, with all its causes and their highest priority; others don't wait for it."""
    keys.debounce = 1.0
    keys.add("a/web", INITIAL, Priority.BACKGROUND)
    clock.set(0.6)
    keys.add("a/web", CHANGED, Priority.LIVE)
    clock.set(0.4)
    assert keys.take() is None
    assert keys.next_due() == pytest.approx(0.6)
    assert not keys.idle
    assert keys.statistics().waiting == 1
    clock.set(0.6)
    item = keys.take()
    assert (item.key, causes(item)) == ("a/web", (INITIAL, CHANGED))
    keys.done(item)
    assert keys.idle
    assert keys.next_due() is None
    figures = keys.statistics()
    assert (figures.added, figures.taken, figures.merged) == (2, 1, 1)


@pytest.mark.client_go(315, "Reconcile result")
@pytest.mark.parametrize(("priority", "order"), [(Priority.LIVE, "a/web"), (Priority.BACKGROUND, "a/first")])
@pytest.mark.parametrize("again", ["requeued", "failed"])
def test_a_key_that_comes_again_keeps_its_priority(keys, clock, again, priority, order):
    """After a Requeue or a failure, a key that has changed does not wait behind all of a first sync."""
    keys.add("a/web", CHANGED, priority)
    item = keys.take()
    if again == "failed":
        keys.retry(item, 5.0)
    else:
        keys.requeue(item, 5.0, Cause("Requeue", "pods", "a/web", "Requested"))
        keys.done(item)
    keys.add("a/first", INITIAL, Priority.BACKGROUND)
    clock.set(5.0)
    assert keys.take().key == order


@pytest.mark.parametrize("when", ["during the call", "after the call"])
def test_an_own_write_does_not_lead_to_the_call_that_a_requeue_asks_for(keys, gate, clock, when):
    """The event of the status that a reconciler writes calls nothing; the Requeue comes when it is due."""
    keys.add("a/web", INITIAL, Priority.LIVE)
    item = keys.take()
    if when == "during the call":
        keys.add("a/web", CHANGED, Priority.LIVE, version=OWN)
    keys.requeue(item, 3600.0, REQUEUED)
    keys.done(item)
    if when == "after the call":
        keys.add("a/web", CHANGED, Priority.LIVE, version=OWN)
    assert keys.take() is None
    assert gate.skipped == 1
    clock.set(3600.0)
    again = keys.take()
    assert (again.key, causes(again)) == ("a/web", (REQUEUED,))


@pytest.mark.parametrize("again", [None, 7200.0])
def test_the_newest_call_decides_when_a_key_comes_again(keys, clock, again):
    """A change before a Requeue leads to a call, whose result replaces the Requeue."""
    keys.add("a/web", INITIAL, Priority.LIVE)
    item = keys.take()
    keys.requeue(item, 3600.0, REQUEUED)
    keys.done(item)
    keys.add("a/web", CHANGED, Priority.LIVE)
    item = keys.take()
    assert causes(item) == (CHANGED,)
    if again is not None:
        keys.requeue(item, again, REQUEUED)
    keys.done(item)
    assert keys.next_due() == again
    clock.set(7200.0)
    item = keys.take()
    assert (None if again is None else (REQUEUED,)) == (item and causes(item))


def test_a_retry_that_is_hurried_is_made_once(keys, clock):
    """When a cache has synced, what has waited for it comes at once, with its causes, and not again."""
    keys.add("a/web", CHANGED, Priority.BACKGROUND)
    keys.retry(keys.take(), 30.0)
    assert keys.hurry(lambda item: True)
    item = keys.take()
    assert (item.attempts, causes(item)) == (1, (CHANGED,))
    keys.done(item)
    clock.set(31.0)
    assert keys.take() is None
    assert keys.next_due() is None


def test_the_reasons_of_a_key_are_those_of_all_that_led_to_it():
    """Each cause once, the oldest change, and the versions of changes unless anything else led to it."""
    first = Reasons({CHANGED: None}, (OWN,), 5.0, ("u@1",))
    both = first.merge(Reasons({INITIAL: None, CHANGED: None}, (("uid", "3"),), 7.0, ("u@2",)))
    assert both == Reasons({CHANGED: None, INITIAL: None}, (OWN, ("uid", "3")), 5.0, ("u@1", "u@2"))
    assert both.merge(Reasons({INITIAL: None})) == Reasons(both.causes, None, 5.0, both.events)
    assert Reasons({INITIAL: None}).merge(first) == Reasons(both.causes, None, 5.0, ("u@1",))
    for number in range(2 * MOST_CAUSES):
        first = first.merge(
            Reasons({Cause("Added", "pods", f"a/{number}", "Watch"): None}, (OWN,), None, ("u",))
        )
    assert (len(first.causes), first.versions, len(first.events)) == (MOST_CAUSES, None, MOST_CAUSES)


def test_a_retry_is_not_late_because_of_what_the_failed_call_has_read(keys):
    """Of a refused call, the reasons stay; the worker of another one takes its changes away."""
    keys.add("a/web", CHANGED, Priority.LIVE, version=OWN)
    item = keys.take()
    assert item is None  # its own write
    ReconcileQueue.add(keys, "a/web", Reasons({CHANGED: None}, (("uid", "3"),), 5.0, ("u@3",)))
    keys.retry(keys.take(), 0.0)
    item = keys.take()
    assert item.value == Reasons({CHANGED: None}, None, 5.0, ("u@3",))
    item.value = Reasons(item.value.causes)
    keys.retry(item, 0.0)
    assert keys.take().value == Reasons({CHANGED: None})


def _listed(queue, most=100):
    return [(item.key, str(item.state), Priority(item.priority).name) for item in queue.snapshot(most)[1]]


def test_the_listing_has_each_key_at_its_turn(keys):
    """What runs; four live keys for each one of a first sync; then what is due later, by its time."""
    for name in ("runs", "fails", "later"):
        keys.add(name, CHANGED, Priority.LIVE)
    running, failing, later = keys.take(), keys.take(), None
    failing.retry_state = None
    keys.retry(failing, 30.0)
    later = keys.take()
    keys.requeue(later, 10.0, Cause("Requeue", "pods", "later", "Requeue"))
    keys.done(later)
    for name in ("x", "y"):
        keys.add(name, INITIAL, Priority.BACKGROUND)
    for number in range(5):
        keys.add(f"n{number}", CHANGED, Priority.LIVE)
    keys.add("runs", CHANGED, Priority.LIVE)
    keys.debounce = 20.0
    keys.add("rests", CHANGED, Priority.LIVE)
    figures, shown = keys.snapshot(100)
    waiting = [item.key for item in shown if item.state == "Waiting"]
    assert _listed(keys)[0] == ("runs", "Running", "LIVE")
    assert shown[0].again
    assert _listed(keys)[-3:] == [
        ("later", "Requeued", "LIVE"),
        ("rests", "Resting", "LIVE"),
        ("fails", "BackingOff", "LIVE"),
    ]
    assert [item.due for item in shown[-3:]] == [1010.0, 1020.0, 1030.0]
    assert (figures.running, figures.waiting, figures.backing_off, figures.requeued) == (1, 8, 1, 1)
    assert [item.attempts for item in shown[-3:]] == [0, 0, 1]
    assert _listed(keys, 3) == _listed(keys)[:3]
    keys.done(running)
    order = []
    while (item := keys.take()) is not None:
        order.append(item.key)
        keys.done(item)
    # `runs` was added again: it has waited behind those of its priority since its call has ended.
    assert [key for key in order if key != "runs"] == waiting
