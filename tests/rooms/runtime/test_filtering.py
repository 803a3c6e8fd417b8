"""A handler's filter: what it hears of objects that enter and leave, of retries, and of what is merged."""

import dataclasses
import itertools

import pytest

from declctl.errors import FilterFailed
from declctl.hooks.bundle import Bundle
from declctl.hooks.registry import predicate
from declctl.manifest.model import Delivery, FilterSpec, RetrySpec
from declctl.objects import ChangeReason, ChangeType, Notification
from declctl.runtime.handling.binding import Filter
from tests.rooms.runtime.conftest import make_record, rebind

ADDED, MODIFIED, DELETED, RESYNC = ChangeType
WEB, API = {"app": "web"}, {"app": "api"}
ALL = ("Added", "Modified", "Deleted", "Resync")


def pod(labels=WEB, name="a", **fields):
    """A pod, of a newer version each time."""
    return make_record(name, labels=labels, **fields)


def filtered(bench, function, *, events=ALL, accepts=None, labels="", paths=(), expression="", **policy):
    spec = FilterSpec(labels, tuple(paths), expression=expression)
    binding = bench.binding(function, events=events, **policy)
    return bench.bound(binding, Filter(spec, events, accepts))


def modified(old, new, **more):
    """What a Modified from one state to another is."""
    return Notification(MODIFIED, new, old, **more)


@pytest.fixture
def heard():
    return []


@pytest.fixture
def tell(heard):
    def told(change, obj, old):
        labels = obj.labels.get("app"), None if old is None else old.labels.get("app")
        heard.append((str(change.type), *labels, str(change.reason), change.initial))

    return told


@pytest.fixture
def failing(heard):
    """Handlers that fail so many times."""

    def fails(times):
        def hook(change):
            heard.append(str(change.type))
            if len(heard) <= times:
                raise ValueError

        return hook

    return fails


def _adds_up(slot):
    figures, queue = slot.statistics(), slot.queue.statistics()
    told_and_not = figures.delivered + figures.merged + figures.dropped + figures.filtered
    assert told_and_not + queue.waiting == queue.added
    return figures


@pytest.mark.client_go("Predicates")
@pytest.mark.parametrize("by", [{"labels": "app=web"}, {"expression": "obj.metadata.labels.app == 'web'"}])
@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        (WEB, WEB, [("Modified", "web", "web", "Watch", False)]),
        (API, WEB, [("Added", "web", None, "Watch", False)]),
        (WEB, API, [("Deleted", "web", None, "OutOfScope", False)]),
        (API, API, []),
    ],
)
def test_entering_is_an_add_and_leaving_a_delete(bench, tell, heard, before, after, told, by):
    """As client-go's FilteringResourceEventHandler (client-go 96); who left is told as it was last seen."""
    slot = filtered(bench, tell, **by)
    slot.add_all([modified(pod(before), pod(after))])
    bench.work()
    assert heard == told
    figures = _adds_up(slot)
    assert (figures.delivered, figures.succeeded, figures.filtered) == (len(told), len(told), 1 - len(told))
    assert figures.expression_errors == 0


def test_a_modified_that_changes_nothing_at_the_paths_is_not_told(bench, tell, heard):
    """`changedPaths` judges pairs; who enters by a change elsewhere is told all the same."""
    slot = filtered(bench, tell, labels="app=web", paths=["spec"])
    same, other = (modified(pod(spec={"a": 1}), pod(spec={"a": n}, status={"x": 1})) for n in (1, 2))
    slot.add_all([same, other, modified(pod(API), pod(WEB))])
    bench.work()
    assert [row[0] for row in heard] == ["Modified", "Added"]


@pytest.mark.parametrize(
    ("events", "told"),
    [(("Added",), ["Added"]), (("Deleted",), ["Deleted"]), (("Modified",), ["Modified"]), (("Resync",), [])],
)
def test_events_are_those_that_the_handler_is_told(bench, tell, heard, events, told):
    """`events: [Added]` hears of who enters, which is a Modified for the cache."""
    slot = filtered(bench, tell, events=events, labels="app=web")
    slot.add_all([modified(pod(API), pod(WEB)), modified(pod(WEB), pod(WEB)), modified(pod(WEB), pod(API))])
    bench.work()
    assert [row[0] for row in heard] == told
    _adds_up(slot)


