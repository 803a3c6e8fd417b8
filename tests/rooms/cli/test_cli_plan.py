"""`declctl plan`: what would change, what it asks of the server, and what decodes objects."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec import structs, to_builtins

from declctl.cli import admin_client
from declctl.cli import plan as plan_command
from declctl.errors import UsageError
from declctl.manifest import ManifestSource, load, plan
from declctl.manifest.model import AdminSpec, LeaderElectionSpec, MetricsSpec, StateSpec
from declctl.manifest.values import Address
from declctl.runtime.caching.identities import CacheIdentity
from declctl.runtime.checking.check import check
from declctl.runtime.planning.running_plan import RunningCache, RunningPlan, StartFields, masked
from declctl.runtime.reloading.changes import Step, StepKind
from declctl.runtime.reloading.stage import handler_digests
from tests.children import SLOW_IN_CHILD
from tests.rooms.cli.answering import Process
from tests.rooms.cli.conftest import Command, Ended

MANIFEST = """\
apiVersion: declctl.dev/v1alpha1
kind: Controller
metadata: {name: pod-guard}
spec:
  resources:
    - name: pods
      apiVersion: v1
      kind: Pod
      namespaces: [a, b]
      indexers:
        - {name: byNode, fieldPath: spec.nodeName}
        - {name: byTeam, entryPoint: "handlers:by_team"}
  handlers:
    - {name: greet, resourceRef: {name: pods}, entryPoint: "handlers:Greet"}
"""
HANDLERS = """\
import declctl
def by_team(obj): return [obj["metadata"]["name"]]
class Greet:
    @declctl.hookimpl
    def declctl_event(self, change): print(change.key)
    @declctl.hookimpl
    def declctl_indexers(self): return {"byOwner": by_team}
"""


@pytest.fixture(autouse=True)
def _imports_are_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also on a busy machine; a test of a slow import says that it took 20 s."""
    monkeypatch.setattr("declctl.runtime.reloading.changes.SLOW_IMPORTS", 20.0)


@pytest.fixture(name="guard")
def _guard(folder: Path, write: Callable) -> Path:
    """A manifest with an index of each kind."""
    write("handlers.py", HANDLERS)
    write("manifest.yaml", MANIFEST)
    return folder


@pytest.fixture(name="compare")
def _compare(declctl: Command, write: Callable) -> Callable[..., Ended]:
    """The plan from one manifest and its code to another one."""

    def compare(old: str, new: str, *options: str, code: str = HANDLERS) -> Ended:
        files = {"old/manifest.yaml": old, "old/handlers.py": HANDLERS, "manifest.yaml": new}
        for name, text in {**files, "handlers.py": code}.items():
            write(name, text)
        return declctl("plan", "manifest.yaml", "--against", "old/manifest.yaml", *options)

    return compare


@pytest.fixture(name="edit")
def _edit(ask: Command, guard: Path, process: Process) -> Callable[..., Ended]:
    """The plan from what a process runs, of which more is known, to another manifest."""

    def edit(new: str = MANIFEST, *options: str, runs: str = MANIFEST, **known: object) -> Ended:
        (guard / "manifest.yaml").write_text(runs)
        process.answers(200, _running(guard, **known))
        (guard / "manifest.yaml").write_text(new)
        return ask("plan", "manifest.yaml", "--against", "running", *options)

    return edit


def _running(guard: Path, *, objects: int = 1000, count: int | None = None, **known: object) -> dict:
    """What a process tells that runs the manifest of the folder; `count` is how many objects are selected."""
    checked = check(str(guard))
    assert checked.inputs is not None
    resolved = plan(checked.inputs.loaded.controller)
    told = RunningPlan(
        generation=3,
        code=checked.inputs.code,
        plan=masked(resolved),
        transformed=(),
        cluster_scoped=(),
        caches=tuple(RunningCache(CacheIdentity(watch.key), objects) for watch in resolved.watches),
        objects={"pods": 2 * objects},
        handler_code=handler_digests(resolved, checked.inputs.bundle),
        modules=checked.inputs.modules,
    )
    return structs.replace(told, **known).document() | ({} if count is None else {"count": count})


