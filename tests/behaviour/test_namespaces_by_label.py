"""Namespaces by label: they come and go while a controller runs, and its handlers hear of their objects."""

from collections.abc import Callable
from typing import Any

import pytest

from declctl import testing
from declctl.sandbox.faults import Match
from tests.behaviour.conftest import let_begin

CODE = """
from blackboard import tell as note
def tell(change): note("tell", str(change.type), str(change.key), str(change.reason))
"""
WEB = "{labelSelector: {matchLabels: {team: web}}}"
MAPS = f"- {{name: maps, apiVersion: v1, kind: ConfigMap, namespaces: {WEB}}}"


def until(what: str, condition: Callable[[], Any]) -> Any:
    """Wait for it; a reflector that failed waits for seconds before it tries again."""
    return testing.until(what, condition, timeout=60.0)


def space(name: str, team: str = "web") -> dict[str, Any]:
    """A namespace with a label."""
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": {"team": team}}}


def relabel(sandbox: Any, name: str, team: str | None) -> None:
    """Give a namespace another label, or take it away."""
    sandbox.patch("Namespace", name, {"metadata": {"labels": {"team": team}}})


class Selecting:
    """A handler `tell` of ConfigMaps in the namespaces with team=web."""

    def __init__(self, rig: Any, sandbox: Any, config_map: Any) -> None:
        self.rig = rig
        self.sandbox = sandbox
        self.map = config_map
        rig.resources = [MAPS]
        rig.handler("tell")

    def run(self, *objects: Any, code: str = CODE, resources: list[str] | None = None) -> Any:
        """Start it, and forget nothing."""
        if resources is not None:
            self.rig.resources = resources
        self.runs = self.rig.run(code, objects=objects)
        self.runs.wait_idle(60)
        return self.runs

    def heard(self, *, of: str = "tell") -> list[tuple[str, str, str]]:
        """What the handler has heard since the last call: type, key and reason."""
        self.runs.wait_idle(60)
        rows = [row[1:] for row in self.rig.told(of)]
        self.rig.board.clear()
        return rows

    def names(self) -> list[str]:
        """The namespaces that are watched."""
        return list(self.selected().names)

    def selected(self) -> Any:
        """The figures of the selector."""
        found = self.runs.resource("maps").namespaces
        assert found is not None
        return found


@pytest.fixture
def selecting(rig, sandbox, config_map) -> Selecting:
    return Selecting(rig, sandbox, config_map)


def test_a_selector_that_matches_nothing_is_ready(selecting, sandbox, asked) -> None:
    """Nothing is listed, handlers begin at once, reads find nothing; what comes later is heard of."""
    runs = selecting.run(selecting.map("one", "default"))
    assert runs.status().ready
    assert asked("configmaps") == (0, 0)
    assert runs.lister("maps").list() == []
    found = runs.resource("maps")
    assert (found.synced, found.error, found.state) == (True, None, "NoNamespaces")
    assert found.namespaces.names == []
    sandbox.create(space("late"))
    sandbox.create(selecting.map("two", "late"))
    # The object may come with the list of the namespace, or after it.
    ((kind, key, _),) = until("it is heard of", selecting.heard)
    assert (kind, key) == ("Added", "late/two")


def test_without_the_right_to_list_namespaces_the_rule_is_named(selecting, sandbox, rig, controller) -> None:
    """The fault has the line of the selector and the rule of a ClusterRole; it is tried again by itself."""
    sandbox.faults.refuse(403, Match(resource="namespaces"), message="namespaces is forbidden")
    rig.reload_policy += ", warmTimeout: 30s"
    runs = controller(rig.write(CODE), objects=[space("a"), selecting.map("one", "a")])
    let_begin(runs)
    error = until("the fault is shown", lambda: runs.resource("maps").error)
    assert "manifest.yaml:6: namespaces with team=web: " in error
    assert "namespaces is forbidden" in error
    assert '{apiGroups: [""], resources: [namespaces], verbs: [list, watch]}' in error
    assert not runs.status().ready
    until("the condition has it", lambda: runs.condition("Degraded").status == "True")
    assert runs.condition("Degraded").reason == "ResourceError"
    selecting.runs = runs
    sandbox.faults.clear()
    assert until("it works", lambda: rig.told() and selecting.heard()) == [("Added", "a/one", "Initial")]
    until("the fault is over", lambda: runs.resource("maps").error is None and runs.status().ready)


