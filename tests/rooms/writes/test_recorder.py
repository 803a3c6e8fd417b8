"""Kubernetes Events about objects: posted in the background, bounded, never in a handler's way."""

import asyncio
import re

import pytest

from declctl.errors import Forbidden, NotFound, Unreachable
from declctl.writes import (
    EventRecorder,
    EventText,
    RecordedEvents,
    WriteGate,
    WriteLedger,
    WriteOrigin,
    event_text,
)

ORIGIN = WriteOrigin("notify", 1)


@pytest.fixture
def server(scene):
    """The server of the scene, for events."""
    return scene.server


@pytest.fixture
def play(clock, log, server):
    """Records events step by step: a number is seconds that pass; then the recorder is flushed."""

    def run(*steps, timeout: float = 5.0, flushes: bool = True) -> EventRecorder:
        async def scenario() -> EventRecorder:
            gate = WriteGate(server, WriteLedger(0), clock=clock)
            recorder = EventRecorder(gate, controller="guard", instance="pod-1", clock=clock, log=log)
            task = asyncio.create_task(recorder.run())
            for step in steps:
                if isinstance(step, int | float):
                    await clock.settle()
                    await clock.advance(step)
                    continue
                for obj, text in step:
                    recorder.record(obj, text, ORIGIN)
            await clock.settle()
            if flushes:
                await recorder.flush(timeout)
            task.cancel()
            return recorder

        return asyncio.run(scenario())

    return run


def told(view, count: int, *, name: str = "web", note: str = "{}") -> list:
    """Events with distinct notes about one object."""
    return [(view(name), EventText("Seen", note.format(number), "Warning")) for number in range(count)]


def test_an_event_names_its_object_and_its_controller(play, server, view) -> None:
    """`kubectl describe` shows the event: it refers to the object by kind, name, uid."""
    recorder = play(told(view, 1, note="m" * 2000))
    ((method, path, params, body),) = server.requests
    assert (method, path, params) == ("POST", "/apis/events.k8s.io/v1/namespaces/team-a/events", {})
    about = body["regarding"]
    assert (about["apiVersion"], about["kind"], about["name"], about["uid"]) == (
        "example.dev/v1",
        "WebApp",
        "web",
        "uid-web",
    )
    assert (body["reason"], body["type"], body["action"]) == ("Seen", "Warning", "Handle")
    assert (body["reportingController"], body["reportingInstance"]) == ("guard", "guard-pod-1")
    assert len(body["note"]) == 1024
    assert len(body["metadata"]["name"]) <= 253
    assert re.fullmatch(r"2026-01-01T00:00:00\.\d{6}Z", body["eventTime"])
    assert recorder.statistics() == RecordedEvents(posted=1)


def test_an_event_about_a_cluster_scoped_object_is_in_the_default_namespace(play, server, view) -> None:
    """A ClusterRole may have a name that no event may have."""
    play([(view("system:node", kind="ClusterRole", namespace=None), EventText("Seen", "it"))])
    ((_, path, _, body),) = server.requests
    assert path == "/apis/events.k8s.io/v1/namespaces/default/events"
    assert re.fullmatch(r"[a-z0-9.-]+", body["metadata"]["name"])
    assert body["regarding"]["name"] == "system:node"


def test_events_have_names_of_their_own(play, server, view) -> None:
    """Many events of one moment: none overwrites another."""
    play([each for number in range(10) for each in told(view, 5, name=f"web-{number}")])
    assert len({body["metadata"]["name"] for _, _, _, body in server.requests}) == 50


def test_a_repetition_makes_a_series_and_further_ones_are_only_counted(play, server, view) -> None:
    """A handler that says the same a hundred times makes two requests, and a third one with the sum."""
    same = [(view("web"), EventText("Failed", "no image"))]
    recorder = play(*([same, 1] * 100), flushes=False)
    post, patch = server.requests
    assert post[0] == "POST"
    assert patch[:2] == ("PATCH", f"{post[1]}/{post[3]['metadata']['name']}")
    assert patch[3] == {"series": {"count": 2, "lastObservedTime": "2026-01-01T00:00:01.000000Z"}}
    assert recorder.statistics() == RecordedEvents(posted=1, repeated=99)


def test_a_series_ends_when_nothing_was_added_for_six_minutes(play, server, view) -> None:
    """The last count is sent then; what comes later is a new event."""
    same = [(view("web"), EventText("Failed", "no image"))]
    play(*([same, 1] * 5), 361, same, 1)
    kinds = [(method, (body.get("series") or {}).get("count")) for method, _, _, body in server.requests]
    assert kinds == [("POST", None), ("PATCH", 2), ("PATCH", 5), ("POST", None)]


