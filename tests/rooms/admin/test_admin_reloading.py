"""POST /-/reload."""

import asyncio
from collections.abc import Callable

import pytest

from declctl.admin import serve
from declctl.runtime.reloading.changes import Outcome, Result
from tests.rooms.admin.conftest import LOOPBACK


@pytest.mark.parametrize(
    ("order", "result", "status"),
    [
        *(("reload", result, 200) for result in ("Applied", "Unchanged")),
        *((f"rollback{query}", "RolledBack", 200) for query in ("", "?generation=5")),
        *((order, "Refused", 422) for order in ("reload", "rollback", "rollback?generation=5")),
    ],
)
@pytest.mark.guarantee("G21", "G25")
def test_the_outcome_is_the_answer(ask: Callable, runtime, order: str, result: str, status: int):
    """A pipeline sees in the status whether its files were taken, or a generation runs again."""
    runtime.result = result
    answer = ask(f"/-/{order}", method="POST")
    assert (answer.status, answer.json["result"]) == (status, result)
    assert answer.json["line"].startswith("generation 7: ")
    number = 5 if "5" in order else None
    assert (runtime.reloads, runtime.rolled_back) == ((1, []) if order == "reload" else (0, [number]))


@pytest.mark.guarantee("G25")
def test_a_fault_in_declctl_is_told_as_one(ask: Callable, runtime, monkeypatch, caplog):
    """Who asked learns what it was, and the log has the traceback."""

    async def broken(*, asked: bool, force: bool) -> None:
        raise NameError("name 'islice' is not defined")

    monkeypatch.setattr(runtime, "reload", broken)
    answer = ask("/-/reload", method="POST")
    assert answer.status == 500
    assert answer.json["error"].endswith("NameError: name 'islice' is not defined")
    (record,) = (each for each in caplog.records if each.name.startswith("declctl"))
    assert record.getMessage() == "POST /-/reload met a fault in declctl itself"
    assert record.exc_info is not None


def test_a_process_that_starts_or_ends_does_not_reload(ask: Callable, runtime, monkeypatch):
    """Who comes too early is told to wait; an order that came too late is not one with nothing to do."""
    runtime.say(generation=0)
    answer = ask("/-/reload", method="POST")
    assert (answer.status, runtime.reloads) == (503, 0)
    assert "starting" in answer.json["error"]

    async def stopping(*, asked: bool, force: bool) -> Outcome:
        return Outcome(Result.UNCHANGED, 7, "4f2c", reason="Stopping")

    runtime.say(generation=7)
    monkeypatch.setattr(runtime, "reload", stopping)
    answer = ask("/-/reload", method="POST")
    assert (answer.status, answer.json["reason"]) == (503, "Stopping")


async def test_not_waiting_answers_at_once(runtime, http: Callable):
    """?wait=false: the reload goes on, but stopping the process doesn't wait for it."""
    runtime.gate = asyncio.Event()
    async with asyncio.timeout(5), serve(runtime, LOOPBACK) as bound:
        answer = await http(bound, "/-/reload?wait=false", method="POST")
        assert (answer.status, runtime.reloads) == (202, 1)
    assert not [task for task in asyncio.all_tasks() if task.get_name() == "reload asked for"]


@pytest.mark.parametrize(
    ("query", "forced"), [("", 0), ("?force=true", 1), ("?force=1&wait=false", 1), ("?force=false", 0)]
)
def test_a_reload_can_be_forced(ask: Callable, runtime, query: str, forced: int):
    """?force=true makes all code anew; without it nothing happens unless files have changed."""
    assert ask(f"/-/reload{query}", method="POST").status in (200, 202)
    assert (runtime.reloads, runtime.forced) == (1, forced)


def test_what_is_no_number_is_told(ask: Callable, runtime):
    """?generation=latest is not taken for the one before."""
    answer = ask("/-/rollback?generation=latest", method="POST")
    assert answer.status == 400
    assert "'latest' is not the number of a generation" in answer.json["error"]
    assert runtime.rolled_back == []
    assert ask("/history").json["kept"] == [5]
