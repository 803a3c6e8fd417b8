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
from declctl.manifest.model import AdminSpec, MetricsSpec
from declctl.manifest.values import Address
from declctl.runtime.caching.identities import CacheIdentity
from declctl.runtime.checking.check import check
from declctl.runtime.planning.running_plan import RunningCache, RunningPlan, masked
from declctl.runtime.reloading.changes import Step, StepKind
from declctl.runtime.reloading.stage import handler_digests
from tests.rooms.cli.answering import Process
from tests.rooms.runtime.test_check import SLOW_IN_CHILD

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


@pytest.fixture(name="guard")
def _guard(folder: Path) -> Path:
    """A manifest with an index of each kind."""
    (folder / "handlers.py").write_text(HANDLERS)
    (folder / "manifest.yaml").write_text(MANIFEST)
    return folder


def test_a_first_start_is_all_new(declctl: Callable, guard: Path):
    """Steps, costs and requests; what hooks add is told like what the manifest says."""
    ended = declctl("plan", "manifest.yaml")
    assert (ended.status, ended.err) == (2, "")
    assert ended.out.splitlines() == [
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


def test_namespaces_by_label_are_a_list_in_each(declctl: Callable, guard: Path):
    """Without a running process nobody knows how many there are, and the plan says who does."""
    text = MANIFEST.replace("[a, b]", "{labelSelector: team=web}")
    (guard / "manifest.yaml").write_text(text)
    ended = declctl("plan", "manifest.yaml")
    [row] = [line.split(maxsplit=4)[3:] for line in ended.out.splitlines() if "namespaces with" in line]
    cost = "a LIST and a WATCH in each; `declctl validate --cluster` says how many there are"
    assert row == ["team=web", cost]
    assert ended.out.splitlines()[-1] == "1 new LIST, 1 new WATCH"


def test_json_is_one_document(declctl: Callable, guard: Path):
    """The same for programs."""
    ended = declctl("plan", "manifest.yaml", "-o", "json")
    assert (ended.status, ended.err) == (2, "")
    document = json.loads(ended.out)
    assert (document["name"], document["lists"], document["watches"]) == ("pod-guard", 2, 2)
    assert document["changes"][0] == {
        "class": "Add",
        "subject": "resource pods",
        "detail": "",
        "text": "+resource pods",
    }
    (pods,) = document["resources"]
    assert (pods["name"], pods["cacheMode"], pods["objects"]) == ("pods", "Frames", None)
    assert pods["watches"] == ["v1 Pod in a", "v1 Pod in b"]
    assert pods["costs"][1] == {
        "subject": "index byTeam",
        "cost": "Decodes",
        "microseconds": 15.0,
        "text": "decodes every object, about 15 µs each",
    }
    assert document["hooksKnown"] is True


def test_what_leads_to_the_keys_of_a_reconciler_is_shown(declctl: Callable, guard: Path):
    """Each watch is a line of the plan; for programs, the handlers have their watches."""
    watches = (
        "watches: [{resourceRef: {name: pods}, mapTo: {owner: Controller}, filter: {labelSelector: a=b}}]"
    )
    web = f"name: web, mode: Reconcile, resourceRef: {{name: pods}}, entryPoint: handlers:web, {watches}"
    (guard / "manifest.yaml").write_text(f"{MANIFEST}    - {{{web}}}\n")
    (guard / "handlers.py").write_text(HANDLERS + "def web(request): pass\n")
    assert "+watch web: pods → owner (Controller)" in declctl("plan", "manifest.yaml").out.splitlines()
    document = json.loads(declctl("plan", "manifest.yaml", "-o", "json").out)
    assert document["handlers"] == [
        {"name": "greet", "mode": "Event", "resource": "pods", "watches": []},
        {
            "name": "web",
            "mode": "Reconcile",
            "resource": "pods",
            "watches": [{"resource": "pods", "mapTo": "owner (Controller)", "filtered": True}],
        },
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
def test_against_another_manifest_only_the_difference_is_told(
    declctl: Callable, guard: Path, old: str, new: str, status: int, first: str, last: str
):
    """0 for no change, 2 for changes, and the LISTs that they cost."""
    (guard / "old.yaml").write_text(MANIFEST)
    (guard / "new.yaml").write_text(MANIFEST.replace(old, new))
    ended = declctl("plan", "new.yaml", "--against", "old.yaml")
    lines = ended.out.splitlines()
    assert (ended.status, lines[0], lines[-1]) == (status, first, last)


def test_other_code_of_a_transform_is_a_list(declctl: Callable, guard: Path):
    """Objects that are transformed by other code have to come anew, also where a hook transforms them."""
    slim = "    @declctl.hookimpl\n    def declctl_transform(self, obj): return obj\n"
    (guard / "old").mkdir()
    for name, code in (("old", HANDLERS), (".", HANDLERS + slim)):
        (guard / name / "manifest.yaml").write_text(MANIFEST)
        (guard / name / "handlers.py").write_text(code)
    ended = declctl("plan", "manifest.yaml", "--against", "old/manifest.yaml")
    assert "~handler greet (code)" in ended.out
    assert "pods       transform" in ended.out
    assert ended.out.endswith("2 new LISTs, 2 new WATCHes\n")


def test_a_running_process_tells_how_many_objects_there_are(declctl: Callable, guard: Path, process: Process):
    """What 15 µs are for all of them, without multiplying by hand."""
    process.answers(200, {"name": "pod-guard", "resources": [{"name": "pods", "objects": 2300}]})
    ended = declctl("plan", "manifest.yaml", "--admin", process.address)
    assert "decodes every object, about 15 µs each (34 ms for 2,300)" in ended.out
    assert ended.out.endswith("2 new LISTs (~2,300 objects), 2 new WATCHes\n")


def test_another_controllers_objects_are_not_counted(declctl: Callable, guard: Path, process: Process):
    """What answers at the address may be somebody else."""
    process.answers(200, {"name": "other", "resources": [{"name": "pods", "objects": 2300}]})
    ended = declctl("plan", "manifest.yaml", "--admin", process.address)
    assert ended.status == 2
    assert "2,300" not in ended.out


def test_an_address_that_was_named_has_to_answer(declctl: Callable, guard: Path):
    """Who names a process wants its figures."""
    ended = declctl("plan", "manifest.yaml", "--admin", "127.0.0.1:1")
    assert ended.status == 1
    assert ended.err.startswith("declctl: Nothing answers at the admin address 127.0.0.1:1")


def test_a_manifest_with_faults_has_no_plan(declctl: Callable, guard: Path):
    """The faults are shown as by `validate`, and the status is 1."""
    (guard / "manifest.yaml").write_text(MANIFEST.replace("fieldPath", "fieldPaht"))
    ended = declctl("plan", "manifest.yaml")
    assert (ended.status, ended.out) == (1, "")
    assert "error DCL012" in ended.err


def test_a_plan_says_that_a_slow_import_is_paid_twice(declctl: Callable, guard: Path):
    """What the import took in the child is taken again by the process, before the handlers are live."""
    (guard / "handlers.py").write_text(SLOW_IN_CHILD + HANDLERS)
    ended = declctl("plan", "manifest.yaml")
    told = re.search(
        r"^importing the handlers took (\d+) s in a child process; a reload pays that",
        ended.out,
        re.MULTILINE,
    )
    assert told is not None, ended.out
    assert int(told[1]) >= 20
    document = json.loads(declctl("plan", "manifest.yaml", "-o", "json").out)
    assert document["preflightImportSeconds"] >= 20


def test_what_is_not_imported_is_not_known(declctl: Callable, guard: Path):
    """With `preflight: Off` nothing is imported, and the plan says so."""
    (guard / "manifest.yaml").write_text(MANIFEST + "  reload: {preflight: Off}\n")
    ended = declctl("plan", "manifest.yaml")
    assert "index byOwner" not in ended.out
    assert ended.out.endswith(
        "handlers were not imported (reload.preflight: Off): what their hooks add is not in it\n"
    )


def _running(guard: Path, *, objects: int = 1000, **more: object) -> dict:
    """What a process tells that runs the manifest of the folder."""
    checked = check(str(guard))
    assert checked.inputs is not None
    resolved = plan(checked.inputs.loaded.controller)
    caches = [RunningCache(CacheIdentity(watch.key), objects) for watch in resolved.watches]
    told = RunningPlan(
        generation=3,
        code=checked.inputs.code,
        plan=masked(resolved),
        transformed=(),
        cluster_scoped=(),
        caches=tuple(caches),
        objects={"pods": 2 * objects},
        handler_code=handler_digests(resolved, checked.inputs.bundle),
        modules=checked.inputs.modules,
    )
    return structs.replace(told, **more).document()


def test_what_runs_already_is_no_change(declctl: Callable, guard: Path, process: Process):
    """The same manifest and the same handler files: 0, and everything is kept."""
    process.answers(200, _running(guard))
    ended = declctl("plan", "manifest.yaml", "--against", "running", "--admin", process.address, "-o", "json")
    assert (ended.status, ended.err) == (0, "")
    document = json.loads(ended.out)
    assert [step["class"] for step in document["kept"]] == ["Keep", "Keep"]
    assert (document["changes"], document["lists"], document["replayed"]) == ([], 0, [])
    assert document["resources"][0]["objects"] == 2000
    assert process.asked == [("GET", "/plan", None)]


def test_an_edit_is_compared_with_what_runs(declctl: Callable, guard: Path, process: Process):
    """A namespace more, a handler more: one LIST, and who hears how many objects."""
    process.answers(200, {**_running(guard), "count": 1000})
    more = '    - {name: more, resourceRef: {name: pods}, entryPoint: "handlers:Greet"}\n'
    (guard / "manifest.yaml").write_text(MANIFEST.replace("[a, b]", "[a, b, c]") + more)
    ended = declctl("plan", "manifest.yaml", "--against", "running", "--admin", process.address)
    assert (ended.status, ended.err) == (2, "")
    assert ended.out.splitlines()[:4] == [
        "-/+resource pods (namespace)",
        "+handler more",
        "  greet hears what differs in ~2,000 objects",
        "  more hears ~2,000 objects",
    ]
    assert ended.out.endswith("1 new LIST (~2,000 objects), 1 new WATCH\n")


def test_what_leaves_a_narrower_scope_is_counted(declctl: Callable, guard: Path, process: Process):
    """A namespace less: the process is asked how many objects stay, and the others are told as Deleted."""
    process.answers(200, {**_running(guard), "count": 700})
    (guard / "manifest.yaml").write_text(MANIFEST.replace("[a, b]", "[a]"))
    ended = declctl("plan", "manifest.yaml", "--against", "running", "--admin", process.address)
    assert (ended.status, ended.err) == (2, "")
    told = "  greet hears what differs in ~2,000 objects: ~1,300 as Deleted (OutOfScope)"
    assert ended.out.splitlines()[1] == told
    assert process.asked[1:] == [("GET", "/cache/pods?namespace=a", None)]


def test_what_leaves_narrower_fields_is_counted(declctl: Callable, guard: Path, process: Process):
    """The process judges a new field selector by what it has cached."""
    process.answers(200, {**_running(guard), "count": 700})
    fields = MANIFEST.replace("kind: Pod", "kind: Pod\n      fieldSelector: spec.nodeName=n1")
    (guard / "manifest.yaml").write_text(fields)
    ended = declctl("plan", "manifest.yaml", "--against", "running", "--admin", process.address)
    assert "  greet hears what differs in ~2,000 objects: ~600 as Deleted (OutOfScope)" in ended.out
    query = "fieldSelector=spec.nodeName%3Dn1"
    assert [path for _, path, _ in process.asked[1:]] == [
        f"/cache/pods?namespace={namespace}&{query}" for namespace in "ab"
    ]


def test_a_process_that_does_not_show_its_cache_is_said(declctl: Callable, guard: Path, process: Process):
    """Without the token there is no count, and the plan says so."""
    process.answers(200, _running(guard))
    (guard / "manifest.yaml").write_text(MANIFEST.replace("[a, b]", "[a]"))
    ended = declctl("plan", "manifest.yaml", "--against", "running", "--admin", process.address)
    assert "Deleted (OutOfScope) is not counted: the running process does not tell" in ended.out


def test_a_process_that_counts_too_slowly_costs_the_number_and_not_the_plan(
    declctl: Callable, guard: Path, process: Process, monkeypatch: pytest.MonkeyPatch
):
    """The plan says why there is no number. The process is not asked a second time, as that takes as long."""
    process.answers(200, _running(guard))
    asked = []

    def ask(target: admin_client.AdminAddress, method: str, path: str) -> admin_client.AdminAnswer:
        asked.append(path.partition("?")[0])
        if path.startswith("/cache/"):
            raise UsageError("Nothing answers at the admin address (it took too long).")
        return answered(target, method, path)

    answered = admin_client.ask
    monkeypatch.setattr(plan_command, "ask", ask)
    fields = MANIFEST.replace("kind: Pod", "kind: Pod\n      fieldSelector: spec.nodeName=n1")
    (guard / "manifest.yaml").write_text(fields)
    ended = declctl("plan", "manifest.yaml", "--against", "running", "--admin", process.address)
    assert (ended.status, ended.err) == (2, "")
    assert "Deleted (OutOfScope) is not counted: the running process does not tell" in ended.out
    assert asked == ["/plan", "/cache/pods"]


@pytest.mark.guarantee("G20")
def test_a_replay_is_told_before(declctl: Callable, guard: Path):
    """A handler that wants a replay hears the cache with other code; with the same code nobody does."""
    wants = MANIFEST.replace('"handlers:Greet"}', '"handlers:Greet", replay: OnCodeChange}')
    (guard / "old").mkdir()
    for name, code in (("old", HANDLERS), (".", HANDLERS)):
        (guard / name / "manifest.yaml").write_text(wants)
        (guard / name / "handlers.py").write_text(code)
    assert " hears " not in declctl("plan", "manifest.yaml", "--against", "old/manifest.yaml").out
    (guard / "handlers.py").write_text(f"{HANDLERS}X = 2\n")
    ended = declctl("plan", "manifest.yaml", "--against", "old/manifest.yaml")
    assert "  greet hears the cache" in ended.out.splitlines()


@pytest.mark.parametrize("live", [False, True])
@pytest.mark.parametrize(
    ("edited", "hears"), [("mine.py", True), ("shared.py", True), ("others.py", False), (None, False)]
)
@pytest.mark.guarantee("G20")
def test_a_replay_is_told_for_the_code_that_changes(
    declctl: Callable, guard: Path, process: Process, live: bool, edited: str | None, hears: bool
):
    """Its own file, or one that this imports; the files of other handlers are no reason, as in a reload."""
    wants = MANIFEST.replace('"handlers:Greet"}', '"mine:told", replay: OnCodeChange}')
    wants += '    - {name: other, resourceRef: {name: pods}, entryPoint: "others:told"}\n'
    files = {
        "manifest.yaml": wants,
        "handlers.py": HANDLERS,
        "mine.py": "import shared\ndef told(change): ...\n",
        "shared.py": "",
        "others.py": "def told(change): ...\n",
    }
    (guard / "old").mkdir()
    for name, text in files.items():
        (guard / "old" / name).write_text(text)
        (guard / name).write_text(text + ("X = 1\n" if name == edited else ""))
    process.answers(200, _running(guard / "old"))
    against = ("running", "--admin", process.address) if live else ("old/manifest.yaml",)
    ended = declctl("plan", "manifest.yaml", "--against", *against)
    assert ended.status == (2 if edited else 0)
    heard = [line.strip() for line in ended.out.splitlines() if " hears " in line]
    assert heard == ([f"greet hears {'~2,000 objects' if live else 'the cache'}"] if hears else [])


def test_what_waits_for_a_handler_that_goes_is_told_before(declctl: Callable, guard: Path, process: Process):
    """`40 changes wait`: what is not done within drainTimeout is dropped. Those that stay lose nothing."""
    process.answers(200, _running(guard, waiting={"greet": 40}))
    asked = ("plan", "manifest.yaml", "--against", "running", "--admin", process.address)
    assert "wait" not in declctl(*asked).out
    manifest = MANIFEST.partition("  handlers:")[0] + "  reload: {drainTimeout: 5s}\n"
    (guard / "manifest.yaml").write_text(manifest)
    told = "40 changes wait for greet: what is not done within drainTimeout (5 s) is dropped"
    assert told in [line.strip() for line in declctl(*asked).out.splitlines()]
    document = json.loads(declctl(*asked, "-o", "json").out)
    assert document["removals"] == [{"handler": "greet", "waiting": 40, "drainTimeout": 5.0}]


WRITES = "applies: [{apiVersion: v1, kind: ConfigMap}]"


@pytest.mark.parametrize(
    ("before", "after", "manager"),
    [
        (f"name: greet, {WRITES}", f"name: hello, {WRITES}", "declctl/pod-guard/greet"),
        (f"name: greet, {WRITES}, fieldManager: old", f"name: greet, {WRITES}", "old"),
        (
            f"name: greet, {WRITES}",
            f"name: hello, {WRITES}, fieldManager: declctl/pod-guard/greet",
            None,
        ),
        ("name: greet", "name: hello", None),
        (f"name: greet, {WRITES}", f"name: greet, {WRITES}, timeout: 1s", None),
    ],
)
def test_a_rename_tells_what_it_orphans(
    declctl: Callable, guard: Path, before: str, after: str, manager: str | None
):
    """Fields and children of the former field manager stay; the plan says how to go on with them."""
    (guard / "old").mkdir()
    for name, text in (("old", before), (".", after)):
        (guard / name / "manifest.yaml").write_text(MANIFEST.replace("name: greet", text))
        (guard / name / "handlers.py").write_text(HANDLERS)
    asked = ("plan", "manifest.yaml", "--against", "old/manifest.yaml")
    ended, document = declctl(*asked), json.loads(declctl(*asked, "-o", "json").out)
    assert [each["manager"] for each in document["orphans"]] == ([manager] if manager else [])
    told = [line for line in ended.out.splitlines() if "stay with the field manager" in line]
    found = [line for line in ended.out.splitlines() if "its children stay" in line]
    command = "kubectl get ConfigMap --all-namespaces -l applyset.kubernetes.io/part-of"
    assert [command in line for line in found] == ([True] if manager else [])
    if manager is None:
        assert told == []
    else:
        (line,) = told
        assert line.startswith("  fields in v1 ConfigMap that greet has applied stay with the field manager")
        assert line.endswith(f"a handler that goes on with them needs fieldManager: {manager}")


def test_a_handler_that_goes_leaves_its_children(declctl: Callable, guard: Path):
    """An edit that removes a handler deletes nothing: the plan says what stays, and how to find it."""
    (guard / "old").mkdir()
    writes = WRITES.replace("}]", "}, {apiVersion: apps/v1, kind: Deployment}]")
    both = (
        MANIFEST
        + f'    - {{name: web, resourceRef: {{name: pods}}, entryPoint: "handlers:Greet", {writes}}}\n'
    )
    for name, text in (("old", both), (".", MANIFEST)):
        (guard / name / "manifest.yaml").write_text(text)
        (guard / name / "handlers.py").write_text(HANDLERS)
    ended = declctl("plan", "manifest.yaml", "--against", "old/manifest.yaml")
    assert "-handler web" in ended.out
    (line,) = [line for line in ended.out.splitlines() if "its children stay" in line]
    assert "`kubectl get ConfigMap,Deployment.apps --all-namespaces" in line


def test_a_narrower_applies_tells_which_children_stay(declctl: Callable, guard: Path):
    """`apply_set` deletes in declared kinds only: the Secrets of today would be forgotten without a word."""
    both = WRITES.replace("}]", "}, {apiVersion: v1, kind: Secret}]")
    (guard / "old").mkdir()
    for name, applies in (("old", both), (".", WRITES)):
        (guard / name / "manifest.yaml").write_text(
            MANIFEST.replace("name: greet", f"name: greet, {applies}")
        )
        (guard / name / "handlers.py").write_text(HANDLERS)
    ended = declctl("plan", "manifest.yaml", "--against", "old/manifest.yaml")
    (line,) = [line for line in ended.out.splitlines() if "children of" in line]
    assert line.startswith("  children of v1 Secret that greet has applied stay")
    ended = declctl("plan", "old/manifest.yaml", "--against", "manifest.yaml")
    assert "children of" not in ended.out


def test_a_handler_that_has_written_is_known_without_a_declaration(
    declctl: Callable, guard: Path, process: Process
):
    """The running process knows which handlers have applied something."""
    process.answers(200, _running(guard, written=("greet",)))
    (guard / "manifest.yaml").write_text(MANIFEST.replace("name: greet", "name: hello"))
    ended = declctl("plan", "manifest.yaml", "--against", "running", "--admin", process.address)
    assert "fields that greet has applied stay with the field manager declctl/pod-guard/greet" in ended.out


def test_an_upgraded_plugin_is_told_as_a_restart(declctl: Callable, guard: Path, process: Process):
    """The process knows what it has loaded and what is installed there; a plugin that goes needs none."""
    steps = tuple(
        Step(StepKind.RESTART, f"plugin {name}", "1.0 is loaded, 2.0 is installed") for name in "ab"
    )
    process.answers(200, _running(guard, restarts=steps))
    (guard / "manifest.yaml").write_text(
        f"{MANIFEST}  plugins: [{{name: a, onError: Disable}}]\n  reload: {{preflight: Off}}\n"
    )
    ended = declctl("plan", "manifest.yaml", "--against", "running", "--admin", process.address)
    assert ended.status == 2
    assert "!plugin a (1.0 is loaded, 2.0 is installed)" in ended.out.splitlines()
    assert "!plugin b" not in ended.out
    what = "plugin a (1.0 is loaded, 2.0 is installed)"
    assert f"RESTART REQUIRED: {what} takes effect when the process starts again" in ended.out.splitlines()


@pytest.mark.parametrize("live", [True, False])
def test_what_needs_a_new_process_is_told(declctl: Callable, guard: Path, process: Process, live: bool):
    """Of the process that runs, and of a file: which fields, as text and as JSON."""
    process.answers(200, _running(guard))
    (guard / "before.yaml").write_text(MANIFEST)
    against = ("running", "--admin", process.address) if live else ("before.yaml",)
    manifest = (
        MANIFEST.replace("name: pod-guard", "name: watch", 1) + "  admin: {bindAddress: '127.0.0.1:9'}\n"
    )
    (guard / "manifest.yaml").write_text(manifest)
    asked = ("plan", "manifest.yaml", "--against", *against)
    lines = declctl(*asked).out.splitlines()
    assert {"!admin.bindAddress", "!metadata.name"} <= set(lines)
    told = "admin.bindAddress and metadata.name take effect when the process starts again"
    assert f"RESTART REQUIRED: {told}" in lines
    document = json.loads(declctl(*asked, "-o", "json").out)
    assert document["restartRequired"] == ["admin.bindAddress", "metadata.name"]
    assert {each["class"] for each in document["changes"]} >= {"RestartRequired"}


def test_what_still_waits_for_a_new_process_is_told(declctl: Callable, guard: Path, process: Process):
    """A reload has taken the manifest, but the process listens where it did; the text before undoes it."""
    process.answers(200, _running(guard, admin_at_start=AdminSpec(bind_address=Address("127.0.0.1", 9))))
    asked = ("plan", "manifest.yaml", "--against", "running", "--admin", process.address)
    ended = declctl(*asked)
    assert ended.status == 2
    assert "RESTART REQUIRED: admin.bindAddress takes effect when the process starts again" in ended.out
    (guard / "manifest.yaml").write_text(MANIFEST + "  admin: {bindAddress: '127.0.0.1:9'}\n")
    assert "!admin" not in declctl(*asked).out


def test_an_address_of_the_metrics_waits_for_a_new_process(declctl: Callable, guard: Path, process: Process):
    """As the admin address: a reload has taken the manifest, and nothing listens at the new address yet."""
    (guard / "manifest.yaml").write_text(MANIFEST + "  metrics: {bindAddress: '127.0.0.1:9'}\n")
    asked = ("plan", "manifest.yaml", "--against", "running", "--admin", process.address)
    process.answers(200, _running(guard, metrics_at_start=MetricsSpec()))
    assert "RESTART REQUIRED: metrics.bindAddress takes effect when the process" in declctl(*asked).out
    process.answers(200, _running(guard, metrics_at_start=MetricsSpec(Address("127.0.0.1", 9))))
    assert "!metrics" not in declctl(*asked).out


def test_a_cache_that_lingers_is_not_listed_again(declctl: Callable, guard: Path, process: Process):
    """What was removed a moment ago is still there."""
    lingering = _running(guard)
    lingering["plan"] |= {"resources": [], "watches": [], "handlers": []}
    process.answers(200, lingering)
    ended = declctl("plan", "manifest.yaml", "--against", "running", "--admin", process.address)
    assert ended.out.startswith("+resource pods\n+handler greet\n")
    assert ended.out.endswith("0 new LISTs, 0 new WATCHes\n")


def test_a_kind_without_namespaces_is_listed_once(declctl: Callable, guard: Path, process: Process):
    """The process knows what the manifest doesn't say."""
    told = _running(guard, caches=(), cluster_scoped=(("v1", "Pod"),))
    process.answers(200, told)
    ended = declctl("plan", "manifest.yaml", "--against", "running", "--admin", process.address)
    assert ended.out.endswith("1 new LIST (~2,000 objects), 1 new WATCH\n")


@pytest.mark.parametrize(
    ("status", "document", "why"),
    [
        (503, {"error": "nothing runs yet"}, "does not tell its plan: nothing runs yet"),
        (404, {}, "does not tell its plan: it answers 404"),
        (404, [], "is not declctl"),
        (200, {"generation": "three"}, "declctl: The running process is of another version: "),
    ],
)
def test_a_process_that_tells_no_plan_is_a_fault(
    declctl: Callable, guard: Path, process: Process, status: int, document: object, why: str
):
    """1, as 2 would say that there are changes."""
    process.answers(status, document)
    ended = declctl("plan", "manifest.yaml", "--against", "running", "--admin", process.address)
    assert (ended.status, ended.out) == (1, "")
    assert why in ended.err


def test_configs_of_plugins_are_compared_and_not_told():
    """A digest stands in the place of what may be a secret; another config has another one."""
    plans = []
    for secret in ("hunter2", "hunter2", "other"):
        text = f"{MANIFEST}  plugins: [{{name: slack, config: {{token: {secret}}}}}]\n"
        plans.append(masked(plan(load(ManifestSource.of([("m.yaml", text.encode())])).controller)))
    assert plans[0] == plans[1] != plans[2]
    assert "hunter2" not in json.dumps(to_builtins(plans[0]))


def test_validate_names_what_decodes(declctl: Callable, guard: Path):
    """Below the sentence, a line for each; -o json has the faults alone."""
    assert declctl("validate", "manifest.yaml").out.splitlines() == [
        "manifest.yaml: pod-guard is valid (1 resource, 1 handler)",
        "  pods: index byTeam decodes every object, about 15 µs each",
        "  pods: index byOwner decodes every object, about 15 µs each",
    ]
    assert json.loads(declctl("validate", "manifest.yaml", "-o", "json").out) == []