def test_the_merged_pair_is_judged(bench, tell, heard):
    """What came and went between two deliveries is nobody's business; who has left for good is Deleted."""
    slot = filtered(bench, tell, labels="app=web", delivery=Delivery.KEYED)
    web, api = pod(WEB), pod(API)
    slot.add_all([modified(web, api), modified(api, pod(WEB))])
    slot.add_all([modified(pod(WEB, "b"), last := pod(API, "b")), Notification(DELETED, last)])
    slot.add_all([modified(pod(API, "c"), last := pod(API, "c")), Notification(DELETED, last)])
    slot.add_all([modified(pod(API, "d"), last := pod(WEB, "d")), Notification(DELETED, last)])
    bench.work()
    assert [row[:4] for row in heard] == [
        ("Modified", "web", "web", "Watch"),
        ("Deleted", "api", None, "Watch"),
    ]
    figures = _adds_up(slot)
    assert (figures.delivered, figures.merged, figures.filtered) == (2, 4, 2)


def test_a_retry_is_what_was_told_before(bench, heard, failing, clock):
    """A change is judged once: the filter's second thoughts, and another generation's, change nothing."""
    answers, fails = iter([True, False]), failing(2)
    slot = filtered(bench, fails, accepts=lambda _: next(answers))
    slot.add_all([modified(pod(), pod())])
    bench.work()
    clock.set(1.0)
    bench.work()
    rebind(slot, bench.binding(fails, generation=2))
    clock.set(10.0)
    bench.work()
    assert heard == ["Added", "Added", "Added"]
    figures = _adds_up(slot)
    assert (figures.delivered, figures.retried, figures.succeeded, figures.filtered) == (1, 2, 1, 0)


def test_a_filter_that_a_reload_adds_does_not_keep_a_retry_away(bench, heard, failing, clock):
    """The handler without a filter may have acted on the deletion: it is called again until it succeeds."""
    slot = bench.slot(failing(1))
    slot.add_all([Notification(DELETED, pod(WEB))])
    bench.work()
    added_filter = Filter(FilterSpec("app=api"), ALL)
    rebind(slot, dataclasses.replace(bench.binding(failing(1), generation=2), filter=added_filter))
    clock.set(10.0)
    bench.work()
    assert heard == ["Deleted", "Deleted"]
    figures = _adds_up(slot)
    assert (figures.delivered, figures.retried, figures.succeeded, figures.filtered) == (1, 1, 1, 0)


@pytest.mark.parametrize(
    ("first", "then", "told"),
    [
        ((API, WEB), API, ["Added", "Deleted"]),  # it may know of it: it can't be taken back
        ((API, WEB), WEB, ["Added", "Added"]),
        ((WEB, API), WEB, ["Deleted", "Added"]),
        ((WEB, API), API, ["Deleted", "Deleted"]),
        ((WEB, WEB), API, ["Modified", "Deleted"]),
    ],
)
def test_what_a_handler_has_failed_on_is_not_taken_back(bench, heard, failing, clock, first, then, told):
    """Keyed: a newer change takes the place of the one that failed; the two make sense together."""
    slot = filtered(bench, failing(1), labels="app=web", delivery=Delivery.KEYED)
    old, new = (pod(labels) for labels in first)
    slot.add_all([modified(old, new)])
    bench.work()
    slot.add_all([modified(new, pod(then))])
    clock.set(1.0)
    bench.work()
    assert heard == told
    _adds_up(slot)