def _line(ended: Ended, words: str) -> str:
    """The one line with these words."""
    (line,) = [line for line in ended.lines if words in line]
    return line


def test_a_first_start_is_all_new(declctl, guard):
    """Steps, costs and requests, with what hooks add; the same for programs."""
    ended = declctl("plan", "manifest.yaml")
    assert (ended.status, ended.err) == (2, "")
    assert ended.lines == [
        "+resource pods",
        "+handler greet",
        "",
        "RESOURCE   PART                          COST",
        "pods       cache Frames                  a read decodes, about 15 µs",
        "pods       index byNode                  projected",
        "pods       index byTeam                  decodes every object, about 15 µs each",
        "pods       index byOwner                 decodes every object, about 15 µs each",
        "pods       drop metadata.managedFields   cut out of the bytes",
        "",
        "2 new LISTs, 2 new WATCHes",
    ]
    ended = declctl("plan", "manifest.yaml", "-o", "json")
    assert (ended.status, ended.err) == (2, "")
    document = ended.document
    known = [document[name] for name in ("name", "lists", "watches", "hooksKnown")]
    assert known == ["pod-guard", 2, 2, True]
    added = {"class": "Add", "subject": "resource pods", "detail": "", "text": "+resource pods"}
    assert document["changes"][0] == added
    (pods,) = document["resources"]
    assert (pods["name"], pods["cacheMode"], pods["objects"]) == ("pods", "Frames", None)
    assert pods["watches"] == ["v1 Pod in a", "v1 Pod in b"]
    text = "decodes every object, about 15 µs each"
    cost = {"subject": "index byTeam", "cost": "Decodes", "microseconds": 15.0, "text": text}
    assert pods["costs"][1] == cost


def test_namespaces_by_label_are_a_list_in_each(declctl, guard, write):
    """Without a running process nobody knows how many there are, and the plan says who does."""
    write("manifest.yaml", MANIFEST.replace("[a, b]", "{labelSelector: team=web}"))
    lines = declctl("plan", "manifest.yaml").lines
    [row] = [line.split(maxsplit=4)[3:] for line in lines if "namespaces with" in line]
    cost = "a LIST and a WATCH in each; `declctl validate --cluster` says how many there are"
    assert (row, lines[-1]) == (["team=web", cost], "1 new LIST, 1 new WATCH")


def test_what_leads_to_the_keys_of_a_reconciler_is_shown(declctl, guard, write):
    """Each watch is a line of the plan; for programs, the handlers have their watches."""
    watch = "{resourceRef: {name: pods}, mapTo: {owner: Controller}, filter: {labelSelector: a=b}}"
    web = "name: web, mode: Reconcile, resourceRef: {name: pods}, entryPoint: handlers:web"
    write("manifest.yaml", f"{MANIFEST}    - {{{web}, watches: [{watch}]}}\n")
    write("handlers.py", HANDLERS + "def web(request): pass\n")
    assert "+watch web: pods → owner (Controller)" in declctl("plan", "manifest.yaml").lines
    told = {"resource": "pods", "mapTo": "owner (Controller)", "filtered": True}
    assert declctl("plan", "manifest.yaml", "-o", "json").document["handlers"] == [
        {"name": "greet", "mode": "Event", "resource": "pods", "watches": []},
        {"name": "web", "mode": "Reconcile", "resource": "pods", "watches": [told]},
    ]


