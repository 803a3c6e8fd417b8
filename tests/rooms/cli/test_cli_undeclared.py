"""Writes of the code that no manifest declares: `validate`, `doctor` and `generate` name them alike."""

import pytest

from tests.rooms.cli.conftest import Command

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
STATUS = "def notify(obj, ctx):\n    ctx.sync.patch_status(ready=True)\n"
PLAIN = "def notify(obj): ...\n"


def told(declctl: Command) -> list[str]:
    """The messages of `validate`, which accepts the manifest."""
    faults = declctl.done("validate", ".", "-o", "json").document
    assert {(each["code"], each["severity"]) for each in faults} <= {("DCL098", "warning")}
    return [each["message"] for each in faults]


def test_all_commands_tell_the_same(declctl, write):
    """A user learns it before a start, whichever command comes first, and each accepts the manifest."""
    write("manifest.yaml", MANIFEST)
    write("handlers.py", APPLIES)
    (message,) = told(declctl)
    assert message == "notify writes objects, and declares no `applies`: no right for ctx.apply is known"
    text = declctl.done("validate", ".")
    assert f"manifest.yaml:11:19: warning DCL098: {message}" in text.err
    assert "guard is valid" in text.out
    assert f"warning DCL098: {message}" in declctl("generate", "rbac", ".").err
    checks = declctl("doctor", ".", "-o", "json").document["checks"]
    (manifest,) = [each for each in checks if each["name"] == "manifest"]
    assert (manifest["state"], "1 warning" in manifest["found"]) == ("warning", True)


@pytest.mark.parametrize(
    ("handlers", "further", "said"),
    [
        # By `applies`, by a hook, or as the rights follow from the resource.
        (APPLIES, "      applies: [{apiVersion: v1, kind: ConfigMap}]\n", None),
        (APPLIES + HOOK, "", None),
        ("def notify(obj, ctx):\n    ctx.record_event(obj, 'R', 'm')\n", "", None),
        (STATUS, "", None),
        ("def notify(obj):\n    obj.apply(obj.client)\n", "", None),
        ("def notify(obj, ctx):\n    ctx.config.get(ctx.memo.delete(getattr(obj, 'get')))\n", "", None),
        ("def notify(obj, ctx):\n    ctx.sync.get('v1/Secret', obj.name)\n", "", None),
        # What is told stands at the place of the manifest that names the code.
        (f"{APPLIES}    await ctx.apply_set([])\n", "", "ctx.apply and ctx.apply_set"),
        ("def notify(obj, ctx):\n    ctx.sync.delete(obj)\n", "", "no right for ctx.delete is known"),
        ("def notify(obj, ctx):\n    ctx.sync_client\n", "", "notify uses ctx.sync_client"),
        (STATUS, "      status: false\n", "the call raises UndeclaredWrite"),
        (
            f"{PLAIN}async def nightly(ctx):\n    await ctx.apply({{}})\n",
            "  schedules: [{name: night, every: 1h, entryPoint: 'handlers:nightly'}]\n",
            "night uses ctx.apply",
        ),
        (
            f"{PLAIN}def begin(ctx):\n    ctx.client\n",
            "  lifecycle: {startup: [{entryPoint: 'handlers:begin'}]}\n",
            "handlers:begin uses ctx.client",
        ),
    ],
)
def test_each_undeclared_use_is_told_and_no_other(declctl, write, handlers, further, said):
    write("manifest.yaml", MANIFEST + further)
    write("handlers.py", handlers)
    messages = told(declctl)
    assert len(messages) == (said is not None)
    assert all(said in message for message in messages)
