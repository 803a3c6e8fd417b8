"""A resource of another kind, or of one that can't be read: nobody is told that what lives is gone."""

import pytest

from declctl.sandbox.faults import Match
from declctl.testing import until
from tests.behaviour.conftest import TELLING, gadgets, planned_against, secret

MAPS = "- {name: maps, apiVersion: v1, kind: ConfigMap}"
SECRETS = "- {name: maps, apiVersion: v1, kind: Secret}"
TYPO = "- {name: maps, apiVersion: v1, kind: ConfigMapp}"
ODD = "- {name: maps, apiVersion: v1, kind: ConfigMap, fieldSelector: data.a=1}"
GADGETS = "- {name: gadgets, apiVersion: example.dev/v1, kind: Gadget}"


def gadget(name: str, version: str = "v1", **spec: object) -> dict:
    metadata = {"name": name, "namespace": "default"}
    return {"apiVersion": f"example.dev/{version}", "kind": "Gadget", "metadata": metadata, "spec": spec}


@pytest.fixture
def runs(rig, config_map, board, monkeypatch):
    """A controller whose handler has heard of two ConfigMaps; there are two Secrets of the same names.

    Refused reloads are tried again after a moment.
    """
    monkeypatch.setattr("declctl.runtime.reloading.attempts.FIRST_RETRY_SECONDS", 0.1)
    rig.handler("tell")
    rig.reload_policy += ", warmTimeout: 2s"
    controller = rig.run(TELLING, objects=[*map(config_map, "ab"), *map(secret, "ab")])
    controller.wait_idle()
    assert len(rig.told("told")) == 2
    board.told.clear()
    return controller


def _told(rig) -> list[tuple]:
    """Kind, key and type of each change that was told, in order; forgets them."""
    told = sorted(row[1:4] for row in rig.told("told"))
    rig.board.told.clear()
    return told


def _is_as_before(rig, runs, config_map, sandbox) -> None:
    """Nothing was told, nothing is listed anew, and the next change comes through."""
    assert (rig.told("told"), runs.status().generation) == ([], 1)
    assert sandbox.ledger.count("list", resource="configmaps") <= 1
    sandbox.create(config_map("c"))
    runs.wait_idle()
    assert _told(rig) == [("ConfigMap", "default/c", "Added")]
    assert runs.status().ready


@pytest.mark.guarantee("G6")
@pytest.mark.parametrize(
    ("resources", "handler", "fault", "reason", "message"),
    [
        ([TYPO], "maps", None, "NotServed", "ConfigMapp"),
        ([MAPS, TYPO.replace("maps", "mapps")], "mapps", None, "NotServed", "ConfigMapp"),
        ([ODD], "maps", None, "Invalid", "manifest.yaml:6: the server refuses the field selector data.a=1"),
        ([SECRETS], "maps", 403, "Forbidden", "Secret"),
        pytest.param([SECRETS], "maps", 503, "NotSynced", "503", marks=pytest.mark.thorough),
    ],
    ids=[
        "a typo in kind",
        "a handler that goes there",
        "a field that is none",
        "a right is missing",
        "it never answers",
    ],
)
def test_a_kind_that_can_not_be_read_is_refused_and_nobody_is_told_of_a_delete(
    rig, runs, config_map, sandbox, resources, handler, fault, reason, message
) -> None:
    """The handler goes on with the kind before, and hears nothing until the edit is corrected."""
    if fault:
        sandbox.faults.refuse(fault, Match(resource="secrets"))
    rig.only(resource=handler)
    outcome = rig.reload(None, *resources)
    assert (outcome.result, outcome.reason) == ("Refused", reason), outcome.line
    assert (outcome.seconds > 2.0) is (reason == "NotSynced")  # only a slow server costs `warmTimeout`
    assert message in outcome.message
    assert ("mend apiVersion and kind" in (outcome.advice or "")) is (reason == "NotServed")
    condition = runs.condition("Reloaded")
    assert (condition.status, condition.reason) == ("False", reason)
    _is_as_before(rig, runs, config_map, sandbox)
    rig.only()
    assert rig.reload(None, MAPS).result == "Unchanged"
    assert runs.condition("Reloaded").status == "True"
    assert (runs.status().generation, runs.status().reload_retry) == (1, None)
    sandbox.faults.clear()
    assert runs.reload().result == "Unchanged"
    rig.apply(None, SECRETS)


