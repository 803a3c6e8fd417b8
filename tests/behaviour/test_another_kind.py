"""A resource of another kind, or of one that can't be read: nobody is told that what lives is gone."""

import pytest

from declctl.sandbox.faults import Match
from declctl.testing import until
from tests.behaviour.test_plans import planned_against

CODE = """
from blackboard import tell as note
def tell(change, obj):
    note("told", obj["kind"], str(change.key), str(change.type), str(change.reason), change.initial)
"""
MAPS = "- {name: maps, apiVersion: v1, kind: ConfigMap%s}"
SECRETS = "- {name: maps, apiVersion: v1, kind: Secret}"


def secret(name: str) -> dict:
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": "default"}}


def gadgets(*versions: str) -> dict:
    """A kind that is served in these versions."""
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "gadgets.example.dev"},
        "spec": {
            "group": "example.dev",
            "scope": "Namespaced",
            "names": {"kind": "Gadget", "plural": "gadgets", "singular": "gadget"},
            "versions": [
                {"name": name, "served": True, "storage": name == versions[-1], "schema": schema}
                for name in versions
            ],
        },
    }


def gadget(name: str, version: str, **spec: object) -> dict:
    metadata = {"name": name, "namespace": "default"}
    return {"apiVersion": f"example.dev/{version}", "kind": "Gadget", "metadata": metadata, "spec": spec}


@pytest.fixture
def runs(rig, config_map, board):
    """A controller whose handler has heard of two ConfigMaps; there are two Secrets of the same names."""
    rig.handler("tell")
    rig.reload_policy += ", warmTimeout: 2s"
    controller = rig.run(CODE, objects=[*map(config_map, "ab"), *map(secret, "ab")])
    controller.wait_idle()
    assert len(rig.told("told")) == 2
    board.told.clear()
    return controller


def _is_as_before(rig, runs, config_map, sandbox, name: str) -> None:
    """Nothing was told, nothing is listed anew, and the next change comes through."""
    assert rig.told("told") == []
    assert sandbox.ledger.count("list", resource="configmaps") <= 1
    sandbox.create(config_map(name))
    runs.wait_idle()
    assert [row[2:4] for row in rig.told("told")] == [(f"default/{name}", "Added")]
    assert runs.status().ready


@pytest.mark.guarantee("G6")
def test_a_typo_in_kind_is_refused_and_nobody_is_told_of_a_delete(rig, runs, config_map, sandbox) -> None:
    """`ConfigMap` becomes `ConfigMapp`: the reload is refused with what is meant, until it is corrected."""
    rig.resources = ["- {name: maps, apiVersion: v1, kind: ConfigMapp}"]
    rig.write()
    outcome = runs.reload()
    assert (outcome.result, outcome.reason) == ("Refused", "NotServed"), outcome.line
    assert "ConfigMapp" in outcome.message
    assert "mend apiVersion and kind" in (outcome.advice or "")
    condition = runs.condition("Reloaded")
    assert (condition.status, condition.reason) == ("False", "NotServed")
    _is_as_before(rig, runs, config_map, sandbox, "c")

    rig.resources = [MAPS % ""]
    rig.write()
    assert runs.reload().result == "Unchanged"
    assert runs.condition("Reloaded").status == "True"
    assert runs.status().generation == 1

    rig.resources = [SECRETS]
    rig.write()
    assert runs.reload().result == "Applied"


def test_a_kind_that_may_not_be_listed_is_refused_and_nobody_is_told(rig, runs, config_map, sandbox) -> None:
    """The right on the new kind is missing: the handler goes on with the old one."""
    sandbox.faults.refuse(403, Match(resource="secrets"))
    rig.resources = [SECRETS]
    rig.write()
    assert (runs.reload().reason, runs.status().generation) == ("Forbidden", 1)
    _is_as_before(rig, runs, config_map, sandbox, "c")


def test_nothing_is_told_before_the_new_kind_has_synced(rig, runs, config_map, sandbox) -> None:
    """The new kind never answers: refused in time, and the handler has heard of nothing."""
    sandbox.faults.refuse(503, Match(resource="secrets"))
    rig.resources = [SECRETS]
    rig.write()
    assert (runs.reload().reason, runs.status().generation) == ("NotSynced", 1)
    _is_as_before(rig, runs, config_map, sandbox, "c")


@pytest.mark.parametrize("rest", ["", "filter: {labelSelector: '!ignored'}", "replay: OnCodeChange"])
def test_objects_of_the_kind_before_are_not_told_to_be_gone(
    rest, rig, runs, sandbox, board, config_map
) -> None:
    """Leaving the manifest is not leaving the cluster: the handler hears the new kind, as if it was new."""
    rig.resources = [SECRETS]
    rig.handlers = []
    rig.handler("tell", rest=rest)
    rig.write(f"{CODE}\nX = 1\n")
    outcome = runs.reload()
    assert outcome.result == "Applied", outcome.line
    runs.wait_idle()
    expected = [("told", "Secret", f"default/{name}", "Added", "Initial", True) for name in "ab"]
    assert sorted(rig.told("told")) == expected
    board.told.clear()
    sandbox.create(config_map("c"))
    sandbox.create(secret("c"))
    runs.wait_idle()
    assert [row[1:4] for row in rig.told("told")] == [("Secret", "default/c", "Added")]
    assert runs.handler("tell").failed == 0
    board.told.clear()

    rig.resources = [MAPS % ""]
    rig.write()
    assert runs.reload().result == "Applied"
    runs.wait_idle()
    assert sorted(row[1:4] for row in rig.told("told")) == [
        ("ConfigMap", f"default/{name}", "Added") for name in "abc"
    ]


