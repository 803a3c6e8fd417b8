"""Writes of the code that no manifest declares: `validate`, `doctor` and `generate` name them alike."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

MANIFEST = """\
apiVersion: declctl.dev/v1alpha1
kind: Controller
metadata: {name: guard}
spec:
  namespaces: [team-a]
  resources:
    - {name: pods, apiVersion: v1, kind: Pod}
  handlers:
    - name: notify
      resourceRef: {name: pods}
      entryPoint: "handlers:notify"
"""
APPLIES = "async def notify(obj, ctx):\n    await ctx.apply(dict(obj))\n"
HOOK = "import declctl\n@declctl.hookimpl\ndef declctl_rbac():\n    return []\n"


@pytest.fixture(name="write")
def _write(folder: Path) -> Callable[..., None]:
    """Writes handlers and a manifest into the current folder."""

    def write(handlers: str, further: str = "") -> None:
        (folder / "handlers.py").write_text(handlers, "utf-8")
        (folder / "manifest.yaml").write_text(MANIFEST + further, "utf-8")

    return write


def told(declctl: Callable) -> list[str]:
    """The messages of `validate`, which accepts the manifest."""
    ended = declctl("validate", ".", "-o", "json")
    assert ended.status == 0, ended.out
    faults = json.loads(ended.out)
    assert {(each["code"], each["severity"]) for each in faults} <= {("DCL098", "warning")}
    return [each["message"] for each in faults]


def test_all_commands_tell_the_same(declctl: Callable, write: Callable) -> None:
    """A user learns it before a start, whichever command comes first, and each accepts the manifest."""
    write(APPLIES)
    (message,) = told(declctl)
    assert message == "notify writes objects, and declares no `applies`: no right for ctx.apply is known"
    text = declctl("validate", ".")
    assert f"manifest.yaml:11:19: warning DCL098: {message}" in text.err
    assert "guard is valid" in text.out
    assert text.status == 0
    assert f"warning DCL098: {message}" in declctl("generate", "rbac", ".").err
    checks = json.loads(declctl("doctor", ".", "-o", "json").out)["checks"]
    (manifest,) = [each for each in checks if each["name"] == "manifest"]
    assert manifest["state"] == "warning"
    assert "1 warning" in manifest["found"]


@pytest.mark.parametrize(
    ("handlers", "further"),
    [
        (APPLIES, "      applies: [{apiVersion: v1, kind: ConfigMap}]\n"),
        (APPLIES + HOOK, ""),
        ("def notify(obj, ctx):\n    ctx.record_event(obj, 'R', 'm')\n", ""),
        ("def notify(obj, ctx):\n    ctx.sync.patch_status(ready=True)\n", ""),
        ("def notify(obj):\n    obj.apply(obj.client)\n", ""),
    ],
)
def test_what_is_declared_or_known_is_not_told(
    declctl: Callable, write: Callable, handlers: str, further: str
) -> None:
    """By `applies`, by a hook, or as the rights follow from the resource."""
    write(handlers, further)
    assert told(declctl) == []


@pytest.mark.parametrize(
    ("handlers", "further", "said"),
    [
        (
            "async def notify(obj, ctx):\n    await ctx.apply_set([])\n    await ctx.apply({})\n",
            "",
            "ctx.apply and ctx.apply_set",
        ),
        ("def notify(obj, ctx):\n    ctx.sync_client\n", "", "notify uses ctx.sync_client"),
        (
            "def notify(obj, ctx):\n    ctx.sync.patch_status(ready=True)\n",
            "      status: false\n",
            "the call raises UndeclaredWrite",
        ),
        (
            "def notify(obj): ...\nasync def nightly(ctx):\n    await ctx.apply({})\n",
            "  schedules: [{name: night, every: 1h, entryPoint: 'handlers:nightly'}]\n",
            "night uses ctx.apply",
        ),
        (
            "def notify(obj): ...\ndef begin(ctx):\n    ctx.client\n",
            "  lifecycle: {startup: [{entryPoint: 'handlers:begin'}]}\n",
            "handlers:begin uses ctx.client",
        ),
    ],
)
def test_each_undeclared_use_is_told(
    declctl: Callable, write: Callable, handlers: str, further: str, said: str
) -> None:
    """At the place of the manifest that names the code."""
    write(handlers, further)
    (message,) = told(declctl)
    assert said in message
