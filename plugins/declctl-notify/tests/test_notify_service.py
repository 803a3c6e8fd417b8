"""From changes to messages, in threads, over real HTTP; services that fail, and the end of the process."""

# The package is found beside the tests, whether it is installed or not.
# pyright: reportMissingImports=false

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from declctl import ChangeReason
from declctl.testing import Logged, until
from notify_changes import Obj, added, deleted, deployment, modified
from notify_receiver import Receiver

from declctl_notify.channel import ChannelStatistics
from declctl_notify.outbox import Delivery
from declctl_notify.sending import Send, send_by_apprise
from declctl_notify.service import Service
from declctl_notify.settings import Settings, TargetSettings

AT_ONCE = {
    "groupBy": ["name", "change.type"],
    "groupWait": "0s",
    "groupInterval": "0s",
    "repeatInterval": "0s",
}
VARIABLE = "DECLCTL_TEST_NOTIFY_URL"


class Rig:
    """A service with one target and its log."""

    def __init__(self, send: Send = send_by_apprise) -> None:
        self.service = Service(clock=time, send=send)
        self.log = Logged()
        self.settings: Any = None

    def configure(self, *rules: dict[str, Any], target: dict[str, Any] | None = None, **more: Any) -> None:
        made = [{"name": f"rule-{n}", "targets": ["team"], **AT_ONCE, **rule} for n, rule in enumerate(rules)]
        config = {
            "targets": [{"name": "team", "urlFrom": {"env": VARIABLE}, **(target or {})}],
            "rules": made,
            "retry": {"initialBackoff": "10ms", "maxBackoff": "20ms"},
            **more,
        }
        self.settings = Settings.of(config)
        self.service.configure(self.settings, dry_run=False, log=self.log)

    def take(self, *changes: Any) -> None:
        for change in changes:
            self.service.take(change, self.settings, log=self.log)

    @property
    def figures(self) -> ChannelStatistics:
        return self.service.statistics["team"]


@pytest.fixture
def rig(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    """A service that sends to the receiver."""
    monkeypatch.setenv(VARIABLE, f"json://{receiver.address}/s3cr3t")
    made = Rig()
    yield made
    made.service.stop()
    assert not [line for line in made.log.lines if "s3cr3t" in f"{line}"]


def test_a_change_becomes_a_message(rig: Rig, receiver: Receiver) -> None:
    """Without a template, a message says what has changed, and where."""
    rig.configure({"severity": "warning"})
    rig.take(modified(deployment(replicas=1, image="a"), deployment(replicas=2, image="a")))
    until("it arrives", lambda: receiver.messages)
    assert receiver.texts == ["[warning] Modified Deployment shop/web\nspec.replicas: 1 → 2"]
    assert receiver.messages[0]["type"] == "warning"
    rig.take(deleted(deployment("old", None)))
    until("it arrives", lambda: receiver.messages[1:])
    assert receiver.texts[1] == "[warning] Deleted Deployment old\n2026-01-01 00:00:00 UTC"


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ({}, ["Added a", "Modified a", "Deleted a"]),
        ({"events": ["Deleted"]}, ["Deleted a"]),
        ({"resources": ["pods"]}, []),
        ({"resources": ["deployments"], "events": ["Added"]}, ["Added a"]),
        ({"when": "obj.spec.replicas == 2"}, ["Modified a", "Deleted a"]),
        ({"when": "changed('spec.replicas')"}, ["Modified a"]),
        ({"when": "changed('spec')"}, ["Modified a"]),
        ({"when": "changed('spec.image')"}, []),
        ({"when": "change.reason == 'Watch' and old and old.spec.replicas < 2"}, ["Modified a"]),
        ({"when": "namespace.startswith('sh') and name == 'a' and kind == 'Deployment'", "events": ["Added"]},
         ["Added a"]),
        ({"when": "obj.spec.missing > 3"}, []),
    ],
)  # fmt: skip
def test_rules_decide_what_is_sent(
    rig: Rig, receiver: Receiver, rule: dict[str, Any], expected: list[str]
) -> None:
    """Types, resources and conditions of a rule; a condition that fails is false."""
    rig.configure({**rule, "title": "{{ change.type }} {{ name }}"}, {"title": "end", "events": ["Deleted"]})
    before, after = deployment("a", replicas=1), deployment("a", replicas=2)
    rig.take(added(before), modified(before, after), deleted(after))
    until("all arrive", lambda: len(receiver.messages) == len(expected) + 1)
    assert sorted(one["title"] for one in receiver.messages) == sorted([*expected, "end"])