@pytest.mark.parametrize(
    ("old", "new", "status", "first", "last"),
    [
        ("pod-guard", "pod-guard", 0, "", "0 new LISTs, 0 new WATCHes"),
        ("[a, b]", "[a, b, c]", 2, "-/+resource pods (namespace)", "1 new LIST, 1 new WATCH"),
        ("kind: Pod\n", "kind: Pod\n      cache: {mode: Objects}\n", 2, "~resource pods (reproject: cache)",
         "0 new LISTs, 0 new WATCHes"),
        ("kind: Pod\n", "kind: Pod\n      labelSelector: a=b\n", 2, "-/+resource pods (labelSelector)",
         "2 new LISTs, 2 new WATCHes"),
        ("spec.nodeName", "spec.hostIP", 2, "~index pods.byNode", "0 new LISTs, 0 new WATCHes"),
    ],
)  # fmt: skip
def test_against_another_manifest_only_the_difference_is_told(compare, old, new, status, first, last):
    """0 for no change, 2 for changes, and the LISTs that they cost."""
    ended = compare(MANIFEST, MANIFEST.replace(old, new))
    assert (ended.status, ended.lines[0], ended.lines[-1]) == (status, first, last)


def test_other_code_of_a_transform_is_a_list(compare):
    """Objects that are transformed by other code have to come anew, also where a hook transforms them."""
    slim = "    @declctl.hookimpl\n    def declctl_transform(self, obj): return obj\n"
    out = compare(MANIFEST, MANIFEST, code=HANDLERS + slim).out
    assert "~handler greet (code)" in out
    assert "pods       transform" in out
    assert out.endswith("2 new LISTs, 2 new WATCHes\n")


def test_a_running_process_tells_how_many_objects_there_are(ask, guard, process):
    """What 15 µs are for all of them, without multiplying by hand; another controller's do not count."""
    known = {"name": "pod-guard", "resources": [{"name": "pods", "objects": 2300}]}
    process.answers(200, known)
    out = ask("plan", "manifest.yaml").out
    assert "decodes every object, about 15 µs each (34 ms for 2,300)" in out
    assert out.endswith("2 new LISTs (~2,300 objects), 2 new WATCHes\n")
    assert "blocks no other handler" not in out
    hangs = {"name": "greet", "problems": [{"reason": "CallHangs", "count": 3}]}
    process.answers(200, {**known, "handlers": [hangs, {**hangs, "name": "own", "isolation": {}}]})
    assert "process: greet: 3 calls do not return; with `isolation" in ask("plan", "manifest.yaml").out
    process.answers(200, {**known, "name": "other"})
    ended = ask("plan", "manifest.yaml")
    assert (ended.status, "2,300" in ended.out) == (2, False)


def test_without_figures_or_with_faults_there_is_no_plan(declctl, guard, write):
    """Who names a process wants its figures; faults are shown as by `validate`. The status is 1."""
    said = declctl.refused("plan", "manifest.yaml", "--admin", "127.0.0.1:1", status=1)
    assert said.startswith("declctl: Nothing answers at the admin address 127.0.0.1:1")
    write("manifest.yaml", MANIFEST.replace("fieldPath", "fieldPaht"))
    assert "error DCL012" in declctl.refused("plan", "manifest.yaml", status=1)


def test_what_an_import_takes_is_told_or_that_there_was_none(declctl, guard, write):
    """The process imports again, before the handlers are live; with `preflight: Off` nothing is imported."""
    write("handlers.py", SLOW_IN_CHILD + HANDLERS)
    line = _line(declctl("plan", "manifest.yaml"), "importing")
    told = re.match(r"importing the handlers took (\d+) s in a child process; a reload pays that", line)
    assert told is not None, line
    assert int(told[1]) >= 20
    assert declctl("plan", "manifest.yaml", "-o", "json").document["preflightImportSeconds"] >= 20
    write("manifest.yaml", MANIFEST + "  reload: {preflight: Off}\n")
    out = declctl("plan", "manifest.yaml").out
    assert "index byOwner" not in out
    said = "handlers were not imported (reload.preflight: Off): what their hooks add is not in it\n"
    assert out.endswith(said)