@pytest.mark.parametrize("rest", ["", "filter: {labelSelector: '!ignored'}", "replay: OnCodeChange"])
def test_objects_of_the_kind_before_are_not_told_to_be_gone(rest, rig, runs, sandbox, config_map) -> None:
    """Leaving the manifest is not leaving the cluster: the handler hears the new kind, as if it was new."""
    rig.resources = [SECRETS]
    rig.write()
    found = planned_against(runs, rig.folder.path)
    assert [str(replay) for replay in found.replays] == ["tell hears the cache"]
    assert found.objects_listed is None  # how many there are of the new kind is not known
    rig.only(rest=rest)
    rig.apply(f"{TELLING}\nX = 1\n")
    runs.wait_idle()
    assert {row[4:] for row in rig.told("told")} == {("Initial", True)}
    assert _told(rig) == [("Secret", f"default/{name}", "Added") for name in "ab"]
    sandbox.create(config_map("c"))
    sandbox.create(secret("c"))
    runs.wait_idle()
    assert _told(rig) == [("Secret", "default/c", "Added")]
    assert runs.handler("tell").failed == 0

    # The same if `resourceRef` names another resource.
    rig.only(resource="more", rest=rest)
    rig.apply(None, SECRETS, MAPS.replace("maps", "more"))
    runs.wait_idle()
    assert _told(rig) == [("ConfigMap", f"default/{name}", "Added") for name in "abc"]


@pytest.mark.client_go(308, 341, "Sources")
@pytest.mark.parametrize("comes", ["start", "edit"])
def test_a_new_resource_waits_for_its_kind(comes, rig, config_map, sandbox) -> None:
    """Its definition is installed later: accepted, pending, said in the status, and nothing else waits."""
    rig.handler("tell")
    if comes == "start":
        rig.resources.append(GADGETS)
        rig.handler("gadgets", resource="gadgets", entry="handlers:tell")
    runs = rig.start(TELLING, objects=[config_map("b")])
    until("it works", lambda: rig.told("told"))
    if comes == "edit":
        rig.handler("gadgets", resource="gadgets", entry="handlers:tell")
        rig.apply(None, MAPS, GADGETS)
    assert runs.resource("gadgets").state == "Missing"
    until("the status says so", lambda: "Gadget" in runs.condition("Degraded").message)
    sandbox.create(config_map("c"))
    until("the next change comes through", lambda: len(rig.told("told")) == 2)
    assert [row[2:4] for row in rig.told("told")] == [("default/b", "Added"), ("default/c", "Added")]
    sandbox.load([gadgets("v1"), gadget("a")])
    until("it is told", lambda: rig.told("told", "Gadget"), timeout=60)
    assert rig.told("told", "Gadget") == [("told", "Gadget", "default/a", "Added", "Initial", True)]
    until("the resource has synced", lambda: runs.resource("gadgets").synced)


def test_what_waits_of_the_kind_before_never_reaches_code_for_the_new_one(rig, board, config_map) -> None:
    """A change that fails, and one that waits behind it, belong to the old code and the old kind."""
    rig.handler("tell", rest="retry: {initialBackoff: 10ms, maxBackoff: 10ms}, onFailure: Retry")
    rig.reload_policy = "settle: 20ms, preflight: 'Off', drainTimeout: 200ms"
    fails = f"{TELLING}    if obj.name == 'a': raise ValueError('no')\n    board.wait('gate')\n"
    fails += "import blackboard as board\n"
    runs = rig.run(fails, objects=[*map(config_map, "abc"), *map(secret, "ab")])
    until("both are called", lambda: {row[2] for row in rig.told("told")} >= {"default/a", "default/b"})
    rig.apply(TELLING.replace('"told"', '"new"'), SECRETS)
    runs.wait_idle()
    board.open_gate("gate")
    rig.retired()
    runs.wait_idle()
    assert {row[1] for row in rig.told("told")} == {"ConfigMap"}
    assert sorted(row[1:4] for row in rig.told("new")) == [
        ("Secret", f"default/{name}", "Added") for name in "ab"
    ]