def test_the_start_is_quiet(rig: Rig, receiver: Receiver) -> None:
    """10,000 objects that exist at the start, or that an edit delivers again, send nothing."""
    rig.configure({"title": "{{ name }}"})
    rig.take(*[added(deployment(f"{n}"), initial=True, reason=ChangeReason.INITIAL) for n in range(100)])
    rig.take(added(deployment("replayed"), reason=ChangeReason.REPLAY))
    rig.take(added(deployment("new")))
    until("it arrives", lambda: receiver.messages)
    assert [one["title"] for one in receiver.messages] == ["new"]
    assert rig.figures.taken == 1


def test_the_start_is_told_if_asked(rig: Rig, receiver: Receiver) -> None:
    """`initialSync: Deliver`: one message has the number of all objects that exist."""
    rig.configure({"groupWait": "300ms", "maxChanges": 2, "groupBy": []}, initialSync="Deliver")
    rig.take(*[added(deployment(f"{n}"), initial=True, reason=ChangeReason.INITIAL) for n in range(50)])
    until("it arrives", lambda: receiver.messages)
    assert receiver.messages[0]["title"] == "[info] 50 changes: rule-0"
    assert receiver.messages[0]["message"].endswith("and 48 more changes")


def test_a_change_of_ignored_fields_is_none(rig: Rig, receiver: Receiver) -> None:
    """A new resource version, or what `ignore` names, is no message and no line of one."""
    rig.configure({"title": "{{ name }}"}, ignore=["metadata", "status.conditions[*].lastHeartbeatTime"])

    def node(time: str, ready: str) -> Obj:
        conditions = [{"type": "Ready", "status": ready, "lastHeartbeatTime": time}]
        return Obj(kind="Node", metadata={"name": "n", "at": time}, status={"conditions": conditions})

    rig.take(modified(node("1", "True"), node("2", "True")), modified(node("2", "True"), node("3", "False")))
    until("it arrives", lambda: receiver.messages)
    assert [one["message"] for one in receiver.messages] == ["status.conditions[Ready].status: True → False"]
    assert rig.figures.taken == 1


def test_changes_of_a_group_are_one_message(rig: Rig, receiver: Receiver) -> None:
    """Twelve Deployments of one namespace are one message; another namespace has its own."""
    rig.configure({"groupWait": "300ms", "severity": "critical", "groupBy": ["namespace", "obj.spec.team"]})
    rig.take(*[added(deployment(f"web-{n:02}", team="a")) for n in range(12)], added(deployment("x", "bank")))
    until("both arrive", lambda: receiver.messages[1:])
    titles = sorted(one["title"] for one in receiver.messages)
    assert titles == [
        "[critical] 12 changes: rule-0, namespace shop, obj.spec.team a",
        "[critical] Added Deployment bank/x",
    ]


def test_a_flapping_object_is_told_once(rig: Rig, receiver: Receiver) -> None:
    """Ready, not ready, ready: each state is told once, although its time differs. A new image is told."""
    rig.configure({"repeatInterval": "1h", "body": "{{ differences[0].new }}"})

    def pod(ready: str, second: int, image: str = "a") -> Obj:
        conditions = [{"type": "Ready", "status": ready, "at": f"2026-01-01T00:00:{second:02}Z"}]
        return Obj(
            kind="Pod", metadata={"name": "p"}, spec={"image": image}, status={"conditions": conditions}
        )

    for second in range(0, 20, 2):
        ready, broken = pod("True", second), pod("False", second + 1)
        rig.take(modified(ready, broken), modified(broken, pod("True", second + 2)))
    # Values whose shown beginnings are equal.
    rig.take(modified(pod("True", 30), pod("True", 30, image="a" * 100 + "1")))
    rig.take(modified(pod("True", 30), pod("True", 30, image="a" * 100 + "2")))
    until("both images arrive", lambda: "".join(receiver.texts).count("aaa…") == 2)
    text = "".join(receiver.texts)
    assert (text.count("False"), text.count("True")) == (1, 1)
    until("all is counted", lambda: rig.figures.notified + rig.figures.waiting == 22)


def test_a_template_that_fails_loses_no_change(rig: Rig, receiver: Receiver) -> None:
    """The message says that its template has failed; one log line names the rule and the template."""
    rig.configure({"body": "{{ 1 / obj.spec.replicas }}", "title": "{{ obj.spec.x.y }}"})
    for number in range(3):
        rig.take(added(deployment(f"{number}", replicas=0)))
    until("all arrive", lambda: receiver.messages[2:])
    assert receiver.texts[0] == "(missing: x.y)\n(its template has failed)"
    (line,) = rig.log.events("warning")
    assert line == "body of the rule rule-0 has failed: ZeroDivisionError in '{{ 1 / obj.spec.replicas }}'"


