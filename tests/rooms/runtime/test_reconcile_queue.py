"""The queue of a reconciler, and the ways from objects to keys, by hand and with a manual clock."""

import asyncio

import pytest

from declctl.kit.keyed_queue import EpochCounter
from declctl.objects import Cause
from declctl.runtime.reconciling.reconcile_slot import ReconcileQueue
from declctl.workqueue import Priority

CHANGED = Cause("Modified", "pods", "a/web", "Watch")
INITIAL = Cause("Added", "pods", "a/web", "Initial")


@pytest.fixture
def epochs() -> EpochCounter:
    return EpochCounter()


@pytest.fixture
def keys(clock, epochs) -> ReconcileQueue:
    """A queue for two workers."""
    made = ReconcileQueue(clock=clock, epochs=epochs)
    made.max_running = 2
    return made


def test_a_key_waits_once_with_all_its_causes_and_is_not_given_to_two_workers(keys):
    """Any number of changes lead to one call; one during it to another, after it (client-go 233 to 235)."""
    keys.add("a/web", INITIAL, Priority.BACKGROUND)
    keys.add("a/web", CHANGED, Priority.LIVE)
    item = keys.take()
    assert (item.key, item.value, keys.take()) == ("a/web", (INITIAL, CHANGED), None)
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
    assert (item.attempts, item.value) == (1, (CHANGED, INITIAL))
    keys.done(item)
    assert keys.idle
    assert keys.statistics().backing_off == 0
    asyncio.run(clock.advance(61.0))
    assert keys.take() is None  # the retry was made with the change (controller-runtime's priority queue)


def test_what_waits_belongs_to_the_code_that_takes_it(keys, epochs):
    """A reload leaves the queue alone: only running calls are outstanding in an old epoch."""
    keys.add("a/web", CHANGED, Priority.LIVE)
    keys.add("a/db", CHANGED, Priority.LIVE)
    running = keys.take()
    old = epochs.cut()
    assert keys.outstanding(old) == 1
    item = keys.take()
    assert keys.epoch_of(item) == epochs.newest
    keys.done(running)
    assert keys.outstanding(old) == 0


def test_a_closed_queue_counts_what_it_drops(keys):
    """Waiting keys, and those that back off or rest; none that was reconciled, and asks to come again."""
    for name in ("a/zero", "a/one", "a/two", "a/three"):
        keys.add(name, CHANGED, Priority.LIVE)
    done = keys.take()
    keys.requeue(done, 60.0, CHANGED)
    keys.done(done)
    keys.retry(keys.take(), 60.0)
    keys.debounce = 60.0
    keys.add("a/four", CHANGED, Priority.LIVE)
    assert keys.clear() == 4
    assert (keys.take(), keys.idle) == (None, True)
    assert keys.statistics().dropped == 4


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
    assert (item.key, item.value) == ("a/web", (INITIAL, CHANGED))
    keys.done(item)
    assert keys.idle
    assert keys.next_due() is None
    figures = keys.statistics()
    assert (figures.added, figures.taken, figures.merged) == (2, 1, 1)


def test_a_key_that_never_rests_comes_after_ten_times_the_debounce(keys, clock):
    """Whatever leads to it without end."""
    keys.debounce = 1.0
    begin, item = clock.monotonic(), None
    while item is None:
        keys.add("a/web", CHANGED, Priority.LIVE)
        clock.set(0.5)
        item = keys.take()
    assert clock.monotonic() - begin == 10.0


def test_a_retry_does_not_rest(keys, clock):
    """Its delay is that of the back-off; a change during the back-off rests, and comes before it."""
    keys.debounce = 1.0
    keys.add("a/web", CHANGED, Priority.LIVE)
    clock.set(1.0)
    keys.retry(keys.take(), 0.5)
    clock.set(0.5)
    item = keys.take()
    assert item.attempts == 1
    keys.retry(item, 60.0)
    keys.add("a/web", CHANGED, Priority.LIVE)
    clock.set(1.0)
    assert keys.take().attempts == 2


def test_without_the_debounce_what_rests_comes_at_once(keys):
    """A reload takes it away."""
    keys.debounce = 60.0
    keys.add("a/web", CHANGED, Priority.LIVE)
    keys.debounce = 0.0
    assert keys.next_due() == 0.0
    assert keys.take().key == "a/web"


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


REQUEUED = Cause("Requeue", "pods", "a/web", "Requested")
OWN = ("uid", "2")  # the version that the handler has written


class Guard:
    """Knows one version that the handler has written."""

    def is_own(self, key, reasons):
        return bool(reasons) and all(reason == OWN for reason in reasons)

    def begin(self, key, reasons):
        """Note nothing."""

    def delay(self, key):
        return 0.0


@pytest.mark.parametrize("when", ["during the call", "after the call"])
def test_an_own_write_does_not_lead_to_the_call_that_a_requeue_asks_for(keys, clock, when):
    """The event of the status that a reconciler writes calls nothing; the Requeue comes when it is due."""
    keys.guard = Guard()
    keys.add("a/web", INITIAL, Priority.LIVE)
    item = keys.take()
    if when == "during the call":
        keys.add("a/web", CHANGED, Priority.LIVE, reason=OWN)
    keys.requeue(item, 3600.0, REQUEUED)
    keys.done(item)
    if when == "after the call":
        keys.add("a/web", CHANGED, Priority.LIVE, reason=OWN)
    assert keys.take() is None
    assert keys.own_writes == 1
    clock.set(3600.0)
    again = keys.take()
    assert (again.key, again.value) == ("a/web", (REQUEUED,))