def test_a_namespace_that_may_not_be_read_holds_up_no_other(selecting, sandbox) -> None:
    """It comes in before its Role does: its fault is shown, all else goes on, and it is tried again."""
    map_ = selecting.map
    runs = selecting.run(space("a"), space("b", "api"), map_("one", "a"), map_("two", "b"))
    selecting.heard()
    sandbox.faults.refuse(403, Match(resource="configmaps", namespace="b"), message="not in b")
    relabel(sandbox, "b", "web")
    error = until("the fault is shown", lambda: runs.resource("maps").error)
    assert "configmaps in b" in error
    assert "not in b" in error
    sandbox.create(space("c"))
    sandbox.create(selecting.map("three", "a"))
    sandbox.create(selecting.map("four", "c"))
    until("the others are heard of", lambda: len(selecting.rig.told()) == 2)
    assert sorted(map(str, runs.lister("maps").keys())) == ["a/one", "a/three", "c/four"]
    assert (runs.status().ready, selecting.selected().unlisted) == (True, 1)
    selecting.rig.board.clear()
    sandbox.faults.clear()
    assert until("b is heard of", lambda: selecting.rig.told() and selecting.heard()) == [
        ("Added", "b/two", "Initial")
    ]


def test_the_log_names_what_has_come_in_and_left(selecting, sandbox) -> None:
    """In one line for each look, and not for what is there at the start."""
    runs = selecting.run(space("a"), *(space(f"n{number}", "api") for number in range(9)))
    log = runs.log
    assert not log.find("came in")
    relabel(sandbox, "a", None)
    until("a is named", lambda: log.find("maps: a left; 0 namespaces with team=web now"))
    for number in range(9):
        relabel(sandbox, f"n{number}", "web")
    until("the last one is named", lambda: log.find("9 namespaces with team=web now"))
    names = [line for line in log.events("info") if " came in; " in line]
    assert all(line.startswith("maps: n") for line in names)


# Edits and reloads


def test_an_edit_goes_from_a_list_to_a_selector_and_back(selecting, sandbox) -> None:
    """The handler hears of what differs only, as for an edit of the list of namespaces."""
    map_, rig = selecting.map, selecting.rig
    both, one = MAPS, MAPS.replace(WEB, "[a, b]")
    objects = [space("a"), space("b", "api"), space("c"), *(map_("one", name) for name in "abc")]
    runs = selecting.run(*objects, resources=[one])
    selecting.heard()
    rig.resources = [both]
    rig.write()
    outcome = runs.reload()
    assert [str(step) for step in outcome.steps] == ["-/+resource maps (namespace, namespaceSelector)"]
    rows = [("Added", "c/one", "Initial"), ("Deleted", "b/one", "OutOfScope")]
    assert sorted(selecting.heard()) == rows
    # The set changes while the reload back is staged, and after it.
    rig.resources = [one]
    rig.write()
    relabel(sandbox, "c", None)
    assert runs.reload().result == "Applied"
    relabel(sandbox, "a", None)
    rows = [("Added", "b/one", "Initial"), ("Deleted", "c/one", "OutOfScope")]
    assert sorted(selecting.heard()) == rows


def test_reloads_of_code_leave_the_set_alone(selecting, sandbox, asked) -> None:
    """Namespaces come in between reloads, also refused ones: nothing is lost, and nothing is listed twice."""
    map_, rig = selecting.map, selecting.rig
    runs = selecting.run(space("n0"), map_("one", "n0"))
    for number in range(1, 6):
        sandbox.create(space(f"n{number}"))
        sandbox.create(map_("one", f"n{number}"))
        rig.write("def broken(" if number == 3 else f"{CODE}# {number}\n")
        assert runs.reload().result == ("Refused" if number == 3 else "Applied")
    until("all are watched", lambda: len(selecting.names()) == 6 and not selecting.selected().unlisted)
    rows = selecting.heard()
    assert sorted(key for _, key, _ in rows) == [f"n{number}/one" for number in range(6)]
    assert {kind for kind, _, _ in rows} == {"Added"}
    assert asked("namespaces") == (0, 1)
    assert asked("configmaps") == (0, 6)
    assert not any(line for line in runs.log.events() if "not as planned" in line)