def test_a_service_with_errors_is_tried_again(rig: Rig, receiver: Receiver) -> None:
    """HTTP 500 for a while: the message arrives later, and the log says that it failed, and works again."""
    rig.configure(
        {"title": "{{ name }}"}, retry={"initialBackoff": "20ms", "maxBackoff": "50ms", "maxAttempts": 99}
    )
    receiver.status = 500
    rig.take(added())
    until("it was tried three times", lambda: receiver.requests >= 3)
    receiver.status = 200
    until("it arrives", lambda: receiver.messages)
    until("it is logged", lambda: rig.log.find("sent again"))
    warnings = [line for line in rig.log.lines if line.level == "warning"]
    assert warnings[0].event == "notifications have failed: HTTP 500"
    assert warnings[0].fields["target"] == "team"
    # Many failures, one line at once and one with the number of the others.
    assert len(warnings) == 2
    assert sum(line.fields["failures"] for line in warnings) == rig.figures.failed >= 3
    assert (rig.figures.sent, rig.figures.notified, rig.figures.waiting) == (1, 1, 0)


def test_a_message_that_is_given_up_is_counted_in_the_next(rig: Rig, receiver: Receiver) -> None:
    """After maxAttempts the next message tells of it, so that a reader knows that something is missing."""
    rig.configure({"title": "{{ name }}"}, retry={"initialBackoff": "1ms", "maxAttempts": 2})
    receiver.status = 503
    rig.take(added(deployment("lost")))
    until("it is given up", lambda: rig.figures.lost == 1)
    receiver.status = 200
    rig.take(added(deployment("next")))
    until("it arrives", lambda: receiver.messages)
    assert receiver.messages[0]["title"] == "next"
    assert "and 1 more change in the last" in receiver.messages[0]["message"]
    until("all is counted", lambda: rig.figures.notified == 2)