def test_what_runs_already_is_no_change(edit, process):
    """The same manifest and the same handler files: 0, and everything is kept."""
    ended = edit(MANIFEST, "-o", "json")
    assert (ended.status, ended.err) == (0, "")
    assert [step["class"] for step in ended.document["kept"]] == ["Keep", "Keep"]
    assert [ended.document[name] for name in ("changes", "lists", "replayed")] == [[], 0, []]
    assert ended.document["resources"][0]["objects"] == 2000
    assert process.asked == [("GET", "/status", None), ("GET", "/plan", None)]


def test_an_edit_is_compared_with_what_runs(edit):
    """A namespace more, a handler more: one LIST, and who hears how many objects."""
    more = '    - {name: more, resourceRef: {name: pods}, entryPoint: "handlers:Greet"}\n'
    ended = edit(MANIFEST.replace("[a, b]", "[a, b, c]") + more, count=1000)
    assert (ended.status, ended.err) == (2, "")
    assert ended.lines[:4] == [
        "-/+resource pods (namespace)",
        "+handler more",
        "  greet hears what differs in ~2,000 objects",
        "  more hears ~2,000 objects",
    ]
    assert ended.lines[-1] == "1 new LIST (~2,000 objects), 1 new WATCH"
    # That a kind has no namespaces is not in the manifest: the process knows it.
    ended = edit(caches=(), cluster_scoped=(("v1", "Pod"),))
    assert ended.lines[-1] == "1 new LIST (~2,000 objects), 1 new WATCH"


ONE_NAMESPACE = MANIFEST.replace("[a, b]", "[a]")
ONE_NODE = MANIFEST.replace("kind: Pod", "kind: Pod\n      fieldSelector: spec.nodeName=n1")
NODE = "fieldSelector=spec.nodeName%3Dn1"


@pytest.mark.parametrize(
    ("new", "lost", "asked"),
    [
        (ONE_NAMESPACE, "1,300", ["/cache/pods?namespace=a"]),
        (ONE_NODE, "600", [f"/cache/pods?namespace=a&{NODE}", f"/cache/pods?namespace=b&{NODE}"]),
    ],
    ids=["namespace", "field selector"],
)
def test_what_leaves_a_narrower_scope_is_counted(edit, process, new, lost, asked):
    """The process is asked how many of its objects stay, and the others are told as Deleted."""
    ended = edit(new, count=700)
    line = f"  greet hears what differs in ~2,000 objects: ~{lost} as Deleted (OutOfScope)"
    assert (ended.status, ended.err, ended.lines[1]) == (2, "", line)
    assert process.asked[2:] == [("GET", path, None) for path in asked]


def test_a_process_that_does_not_count_costs_the_number_and_not_the_plan(edit, monkeypatch):
    """Without the token, or if it takes too long, which is not tried a second time: the plan says so."""
    said = "Deleted (OutOfScope) is not counted: the running process does not tell"
    assert said in edit(ONE_NAMESPACE).out
    asked = []

    def slow(target: admin_client.AdminAddress, method: str, path: str, **options: float) -> object:
        asked.append(path.partition("?")[0])
        if path.startswith("/cache/"):
            raise UsageError("Nothing answers at the admin address (it took too long).")
        return answered(target, method, path, **options)

    answered = admin_client.ask
    monkeypatch.setattr(plan_command, "ask", slow)
    ended = edit(ONE_NODE)
    assert (ended.status, ended.err) == (2, "")
    assert said in ended.out
    assert asked == ["/status", "/plan", "/cache/pods"]


