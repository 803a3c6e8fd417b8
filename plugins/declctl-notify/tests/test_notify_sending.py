"""Messages over real HTTP, services that fail, and URLs that nobody may see."""

# The package is found beside the tests, whether it is installed or not.
# pyright: reportMissingImports=false

import logging
from pathlib import Path

import pytest
from notify_receiver import Receiver

from declctl_notify.groups import Entry, GroupKey, Message
from declctl_notify.outbox import Delivery, Suppressed
from declctl_notify.sending import SendFailed, check_target, send_by_apprise
from declctl_notify.settings import RateLimit, TargetSettings

PASSWORD, TOKEN, QUERY = "s3cr3t-password", "T0K3N-IN-PATH", "qu3ry-secret"
VARIABLE = "DECLCTL_TEST_NOTIFY_URL"


def _target(*, env: str = VARIABLE, file: str = "", max_length: int = 4000) -> TargetSettings:
    return TargetSettings("team", env, file, RateLimit(1.0, 5), max_length)


def _delivery(body: str = "replicas: 1 → 2", severity: str = "warning") -> Delivery:
    message = Message(GroupKey("rule"), severity, [Entry(("web", ""), "Modified web", body)])
    return Delivery(message, Suppressed())


def _url(address: str, *, more: str = "") -> str:
    return f"json://user:{PASSWORD}@{address}/{TOKEN}?:key={QUERY}{more}"


def _send(target: TargetSettings | None = None, delivery: Delivery | None = None) -> None:
    send_by_apprise(target or _target(), delivery or _delivery(), 0.0)


def test_a_message_arrives_with_its_severity(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Title, body and kind of a message reach the service."""
    monkeypatch.setenv(VARIABLE, _url(receiver.address))
    _send()
    _send(delivery=_delivery(severity="critical"))
    assert [(one["title"], one["message"], one["type"]) for one in receiver.messages] == [
        ("Modified web", "replicas: 1 → 2", "warning"),
        ("Modified web", "replicas: 1 → 2", "failure"),
    ]


def test_a_file_is_read_for_each_message(receiver: Receiver, tmp_path: Path) -> None:
    """A Secret that is rotated counts from the next message on."""
    file = tmp_path / "url"
    target = _target(env="", file=str(file))
    file.write_text(f"# of the team\n\njson://{receiver.address}/old\n")
    _send(target)
    file.write_text("json://127.0.0.1:9/new\n")
    with pytest.raises(SendFailed):
        _send(target)


def test_a_long_message_is_cut_to_the_limit_of_the_target(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`maxLength` counts what the service receives."""
    monkeypatch.setenv(VARIABLE, _url(receiver.address))
    _send(_target(max_length=200), _delivery(body="x" * 5000))
    (message,) = receiver.messages
    assert len(message["message"]) <= 200
    assert message["message"].endswith("x…")


@pytest.mark.parametrize("severity", ["info", "warning", "critical"])
def test_backslashes_and_markup_arrive_as_they_are(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch, severity: str
) -> None:
    r"""A value such as `\n` or `<b>` is text, and nothing else."""
    monkeypatch.setenv(VARIABLE, _url(receiver.address))
    _send(delivery=_delivery(body=r"a\nb <b>&amp;</b> *x*", severity=severity))
    assert receiver.messages[0]["message"] == r"a\nb <b>&amp;</b> *x*"


class _Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__(level=1)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(f"{record.name} {record.getMessage()} {record.exc_info}")


@pytest.fixture
def all_logs():
    """Every line of every log, to the lowest level."""
    root, handler = logging.getLogger(), _Lines()
    before = root.level
    root.setLevel(1)
    root.addHandler(handler)
    yield handler.lines
    root.removeHandler(handler)
    root.setLevel(before)


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        ("500", "HTTP 500"),
        ("403", "HTTP 403"),
        ("refused", "refused|connection failed"),
        ("hang", "no answer in time|connection failed"),
        ("unknown host", "unknown host|connection failed"),
        ("unknown service", "not one of apprise"),
        ("no url", "not one of apprise"),
        ("sent", ""),
    ],
)
def test_no_secret_is_in_a_log_or_an_error(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch, all_logs: list[str], case: str, reason: str
) -> None:
    """Whatever fails: an error says what is wrong, and has no part of the URL; logs of libraries neither."""
    address = receiver.address
    if case.isdigit():
        receiver.status = int(case)
    if case == "hang":
        receiver.go_on.clear()
    url = {
        "refused": _url("127.0.0.1:9"),
        "hang": _url(address, more="&rto=0.2&cto=0.2"),
        "unknown host": _url("no-such-host.invalid"),
        "unknown service": f"nosuch://{PASSWORD}@{TOKEN}/{QUERY}",
        "no url": f"{PASSWORD} {TOKEN} {QUERY}",
    }.get(case, _url(address))
    monkeypatch.setenv(VARIABLE, url)
    text = ""
    if case == "sent":
        _send()
    else:
        with pytest.raises(SendFailed, match=reason) as caught:
            _send()
        text = f"{caught.value!r} {caught.value.__cause__!r} {caught.value.__context__!r}"
    for secret in (PASSWORD, TOKEN, QUERY):
        assert secret not in text
        assert not [line for line in all_logs if secret in line]


def test_logs_of_other_users_of_apprise_stay(all_logs: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A handler that sends by apprise itself keeps its log lines."""
    monkeypatch.setenv(VARIABLE, "json://127.0.0.1:9")
    with pytest.raises(SendFailed):
        _send()
    before = len(all_logs)
    logging.getLogger("apprise").warning("of the handler")
    assert [line for line in all_logs[before:] if "of the handler" in line]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "can't be read: No such file"),
        (b"", "has no URLs"),
        (b"json://a/s3cr3t\njson://b/s3cr3t\n", "has 2 URLs"),
        (b"\xff\xfes3cr3t", "not one of apprise"),
        (b"s3cr3t", "not one of apprise"),
    ],
)
def test_a_file_that_can_not_be_used_says_why(tmp_path: Path, content: bytes | None, message: str) -> None:
    """The fault names the file and never its content."""
    file = tmp_path / "url"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(SendFailed, match=message) as caught:
        check_target(_target(env="", file=str(file)))
    assert "s3cr3t" not in f"{caught.value!r} {caught.value.__context__!r}"


def test_a_variable_that_is_not_set_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reader of the log knows what to set."""
    monkeypatch.delenv(VARIABLE, raising=False)
    with pytest.raises(SendFailed, match=f"the environment variable {VARIABLE} is not set"):
        check_target(_target())