def test_a_refused_connection_is_a_failure(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A service that is not there is named by its target, and not by its address."""
    monkeypatch.setenv(VARIABLE, "json://127.0.0.1:9/s3cr3t")
    rig.configure({})
    rig.take(added())
    line = until("it is logged", lambda: rig.log.find("notifications have failed"))
    assert "127.0.0.1" not in f"{line}"


def test_a_service_that_hangs_delays_neither_handlers_nor_other_targets(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Changes are taken at once while one target hangs, and the other one gets its messages."""
    monkeypatch.setenv(VARIABLE, f"json://{receiver.address}")
    hangs = threading.Event()

    def send(target: TargetSettings, delivery: Delivery, now: float) -> None:
        if target.name == "slow":
            hangs.wait(30)
            return  # nothing is sent then: another receiver may have the port
        send_by_apprise(target, delivery, now)

    service, log = Service(clock=time, send=send), Logged()
    url = {"urlFrom": {"env": VARIABLE}}
    config = {
        "targets": [{"name": "slow", **url}, {"name": "fast", **url}],
        "rules": [{"name": "all", "targets": ["slow", "fast"], "title": "{{ name }}", **AT_ONCE}],
        "sendTimeout": "50ms",
        "retry": {"initialBackoff": "1ms", "maxBackoff": "1ms"},
        "shutdownTimeout": "200ms",
    }
    settings = Settings.of(config)
    service.configure(settings, dry_run=False, log=log)
    before = threading.active_count()
    started = time.monotonic()
    for number in range(50):
        service.take(added(deployment(f"{number}")), settings, log=log)
    assert time.monotonic() - started < 5
    until("the other target has its messages", lambda: receiver.messages)
    until("it was tried some times", lambda: service.statistics["slow"].failed >= 4)
    # One call hangs, however often it was tried.
    assert threading.active_count() <= before + 4
    # On a busy machine, the other target may be late as well.
    lines = [line for line in log.lines if "no answer in time" in line.event]
    assert "slow" in {line.fields["target"] for line in lines}
    service.stop()
    assert log.find("50 changes dropped: slow did not take them within second") is not None
    hangs.set()


def test_an_answer_that_comes_late_counts(
    rig: Rig, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A service that needs longer than sendTimeout receives a message once, and not once for each try."""
    monkeypatch.setenv(VARIABLE, f"json://{receiver.address}/s3cr3t?rto=20")
    rig.configure({"title": "{{ name }}"}, sendTimeout="50ms")
    receiver.go_on.clear()
    rig.take(added())
    until("it is late", lambda: rig.figures.failed >= 2)
    receiver.go_on.set()
    until("it has arrived", lambda: rig.figures.sent == 1)
    assert (receiver.requests, len(receiver.messages)) == (1, 1)


def test_the_end_sends_what_waits(rig: Rig, receiver: Receiver) -> None:
    """A process that ends does not wait for groupWait or tokens; nothing is lost."""
    rig.configure(
        {"groupWait": "1h", "groupBy": ["name"], "title": "{{ name }}"},
        target={"rateLimit": {"messages": 1, "interval": "1h", "burst": 1}},
    )
    rig.take(*[added(deployment(f"{n}")) for n in range(12)])
    rig.service.stop()
    assert len(receiver.messages) == 10
    assert "and 2 more changes in the last" in receiver.messages[0]["message"]
    assert rig.log.events("warning") == []


def test_the_end_has_a_limit(rig: Rig, receiver: Receiver) -> None:
    """A service that hangs keeps the process for shutdownTimeout, and the log says what was dropped."""
    rig.configure({}, shutdownTimeout="200ms")
    receiver.go_on.clear()
    rig.take(added(deployment("a")))
    until("it is sent", lambda: receiver.requests)
    rig.take(added(deployment("b")), added(deployment("c")))
    started = time.monotonic()
    rig.service.stop()
    assert time.monotonic() - started < 5
    (line,) = [one for one in rig.log.events("warning") if "dropped" in one]
    assert line == "3 changes dropped: team did not take them within second"


def test_an_edit_keeps_groups_and_limits(rig: Rig, receiver: Receiver) -> None:
    """A new title counts for the next change; a group that waits is sent, and no token is given again."""
    limit = {"rateLimit": {"messages": 1, "interval": "1h", "burst": 1}}
    rule = {"groupWait": "300ms", "groupBy": []}
    rig.configure({**rule, "title": "old {{ name }}"}, target=limit)
    rig.take(added(deployment("a")))
    rig.configure({**rule, "title": "new {{ name }}"}, target=limit)
    rig.take(added(deployment("b")))
    until("it arrives", lambda: receiver.messages)
    assert receiver.messages[0]["message"].splitlines()[::2] == ["old a", "new b"]
    rig.take(added(deployment("c")))
    rig.configure({**rule, "title": "newer {{ name }}"}, target=limit)
    until("it waits for a token", lambda: rig.figures.waiting == 1)
    rig.configure({**rule, "title": "newest"}, target={"rateLimit": {"burst": 5}})
    until("it arrives", lambda: receiver.messages[1:])


def test_a_target_that_is_removed_sends_what_waits(rig: Rig, receiver: Receiver) -> None:
    """An edit that removes a target loses nothing that was meant for it."""
    rig.configure({"groupWait": "1h", "title": "{{ name }}"})
    rig.take(added())
    other = {"name": "other", "urlFrom": {"env": VARIABLE}}
    rig.configure({"targets": ["other"]}, target=other)
    until("it arrives", lambda: receiver.messages)
    assert list(rig.service.statistics) == ["other"]


def test_a_dry_run_prints(rig: Rig, receiver: Receiver, capsys: pytest.CaptureFixture[str]) -> None:
    """`dryRun` shows what would be sent, and to which target."""
    rig.configure({"title": "{{ name }}", "body": "a\nb"}, dryRun=True)
    rig.take(added())
    until("it is printed", lambda: rig.figures.sent == 1)
    assert capsys.readouterr().out == "to team: web\n    a\n    b\n"
    assert receiver.requests == 0


def test_a_fault_of_ours_shows_no_secret_either() -> None:
    """Even an exception that nobody has thought of is logged without its text."""

    def send(*_: object) -> None:
        raise ValueError("json://s3cr3t")

    rig = Rig(send)
    rig.configure({})
    rig.take(added())
    line = until("it is logged", lambda: rig.log.find("ValueError in declctl-notify"))
    assert "s3cr3t" not in f"{line}"
    rig.service.stop()


def test_a_log_that_fails_does_not_end_the_messages(rig: Rig, receiver: Receiver) -> None:
    """A process whose log is a closed pipe goes on to send."""

    class Broken(Logged):
        def warning(self, event: str, **fields: Any) -> None:
            raise BrokenPipeError(event, fields)

    rig.log = Broken()
    rig.configure({"title": "{{ name }}"})
    receiver.status = 500
    rig.take(added())
    until("it has failed", lambda: rig.figures.failed >= 2)
    receiver.status = 200
    until("it arrives", lambda: receiver.messages)


def test_many_threads_lose_nothing(rig: Rig, receiver: Receiver) -> None:
    """Handlers with several workers: each change is in a message or counted in one."""
    rig.configure({"groupBy": ["name"], "title": "{{ name }}"}, target={"rateLimit": {"burst": 20}})

    def play(worker: int) -> None:
        for number in range(50):
            rig.take(added(deployment(f"{worker}-{number}")))

    _in_threads([lambda worker=worker: play(worker) for worker in range(4)])
    rig.service.stop()
    assert _told(receiver) == 200


def _in_threads(calls: list[Callable[[], None]]) -> None:
    threads = [threading.Thread(target=call) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _told(receiver: Receiver) -> int:
    """The changes of all messages: one for each, and those that are counted."""
    counts = 0
    for message in receiver.messages:
        counts += 1
        for line in message["message"].splitlines():
            if line.startswith("and "):
                counts += int(line.split()[1])
    return counts
