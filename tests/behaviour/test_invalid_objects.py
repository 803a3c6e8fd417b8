"""`onInvalid`: an object that does not fit its class reaches no hook, and its owner learns why."""

import pytest

from declctl.testing import until
from tests.behaviour.conftest import definition

CODE = """
import declctl, msgspec
from typing import Annotated

class Spec(msgspec.Struct):
    size: Annotated[int, msgspec.Meta(ge=1)]

class Gadget(declctl.Object[Spec]): ...

async def keys(request, ctx):
    ctx.log.info("called", told=["reconcile", request.name, request.obj and request.obj.spec.size])

@declctl.hookimpl
async def declctl_finalize(request, ctx):
    try:
        size = request.obj.spec.size
    except declctl.InvalidObject as fault:
        size = fault.path
    ctx.log.info("called", told=["finalize", request.name, size])

def changes(change):
    change.obj and change.obj.spec
"""
SYNC = CODE.replace("async def", "def")
TYPED = '- {name: gadgets, apiVersion: example.dev/v1, kind: Gadget, type: "handlers:Gadget"}'
NAME = "finalizer: example.dev/gadget"


def _gadget(name: str, size: object) -> dict:
    metadata = {"name": name, "namespace": "default"}
    return {"apiVersion": "example.dev/v1", "kind": "Gadget", "metadata": metadata, "spec": {"size": size}}


def _kind() -> dict:
    kind = definition("gadgets", "Gadget", "v1")
    kind["spec"]["versions"][0]["subresources"] = {"status": {}}
    return kind


def _condition(sandbox, name: str) -> tuple | None:
    found = next(each for each in sandbox.objects("Gadget") if each["metadata"]["name"] == name)
    conditions = found.get("status", {}).get("conditions", [])
    return tuple((each["status"], each["reason"], each["message"]) for each in conditions) or None


def _told(runs) -> list[list]:
    return [line.fields["told"] for line in runs.log.lines if "told" in line.fields]


@pytest.fixture
def typed(rig):
    """Gadgets with a class."""
    rig.resources = [TYPED]
    return rig


@pytest.mark.parametrize(
    ("code", "rest"),
    [(CODE, ""), (SYNC, ""), (SYNC, ", isolation: {mode: Process}")],
    ids=["async", "sync", "process"],
)
def test_the_status_says_what_does_not_fit_until_it_does(typed, sandbox, code, rest) -> None:
    """A condition with its place, one Event for each fault; the next state that fits is reconciled."""
    typed.handler("keys", resource="gadgets", rest=f"mode: Reconcile, status: true{rest}")
    runs = typed.run(code, objects=[_kind(), _gadget("good", 1), _gadget("bad", 0)])
    until("it is told", lambda: _condition(sandbox, "bad") is not None)
    runs.wait_idle()
    assert _condition(sandbox, "bad") == (("False", "DoesNotFit", "spec.size: Expected `int` >= 1"),)
    assert _condition(sandbox, "good") is None
    sandbox.patch("Gadget", "bad", {"metadata": {"labels": {"same": "fault"}}}, namespace="default")
    runs.wait_idle()
    sandbox.patch("Gadget", "bad", {"spec": {"size": "two"}}, namespace="default")
    told = (("False", "DoesNotFit", "spec.size: Expected `int`, got `str`"),)
    until("the other fault is told", lambda: _condition(sandbox, "bad") == told)
    runs.wait_idle()
    assert runs.handler("keys").invalid >= 3
    assert runs.handler("keys").failed == 0
    until("both are told", lambda: len(sandbox.objects("Event")) == 2)
    assert [each["reason"] for each in sandbox.objects("Event")] == ["DoesNotFit"] * 2
    sandbox.patch("Gadget", "bad", {"spec": {"size": 2}}, namespace="default")
    until("it is reconciled", lambda: ["reconcile", "bad", 2] in _told(runs))
    runs.wait_idle()
    assert _condition(sandbox, "bad") == (("True", "Fits", ""),)
    assert {each[2] for each in _told(runs)} == {1, 2}


def test_an_object_that_does_not_fit_can_be_deleted(typed, sandbox) -> None:
    """Its finalizer came while it did fit: `declctl_finalize` is called, and reads what it can."""
    typed.handler("keys", resource="gadgets", rest=f"mode: Reconcile, {NAME}")
    runs = typed.run(CODE, objects=[_kind(), _gadget("g", 1), _gadget("never", 0)])
    until("it is reconciled", lambda: ["reconcile", "g", 1] in _told(runs))
    sandbox.patch("Gadget", "g", {"spec": {"size": 0}}, namespace="default")
    runs.wait_idle()
    assert runs.handler("keys").invalid >= 2
    assert _condition(sandbox, "g") is None  # without status: true, it is skipped
    sandbox.delete("Gadget", "g", "default")
    until("it is gone", lambda: [each["metadata"]["name"] for each in sandbox.objects("Gadget")] == ["never"])
    assert ["finalize", "g", "spec.size"] in _told(runs)
    assert "finalizers" not in sandbox.objects("Gadget")[0]["metadata"]
    runs.wait_idle()
    assert ["reconcile", "g", None] in _told(runs)


@pytest.mark.parametrize(("policy", "failed", "invalid"), [("Skip", 0, 30), ("Call", 30, 0)])
def test_a_handler_of_changes_skips_them_or_sees_them(typed, policy, failed, invalid) -> None:
    """Skipped ones are counted, and logged with a count; called, each fails where it reads."""
    typed.handler("changes", resource="gadgets", rest=f"onInvalid: {policy}, retry: {{maxAttempts: 1}}")
    gadgets = [_gadget(f"g{number}", 0) for number in range(30)]
    runs = typed.run(SYNC, objects=[_kind(), *gadgets, _gadget("good", 1)])
    runs.wait_idle()
    figures = runs.handler("changes")
    assert (figures.failed, figures.invalid, figures.filtered, figures.succeeded) == (
        failed,
        invalid,
        invalid,
        1,
    )
    lines = [line for line in runs.log.lines if "the handler is not called" in line.event]
    assert [line.fields["times"] for line in lines] == ([1, 10] if invalid else [])
    if failed:
        assert figures.last_error_type == "InvalidObject"


@pytest.mark.parametrize(
    ("resource", "rest", "told"),
    [
        (TYPED, "onInvalid: Condition", "is Condition, which is written into the status"),
        (
            TYPED.replace(', type: "handlers:Gadget"', ""),
            "onInvalid: Skip",
            "without a type of the resource gadgets",
        ),
    ],
)
def test_a_policy_that_can_not_be_kept_is_told(rig, resource, rest, told) -> None:
    """At its line in the manifest."""
    from declctl.errors import ManifestErrors

    rig.resources = [resource]
    rig.handler("changes", resource="gadgets", rest=rest)
    with pytest.raises(ManifestErrors, match=told):
        rig.start(SYNC)