def test_another_version_of_a_kind_is_the_same_objects(rig) -> None:
    """`v1beta1` becomes `v1`: nothing has happened to the objects, and nothing is told of them."""
    rig.resources = [GADGETS.replace("v1", "v1beta1")]
    rig.handler("tell", resource="gadgets")
    runs = rig.run(TELLING, objects=[gadgets("v1beta1", "v1"), gadget("a", size=1)])
    runs.wait_idle()
    assert _told(rig) == [("Gadget", "default/a", "Added")]
    rig.apply(None, GADGETS)
    runs.wait_idle()
    assert rig.told("told") == []
    runs.sandbox.update(gadget("a", size=2))
    runs.wait_idle()
    assert _told(rig) == [("Gadget", "default/a", "Modified")]
    assert rig.reload(None, GADGETS.replace("v1", "v9")).reason == "NotServed"


@pytest.mark.guarantee("G6", "G25")
@pytest.mark.parametrize(
    ("resource", "fault", "reason"),
    [
        pytest.param(SECRETS, 403, "Forbidden", marks=pytest.mark.thorough),
        (GADGETS.replace("gadgets", "maps"), None, "NotServed"),
        pytest.param(SECRETS, 503, "NotSynced", marks=pytest.mark.thorough),
    ],
)
def test_a_reload_goes_on_by_itself_when_the_kind_can_be_read(
    resource, fault, reason, rig, runs, sandbox
) -> None:
    """A right is granted, a definition is installed, the server answers: nobody has to ask again."""
    if fault:
        sandbox.faults.refuse(fault, Match(resource="secrets"))
    outcome = rig.reload(None, resource)
    assert (outcome.reason, runs.status().generation) == (reason, 1)
    assert "tried again by itself" in (outcome.advice or "")
    if reason != "NotSynced":  # each try would last for `warmTimeout`
        until("it was tried again, and refused", lambda: runs.status().reload_retries >= 3)
    status = runs.status()
    assert status.reload_retry is not None
    assert (status.reload_retry.reason, status.reloads["Refused"]) == (reason, 1)
    assert sum("reload refused" in event for event in runs.log.events()) == 1
    assert rig.told("told") == []

    sandbox.faults.clear()
    sandbox.load([gadgets("v1"), gadget("g")])
    until("it is live", lambda: runs.status().generation == 2, timeout=60)
    until("it is told", lambda: runs.condition("Reloaded").status == "True")
    assert runs.status().reload_retry is None
    runs.wait_idle()
    kind = "Secret" if fault else "Gadget"
    assert {row[0] for row in _told(rig)} == {kind}


@pytest.mark.guarantee("G25")
def test_a_reload_that_waits_ends_with_other_files_and_with_a_rollback(rig, runs, sandbox) -> None:
    """Files that nobody asked for are not taken by a retry, and nothing is retried of what was left."""
    warm = rig.reload_policy.replace("warmTimeout: 2s", "probationPeriod: 1h, warmTimeout: 30s")
    rig.reload_policy = warm  # a busy machine
    rig.apply(f"{TELLING}# edited\n")
    sandbox.faults.refuse(403, Match(resource="secrets"))
    assert rig.reload(None, SECRETS).reason == "Forbidden"
    assert runs.status().reload_retry is not None
    assert rig.roll_back().result == "RolledBack"
    assert runs.status().reload_retry is None

    assert rig.reload().reason == "Forbidden"
    rig.write(f"{TELLING}# edited again\n")
    until("the retry has found other files", lambda: runs.status().reload_retry is None)
    sandbox.faults.clear()
    assert runs.status().generation == 3
    assert rig.apply().generation == 4
