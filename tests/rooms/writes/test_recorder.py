"""Kubernetes Events about objects: posted in the background, bounded, never in a handler's way."""

import asyncio
import re
import threading

import pytest

from declctl.errors import (
    Conflict,
    Forbidden,
    InvalidWrite,
    MalformedAnswer,
    NotFound,
    TooManyRequests,
    Unreachable,
)
from declctl.kit import ManualClock
from declctl.kit.secret_values import secret_values
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
def make_recorder(clock, log, server):
    def make(clock: ManualClock = clock) -> EventRecorder:
        gate = WriteGate(server, WriteLedger(0), clock=clock)
        return EventRecorder(gate, controller="guard", instance="pod-1", clock=clock, log=log)

    return make


@pytest.fixture
def play(clock, make_recorder):
    """Records events step by step: a number is seconds that pass; then the recorder is flushed."""

    def run(*steps, timeout: float = 5.0, flushes: bool = True) -> EventRecorder:
        async def scenario() -> EventRecorder:
            recorder = make_recorder()
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


@pytest.mark.client_go(280, 291)
def test_an_event_about_a_cluster_scoped_object_is_in_the_default_namespace(play, server, view) -> None:
    """A ClusterRole may have a name that no event may have."""
    play([(view("system:node", kind="ClusterRole", namespace=None), EventText("Seen", "it"))])
    ((_, path, _, body),) = server.requests
    assert path == "/apis/events.k8s.io/v1/namespaces/default/events"
    assert re.fullmatch(r"[a-z0-9.-]+", body["metadata"]["name"])
    assert body["regarding"]["name"] == "system:node"


@pytest.mark.client_go(279, 287, 288, 293, "core/v1 recorder", "events.k8s.io recorder")
def test_a_repetition_makes_a_series_and_further_ones_are_only_counted(play, server, view) -> None:
    """A handler that says the same a hundred times makes two requests, and a third one with the sum."""
    same = [(view("web"), EventText("Failed", "no image"))]
    recorder = play(*([same, 1] * 100), flushes=False)
    post, patch = server.requests
    assert post[0] == "POST"
    assert patch[:2] == ("PATCH", f"{post[1]}/{post[3]['metadata']['name']}")
    assert patch[3] == {"series": {"count": 2, "lastObservedTime": "2026-01-01T00:00:01.000000Z"}}
    assert recorder.statistics() == RecordedEvents(posted=1, repeated=99)


@pytest.mark.client_go(293, "events.k8s.io recorder")
def test_a_series_ends_when_nothing_was_added_for_six_minutes(play, server, view) -> None:
    """The last count is sent then; what comes later is a new event."""
    same = [(view("web"), EventText("Failed", "no image"))]
    play(*([same, 1] * 5), 361, same, 1)
    kinds = [(method, (body.get("series") or {}).get("count")) for method, _, _, body in server.requests]
    assert kinds == [("POST", None), ("PATCH", 2), ("PATCH", 5), ("POST", None)]


@pytest.mark.client_go(293, "events.k8s.io recorder")
def test_the_count_of_a_series_that_goes_on_is_sent_each_half_hour(play, server, view) -> None:
    """A fault that lasts for hours is not shown with the count of its first minute."""
    same = [(view("web"), EventText("Failed", "no image"))]
    play(*([same, 300] * 7), flushes=False)
    assert [body["series"]["count"] for _, _, _, body in server.requests[1:]] == [2, 7]


@pytest.mark.client_go(279, 290, 293)
def test_another_reason_action_note_or_object_is_another_event(play, server, view) -> None:
    """Its words are what a reader looks for."""
    text = EventText("Failed", "no image", "Warning", "Pull")
    others = [
        EventText("Failed", "no image", "Warning", "Push"),
        EventText("Failed", "no image 2", "Warning", "Pull"),
    ]
    play([(view("web"), text), *((view("web"), other) for other in others), (view("api"), text)])
    assert [method for method, *_ in server.requests] == ["POST"] * 4