def test_a_filter_that_raises_fails_the_change(bench, tell, heard, clock, log):
    """It is logged and retried like the handler's own raise, and given up; a coroutine is a failure, too."""
    times = itertools.count()

    def broken(obj):
        if next(times) < 2:
            raise KeyError("spec")
        return True

    accepts = predicate("handlers:broken", broken, Bundle("/", {}))
    slot = filtered(bench, tell, accepts=accepts, retry=RetrySpec(max_attempts=3, initial_backoff=1.0))
    slot.add_all([Notification(ADDED, pod())])
    bench.work()
    clock.set(1.0)
    bench.work()
    assert heard == []
    figures = _adds_up(slot)
    assert (figures.retried, figures.filtered) == (2, 0)
    assert figures.last_error.startswith("default/a: the filter handlers:broken raised KeyError: 'spec' (")
    assert "test_filtering.py:" in figures.last_error, "the line that raised"
    told = [line for line in log.lines if line.level == "error"]
    assert "in broken" in told[0].fields["traceback"]
    clock.set(10.0)
    bench.work()
    assert [row[0] for row in heard] == ["Added"]
    assert slot.statistics().succeeded == 1
    heard.clear()
    accepts = predicate("handlers:exit", lambda obj: exit(3), Bundle("/", {}))
    slot = filtered(bench, tell, accepts=accepts, retry=RetrySpec(max_attempts=1))
    slot.add_all([Notification(ADDED, pod())])
    assert bench.work() == 1
    figures = _adds_up(slot)
    assert (heard, figures.failed, figures.succeeded, figures.running) == ([], 1, 0, 0)

    async def later(obj):
        return True

    with pytest.raises(FilterFailed, match="coroutine"):
        predicate("m:f", lambda obj: later(obj), Bundle("/", {}))(None)  # noqa: PLW0108 - that is the mistake


def test_asynchronous_handlers_are_filtered_too(bench, heard):
    """The filter is asked on the handlers' loop, before the hook."""

    async def hook(change):
        heard.append(str(change.type))

    slot = filtered(bench, hook, labels="app=web")
    slot.add_all([Notification(ADDED, pod(WEB)), Notification(ADDED, pod(API, "b"))])
    while (item := slot.queue.take()) is not None:
        assert bench.loop.submit(slot.work_async(item)).result(5)
    assert heard == ["Added"]
    assert _adds_up(slot).filtered == 1


def test_nothing_is_decoded_for_labels_and_for_what_did_not_change(bench):
    """The last state of an object and its labels stand in the record."""

    def hook(change):
        return None

    slot = filtered(bench, hook, labels="app=web", paths=["metadata.labels"])
    web = pod(WEB)
    slot.add_all([modified(web, pod(WEB, status={"a": 1})), modified(web, pod({**WEB, "b": "c"}))])
    decoded = []
    codec, decode = web.layout.codec, web.layout.codec.decode
    codec.decode = lambda frame: decoded.append(frame) or decode(frame)
    try:
        bench.work()
    finally:
        del codec.decode
    assert decoded == []
    assert (slot.statistics().succeeded, slot.statistics().filtered) == (1, 1)


def test_what_entered_is_told_when_it_happened(bench):
    """Time and reason are those of the change behind it."""
    seen = []
    slot = filtered(bench, lambda change: seen.append((change.received, change.reason)), labels="app=web")
    slot.add_all([modified(pod(API), pod(WEB), reason=ChangeReason.RELIST, received_at=5.0)])
    bench.work()
    assert seen == [(5.0, "Relist")]


WEB_ONLY = "obj.metadata.labels.app == 'web'"


@pytest.mark.parametrize(
    ("expression", "told"),
    [
        ("old == null || obj.metadata.labels != old.metadata.labels", ["Added", "Modified web", "Deleted"]),
        ("change.type == 'Modified' && obj.metadata.labels == old.metadata.labels", ["Modified api"]),
        ("change.type in ['Added', 'Deleted']", ["Added", "Deleted"]),
        ("change.type == 'Resync' && old == obj", ["Resync"]),
        ("change.initial || change.reason == 'Relist'", ["Added"]),
    ],
)
def test_an_expression_about_changes_delivers_them_as_they_are_or_not(bench, expression, told):
    """No object enters or leaves it: it sees what the hook would receive."""
    heard = []

    def hook(change, obj):
        heard.append(f"{change.type} {obj.labels['app']}" if change.type == MODIFIED else str(change.type))

    slot = filtered(bench, hook, expression=expression)
    states = [pod(API), pod(API), pod(WEB)]
    slot.queue.add("default/a", Notification(ADDED, states[0], initial=True))
    slot.queue.add("default/a", modified(states[0], states[1]))
    slot.queue.add("default/a", modified(states[1], states[2]))
    slot.queue.add("default/a", Notification(RESYNC, states[2]))
    slot.queue.add("default/a", Notification(DELETED, states[2]))
    bench.work()
    assert heard == told
    assert _adds_up(slot).expression_errors == 0


