"""The tap: what handlers are called for and what became of it, for those who listen."""

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from msgspec.structs import replace

from declctl.errors import NotSynced
from declctl.kit import LoopThread
from declctl.manifest.model import ALL_EVENTS, FilterSpec, OnFailure, RetrySpec
from declctl.objects import Cause, ChangeType, Notification, Record
from declctl.runtime.handling.binding import Filter
from declctl.runtime.handling.tap import (
    MOST_BYTES,
    MOST_WAITING,
    HandlerTap,
    TapFilter,
    TapListener,
    TapMark,
    TapOutcome,
    TappedCall,
    TapSubject,
)
from declctl.testing import running, until
from tests.rooms.runtime.conftest import ONCE, fails, make_record, stored

RETRY = RetrySpec(max_attempts=2, initial_backoff=1.0, max_backoff=1.0)
AT = datetime(2026, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)


def pod(version: int, **spec: Any) -> Record:
    """A pod in one of its states."""
    return make_record("web", namespace="shop", version=version, spec=spec)


def call(**changes: Any) -> TappedCall:
    given = {name: changes.pop(name) for name in ("before", "after", "causes") if name in changes}
    fields = {"at": AT, "handler": "notify", "resource": "pods", "key": "shop/web", "attempt": 1}
    fields |= {"outcome": TapOutcome.SUCCEEDED, "seconds": 0.25, "generation": 3}
    return TappedCall(**{**fields, **changes}, subject=TapSubject("Modified", **given))


@pytest.fixture(name="loop")
def _loop() -> Iterator[LoopThread]:
    loop = LoopThread("test-tap").start()
    yield loop
    loop.stop()


@pytest.fixture(name="listen")
def _listen(bench, loop: LoopThread) -> Callable[[], list[dict[str, Any]]]:
    """Begins to listen to the handler of the bench; each call gives what has come since."""
    listener: list[TapListener] = []

    def documents() -> list[dict[str, Any]]:
        if not listener:
            listener.append(bench.handler.tap.listen(TapFilter(), loop.loop))
        taken, dropped = listener[0].take()
        assert dropped == 0
        return [item.document() for item in taken]

    return documents


def test_a_change_is_told_with_its_paths_and_without_values(bench, clock, listen):
    """Time, type, key, paths, handler, outcome, duration: and no value of the object."""
    slot = bench.slot(lambda change: clock.set(0.5))
    listen()
    old, new = pod(7, nodeName="a", replicas=1), pod(8, nodeName="hunter2", tolerations=[{"key": "x"}])
    slot.add_all([Notification(ChangeType.MODIFIED, new, old=old)])
    bench.work()
    (told,) = listen()
    assert "hunter2" not in json.dumps(told)
    assert told["paths"] == ["spec.nodeName", "spec.replicas", "spec.tolerations"]
    assert (told["kind"], told["type"]) == ("call", "Modified")
    assert (told["key"], told["reason"]) == ("shop/web", "Watch")
    assert (told["handler"], told["resource"], told["outcome"]) == ("notify", "pods", "succeeded")
    assert (told["seconds"], told["generation"], told["attempt"], told["error"]) == (0.5, 1, 1, "")


def _reads(change: Any) -> None:
    raise NotSynced("nodes")


@pytest.mark.parametrize(
    ("hook", "policy", "outcomes", "error"),
    [
        (
            fails,
            {"retry": RETRY, "on_failure": OnFailure.DEAD_LETTER},
            [("retried", 1, 1.0), ("deadLetter", 2, None)],
            "ValueError: no",
        ),
        (fails, {"retry": ONCE}, [("failed", 1, None)], "ValueError: no"),  # the only trace besides the log
        (_reads, {"retry": RETRY}, [("waiting", 1, 1.0)] * 2, "NotSynced: nodes"),
    ],
)
def test_a_failure_is_told_with_its_retry_and_its_end(
    bench, added, clock, listen, hook, policy, outcomes, error
):
    """First retried, then given up, or kept as a dead letter; who waits for a cache has not failed."""
    slot = bench.slot(hook, **policy)
    listen()
    slot.add_all([added("a")])
    for _ in range(2):
        bench.work()
        clock.set(1.0)
    told = listen()
    assert [(each["outcome"], each["attempt"], each["retryInSeconds"]) for each in told] == outcomes
    assert {(each["error"], each["errorType"]) for each in told} == {(error, error.partition(":")[0])}
    assert told[0]["paths"] == []