@pytest.mark.client_go(282, 294, "core/v1 recorder")
def test_an_event_that_has_expired_on_the_server_is_made_anew(play, server, view) -> None:
    """Events live for an hour: the next count makes one again, which has the whole count."""
    same = [(view("web"), EventText("Failed", "no image"))]
    server.errors = [None, NotFound(404, "NotFound", "expired")]
    recorder = play(same, 1, same, 1, same, 1)
    shown = [(method, (body.get("series") or {}).get("count")) for method, _, _, body in server.requests]
    assert shown == [("POST", None), ("PATCH", 2), ("POST", 2), ("PATCH", 3)]
    first, _, again, _ = (body for _, _, _, body in server.requests)
    assert again == {**first, "series": again["series"]}
    assert "resourceVersion" not in again["metadata"]
    assert recorder.statistics() == RecordedEvents(posted=1, repeated=2)


@pytest.mark.client_go(289, 291, "core/v1 recorder")
def test_events_that_differ_only_in_their_notes_are_combined_from_the_tenth_on(play, server, view) -> None:
    """A note with a time or a number in it: the reader sees nine of them, and how many there were."""
    recorder = play(told(view, 40, note="took {} ms"))
    notes = [body.get("note") for _, _, _, body in server.requests]
    assert notes[:9] == [f"took {number} ms" for number in range(9)]
    assert notes[9] == "(combined from similar events): took 9 ms"
    assert [body["series"]["count"] for _, _, _, body in server.requests[10:]] == [2, 31]
    assert recorder.statistics() == RecordedEvents(posted=10, repeated=30)


def test_the_first_notes_of_combined_events_keep_their_own_counts(play, server, view) -> None:
    """A repetition is not hidden in the combined event, as it is with client-go."""
    play(told(view, 12), told(view, 1))
    name = server.requests[0][3]["metadata"]["name"]
    counts = [body["series"]["count"] for _, path, _, body in server.requests if path.endswith(name)]
    assert counts == [2]


@pytest.mark.client_go(290)
@pytest.mark.parametrize("differ", ["in reason", "in object", "in time"])
def test_what_is_not_similar_is_not_combined(play, server, view, differ) -> None:
    """Twelve events that a reader can tell apart, or that are more than ten minutes apart."""
    steps = {
        "in reason": [[(view(), EventText(f"Seen{number}", f"{number}"))] for number in range(12)],
        "in object": [told(view, 2, name=f"web-{number}") for number in range(12)],
        "in time": [step for number in range(12) for step in (told(view, number + 1)[-1:], 601)],
    }
    play(*steps[differ])
    assert not any("combined" in body.get("note", "") for _, _, _, body in server.requests)


@pytest.mark.client_go(288, 292, "core/v1 recorder")
def test_events_about_one_object_are_limited(play, server, view, log) -> None:
    """25 at once, then one in five minutes; other objects are not concerned, and a line says it."""

    def many(count: int, name: str, kind: str = "Warning") -> list:
        return [(view(name), EventText(f"Seen{number}", "it", kind)) for number in range(count)]

    recorder = play(many(30, "web"), many(5, "api"), 300, [(view("web"), EventText("Late", "x", "Warning"))])
    assert recorder.statistics() == RecordedEvents(posted=31, dropped=5)
    (line,) = log.events("warning")
    assert line.startswith(
        "Events are dropped, 1 so far: there were more than 25 of type Warning about WebApp web"
    )
    # A flood of Normal events hides no Warning.
    recorder = play(many(30, "web", "Normal"), many(1, "web"))
    assert recorder.statistics() == RecordedEvents(posted=26, dropped=5)


def test_refusals_are_logged_once_a_minute(play, server, view, log) -> None:
    """A missing right does not fill the log; an event that is refused is not tried for ever."""
    server.errors = [Forbidden(403, "Forbidden", "events is forbidden") for _ in range(20)]
    recorder = play(told(view, 10), 61, told(view, 11))
    assert recorder.statistics() == RecordedEvents(posted=1, failed=20)
    assert ["was not posted" in line for line in log.events("warning")] == [True, True]
    # What can't be written as JSON can't be sent by another attempt.
    server.errors = [InvalidWrite("the body of POST /events can't be written as JSON")]
    assert play(told(view, 1), 61).statistics() == RecordedEvents(failed=1)