def test_a_handler_that_goes_to_a_resource_of_another_kind_hears_no_delete(rig, runs) -> None:
    """`resourceRef` names another resource: of the one before nothing is told."""
    rig.resources.append("- {name: secrets, apiVersion: v1, kind: Secret}")
    rig.handlers = []
    rig.handler("tell", resource="secrets")
    rig.write()
    assert runs.reload().result == "Applied"
    runs.wait_idle()
    assert {row[1:4] for row in rig.told("told")} == {("Secret", f"default/{name}", "Added") for name in "ab"}


def test_a_living_handler_is_not_sent_to_a_kind_that_is_not_served(rig, runs, config_map, sandbox) -> None:
    """A new resource may wait for its kind, but not with a handler that has something to do."""
    rig.resources.append("- {name: mapps, apiVersion: v1, kind: ConfigMapp}")
    rig.handlers = []
    rig.handler("tell", resource="mapps")
    rig.write()
    assert runs.reload().reason == "NotServed"
    _is_as_before(rig, runs, config_map, sandbox, "c")


def test_a_new_resource_waits_for_its_kind(rig, runs, config_map, sandbox) -> None:
    """Its definition is installed later: accepted, pending, and said in the status."""
    rig.resources.append("- {name: gadgets, apiVersion: example.dev/v1, kind: Gadget}")
    rig.handler("gadgets", resource="gadgets", entry="handlers:tell")
    rig.write()
    assert runs.reload().result == "Applied"
    assert runs.resource("gadgets").state == "Missing"
    until("the status says so", lambda: "Gadget" in runs.condition("Degraded").message)
    sandbox.create(config_map("c"))
    until("the next change comes through", lambda: rig.told("told") != [])
    assert [row[2:4] for row in rig.told("told")] == [("default/c", "Added")]

    sandbox.load([gadgets("v1"), gadget("a", "v1")])
    runs.wait_idle(60.0)
    assert rig.told("told", "Gadget") == [("told", "Gadget", "default/a", "Added", "Initial", True)]


def test_what_waits_of_the_kind_before_never_reaches_code_for_the_new_one(rig, board, config_map) -> None:
    """A change that fails, and one that waits behind it, belong to the old code and the old kind."""
    rig.handler("tell", rest="retry: {initialBackoff: 10ms, maxBackoff: 10ms}, onFailure: Retry")
    rig.reload_policy = "settle: 20ms, preflight: 'Off', drainTimeout: 200ms"
    fails = f"{CODE}    if obj.name == 'a': raise ValueError('no')\n    board.wait('gate')\n"
    fails += "import blackboard as board\n"
    runs = rig.run(fails, objects=[*map(config_map, "abc"), *map(secret, "ab")])
    until("both are called", lambda: {row[2] for row in rig.told("told")} >= {"default/a", "default/b"})
    rig.resources = [SECRETS]
    rig.write(CODE.replace('"told"', '"new"'))
    assert runs.reload().result == "Applied"
    runs.wait_idle()
    board.open_gate("gate")
    until("the old generation is retired", lambda: runs.status().generations_alive == 1)
    runs.wait_idle()
    assert {row[1] for row in rig.told("told")} == {"ConfigMap"}
    assert sorted(row[1:4] for row in rig.told("new")) == [
        ("Secret", f"default/{name}", "Added") for name in "ab"
    ]


def test_another_version_of_a_kind_is_the_same_objects(rig, board) -> None:
    """`v1beta1` becomes `v1`: nothing has happened to the objects, and nothing is told of them."""
    rig.resources = ["- {name: gadgets, apiVersion: example.dev/v1beta1, kind: Gadget}"]
    rig.handler("tell", resource="gadgets")
    runs = rig.run(CODE, objects=[gadgets("v1beta1", "v1"), gadget("a", "v1", size=1)])
    runs.wait_idle()
    assert [row[2:4] for row in rig.told("told")] == [("default/a", "Added")]
    board.told.clear()
    rig.resources = ["- {name: gadgets, apiVersion: example.dev/v1, kind: Gadget}"]
    rig.write()
    assert runs.reload().result == "Applied"
    runs.wait_idle()
    assert rig.told("told") == []
    runs.sandbox.update(gadget("a", "v1", size=2))
    runs.wait_idle()
    assert [row[2:4] for row in rig.told("told")] == [("default/a", "Modified")]
    rig.resources = ["- {name: gadgets, apiVersion: example.dev/v9, kind: Gadget}"]
    rig.write()
    assert runs.reload().reason == "NotServed"