def test_a_filtered_change_is_told(bench, added, listen):
    """Who wonders why a handler is not called sees that its filter is why. Without a listener it is free."""
    slot = bench.bound(bench.binding(lambda change: None), Filter(FilterSpec("app=web"), ALL_EVENTS))
    slot.add_all([added("a")])
    bench.work()
    assert slot.tap.listeners == ()
    listen()
    slot.add_all([added("a")])
    bench.work()
    assert [told["outcome"] for told in listen()] == ["filtered"]


def test_the_error_of_a_handler_of_secrets_is_hidden(bench, listen):
    """Its text may quote the value; the class and the paths are shown."""

    def quotes(obj: Any) -> None:
        raise ValueError(f"bad password {obj['data']['password']}")

    old, new = (
        stored({"name": "s", "namespace": "shop"}, data={"password": value}, kind="Secret")
        for value in ("b2xk", "aHVudGVyMg==")
    )
    slot = bench.slot(quotes)
    listen()
    slot.add_all([Notification(ChangeType.MODIFIED, new, old=old)])
    bench.work()
    (told,) = listen()
    assert "aHVudGVyMg==" not in json.dumps(told)
    assert told["error"] == "(hidden: the object is a Secret)"
    assert (told["errorType"], told["paths"]) == ("ValueError", ["data.password"])


def test_a_listener_that_leaves_receives_nothing_more(loop: LoopThread):
    """The tap closes with its last listener."""
    tap = HandlerTap()
    one, other = (tap.listen(TapFilter(), loop.loop) for _ in range(2))
    tap.leave(one)
    assert tap.listeners == (other,)
    tap.add(call())
    assert (len(one.take()[0]), len(other.take()[0])) == (0, 1)
    tap.leave(other)
    tap.leave(other)
    assert not tap.listeners


def test_a_slow_listener_loses_calls_and_is_told_how_many(loop: LoopThread):
    """The oldest stay, later ones are counted; a mark of a reload is never lost."""
    tap = HandlerTap()
    listener = tap.listen(TapFilter(), loop.loop)
    for _ in range(MOST_WAITING + 7):
        tap.add(call())
    tap.add(TapMark(AT, "Applied", 4, "", "generation 4: …"))
    taken, dropped = listener.take()
    assert (len(taken), dropped) == (MOST_WAITING + 1, 7)
    assert taken[-1].document()["kind"] == "reload"
    tap.add(call())
    assert listener.take()[1] == 0


def test_large_objects_and_many_paths_are_bounded(loop: LoopThread, bench):
    """By bytes for each listener; the first paths are named; a broken frame does not end the stream."""
    big = pod(1, text="".join(chr(0x4E00 + i * 7919 % 20000) for i in range(200_000)))
    tap = HandlerTap()
    listener = tap.listen(TapFilter(), loop.loop)
    most = MOST_BYTES // len(big.frame) + 2
    for _ in range(most + 100):
        tap.add(call(after=big))
    taken, dropped = listener.take()
    assert len(taken) <= most
    assert dropped >= 100
    told = call(before=pod(1), after=pod(2, **{f"f{n:02d}": n for n in range(40)})).document()
    assert (len(told["paths"]), told["morePaths"]) == (12, 28)
    broken = replace(pod(1), frame=b"{broken")
    assert call(before=broken, after=pod(2)).document()["paths"] == []