@pytest.mark.client_go("core/v1 recorder")
@pytest.mark.parametrize(
    "fault",
    [
        Unreachable("refused"),
        TooManyRequests(429, "TooManyRequests", "later"),
        MalformedAnswer("a proxy's page"),
    ],
)
def test_a_server_that_is_away_or_busy_is_tried_again_for_two_minutes(play, server, view, fault) -> None:
    """The API server restarts: the event is posted later; if it stays away, the event is given up."""
    server.errors = [fault] * 11
    assert play(told(view, 1), 110).statistics() == RecordedEvents(posted=1)
    server.errors = [fault] * 20
    recorder = play(told(view, 1), 110)
    assert (recorder.statistics(), len(server.errors)) == (RecordedEvents(failed=1), 8)


async def test_processes_do_not_come_back_to_a_server_together(server, view, make_recorder) -> None:
    """A pause is up to a quarter longer, by chance."""
    clock = ManualClock(jitter=0.99)
    recorder = make_recorder(clock)
    server.errors = [Unreachable("refused")]
    task = asyncio.create_task(recorder.run())
    recorder.record(view(), EventText("Seen", "it"), ORIGIN)
    await clock.advance(12.4)
    assert len(server.requests) == 1
    await clock.advance(0.1)
    assert len(server.requests) == 2
    task.cancel()


@pytest.mark.client_go("core/v1 recorder")
def test_an_event_whose_answer_was_lost_counts_as_posted(play, server, view, log) -> None:
    """The second attempt is told that the event is there: no line says that it was not posted."""
    same = told(view, 1)
    server.errors = [Unreachable("reset"), Conflict(409, "AlreadyExists", "it exists")]
    recorder = play(same, 13, same)
    assert recorder.statistics() == RecordedEvents(posted=1, repeated=1)
    assert [method for method, *_ in server.requests] == ["POST", "POST", "PATCH"]
    assert log.events("warning") == []
    # Any other conflict, such as that of a quota, is a refusal.
    server.errors = [Conflict(409, "Conflict", "the quota has changed")]
    assert play(told(view, 1)).statistics() == RecordedEvents(failed=1)


@pytest.mark.client_go(293)
def test_a_count_that_was_not_sent_is_sent_later(play, server, view) -> None:
    """The server is away when a series ends: the count is complete when the server is back."""
    same = told(view, 1)
    server.errors = [None, None, Unreachable("refused"), Unreachable("refused")]
    play(same, 1, same, 1, same, 361, told(view, 1, name="api"), 61, flushes=False)
    shown = [(method, (body.get("series") or {}).get("count")) for method, _, _, body in server.requests]
    # The event about another object takes the second fault, and its own second attempt.
    assert shown == [("POST", None), ("PATCH", 2), ("PATCH", 3), ("POST", None), ("POST", None), ("PATCH", 3)]


def test_repetitions_join_a_series_whose_count_was_not_sent(play, server, view) -> None:
    """The count of before the outage is in the count of after it, which is sent when the process ends."""
    same = told(view, 1)
    server.errors = [None, None, Unreachable("refused")]
    recorder = play(same, 1, same, 1, same, 361, same, 1)
    assert recorder.statistics() == RecordedEvents(posted=1, repeated=3)
    assert server.requests[-1][3]["series"]["count"] == 4


async def test_counts_are_sent_while_other_events_never_pause(server, view, clock, make_recorder) -> None:
    """A busy recorder does not keep the count of a series back until it rests."""
    recorder = make_recorder()
    (same,) = told(view, 1)
    for _ in range(3):
        recorder.record(*same, ORIGIN)
    task = asyncio.create_task(recorder.run())
    await clock.settle()

    async def meanwhile() -> None:
        # Each request takes 20 s, in which two more events are recorded.
        await clock.sleep(20)

    server.during = meanwhile
    for number in range(30):
        for name in ("a", "b"):
            recorder.record(view(f"{name}-{number}"), EventText("Seen", "it"), ORIGIN)
        await clock.advance(20)
    task.cancel()
    told_first = {"series": {"count": 3, "lastObservedTime": "2026-01-01T00:00:00.000000Z"}}
    assert told_first in [body for _, _, _, body in server.requests]