def test_a_plan_says_that_another_kind_is_heard_anew(rig, runs) -> None:
    """Nothing leaves any scope, and how many there are of the new kind is not known."""
    rig.resources = [SECRETS]
    rig.write()
    found = planned_against(runs, rig.folder.path)
    assert [str(replay) for replay in found.replays] == ["tell hears the cache"]
    assert found.objects_listed is None


@pytest.fixture
def soon(monkeypatch) -> None:
    """Refused reloads are tried again after a moment."""
    monkeypatch.setattr("declctl.runtime.reloading.attempts.FIRST_RETRY_SECONDS", 0.1)


@pytest.mark.guarantee("G6", "G25")
def test_a_reload_goes_on_by_itself_when_the_right_comes(soon, rig, runs, sandbox) -> None:
    """The right on the new kind is granted after the refusal: nobody has to edit or to ask again."""
    sandbox.faults.refuse(403, Match(resource="secrets"))
    rig.resources = [SECRETS]
    rig.write()
    outcome = runs.reload()
    assert (outcome.reason, runs.status().generation) == ("Forbidden", 1)
    assert "tried again by itself" in (outcome.advice or "")
    until("it was tried again, and refused", lambda: runs.status().reload_retries >= 3)
    status = runs.status()
    assert status.reload_retry is not None
    assert (status.reload_retry.reason, status.reloads["Refused"]) == ("Forbidden", 1)
    assert sum("reload refused" in event for event in runs.log.events()) == 1
    assert rig.told("told") == []

    sandbox.faults.clear()
    until("it is live", lambda: runs.status().generation == 2, timeout=60)
    until("it is told", lambda: runs.condition("Reloaded").status == "True")
    assert runs.status().reload_retry is None
    runs.wait_idle()
    assert {row[1] for row in rig.told("told")} == {"Secret"}


def test_a_reload_goes_on_by_itself_when_the_kind_comes(soon, rig, runs, sandbox) -> None:
    """The definition of the new kind is installed after the refusal."""
    rig.resources = ["- {name: maps, apiVersion: example.dev/v1, kind: Gadget}"]
    rig.write()
    assert runs.reload().reason == "NotServed"
    sandbox.create(gadgets("v1"))
    sandbox.create(gadget("g", "v1"))
    until("it is live", lambda: runs.status().generation == 2, timeout=60)
    runs.wait_idle()
    assert [row[1:3] for row in rig.told("told")] == [("Gadget", "default/g")]


def test_a_reload_goes_on_by_itself_when_the_server_answers(soon, rig, runs, sandbox) -> None:
    """The server failed while the new kind was to be listed."""
    sandbox.faults.refuse(503, Match(resource="secrets"))
    rig.resources = [SECRETS]
    rig.write()
    assert runs.reload().reason == "NotSynced"
    sandbox.faults.clear()
    until("it is live", lambda: runs.status().generation == 2, timeout=60)


def test_an_edit_takes_the_place_of_a_reload_that_waits(soon, rig, runs, sandbox) -> None:
    """The edit is taken back while the right is missing: when it comes, nothing happens."""
    sandbox.faults.refuse(403, Match(resource="secrets"))
    rig.resources = [SECRETS]
    rig.write()
    assert runs.reload().reason == "Forbidden"
    rig.resources = [MAPS % ""]
    rig.write()
    assert runs.reload().result == "Unchanged"
    assert runs.status().reload_retry is None
    sandbox.faults.clear()
    assert runs.reload().result == "Unchanged"
    assert runs.status().generation == 1


def test_files_that_nobody_asked_for_are_not_taken_by_a_retry(soon, rig, runs, sandbox) -> None:
    """Files are not watched, and were edited after the refusal: only who asks gets them."""
    rig.reload_policy = rig.reload_policy.replace("warmTimeout: 2s", "warmTimeout: 30s")  # a busy machine
    sandbox.faults.refuse(403, Match(resource="secrets"))
    rig.resources = [SECRETS]
    rig.write()
    assert runs.reload().reason == "Forbidden"
    rig.write(CODE + "# edited\n")
    until("the retry has found other files", lambda: runs.status().reload_retry is None)
    sandbox.faults.clear()
    assert runs.status().generation == 1
    outcome = runs.reload()
    assert outcome.generation == 2, outcome


@pytest.mark.guarantee("G25")
def test_a_rollback_ends_a_reload_that_waits(rig, runs, sandbox) -> None:
    """The generation before runs again: nothing says any longer that the refused files are tried again."""
    rig.reload_policy = "settle: 20ms, preflight: 'Off', probationPeriod: 1h"
    rig.write(CODE + "# edited\n")
    assert runs.reload().result == "Applied"
    sandbox.faults.refuse(403, Match(resource="secrets"))
    rig.resources = [SECRETS]
    rig.write()
    assert runs.reload().reason == "Forbidden"
    assert runs.status().reload_retry is not None
    assert runs.on_machinery(runs.runtime.rollback(), 30).result == "RolledBack"
    assert runs.status().reload_retry is None
