"""POST /-/reload."""

import asyncio
from collections.abc import Callable

import pytest

from declctl.admin import serve
from declctl.manifest.values import Address
from declctl.runtime.reloading.changes import Outcome, Result

LOOPBACK = Address("127.0.0.1", 0)


@pytest.mark.parametrize(("result", "status"), [("Applied", 200), ("Unchanged", 200), ("Refused", 422)])
@pytest.mark.guarantee("G25")
def test_the_outcome_is_the_answer(ask: Callable, runtime, result: str, status: int):
    """A pipeline that reloads by HTTP sees in the status whether its files were taken."""
    runtime.result = result
    answer = ask("/-/reload", method="POST")
    assert answer.status == status
    assert answer.json["result"] == result
    assert answer.json["line"].startswith("generation 7: ")


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


def test_a_process_that_ends_answers_that_nothing_was_tried(ask: Callable, runtime, monkeypatch):
    """An order that came too late is not answered like one that had nothing to do."""
    outcome = Outcome(Result.UNCHANGED, 7, "4f2c", reason="Stopping")

    async def stopping(*, asked: bool, force: bool) -> Outcome:
        return outcome

    monkeypatch.setattr(runtime, "reload", stopping)
    answer = ask("/-/reload", method="POST")
    assert (answer.status, answer.json["reason"]) == (503, "Stopping")


def test_a_process_that_starts_does_not_reload(ask: Callable, runtime):
    """Who asks for a reload while the first generation is being made is told to wait a moment."""
    runtime.say(generation=0)
    answer = ask("/-/reload", method="POST")
    assert answer.status == 503
    assert "starting" in answer.json["error"]
    assert runtime.reloads == 0


async def test_not_waiting_answers_at_once(runtime, http: Callable):
    """?wait=false is answered while the reload goes on, and the reload is done all the same."""
    runtime.gate = asyncio.Event()
    async with serve(runtime, LOOPBACK) as bound:
        answer = await http(bound, "/-/reload?wait=false", method="POST")
        assert answer.status == 202
        assert runtime.reloads == 1
        runtime.gate.set()


@pytest.mark.parametrize(
    ("query", "forced"), [("", 0), ("?force=true", 1), ("?force=1&wait=false", 1), ("?force=false", 0)]
)
def test_a_reload_can_be_forced(ask: Callable, runtime, query: str, forced: int):
    """?force=true makes all code anew; without it nothing happens unless files have changed."""
    assert ask(f"/-/reload{query}", method="POST").status in (200, 202)
    assert (runtime.reloads, runtime.forced) == (1, forced)


async def test_a_reload_under_way_does_not_outlive_the_server(runtime, http: Callable):
    """Stopping the process doesn't wait for a reload that was asked for over HTTP."""
    runtime.gate = asyncio.Event()
    async with asyncio.timeout(5), serve(runtime, LOOPBACK) as bound:
        await http(bound, "/-/reload?wait=false", method="POST")
    assert not [task for task in asyncio.all_tasks() if task.get_name() == "reload asked for"]


@pytest.mark.parametrize(("query", "asked"), [("", None), ("?generation=5", 5)])
@pytest.mark.parametrize(("result", "status"), [("RolledBack", 200), ("Refused", 422)])
@pytest.mark.guarantee("G21", "G25")
def test_going_back_answers_with_what_became_of_it(
    ask: Callable, runtime, query: str, asked: int | None, result: str, status: int
):
    """The one before, or one by its number; the status says whether it runs again."""
    runtime.result = result
    answer = ask(f"/-/rollback{query}", method="POST")
    assert (answer.status, answer.json["result"]) == (status, result)
    assert runtime.rolled_back == [asked]


def test_what_is_no_number_is_told(ask: Callable, runtime):
    """?generation=latest is not taken for the one before."""
    answer = ask("/-/rollback?generation=latest", method="POST")
    assert answer.status == 400
    assert "'latest' is not the number of a generation" in answer.json["error"]
    assert runtime.rolled_back == []


def test_the_attempts_can_be_read(ask: Callable):
    """GET /history has what `declctl history` shows."""
    assert ask("/history").json["inMemory"] == [5, 6]
