"""From the hook to a real HTTP server that fails in every way, and over reloads."""

# The package is found beside the tests, whether it is installed or not.
# pyright: reportMissingImports=false

import base64
import html
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from declctl.testing import Logged, until
from receiver import Receiver, certificate
from test_webhook_events import ADDED, POD, SECRET, Seen, View

from declctl_webhook.dead_letters import FILE, letters
from declctl_webhook.endpoint import retry_after, without_secrets
from declctl_webhook.messages import Message, signed
from declctl_webhook.pipeline import Lifetimes, NotSpooled
from declctl_webhook.settings import Scheme, SettingsError

KEY = "whsec_" + base64.b64encode(b"k" * 32).decode()


@dataclass
class Ctx:
    """As much of a hook's `ctx` as the plugin reads."""

    config: Mapping[str, Any]
    generation: int = 1
    dry_run: bool = False
    log: Logged = field(default_factory=Logged)


class Controller:
    """The plugin as declctl calls it."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        self.base: dict[str, Any] = {
            "url": url,
            "spool": {"path": str(folder)},
            "retry": {"initialBackoff": "20ms", "maxBackoff": "100ms"},
            "timeout": "2s",
            "flushTimeout": "2s",
        }
        self.lifetimes = Lifetimes()
        self.log = Logged()
        self.ctx = Ctx(self.base)

    def start(self, **config: Any) -> "Controller":
        """Generation 1."""
        self.ctx = self.context(1, **config)
        self.lifetimes.prepare(self.ctx)
        return self

    def context(self, generation: int, **config: Any) -> Ctx:
        """The context of a generation with another config."""
        merged = {**self.base, **config}
        return Ctx(
            {name: value for name, value in merged.items() if value is not None}, generation, log=self.log
        )

    def change(self, number: int, name: str = "web-0", ctx: Ctx | None = None) -> None:
        """A handler is called for a change."""
        body = {
            **POD,
            "metadata": {**POD["metadata"], "name": name, "uid": name, "resourceVersion": str(number)},
        }
        self.lifetimes.event(replace(ADDED, obj=View(body)), ctx or self.ctx)

    @property
    def waiting(self) -> int:
        """Events that are not delivered."""
        pipeline = self.lifetimes.pipeline
        assert pipeline is not None
        return len(pipeline)

    def status(self) -> dict[str, Any]:
        """The status."""
        pipeline = self.lifetimes.pipeline
        assert pipeline is not None
        return pipeline.status()

    def wait_until_delivered(self) -> None:
        """Return when nothing waits any more."""
        until("all is delivered", lambda: self.waiting == 0)

    def stop(self) -> None:
        """declctl_shutdown, and then declctl_teardown."""
        self.lifetimes.shut_down()
        self.lifetimes.tear_down(self.ctx)


@pytest.fixture
def controller(tmp_path: Path, receiver: Receiver) -> Iterator[Controller]:
    """The plugin, sending to the receiver; started by the test."""
    made = Controller(tmp_path / "spool", receiver.url)
    yield made
    made.stop()


def _versions(receiver: Receiver) -> list[str]:
    return [event["resourceversion"] for event in receiver.accepted]


@pytest.mark.parametrize("mode", ["Structured", "Binary", "Batched"])
def test_events_arrive_in_every_mode(controller: Controller, receiver: Receiver, mode: str) -> None:
    """A real HTTP server reads what was sent."""
    controller.start(mode=mode, batch={"maxEvents": 2, "maxAge": "10ms"})
    for number in range(3):
        controller.change(number)
    controller.wait_until_delivered()
    assert _versions(receiver) == ["0", "1", "2"]
    event = receiver.accepted[0]
    assert (event["specversion"], event["subject"]) == ("1.0", "v1/Pod/team-a/web-0")
    assert event["data"]["object"]["spec"] == POD["spec"]


@pytest.mark.parametrize("fault", [500, 502, 408, 302, (429, {"Retry-After": "0"}), "reset", "hang", "slow"])
def test_what_fails_is_sent_again_and_later_events_after_it(
    controller: Controller, receiver: Receiver, fault: Any
) -> None:
    """Each fault of a network or a server costs time, and no event, and no order."""
    receiver.answers = [fault, fault]
    controller.start(timeout="400ms")
    for number in range(4):
        controller.change(number)
    controller.wait_until_delivered()
    assert _versions(receiver) == ["0", "1", "2", "3"]


def test_a_redirect_is_not_followed(controller: Controller, receiver: Receiver) -> None:
    """The other host would get the event, its signature and the token."""
    with Receiver() as other:
        receiver.answers = [(307, {"Location": other.url}), (308, {"Location": other.url})]
        controller.start(headers={"X-A": "b"})
        controller.change(1)
        controller.wait_until_delivered()
        assert other.requests == []
    assert receiver.statuses == [307, 308, 204]


def test_an_answer_without_an_end_is_not_read_to_it(controller: Controller, receiver: Receiver) -> None:
    """The status is what counts: the event is delivered, and neither memory nor time is spent on the rest."""
    receiver.answers = ["endless"]
    controller.start(timeout="20s")
    began = time.monotonic()
    controller.change(1)
    controller.wait_until_delivered()
    assert time.monotonic() - began < 10.0
    assert receiver.statuses == [200]


def test_a_retry_after_of_a_real_server_is_honoured(controller: Controller, receiver: Receiver) -> None:
    """A second is a second, though the back-off is shorter."""
    receiver.answers = [(429, {"Retry-After": "1"})]
    controller.start()
    began = time.monotonic()
    controller.change(1)
    controller.wait_until_delivered()
    assert time.monotonic() - began >= 1.0
    assert receiver.statuses == [429, 204]


@pytest.mark.parametrize("secret", ['long "token" / here', "s3cr3t", "-=?a>b&~s3cr3t~"])
@pytest.mark.parametrize("quoted", [str, quote, html.escape, lambda text: json.dumps(text)[1:-1]])
def test_a_secret_in_an_answer_is_hidden_in_each_form(secret: str, quoted: Callable[[str], str]) -> None:
    """Quoted, and wherever it stands in a base64: at most the characters stay that it shares with others."""
    assert without_secrets(f"it is {quoted(secret)}.", [secret]) == "it is ***."
    for before in range(3):
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            shown = without_secrets(encode(f"{'-' * before}{secret}-".encode()).decode(), [secret])
            assert "***" in shown
            assert len(shown) < 12


def test_a_token_without_tls_is_warned_of_at_the_start(
    controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it runs, too: there is no validate in a pod."""
    monkeypatch.setenv("TOKEN", "s3cr3t-token")
    controller.start(url="http://192.0.2.1/hook", headersFrom=[{"name": "X-Token", "env": "TOKEN"}])
    assert "X-Token is sent to 192.0.2.1 without TLS" in str(controller.log.lines[0])