def test_a_failing_expression_counts_as_false_and_is_told_once(bench, tell, heard, log):
    """Counted each time; logged for each distinct error at the 1st, the 10th, the 100th time."""
    slot = filtered(bench, tell, expression="obj.status.phase == 'Running'")
    for number in range(12):
        slot.queue.add(f"default/{number}", Notification(ADDED, pod(WEB, str(number))))
    slot.queue.add("default/x", Notification(ADDED, pod(WEB, "x", status={"phase": "Running"})))
    slot.queue.add("default/y", Notification(ADDED, pod(WEB, "y", status={})))
    bench.work()
    assert [each[0] for each in heard] == ["Added"]
    figures = _adds_up(slot)
    assert (figures.expression_errors, figures.filtered, figures.failed, figures.retried) == (13, 13, 0, 0)
    said = [line.event for line in log.lines if "filter.expression" in line.event]
    assert len(said) == 3
    assert "notify: filter.expression failed on default/0, which counts as false: Key not found" in said[0]
    assert said[1].endswith("(10 times by now)")
    assert '"phase"' in said[2]
    rebind(slot, dataclasses.replace(bench.binding(tell, generation=2), filter=slot.binding.filter))
    slot.queue.add("default/z", Notification(ADDED, pod(WEB, "z")))
    bench.work()
    assert len([line for line in log.lines if "filter.expression" in line.event]) == 4, "the new code is told"
    assert slot.statistics().expression_errors == 14


def test_an_expression_stands_between_the_other_parts(bench, tell, heard):
    """It sees what labels make of a change, with `events` last. The function is called for what passes."""
    slot = filtered(bench, tell, expression="obj.status.phase == 'Running'")
    running = pod(status={"phase": "Running"})
    slot.queue.add("default/a", modified(running, pod()))
    slot.queue.add("default/a", modified(pod(), running))
    bench.work()
    assert [each[0] for each in heard] == ["Deleted", "Added"]
    heard.clear()
    slot = filtered(bench, tell, labels="app=web", expression="change.type == 'Added' && old == null")
    slot.queue.add("default/a", modified(pod(API), pod(WEB)))
    slot.queue.add("default/a", modified(pod(WEB), pod(WEB)))
    bench.work()
    assert [each[0] for each in heard] == ["Added"]
    asked = []
    slot = filtered(
        bench, tell, expression=WEB_ONLY, accepts=lambda obj: asked.append(obj.labels["app"]) or True
    )
    slot.queue.add("default/a", Notification(ADDED, pod(API)))
    slot.queue.add("default/b", Notification(ADDED, pod(WEB, "b")))
    bench.work()
    assert asked == ["web"]


def test_a_retry_is_not_judged_again_by_an_expression(bench, heard, failing, clock):
    """It is delivered as it was; a newer change that was merged into it is delivered, too."""
    slot = filtered(bench, failing(1), expression="change.type == 'Added'", delivery=Delivery.KEYED)
    slot.add_all([Notification(ADDED, pod())])
    bench.work()
    slot.add_all([Notification(DELETED, pod())])
    clock.set(10.0)
    bench.work()
    assert heard == ["Added", "Deleted"]


def test_what_is_taken_back_within_a_debounce_is_not_told(bench, tell, heard, clock):
    """The filter judges the first state and the last: of an object that came and left, or a value."""
    for by, states in (
        ({"labels": "app=web"}, [pod(API), pod(WEB), pod(API)]),
        ({"paths": ["spec"]}, [pod(spec={"nodeName": node}) for node in ("n1", "n2", "n1")]),
    ):
        slot = filtered(bench, tell, **by, debounce=1.0)
        slot.add_all([modified(old, new) for old, new in itertools.pairwise(states)])
        clock.set(1.0)
        bench.work()
        assert heard == []
        assert _adds_up(slot).filtered == 1
    slot.add_all([modified(states[-1], pod(spec={"nodeName": "n3"}))])
    clock.set(1.0)
    bench.work()
    assert [what[0] for what in heard] == ["Modified"]
