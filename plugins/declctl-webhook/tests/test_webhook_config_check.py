"""What `declctl validate` finds in a config beyond its schema: without a request, and without a change."""

# The package is found beside the tests, whether it is installed or not.
# pyright: reportMissingImports=false

from pathlib import Path
from typing import Any

import pytest

import declctl_webhook

VARIABLE = "DECLCTL_TEST_WEBHOOK_CHECK"


@pytest.fixture(name="least")
def _least(tmp_path: Path) -> dict[str, Any]:
    """A config without faults."""
    return {"url": "https://example.com/hook", "spool": {"path": str(tmp_path / "spool")}}


def found(config: dict[str, Any]) -> list[tuple[list[str | int], str, str]]:
    """Path, severity and message of each fault."""
    given = {name: value for name, value in config.items() if value is not None}
    faults = declctl_webhook.declctl_check_config(given)
    return [(fault["path"], fault["severity"], fault["message"]) for fault in faults]


def test_a_config_without_faults_has_none_and_nothing_is_made(least: dict[str, Any], tmp_path: Path) -> None:
    """A check on a laptop leaves no spool behind."""
    assert found(least) == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("more", "path", "said"),
    [
        ({"url": "https://"}, ["url"], "has no URL"),
        ({"url": "https://example.com:x/"}, ["url"], "has no URL"),
        ({"url": None, "urlFrom": {"env": VARIABLE}}, ["urlFrom"], "has no URL"),
        ({"tls": {"caFile": "/etc/hostname"}}, ["tls"], "can't be used"),
        ({"data": {"include": "Fields"}}, [], "data.paths is empty"),
        ({"timeout": "0s"}, [], "timeout is 0s"),
        ({"headersFrom": [{"name": "X-A", "env": VARIABLE}]}, ["headersFrom", 0], "no header can have"),
        (
            {"signature": {"secretsFrom": [{"env": VARIABLE}]}},
            ["signature", "secretsFrom", 0],
            "no secret of Standard Webhooks",
        ),
    ],
)
def test_a_fault_that_is_one_anywhere_is_an_error_at_its_place(
    least: dict[str, Any], monkeypatch: pytest.MonkeyPatch, more: dict[str, Any], path: list[Any], said: str
) -> None:
    """And shows no value of a secret."""
    monkeypatch.setenv(VARIABLE, "s3cr3t\nvalue")
    ((where, severity, message),) = found({**least, **more})
    assert (where, severity) == (path, "error")
    assert said in message
    assert "s3cr3t" not in message


@pytest.mark.parametrize(
    ("more", "path"),
    [
        ({"headersFrom": [{"name": "X-A", "env": VARIABLE}]}, ["headersFrom", 0]),
        ({"headersFrom": [{"name": "X-A", "file": "/no/such/file"}]}, ["headersFrom", 0]),
        ({"signature": {"secretsFrom": [{"file": "/no/such/file"}]}}, ["signature", "secretsFrom", 0]),
        ({"tls": {"caFile": "/no/such/file"}}, ["tls"]),
    ],
)
def test_what_is_missing_here_is_a_warning(
    least: dict[str, Any], monkeypatch: pytest.MonkeyPatch, more: dict[str, Any], path: list[Any]
) -> None:
    """The Secret is in the cluster, and this is a laptop."""
    monkeypatch.delenv(VARIABLE, raising=False)
    ((where, severity, _),) = found({**least, **more})
    assert (where, severity) == (path, "warning")


@pytest.mark.parametrize(
    ("url", "warned"),
    [
        ("http://example.com/a", True),
        ("http://10.1.2.3", True),
        ("http://127.0.0.1:1", False),
        ("http://localhost/a", False),
        ("http://[::1]/", False),
        ("https://example.com/", False),
    ],
)
def test_secrets_without_tls_are_warned_of(
    least: dict[str, Any], monkeypatch: pytest.MonkeyPatch, url: str, warned: bool
) -> None:
    """Of a header with a secret, to another machine; from where the URL is makes no difference."""
    monkeypatch.setenv(VARIABLE, url)
    assert found({**least, "url": url}) == []
    least["headersFrom"] = [{"name": "X-Token", "env": VARIABLE}]
    for source in ({"url": url}, {"url": None, "urlFrom": {"env": VARIABLE}}):
        faults = found({**least, **source})
        said = [(path, severity, "X-Token is sent" in message) for path, severity, message in faults]
        assert said == ([(["headersFrom"], "warning", True)] if warned else [])


@pytest.mark.parametrize("below", ["", "/inner"])
def test_a_file_in_the_place_of_the_spool_is_an_error(
    least: dict[str, Any], tmp_path: Path, below: str
) -> None:
    """No mount makes a folder of it."""
    (tmp_path / "spool").touch()
    least["spool"]["path"] += below
    ((path, severity, message),) = found(least)
    assert (path, severity) == (["spool", "path"], "error")
    assert f"{tmp_path / 'spool'} is no folder" in message


@pytest.mark.parametrize(("exists", "severity"), [(True, "error"), (False, "warning")])
def test_a_spool_that_can_not_be_written_is_told(
    least: dict[str, Any], monkeypatch: pytest.MonkeyPatch, exists: bool, severity: str
) -> None:
    """A folder that is there is an error; one whose volume is missing here is a warning."""
    if exists:
        Path(least["spool"]["path"]).mkdir()
    # The tests may run as root, who may write everywhere.
    monkeypatch.setattr("os.access", lambda *_: False)
    ((path, told, message),) = found(least)
    assert (path, told) == (["spool", "path"], severity)
    assert "can't read and write" in message