@pytest.mark.parametrize("live", [False, True])
@pytest.mark.parametrize(
    ("edited", "hears"), [("mine.py", True), ("shared.py", True), ("others.py", False), (None, False)]
)
@pytest.mark.guarantee("G20")
def test_a_replay_is_told_for_the_code_that_changes(declctl, guard, write, process, live, edited, hears):
    """Its own file, or one that this imports; the files of other handlers are no reason, as in a reload."""
    wants = MANIFEST.replace('"handlers:Greet"}', '"mine:told", replay: OnCodeChange}')
    wants += '    - {name: other, resourceRef: {name: pods}, entryPoint: "others:told"}\n'
    told = "def told(change): ...\n"
    files = {"manifest.yaml": wants, "handlers.py": HANDLERS, "shared.py": ""}
    for name, text in {**files, "mine.py": f"import shared\n{told}", "others.py": told}.items():
        write(f"old/{name}", text)
        write(name, text + ("X = 1\n" if name == edited else ""))
    process.answers(200, _running(guard / "old"))
    against = ("running", "--admin", process.address) if live else ("old/manifest.yaml",)
    ended = declctl("plan", "manifest.yaml", "--against", *against)
    assert ended.status == (2 if edited else 0)
    heard = [line.strip() for line in ended.lines if " hears " in line]
    assert heard == ([f"greet hears {'~2,000 objects' if live else 'the cache'}"] if hears else [])


def test_what_waits_for_a_handler_that_goes_is_told_before(edit):
    """`40 changes wait`: what is not done within drainTimeout is dropped. Those that stay lose nothing."""
    waiting = {"greet": 40}
    assert "wait" not in edit(waiting=waiting).out
    without = MANIFEST.partition("  handlers:")[0] + "  reload: {drainTimeout: 5s}\n"
    told = "40 changes wait for greet: what is not done within drainTimeout (5 s) is dropped"
    assert told in [line.strip() for line in edit(without, waiting=waiting).lines]
    removals = edit(without, "-o", "json", waiting=waiting).document["removals"]
    assert removals == [{"handler": "greet", "waiting": 40, "drainTimeout": 5.0}]


WRITES = "applies: [{apiVersion: v1, kind: ConfigMap}]"


@pytest.mark.parametrize(
    ("before", "after", "manager"),
    [
        (f"greet, {WRITES}", f"hello, {WRITES}", "declctl/pod-guard/greet"),
        (f"greet, {WRITES}, fieldManager: old", f"greet, {WRITES}", "old"),
        (f"greet, {WRITES}", f"hello, {WRITES}, fieldManager: declctl/pod-guard/greet", None),
        ("greet", "hello", None),
        (f"greet, {WRITES}", f"greet, {WRITES}, timeout: 1s", None),
    ],
)
def test_a_rename_tells_what_it_orphans(compare, before, after, manager):
    """Fields and children of the former field manager stay; the plan says how to go on with them."""
    manifests = [MANIFEST.replace("name: greet", f"name: {text}") for text in (before, after)]
    ended, document = compare(*manifests), compare(*manifests, "-o", "json").document
    assert [each["manager"] for each in document["orphans"]] == ([manager] if manager else [])
    if manager is None:
        assert "stay with the field manager" not in ended.out
        assert "its children stay" not in ended.out
        return
    line = _line(ended, "stay with the field manager")
    assert line.startswith("  fields in v1 ConfigMap that greet has applied stay with the field manager")
    assert line.endswith(f"a handler that goes on with them needs fieldManager: {manager}")
    command = "kubectl get ConfigMap --all-namespaces -l applyset.kubernetes.io/part-of"
    assert command in _line(ended, "its children stay")


def test_a_handler_that_has_written_is_known_without_a_declaration(edit):
    """The running process knows which handlers have applied something."""
    ended = edit(MANIFEST.replace("name: greet", "name: hello"), written=("greet",))
    assert "fields that greet has applied stay with the field manager declctl/pod-guard/greet" in ended.out


def test_children_that_an_edit_leaves_behind_are_told(compare):
    """Neither a handler that goes nor a kind that `applies` no longer has deletes anything."""
    deployments = WRITES.replace("}]", "}, {apiVersion: apps/v1, kind: Deployment}]")
    web = f'    - {{name: web, resourceRef: {{name: pods}}, entryPoint: "handlers:Greet", {deployments}}}\n'
    ended = compare(MANIFEST + web, MANIFEST)
    assert "-handler web" in ended.out
    assert "`kubectl get ConfigMap,Deployment.apps --all-namespaces" in _line(ended, "its children stay")
    secrets = WRITES.replace("}]", "}, {apiVersion: v1, kind: Secret}]")
    wide, narrow = (MANIFEST.replace("name: greet", f"name: greet, {kinds}") for kinds in (secrets, WRITES))
    line = _line(compare(wide, narrow), "children of")
    assert line.startswith("  children of v1 Secret that greet has applied stay")
    assert "children of" not in compare(narrow, wide).out


