"""Kubernetes Events about objects: posted in the background, bounded, never in a handler's way."""

import asyncio

from declctl.errors import Forbidden, Unreachable
from declctl.objects import ObjectView
from declctl.runtime.handling.context import EventRecorder, RecordedEvents


class _Server:
    """Takes what is posted, or fails as it is told."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.posted: list[tuple[str, str, dict]] = []

    async def request_json(self, method, path, *, body=None):
        if self.errors:
            raise self.errors.pop(0)
        self.posted.append((method, path, body))
        return {}


def _record(
    server, clock, log, view, *, count: int = 1, seconds: float = 0.0, timeout: float = 5.0
) -> EventRecorder:
    async def scenario() -> EventRecorder:
        recorder = EventRecorder(server, component="guard", clock=clock, log=log)
        for number in range(count):
            recorder.record(view, {"reason": "Seen", "message": f"{number}" + "m" * 2000, "type": "Warning"})
        task = asyncio.create_task(recorder.run())
        await clock.settle()
        await clock.advance(seconds)
        await recorder.flush(timeout)
        task.cancel()
        return recorder

    return asyncio.run(scenario())


def test_an_event_names_its_object_and_its_component(record, clock, log) -> None:
    """`kubectl describe pod` shows the event: it refers to the object by kind, name, uid."""
    server = _Server()
    recorder = _record(server, clock, log, ObjectView(record("web", uid="u1")))
    ((method, path, body),) = server.posted
    assert (method, path) == ("POST", "/api/v1/namespaces/default/events")
    about = body["involvedObject"]
    assert (about["apiVersion"], about["kind"], about["name"], about["uid"]) == ("v1", "Pod", "web", "u1")
    assert (body["reason"], body["type"], body["source"]) == ("Seen", "Warning", {"component": "guard"})
    assert len(body["message"]) == 1024
    assert len(body["metadata"]["name"]) <= 253
    assert recorder.statistics() == RecordedEvents(posted=1)


def test_events_have_names_of_their_own(record, clock, log) -> None:
    """Many events of one moment about one object: none overwrites another."""
    server = _Server()
    _record(server, clock, log, ObjectView(record("web")), count=50)
    assert len({body["metadata"]["name"] for _, _, body in server.posted}) == 50


def test_an_event_that_is_refused_is_told_and_not_tried_for_ever(record, clock, log) -> None:
    """The service account may not create events: one line, and nothing else suffers."""
    server = _Server(Forbidden(403, "Forbidden", "events is forbidden"))
    recorder = _record(server, clock, log, ObjectView(record("web")), count=2)
    assert recorder.statistics() == RecordedEvents(posted=1, failed=1)
    assert "was not posted" in log.events("warning")[0]


def test_an_unreachable_server_is_tried_again_a_few_times(record, clock, log) -> None:
    """The API server restarts: the event is posted later; if it stays away, it is given up."""
    server = _Server(Unreachable("refused"), Unreachable("refused"))
    assert _record(server, clock, log, ObjectView(record("web")), seconds=10).statistics().posted == 1
    server = _Server(*(Unreachable("refused") for _ in range(10)))
    recorder = _record(server, clock, log, ObjectView(record("web")), seconds=60)
    assert (recorder.statistics(), len(server.errors)) == (RecordedEvents(failed=1), 6)


def test_a_flood_of_events_is_cut_counted_and_told_once(record, clock, log) -> None:
    """A handler records in a loop: memory stays bounded, what was dropped is counted, a line says it."""
    server = _Server()
    recorder = _record(server, clock, log, ObjectView(record("web")), count=1500)
    assert recorder.statistics() == RecordedEvents(posted=1000, dropped=500)
    (line,) = log.events("warning")
    assert line.startswith("1,000 Events wait to be posted, and newer ones are dropped, 1 so far")


def test_events_that_wait_when_the_process_ends_are_told(record, clock, log) -> None:
    """The API server is away when the process ends: it ends in time, and says how many events were lost."""
    server = _Server(*(Unreachable("refused") for _ in range(10)))
    recorder = _record(server, clock, log, ObjectView(record("web")), count=3, timeout=0.0)
    assert recorder.statistics() == RecordedEvents(dropped=3)
    assert log.events("warning") == ["the process ends before 3 events could be posted within 0 s: dropped"]