def test_a_kind_without_namespaces_ignores_the_selector_of_the_spec(selecting, asked) -> None:
    """`spec.namespaces` is the default of all resources; Nodes have no namespace, and are watched as ever."""
    rig = selecting.rig
    rig.more = f"  namespaces: {WEB}\n"
    maps = "- {name: maps, apiVersion: v1, kind: ConfigMap}"
    rig.handler("nodes", resource="nodes", entry="handlers:tell")
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}}
    runs = selecting.run(space("a"), node, resources=[maps, "- {name: nodes, apiVersion: v1, kind: Node}"])
    assert selecting.heard() == [("Added", "n1", "Initial")]
    assert selecting.names() == ["a"]
    assert runs.resource("nodes").namespaces is None


# What reads and reconciles the objects


@pytest.mark.client_go(327, "Multi-namespace cache")
def test_indexes_and_reads_are_over_all_namespaces_of_the_set(selecting, sandbox) -> None:
    """By field, by function and by namespace; the objects of a namespace leave them with it."""
    resource = (
        f"- {{name: maps, apiVersion: v1, kind: ConfigMap, namespaces: {WEB}, labelSelector: 'keep=yes', "
        "indexers: [{name: byX, fieldPath: data.x}, {name: byY, entryPoint: 'handlers:by_y'}]}"
    )
    code = CODE + "def by_y(obj): return [obj['data']['y']]\n"

    def made(name: str, space: str, keep: str = "yes") -> dict[str, Any]:
        found = selecting.map(name, space, x="1", y="2")
        found["metadata"]["labels"] = {"keep": keep}
        return found

    objects = [space("a"), space("b"), made("one", "a"), made("two", "b"), made("no", "a", "no")]
    runs = selecting.run(*objects, code=code, resources=[resource])
    lister = runs.lister("maps")
    assert sorted(each.key for each in lister.by_index("byX", "1")) == ["a/one", "b/two"]
    assert sorted(each.key for each in lister.by_index("byY", "2")) == ["a/one", "b/two"]
    assert [each.key for each in lister.list(namespace="b")] == ["b/two"]
    # An index that a reload adds is built over the present set, and follows it.
    selecting.rig.resources = [resource.replace("byX", "byZ")]
    selecting.rig.write()
    assert runs.reload().lists == 0
    relabel(sandbox, "b", None)
    until("b has left", lambda: selecting.names() == ["a"])
    runs.wait_idle(60)
    lister = runs.lister("maps")
    assert [each.key for each in lister.by_index("byZ", "1")] == ["a/one"]
    assert [each.key for each in lister.by_index("byY", "2")] == ["a/one"]


def test_a_reconciler_is_called_for_keys_of_the_namespaces_that_match_now(selecting, sandbox) -> None:
    """A key whose namespace has left has no object any more.

    An object of another namespace is there: by a mapping, no reconciler is told that it is gone.
    """
    rig = selecting.rig
    rig.handlers.clear()
    mapped = "{resourceRef: {name: pods}, mapTo: {annotation: map}}"
    rig.handler("tell", rest=f"mode: Reconcile, watches: [{mapped}]")
    code = (
        "from blackboard import tell as note\n"
        "def tell(request): note('tell', str(request.key), request.obj is not None, "
        "sorted({str(each.reason) for each in request.causes}))\n"
    )
    pods = "- {name: pods, apiVersion: v1, kind: Pod, namespaces: [refers]}"
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "refers"}}
    pod["metadata"]["annotations"] = {"map": "b/two"}
    objects = [space("a"), space("b", "db"), selecting.map("one", "a"), selecting.map("two", "b"), pod]
    runs = selecting.run(*objects, code=code, resources=[MAPS, pods])
    assert selecting.heard() == [("a/one", True, ["Initial"])]
    relabel(sandbox, "b", "web")
    assert until("its objects are reconciled", selecting.heard) == [("b/two", True, ["Initial"])]
    sandbox.patch("Pod", "p", {"metadata": {"labels": {"x": "1"}}}, namespace="refers")
    assert until("the mapping leads there now", selecting.heard) == [("b/two", True, ["Watch"])]
    relabel(sandbox, "b", "db")
    assert until("it leaves", selecting.heard) == [("b/two", False, ["OutOfScope"])]
    sandbox.patch("Pod", "p", {"metadata": {"labels": {"x": "2"}}}, namespace="refers")
    assert selecting.heard() == []
    # No generation, no reload and no line of the history: nothing of the manifest has changed.
    assert (runs.status().generation, dict(runs.status().reloads)) == (1, {})
    found = selecting.selected()
    assert (found.selector, found.names, found.entered, found.left) == ("team=web", ["a"], 2, 1)