@pytest.mark.client_go(284, "core/v1 recorder")
def test_a_flood_of_events_is_cut_counted_and_told_once(play, view, log) -> None:
    """Handlers record in a loop: memory stays bounded, what was dropped is counted, a line says it."""
    flood = [(view(f"web-{number}"), EventText("Seen", "it")) for number in range(1500)]
    recorder = play(flood, 60)
    assert recorder.statistics() == RecordedEvents(posted=1000, dropped=500)
    (line,) = log.events("warning")
    assert line.startswith("1,000 Events wait to be posted, and newer ones are dropped, 1 so far")


@pytest.mark.client_go(284)
def test_a_thousand_events_are_all_posted_though_the_server_fails(play, server, view) -> None:
    """A burst of the size of the queue loses nothing; each event has a name of its own."""
    server.errors = [Unreachable("refused"), None] * 1000
    burst = [event for number in range(500) for event in told(view, 2, name=f"web-{number}")]
    assert play(burst, 20_000).statistics() == RecordedEvents(posted=1000)
    assert len({body["metadata"]["name"] for _, _, _, body in server.requests}) == 1000


@pytest.mark.client_go(286, "Recorder shutdown")
def test_events_that_wait_when_the_process_ends_are_told(play, server, view, log) -> None:
    """The API server is away when the process ends: it ends in time, and says how many events were lost."""
    server.errors = [Unreachable("refused") for _ in range(10)]
    recorder = play(told(view, 3), timeout=0.0)
    assert recorder.statistics() == RecordedEvents(dropped=3)
    assert log.events("warning") == ["the process ends before 3 events could be posted within 0 s: dropped"]


@pytest.mark.client_go(283, 286, "Recorder shutdown")
@pytest.mark.parametrize("ends", ["flushed", "cancelled"])
async def test_nothing_is_sent_after_the_end(server, view, clock, make_recorder, ends) -> None:
    """An event that waits for its second attempt has had its only one; later events are dropped at once."""
    server.errors = [Unreachable("refused")]
    recorder = make_recorder()
    task = asyncio.create_task(recorder.run())
    for end in (True, False):
        for obj, text in told(view, 2):
            recorder.record(obj, text, ORIGIN)
        await clock.settle()
        if end and ends == "cancelled":
            task.cancel()
        elif end:
            await recorder.flush(0.0)
            await recorder.flush(0.0)
    await clock.advance(3600)
    assert task.done()
    assert len(server.requests) == 1
    assert ends == "cancelled" or recorder.statistics() == RecordedEvents(dropped=4)