def test_an_upgraded_plugin_is_told_as_a_restart(edit):
    """The process knows what it has loaded and what is installed there; a plugin that goes needs none."""
    versions = "1.0 is loaded, 2.0 is installed"
    steps = tuple(Step(StepKind.RESTART, f"plugin {name}", versions) for name in "ab")
    plugins = "  plugins: [{name: a, onError: Disable}]\n  reload: {preflight: Off}\n"
    ended = edit(MANIFEST + plugins, restarts=steps)
    told = f"RESTART REQUIRED: plugin a ({versions}) takes effect when the process starts again"
    assert ended.status == 2
    assert "!plugin b" not in ended.out
    assert {f"!plugin a ({versions})", told} <= set(ended.lines)


ADDRESS = "{bindAddress: '127.0.0.1:9'}"


@pytest.mark.parametrize("way", ["edit", "compare"])
def test_what_needs_a_new_process_is_told(request, way):
    """Of the process that runs, and of a file: which fields, as text and as JSON."""
    new = MANIFEST.replace("name: pod-guard", "name: watch", 1) + f"  admin: {ADDRESS}\n"
    arguments = (new,) if way == "edit" else (MANIFEST, new)
    ask = request.getfixturevalue(way)
    told = "admin.bindAddress and metadata.name take effect when the process starts again"
    expected = {"!admin.bindAddress", "!metadata.name", f"RESTART REQUIRED: {told}"}
    assert expected <= set(ask(*arguments).lines)
    document = ask(*arguments, "-o", "json").document
    assert document["restartRequired"] == ["admin.bindAddress", "metadata.name"]
    assert "RestartRequired" in {each["class"] for each in document["changes"]}


NINE = Address("127.0.0.1", 9)


@pytest.mark.parametrize(
    ("field", "began", "fields", "name"),
    [
        ("admin", AdminSpec(bind_address=NINE), f"admin: {ADDRESS}", "admin.bindAddress"),
        ("metrics", MetricsSpec(NINE), f"metrics: {ADDRESS}", "metrics.bindAddress"),
        (
            "leader_election",
            LeaderElectionSpec(enabled=True),
            "leaderElection: {enabled: true}",
            "leaderElection",
        ),
        ("state", StateSpec("kept"), "state: {path: kept}", "state"),
    ],
)
def test_what_still_waits_for_a_new_process_is_told(edit, guard, field, began, fields, name):
    """A reload has taken the manifest, but the process is as it began; the text before undoes it."""
    (guard / "manifest.yaml").write_text(MANIFEST)
    checked = check(str(guard))
    assert checked.inputs is not None
    started = structs.replace(StartFields.of(plan(checked.inputs.loaded.controller)), **{field: began})
    ended = edit(at_start=started)
    assert (ended.status, f"!{name}" in ended.out, f"RESTART REQUIRED: {name} " in ended.out) == (
        2,
        True,
        True,
    )
    assert f"!{name}" not in edit(f"{MANIFEST}  {fields}\n", at_start=started).out


SHARDED = f"{MANIFEST}  sharding: {{slots: 4, by: UID}}\n"


def test_a_sharding_says_what_each_process_receives(declctl, guard, write):
    """By uid the server may filter; what is not sharded is in each process."""
    write("manifest.yaml", SHARDED)
    ended = declctl("plan", "manifest.yaml")
    said = "each process keeps the objects of its slots; with the feature gate ShardedListAndWatch"
    assert f"pods       4 slots                       {said}" in ended.out
    assert "RESTART REQUIRED" not in ended.out
    document = declctl("plan", "manifest.yaml", "-o", "json").document
    assert document["sharding"] == {"slots": 4, "by": "UID"}
    assert document["resources"][0]["watches"] == [f"v1 Pod of held slots in {each}" for each in "ab"]
    write("manifest.yaml", SHARDED.replace("kind: Pod\n", "kind: Pod\n      sharded: false\n"))
    said = "each process has all objects; the one with slot 0 handles them"
    assert said in declctl("plan", "manifest.yaml").out