@pytest.mark.parametrize("again", [None, 7200.0])
def test_the_newest_call_decides_when_a_key_comes_again(keys, clock, again):
    """A change before a Requeue leads to a call, whose result replaces the Requeue."""
    keys.add("a/web", INITIAL, Priority.LIVE)
    item = keys.take()
    keys.requeue(item, 3600.0, REQUEUED)
    keys.done(item)
    keys.add("a/web", CHANGED, Priority.LIVE)
    item = keys.take()
    assert item.value == (CHANGED,)
    if again is not None:
        keys.requeue(item, again, REQUEUED)
    keys.done(item)
    assert keys.next_due() == again
    clock.set(7200.0)
    item = keys.take()
    assert (None if again is None else (REQUEUED,)) == (item and item.value)


def test_a_retry_that_a_change_overtakes_is_made_once(keys, clock):
    """Whether the change comes during the failing call or after it; a new failure has its whole back-off."""
    keys.add("a/web", INITIAL, Priority.LIVE)
    item = keys.take()
    keys.add("a/web", CHANGED, Priority.LIVE)
    keys.retry(item, 30.0)
    item = keys.take()
    assert (item.attempts, set(item.value)) == (1, {INITIAL, CHANGED})
    keys.retry(item, 60.0)
    clock.set(30.0)
    assert keys.take() is None
    clock.set(30.0)
    item = keys.take()
    assert (item.attempts, set(item.value)) == (2, {INITIAL, CHANGED})
    keys.done(item)
    clock.set(100.0)
    assert keys.take() is None


def test_a_retry_that_is_hurried_is_made_once(keys, clock):
    """When a cache has synced, what has waited for it comes at once, with its causes, and not again."""
    keys.add("a/web", CHANGED, Priority.BACKGROUND)
    keys.retry(keys.take(), 30.0)
    assert keys.hurry(lambda item: True)
    item = keys.take()
    assert (item.attempts, item.value) == (1, (CHANGED,))
    keys.done(item)
    clock.set(31.0)
    assert keys.take() is None
    assert keys.next_due() is None


def test_a_call_knows_how_long_its_oldest_change_has_waited(keys, clock):
    """The lag of a reconciler: several changes lead to one call, which is late by the oldest of them.

    First syncs, resyncs and a `Requeue` of the reconciler are due by themselves.
    """
    keys.add("a/web", INITIAL, Priority.BACKGROUND)
    keys.add("a/web", Cause("Resync", "pods", "a/web", "Resync"), Priority.BACKGROUND)
    keys.add("a/web", Cause("Requeue", "pods", "a/web", "DeadLetter"), Priority.LIVE)
    assert keys.changes_of("a/web") == (None, ())
    clock.set(10.0)
    keys.add("a/web", CHANGED, Priority.LIVE)
    clock.set(2.0)
    keys.add("a/web", CHANGED, Priority.LIVE)
    item = keys.take()
    assert clock.monotonic() - keys.changes_of("a/web")[0] == pytest.approx(2.0)
    assert keys.changes_of("a/web") == (None, ())  # a retry of this call is late by nothing
    keys.retry(item, 1.0)
    clock.set(5.0)
    assert keys.take() is not None
    assert keys.changes_of("a/web") == (None, ())


def test_changes_that_no_call_has_read_are_those_of_the_next_call(keys, clock):
    """The breaker of the plugin has refused the call: the lag goes on, from the oldest change."""
    keys.add("a/web", CHANGED, Priority.LIVE, event_id="u@1")
    item = keys.take()
    refused = keys.changes_of("a/web")
    clock.set(5.0)
    keys.add("a/web", CHANGED, Priority.LIVE, event_id="u@2")
    keys.not_called("a/web", *refused)
    keys.retry(item, 0.0)
    assert keys.take() is not None
    changed_at, events = keys.changes_of("a/web")
    assert clock.monotonic() - changed_at == pytest.approx(5.0)
    assert list(events) == ["u@1", "u@2"]


def _listed(queue, most=100):
    return [(item.key, str(item.state), item.value.name) for item in queue.snapshot(most).items]


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
    shown = keys.snapshot(100)
    waiting = [(item.key, item.value) for item in shown.items if item.state == "Waiting"]
    assert _listed(keys)[0] == ("runs", "Running", "LIVE")
    assert shown.items[0].again
    assert _listed(keys)[-3:] == [
        ("later", "Requeued", "LIVE"),
        ("rests", "Resting", "LIVE"),
        ("fails", "BackingOff", "LIVE"),
    ]
    assert [item.due for item in shown.items[-3:]] == [1010.0, 1020.0, 1030.0]
    assert (shown.running, shown.waiting, shown.delayed) == (1, 8, 2)
    assert [item.retries for item in shown.items[-3:]] == [0, 0, 1]
    assert _listed(keys, 3) == _listed(keys)[:3]
    keys.done(running)
    order = []
    while (item := keys.take()) is not None:
        order.append(item.key)
        keys.done(item)
    # `runs` was added again: it has waited behind those of its priority since its call has ended.
    assert [key for key in order if key != "runs"] == [key for key, _ in waiting]