@pytest.mark.client_go(286, "Recorder shutdown")
async def test_threads_may_record_while_the_process_ends(view, clock, make_recorder) -> None:
    """A `def` handler that is left over neither waits nor fails, even after the end of the loop."""
    ended, faults = threading.Event(), list[Exception]()
    obj = view()

    def tell(recorder: EventRecorder) -> None:
        try:
            for _ in range(200):
                recorder.record(obj, EventText("Seen", "it"), ORIGIN)
            assert ended.wait(10)
            recorder.record(obj, EventText("Seen", "it"), ORIGIN)
        except Exception as fault:
            faults.append(fault)

    recorder = make_recorder()
    task = asyncio.create_task(recorder.run())
    threads = [threading.Thread(target=tell, args=[recorder], daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    await clock.settle()
    await recorder.flush(5.0)
    await task  # it ends by itself
    ended.set()
    for thread in threads:
        thread.join(10)
    assert not any(thread.is_alive() for thread in threads)
    assert faults == []


@pytest.mark.client_go(285)
def test_each_recorder_has_series_of_its_own(play, server, view) -> None:
    """Two processes, or two clusters: each gets the event and its series."""
    same = told(view, 1)
    for _ in range(2):
        server.requests.clear()
        assert play(same, 1, same).statistics() == RecordedEvents(posted=1, repeated=1)
        assert [method for method, *_ in server.requests] == ["POST", "PATCH"]


@pytest.mark.parametrize("name", ["reason", "message", "action"])
def test_what_is_no_text_is_refused_where_it_is_given(name) -> None:
    """The handler sees its mistake; in the background nobody would."""
    words = {"reason": "Seen", "message": "it", "action": "Handle", name: ValueError("x")}
    with pytest.raises(TypeError, match=f"the {name} of an event is a text, not a ValueError"):
        event_text(words["reason"], words["message"], "Normal", words["action"])
    with pytest.raises(ValueError, match="Normal or Warning, not 'Error'"):
        event_text("Seen", "it", "Error", "Handle")


def test_an_event_has_no_value_of_a_secret() -> None:
    """Who may read Events may often not read Secrets."""
    secret_values.remember({"stringData": {"token": "mark-of-an-event"}})
    said = "not mark-of-an-event"
    assert event_text(said, said, "Warning", said) == EventText(
        *["not (hidden)"] * 2, "Warning", "not (hidden)"
    )


@pytest.mark.parametrize("name", ["reason", "action"])
def test_an_empty_word_is_refused_where_it_is_given(name) -> None:
    """The server would refuse the event, in the background. An empty message is none of its business."""
    words = {"reason": "Seen", "message": "", "action": "Handle"}
    event_text(words["reason"], words["message"], "Normal", words["action"])
    with pytest.raises(ValueError, match=f"the {name} of an event is one CamelCase word, not an empty text"):
        event_text(**{"reason": "Seen", "message": "it", "kind": "Normal", "action": "Handle", name: ""})


def test_texts_are_cut_by_bytes_as_the_server_counts_them(play, server, view) -> None:
    """A long message in French or Japanese is posted, and not refused.

    So is half of a surrogate pair, from a file name that is no UTF-8; the event says all but that byte.
    """
    recorder = play([(view("web"), EventText("é" * 128, "日" * 1024, "Normal", "x" + "é" * 128))])
    ((_, _, _, body),) = server.requests
    assert body["note"] == "日" * 341  # 1023 bytes: another one would have a third of its bytes
    assert (body["reason"], body["action"]) == ("é" * 64, "x" + "é" * 63)
    assert recorder.statistics() == RecordedEvents(posted=1)
    server.requests.clear()
    play([(view("web"), EventText("Seen", "file \udc80"))])
    assert server.requests[0][3]["note"] == "file ?"
    # The prefix of combined events takes a part of the 1,024 bytes.
    play([(view("web"), EventText("Seen", f"{number}" + "é" * 600)) for number in range(10)])
    note = server.requests[-1][3]["note"]
    assert note.startswith("(combined from similar events): 9é")
    assert 1023 <= len(note.encode()) <= 1024


def test_an_event_may_be_about_the_answer_of_a_write(play, server) -> None:
    """`ctx.record_event(written.obj, …)`: a plain dict, as the server has sent it."""
    metadata = {"name": "kid", "namespace": "team-a", "uid": "u1", "resourceVersion": "7"}
    made = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}
    cluster = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team-a"}}
    play([(made, EventText("Made", "it")), (cluster, EventText("Made", "it"))])
    about, other = (body["regarding"] for _, _, _, body in server.requests)
    assert about == {"apiVersion": "v1", "kind": "ConfigMap", **metadata}
    assert (other["name"], other["namespace"], other["uid"]) == ("team-a", "", "")
    assert server.requests[1][1] == "/apis/events.k8s.io/v1/namespaces/default/events"


@pytest.mark.parametrize(
    ("obj", "message"),
    [
        ("team-a/shop", "about an object, such as request.obj or written.obj, not a str"),
        ({"kind": "ConfigMap", "metadata": {"name": "x"}}, "needs the apiVersion of the object"),
        ({"apiVersion": "v1", "kind": "ConfigMap", "metadata": []}, "needs the name of the object"),
    ],
)
def test_what_is_no_object_is_refused_where_it_is_given(play, obj, message) -> None:
    """The handler sees its mistake at the line of the call."""
    with pytest.raises(TypeError, match=message):
        play([(obj, EventText("Seen", "it"))])