def test_a_secret_is_nowhere_but_in_the_request(
    controller: Controller, receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not in a log line, the status, a dead letter, the spool, or an exception, whatever fails."""
    monkeypatch.setenv("HOOK_URL", receiver.url + "?sig=s3cr3t-url&key=%73s3cr3t")
    monkeypatch.setenv("TOKEN", "s3cr3t-token")
    key = tmp_path / "key"
    key.write_text(KEY)
    receiver.answers = [500, 400, "reset", "hang"]
    controller.start(
        url=None,
        urlFrom={"env": "HOOK_URL"},
        headersFrom=[{"name": "Authorization", "env": "TOKEN", "prefix": "Bearer "}],
        signature={"secretsFrom": [{"file": str(key)}]},
        timeout="300ms",
        circuit={"failures": 1},
    )
    for number in range(4):
        controller.change(number)
    controller.wait_until_delivered()
    monkeypatch.setenv("HOOK_URL", "s3cr3t-no-url")
    controller.change(5)
    until("the fault is seen", lambda: "HOOK_URL" in str(controller.status()["lastError"]))
    told = [f"{line.event} {line.fields}" for line in controller.log.lines]
    told += [json.dumps(controller.status())]
    told += [path.read_text("utf-8", "replace") for path in controller.folder.iterdir() if path.is_file()]
    assert receiver.requests[0].headers["authorization"] == "Bearer s3cr3t-token"
    letter = next(letters(controller.folder / FILE))
    assert letter is not None
    assert (letter["event"]["resourceversion"], letter["status"]) == ("0", 400)
    assert letter["answer"].startswith("status 400 for *** at *** by ")
    assert "***" in letter["answer"].partition(" by ")[2]  # the base64 of all headers
    assert "s3cr3t" not in "\n".join(told)
    assert KEY.removeprefix("whsec_") not in "\n".join(told)
    monkeypatch.setenv("HOOK_URL", receiver.url)


def test_a_signature_is_made_with_the_secret_as_it_is_now(
    controller: Controller, receiver: Receiver, tmp_path: Path
) -> None:
    """A mounted Secret is rotated: no reload, no restart."""
    key = tmp_path / "key"
    key.write_text(KEY + "\n")
    controller.start(signature={"secretsFrom": [{"file": str(key)}]})
    controller.change(1)
    controller.wait_until_delivered()
    newer = base64.b64encode(b"n" * 24).decode()
    key.write_text(newer)
    controller.change(2)
    controller.wait_until_delivered()
    for request, secret in zip(receiver.requests, (b"k" * 32, b"n" * 24), strict=True):
        message = Message(request.headers["webhook-id"], {}, request.body)
        timestamp = int(request.headers["webhook-timestamp"])
        expected = signed(Scheme.STANDARD_WEBHOOKS, [secret], message, timestamp=timestamp)
        assert request.headers["webhook-signature"] == expected["webhook-signature"]
        assert request.headers["webhook-id"] == request.events[0]["id"]
        assert abs(timestamp - time.time()) < 60


def test_githubs_signature(
    controller: Controller, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """X-Hub-Signature-256, for receivers that know GitHub."""
    monkeypatch.setenv("KEY", "any text")
    controller.start(signature={"scheme": "GitHub", "secretsFrom": [{"env": "KEY"}]})
    controller.change(1)
    controller.wait_until_delivered()
    (request,) = receiver.requests
    expected = signed(Scheme.GITHUB, [b"any text"], Message("", {}, request.body), timestamp=0)
    assert request.headers["x-hub-signature-256"] == expected["X-Hub-Signature-256"]


def test_a_wrong_certificate_keeps_events_back(tmp_path: Path) -> None:
    """Nothing is sent to a stranger; with the right CA file, put in place meanwhile, everything is."""
    crt, tls = certificate(tmp_path)
    other, _ = certificate(tmp_path, "stranger")
    ca = tmp_path / "ca.crt"
    ca.write_bytes(other.read_bytes())
    with Receiver(tls) as receiver:
        controller = Controller(tmp_path / "spool", receiver.url).start(tls={"caFile": str(ca)})
        try:
            controller.change(1)
            until(
                "it is refused", lambda: "certificate is not trusted" in str(controller.status()["lastError"])
            )
            assert (receiver.requests, controller.waiting) == ([], 1)
            ca.write_bytes(crt.read_bytes() + b"\n")
            controller.wait_until_delivered()
            assert _versions(receiver) == ["1"]
        finally:
            controller.stop()


def test_a_receiver_that_is_away_is_told_and_its_return_too(tmp_path: Path) -> None:
    """The log, and `status`, say since when and why; all events arrive in the end."""
    receiver = Receiver()
    with socket.create_server(("127.0.0.1", 0)) as free:
        receiver.port = free.getsockname()[1]
    controller = Controller(tmp_path / "spool", receiver.url).start()
    try:
        for number in range(20):
            controller.change(number, name=f"pod-{number % 3}")
        until("the circuit is open", lambda: controller.status()["circuit"]["state"] != "Closed")
        assert any("takes no events: " in line for line in controller.log.events("error"))
        with receiver:
            controller.wait_until_delivered()
            assert controller.status()["circuit"]["state"] == "Closed"
            assert len(receiver.accepted) == 20
            for name in ("pod-0", "pod-1", "pod-2"):
                seen = [int(e["resourceversion"]) for e in receiver.accepted if e["name"] == name]
                assert seen == sorted(seen)
    finally:
        controller.stop()


def test_a_receiver_that_hangs_delays_no_handler(controller: Controller, receiver: Receiver) -> None:
    """A hook writes to the disk, and returns."""
    receiver.always = "hang"
    controller.start(timeout="30s", flushTimeout="50ms")
    began = time.monotonic()
    for number in range(200):
        controller.change(number, name=f"pod-{number}")
    assert time.monotonic() - began < 5.0
    until("requests hang", lambda: len(receiver.requests) == 4)
    assert controller.waiting == 200


def test_a_full_spool_makes_the_handler_fail_so_that_declctl_retries(
    controller: Controller, receiver: Receiver
) -> None:
    """`Refuse`: the change stays in declctl's queue. It is taken when there is room again."""
    receiver.always = 503
    controller.start(spool={"path": str(controller.folder), "maxBytes": 4096}, circuit={"failures": 1})
    with pytest.raises(NotSpooled, match="is full"):
        _fill(controller)
    refused = controller.status()["received"] - controller.waiting
    assert controller.status()["refused"] == refused == 1
    receiver.always = 204
    controller.wait_until_delivered()
    controller.change(1000)
    controller.wait_until_delivered()
    assert _versions(receiver)[-1] == "1000"


def _fill(controller: Controller) -> None:
    for number in range(100):
        controller.change(number, name=f"pod-{number}")


def test_an_event_larger_than_the_spool_is_dropped_and_told(
    controller: Controller, receiver: Receiver
) -> None:
    """A retry would fail for ever."""
    controller.start(spool={"path": str(controller.folder), "maxBytes": 4096})
    large = {**POD, "data": "x" * 10000}
    controller.lifetimes.event(replace(ADDED, obj=View(large)), controller.ctx)
    controller.change(1)
    controller.wait_until_delivered()
    assert (_versions(receiver), controller.status()["tooLarge"]) == (["1"], 1)
    assert any("larger than the spool" in line for line in controller.log.events("error"))


def test_the_end_of_the_process_sends_what_it_can_and_keeps_the_rest(
    controller: Controller, receiver: Receiver
) -> None:
    """`flushTimeout` bounds the end; the next process goes on."""
    receiver.always = "hang"
    controller.start(flushTimeout="200ms")
    for number in range(3):
        controller.change(number)
    until("a request hangs", lambda: receiver.requests)
    began = time.monotonic()
    controller.stop()
    assert 0.1 < time.monotonic() - began < 5.0
    assert any("3 events stay in the spool" in line for line in controller.log.events("warning"))
    receiver.always = 204
    controller.start()
    controller.wait_until_delivered()
    assert _versions(receiver) == ["0", "1", "2"]
    assert controller.status()["recovered"] == 3


def test_threads_end_with_the_plugin(controller: Controller) -> None:
    """A test run, or a refused first generation, leaves nothing behind."""
    before = threading.active_count()
    controller.start()
    assert threading.active_count() == before + 1
    controller.lifetimes.tear_down(controller.ctx)
    assert threading.active_count() == before
    assert controller.lifetimes.pipeline is None


# Over reloads.


def test_an_edit_keeps_the_spool_and_sends_it_to_the_new_receiver(
    controller: Controller, receiver: Receiver
) -> None:
    """The URL was wrong: after the edit everything arrives, in order."""
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        wrong = f"http://127.0.0.1:{nobody.getsockname()[1]}/"
    controller.start(url=wrong, timeout="100ms")
    for number in range(5):
        controller.change(number)
    second = controller.context(2, mode="Binary")
    controller.lifetimes.prepare(second)
    controller.lifetimes.reloaded(2)
    controller.lifetimes.tear_down(controller.ctx)
    controller.wait_until_delivered()
    controller.change(5, ctx=second)
    controller.wait_until_delivered()
    assert _versions(receiver) == ["0", "1", "2", "3", "4", "5"]
    assert all("ce-id" in request.headers for request in receiver.requests)


def test_a_refused_edit_changes_nothing(controller: Controller, receiver: Receiver) -> None:
    """It was prepared and torn down: the events go where they went before."""
    controller.start()
    refused = controller.context(2, url="http://127.0.0.1:9/")
    controller.lifetimes.prepare(refused)
    controller.change(1)
    controller.lifetimes.tear_down(refused)
    controller.lifetimes.reloaded(1)
    # The same number again, for an edit that has nothing to do with the plugin: it is not prepared.
    controller.change(2, ctx=controller.context(2))
    controller.wait_until_delivered()
    assert _versions(receiver) == ["1", "2"]


def test_the_old_code_drains_with_its_own_fields(controller: Controller, receiver: Receiver) -> None:
    """Changes from before an edit are events of the old config, and go to the new receiver."""
    controller.start(url="http://127.0.0.1:9/")
    second = controller.context(2, data={"include": "Metadata"})
    controller.lifetimes.prepare(second)
    controller.change(2, name="new", ctx=second)
    controller.change(1, name="old")
    controller.wait_until_delivered()
    by_name = {event["name"]: event["data"]["object"] for event in receiver.accepted}
    assert "spec" in by_name["old"]
    assert "spec" not in by_name["new"]


def test_there_and_back_again(controller: Controller, receiver: Receiver) -> None:
    """A rollback prepares an old config once more, and it is torn down once."""
    controller.start()
    first, second, third = controller.ctx, controller.context(2, source="/other"), controller.context(3)
    controller.lifetimes.prepare(second)
    controller.lifetimes.reloaded(2)
    controller.lifetimes.prepare(third)
    controller.lifetimes.reloaded(3)
    controller.lifetimes.tear_down(second)
    controller.change(1, ctx=third)
    controller.wait_until_delivered()
    assert receiver.accepted[0]["source"] == "/declctl"
    controller.lifetimes.tear_down(third)
    assert controller.lifetimes.pipeline is None
    assert first.config == third.config


def test_another_spool_is_refused_while_the_process_runs(controller: Controller, tmp_path: Path) -> None:
    """The events of the old one would stay behind."""
    controller.start()
    second = controller.context(2, spool={"path": str(tmp_path / "other")})
    with pytest.raises(SettingsError, match=r"spool\.path can't be edited while the process runs"):
        controller.lifetimes.prepare(second)
    assert not (tmp_path / "other").exists()


def test_a_dry_run_sends_nothing_and_leaves_the_spool_alone(
    controller: Controller, receiver: Receiver
) -> None:
    """`declctl run --dry-run` beside the real process."""
    controller.start()
    dry = Controller(controller.folder, receiver.url)
    dry.ctx = Ctx(dry.base, dry_run=True, log=dry.log)
    dry.lifetimes.prepare(dry.ctx)
    dry.change(1)
    dry.stop()
    line = dry.log.find("not sent, as this is a dry run")
    assert line is not None
    assert line.fields["subject"] == "v1/Pod/team-a/web-0"
    assert receiver.requests == []


# Configs that can't work.


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"headersFrom": [{"name": "X-A", "env": "NOT_THERE"}]}, "environment variable NOT_THERE is not set"),
        ({"headersFrom": [{"name": "X-A", "file": "/not/there"}]}, "/not/there can't be read: No such file"),
        ({"headersFrom": [{"name": "X-A", "file": "/dev/zero"}]}, "is not a regular file"),
        ({"headersFrom": [{"name": "X-A", "env": "LINES"}]}, "a character that no header can have"),
        ({"signature": {"secretsFrom": [{"env": "SHORT"}]}}, "a key of 6 bytes"),
        ({"signature": {"secretsFrom": [{"env": "LINES"}]}}, "is no secret of Standard Webhooks"),
        ({"url": None, "urlFrom": {"env": "SHORT"}}, "SHORT has no URL that begins with"),
        ({"urlFrom": {"env": "SHORT"}}, "there are url and urlFrom"),
        ({"data": {"include": "Fields"}}, "data.paths is empty"),
        ({"url": "http://host:99999/"}, "url has no URL"),
        ({"url": "http://[::1/"}, "url has no URL"),
        ({"tls": {"caFile": "/not/there"}}, "the files of tls (/not/there) can't be used: No such file"),
        ({"tls": {"caFile": "/etc/hostname"}}, "the files of tls (/etc/hostname) can't be used"),
        ({"timeout": "0s"}, "timeout is 0s, and has to be more than 0"),
        ({"retry": {"initialBackoff": "0ms"}}, "retry.initialBackoff is 0ms"),
        ({"data": {"include": "Fields", "paths": ["a..b"]}}, "is no field path"),
        (
            {"signature": {"scheme": "GitHub", "secretsFrom": [{"env": "SHORT"}, {"env": "LINES"}]}},
            "several secrets",
        ),
    ],
)
def test_a_config_that_can_not_work_is_refused_before_it_takes_over(
    controller: Controller, monkeypatch: pytest.MonkeyPatch, config: dict[str, Any], message: str
) -> None:
    """The start fails, or the edit is refused, with a sentence that names the place and no value."""
    monkeypatch.setenv("LINES", "one\r\nX-Other: two")
    monkeypatch.setenv("SHORT", base64.b64encode(b"123456").decode())
    with pytest.raises(SettingsError) as raised:
        controller.start(**config)
    assert message in str(raised.value)
    assert "X-Other" not in str(raised.value)
    assert os.environ["SHORT"] not in str(raised.value)
    assert controller.lifetimes.pipeline is None


def test_secrets_of_the_cluster_stay_there(controller: Controller, receiver: Receiver) -> None:
    """What a receiver, the spool and the log see of a Secret."""
    receiver.always = 500
    controller.start(flushTimeout="10ms")
    controller.lifetimes.event(Seen(ADDED.type, View(SECRET)), controller.ctx)
    until("it was sent", lambda: receiver.requests)
    seen = receiver.requests[0].body
    for path in controller.folder.iterdir():
        seen += path.read_bytes()
    assert b"aHVudGVyMg" not in seen
    assert b"hunter2" not in seen


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("3", 3.0),
        ("0", 0.0),
        ("-5", 0.0),
        ("99999999", 3600.0),
        ("Thu, 01 Jan 2026 00:01:00 GMT", 60.0),
        ("Wed, 31 Dec 2025 00:01:00 GMT", 0.0),
        ("soon", None),
        ("nan", None),
        ("inf", None),
        ("", None),
        (None, None),
    ],
)
def test_retry_after_is_a_number_or_a_date(value: str | None, seconds: float | None) -> None:
    """As RFC 9110 has it. Anything else is as if it were not there; an hour is the most."""
    assert retry_after(value, now=datetime(2026, 1, 1, tzinfo=UTC)) == seconds