@pytest.mark.parametrize("way", ["edit", "compare"])
@pytest.mark.parametrize(
    ("old", "new", "step"),
    [
        (MANIFEST, SHARDED, "!sharding"),
        (SHARDED, MANIFEST, "!sharding"),
        (SHARDED, SHARDED.replace("4, by: UID", "8"), "!sharding (slots, by)"),
    ],
)
def test_another_sharding_takes_the_end_of_all_processes(request, way, old, new, step):
    """A reload changes no cache for it: the process shares as it did at its start."""
    ask = request.getfixturevalue(way)
    more = {"runs": old} if way == "edit" else {}
    ended = ask(new, **more) if way == "edit" else ask(old, new)
    assert (ended.status, ended.lines[0]) == (2, step)
    assert [each for each in ended.lines if each.startswith(("+", "-", "!", "~"))] == [step]
    assert "0 new LISTs" in ended.out
    assert "sharding: all processes have to end before one with another sharding starts" in ended.out


def test_a_resource_that_is_shared_no_longer_is_listed_anew(compare):
    """That takes no restart: its cache has all slots then."""
    ended = compare(SHARDED, SHARDED.replace("kind: Pod\n", "kind: Pod\n      sharded: false\n"))
    assert (ended.lines[0], ended.lines[-1]) == ("-/+resource pods (sharded)", "2 new LISTs, 2 new WATCHes")


def test_a_cache_that_lingers_is_not_listed_again(ask, guard, process):
    """What was removed a moment ago is still there."""
    lingering = _running(guard)
    lingering["plan"] |= {"resources": [], "watches": [], "handlers": []}
    process.answers(200, lingering)
    lines = ask("plan", "manifest.yaml", "--against", "running").lines
    assert (lines[:2], lines[-1]) == (["+resource pods", "+handler greet"], "0 new LISTs, 0 new WATCHes")


@pytest.mark.parametrize(
    ("status", "document", "why"),
    [
        (503, {"error": "nothing runs yet"}, "does not tell its plan: nothing runs yet"),
        (404, {}, "does not tell its plan: it answers 404"),
        (404, [], "is not declctl"),
        (200, {"generation": "three"}, "declctl: The running process is of another version: "),
    ],
)
def test_a_process_that_tells_no_plan_is_a_fault(ask, guard, process, status, document, why):
    """1, as 2 would say that there are changes."""
    process.answers(status, document)
    assert why in ask.refused("plan", "manifest.yaml", "--against", "running", status=1)


def test_configs_of_plugins_are_compared_and_not_told():
    """A digest stands in the place of what may be a secret; another config has another one."""
    plans = []
    for secret in ("hunter2", "hunter2", "other"):
        text = f"{MANIFEST}  plugins: [{{name: slack, config: {{token: {secret}}}}}]\n"
        plans.append(masked(plan(load(ManifestSource.of([("m.yaml", text.encode())])).controller)))
    assert plans[0] == plans[1] != plans[2]
    assert "hunter2" not in json.dumps(to_builtins(plans[0]))


def test_validate_names_what_decodes(declctl, guard):
    """Below the sentence, a line for each; -o json has the faults alone."""
    assert declctl("validate", "manifest.yaml").lines == [
        "manifest.yaml: pod-guard is valid (1 resource, 1 handler)",
        "  pods: index byTeam decodes every object, about 15 µs each",
        "  pods: index byOwner decodes every object, about 15 µs each",
    ]
    assert declctl("validate", "manifest.yaml", "-o", "json").document == []