def test_filters():
    """A handler, its resource or the resource of a cause; a namespace, a name, failures."""
    told = call(causes=(Cause("Modified", "settings", "shop/s", "Watch"),))
    passing = [TapFilter(), *(TapFilter(of=name) for name in ("notify", "pods", "settings"))]
    passing += [TapFilter(handler="notify"), TapFilter(namespace="shop")]
    passing += [TapFilter(name="web"), TapFilter(name="w*")]
    others = [TapFilter(of="nodes"), TapFilter(handler="pods"), TapFilter(namespace="sh")]
    others += [TapFilter(name="shop*"), TapFilter(failed=True)]
    assert [chosen.matches(told) for chosen in passing] == [True] * len(passing)
    assert [chosen.matches(told) for chosen in others] == [False] * len(others)
    assert TapFilter(name="node-1").matches(call(key="node-1"))  # of a cluster-scoped object
    assert not TapFilter(namespace="shop").matches(call(key="node-1"))


@pytest.mark.parametrize("outcome", list(TapOutcome))
def test_failed_means_what_has_to_be_looked_at(outcome: TapOutcome):
    """Retries and overdue calls count, waits for a cache and filters do not."""
    fine = {TapOutcome.SUCCEEDED, TapOutcome.FILTERED, TapOutcome.GONE, TapOutcome.WAITING}
    assert TapFilter(failed=True).matches(call(outcome=outcome)) is (outcome not in fine)


async def test_workers_wake_the_loop_of_a_listener():
    """Calls come from threads; the listener waits on its loop, and wakes at once."""
    tap = HandlerTap()
    listener = tap.listen(TapFilter(), asyncio.get_running_loop())
    assert not await listener.wait(0.01)
    thread = threading.Thread(target=lambda: [tap.add(call()) for _ in range(100)])
    thread.start()
    found = 0
    while found < 100:
        assert await listener.wait(10)
        found += len(listener.take()[0])
    thread.join()
    assert found == 100


def test_the_end_of_the_process_ends_the_wait(loop: LoopThread):
    """No listener keeps a process that stops."""
    tap = HandlerTap()
    listener = tap.listen(TapFilter(), loop.loop)
    waiting = asyncio.run_coroutine_threadsafe(listener.wait(60), loop.loop)
    loop.loop.call_soon_threadsafe(tap.close)
    assert waiting.result(10)
    until("closed", lambda: listener.is_closed)


_KEEPER = """
apiVersion: declctl.dev/v1alpha1
kind: Controller
metadata: {name: keeper}
spec:
  resources: [{name: secrets, apiVersion: v1, kind: Secret}]
  handlers:
    - name: keeps
      mode: Reconcile
      resourceRef: {name: secrets}
      entryPoint: "handlers:keeps"
      retry: {maxAttempts: 1}
"""
_KEEPS = """
LAST = {}

def keeps(request):
    if request.obj is not None:
        LAST[request.key] = request.obj["data"]["pin"]
    else:
        raise ValueError(f"was {LAST[request.key]}")
"""


def test_the_error_of_a_reconciler_of_secrets_is_hidden_when_they_are_gone(bundle, loop: LoopThread) -> None:
    """The object of the call is gone, and the text quotes it: a value too short to be searched for."""
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s", "namespace": "shop"}}
    bundle.write("manifest.yaml", _KEEPER)
    bundle.write("handlers.py", _KEEPS)
    with running(bundle.path, objects=[{**secret, "data": {"pin": "MTIz"}}]) as controller:
        controller.wait_idle()
        listener = controller.runtime.tap.listen(TapFilter(), loop.loop)
        controller.sandbox.delete("Secret", "s", namespace="shop")
        until("it has failed", lambda: controller.handler("keeps").failed)
        controller.reload(force=True)
        told, mark = [item.document() for item in listener.take()[0]]
    assert (told["outcome"], told["errorType"]) == ("failed", "ValueError")
    assert (mark["result"], mark["generation"]) == ("Applied", 2)
    assert told["error"] == "(hidden: the object is a Secret)"
