"""What declctl promises of every plugin."""

# The package is found beside the tests, whether it is installed or not.
# pyright: reportMissingImports=false

from pathlib import Path

import pytest
from declctl.testing import fuzz
from declctl.testing.conformance import check_plugin
from receiver import Receiver
from test_webhook_controller import installed, write_manifest

pytestmark = pytest.mark.thorough  # it boots the plugin some ten times

__all__ = ["installed"]  # a fixture


def test_the_plugin_conforms(tmp_path: Path, receiver: Receiver) -> None:
    """Hooks, config, metrics, commands, odd objects and reloads."""
    check_plugin("webhook", config={"url": receiver.url, "spool": {"path": str(tmp_path / "spool")}})


def test_it_stands_lives(tmp_path: Path, receiver: Receiver) -> None:
    """Whatever happens to the objects, no change fails, and nothing is written."""
    fuzz(write_manifest(tmp_path, receiver.url), runs=15)
    assert receiver.accepted
