"""`declctl-notify test`: whether the targets of a manifest take messages."""

# The package is found beside the tests, whether it is installed or not.
# pyright: reportMissingImports=false

import json
from pathlib import Path
from typing import Any

import pytest
from notify_receiver import Receiver
from typer.testing import CliRunner

from declctl_notify.command import app

VARIABLE = "DECLCTL_TEST_NOTIFY_URL"


def _run(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["test", *words])
    return done.exit_code, done.output


@pytest.fixture
def manifest(tmp_path: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A manifest with a target that is there, and one whose URL is not."""
    monkeypatch.setenv(VARIABLE, f"json://{receiver.address}/s3cr3t")
    return _write(
        tmp_path,
        {
            "targets": [
                {"name": "team", "urlFrom": {"env": VARIABLE}},
                {"name": "other", "urlFrom": {"file": "/no/such/file"}},
            ],
            "rules": [{"name": "all", "targets": ["team"]}],
        },
    )


def _write(folder: Path, config: Any) -> Path:
    spec = {"plugins": [{"name": "changelog"}, {"name": "notify", "config": config}]}
    path = folder / "manifest.yaml"
    path.write_text(json.dumps({"kind": "Controller", "spec": spec}))
    return path


def test_each_target_gets_a_message(manifest: Path, receiver: Receiver) -> None:
    """A target that fails is named with the reason, and does not keep the others from their message."""
    status, output = _run(str(manifest))
    reason = "the file /no/such/file can't be read: No such file or directory"
    assert (status, output) == (1, f"team: sent\nother: failed: {reason}\n")
    assert receiver.texts == ["Test of declctl-notify\nThe target team gets messages."]


def test_one_target_of_a_folder(manifest: Path, receiver: Receiver) -> None:
    """The folder of a manifest and one target."""
    assert _run(str(manifest.parent), "--target", "team") == (0, "team: sent\n")
    receiver.status = 403
    assert _run(str(manifest), "--target", "team") == (1, "team: failed: HTTP 403\n")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"targets": []}, "the config is not valid: `declctl validate` says where"),
        (None, "the config is not valid"),
        (
            {
                "targets": [{"name": "team", "urlFrom": {"env": VARIABLE}}],
                "rules": [{"name": "all", "targets": ["no"]}],
            },
            "the rule all has the target no",
        ),
    ],
)
def test_a_config_that_can_not_be_used_is_a_sentence(tmp_path: Path, config: Any, message: str) -> None:
    """It exits with 2, and says what is wrong."""
    status, output = _run(str(_write(tmp_path, config)))
    assert status == 2
    assert message in output


def test_other_files_are_a_sentence(manifest: Path, tmp_path: Path) -> None:
    """A missing file, a file of something else, and a target that is not there."""
    assert _run(str(tmp_path / "no.yaml"))[0] == 2
    other = tmp_path / "other.yaml"
    for text in ("a: [", "- a\n", "spec: {plugins: [a]}\n"):
        other.write_text(text)
        assert _run(str(other))[0] == 2
    assert "there is no target x; known: team, other" in _run(str(manifest), "--target", "x")[1]