def test_the_count_of_a_series_that_goes_on_is_sent_each_half_hour(play, server, view) -> None:
    """A fault that lasts for hours is not shown with the count of its first minute."""
    same = [(view("web"), EventText("Failed", "no image"))]
    play(*([same, 300] * 7), flushes=False)
    assert [body["series"]["count"] for _, _, _, body in server.requests[1:]] == [2, 7]


def test_counts_of_series_are_sent_when_the_process_ends(play, server, view) -> None:
    """The last repetitions are not lost."""
    same = [(view("web"), EventText("Failed", "no image"))]
    play(*([same, 1] * 5))
    assert [body["series"]["count"] for _, _, _, body in server.requests[1:]] == [2, 5]


def test_another_reason_action_note_or_object_is_another_event(play, server, view) -> None:
    """Its words are what a reader looks for."""
    text = EventText("Failed", "no image", "Warning", "Pull")
    others = [
        EventText("Failed", "no image", "Warning", "Push"),
        EventText("Failed", "no image 2", "Warning", "Pull"),
    ]
    play([(view("web"), text), *((view("web"), other) for other in others), (view("api"), text)])
    assert [method for method, *_ in server.requests] == ["POST"] * 4


def test_an_event_that_has_expired_on_the_server_is_made_anew(play, server, view) -> None:
    """Events live for an hour; the next repetition has one again."""
    same = [(view("web"), EventText("Failed", "no image"))]
    server.errors = [None, NotFound(404, "NotFound", "expired")]
    play(same, 1, same, 1, same, 1)
    assert [method for method, *_ in server.requests] == ["POST", "PATCH", "POST"]


def test_events_about_one_object_are_limited(play, server, view, log) -> None:
    """25 at once, then one in five minutes; other objects are not concerned, and a line says it."""
    recorder = play(told(view, 30), told(view, 5, name="api"), 300, [(view("web"), EventText("Late", "x"))])
    assert recorder.statistics() == RecordedEvents(posted=31, dropped=5)
    (line,) = log.events("warning")
    assert line.startswith("Events are dropped, 1 so far: there were more than 25 about WebApp web")


def test_an_event_that_is_refused_is_told_and_not_tried_for_ever(play, server, view, log) -> None:
    """The service account may not create events: one line, and nothing else suffers."""
    server.errors = [Forbidden(403, "Forbidden", "events is forbidden")]
    recorder = play(told(view, 2))
    assert recorder.statistics() == RecordedEvents(posted=1, failed=1)
    assert "was not posted" in log.events("warning")[0]


def test_refusals_are_logged_once_a_minute(play, server, view, log) -> None:
    """A missing right does not fill the log."""
    server.errors = [Forbidden(403, "Forbidden", "events is forbidden") for _ in range(20)]
    recorder = play(told(view, 10), 61, told(view, 10))
    assert recorder.statistics() == RecordedEvents(failed=20)
    assert len(log.events("warning")) == 2


def test_an_unreachable_server_is_tried_again_a_few_times(play, server, view) -> None:
    """The API server restarts: the event is posted later; if it stays away, it is given up."""
    server.errors = [Unreachable("refused"), Unreachable("refused")]
    assert play(told(view, 1), 10).statistics().posted == 1
    server.errors = [Unreachable("refused") for _ in range(10)]
    recorder = play(told(view, 1), 60)
    assert (recorder.statistics(), len(server.errors)) == (RecordedEvents(failed=1), 6)


def test_a_flood_of_events_is_cut_counted_and_told_once(play, view, log) -> None:
    """Handlers record in a loop: memory stays bounded, what was dropped is counted, a line says it."""
    flood = [(view(f"web-{number}"), EventText("Seen", "it")) for number in range(1500)]
    recorder = play(flood, 60)
    assert recorder.statistics() == RecordedEvents(posted=1000, dropped=500)
    (line,) = log.events("warning")
    assert line.startswith("1,000 Events wait to be posted, and newer ones are dropped, 1 so far")


def test_events_that_wait_when_the_process_ends_are_told(play, server, view, log) -> None:
    """The API server is away when the process ends: it ends in time, and says how many events were lost."""
    server.errors = [Unreachable("refused") for _ in range(10)]
    recorder = play(told(view, 3), timeout=0.0)
    assert recorder.statistics() == RecordedEvents(dropped=3)
    assert log.events("warning") == ["the process ends before 3 events could be posted within 0 s: dropped"]


@pytest.mark.parametrize("name", ["reason", "message", "action"])
def test_what_is_no_text_is_refused_where_it_is_given(name) -> None:
    """The handler sees its mistake; in the background nobody would."""
    words = {"reason": "Seen", "message": "it", "action": "Handle", name: ValueError("x")}
    with pytest.raises(TypeError, match=f"the {name} of an event is a text, not a ValueError"):
        event_text(words["reason"], words["message"], "Normal", words["action"])
    with pytest.raises(ValueError, match="Normal or Warning, not 'Error'"):
        event_text("Seen", "it", "Error", "Handle")
