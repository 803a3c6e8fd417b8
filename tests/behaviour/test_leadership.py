"""Whole controllers with an election: who acts when, on what state, and what a process may write.

The other process is mostly a Lease that the test writes, as another process would.
"""

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from types import ModuleType
from typing import Any

import pytest

from declctl.errors import UsageError
from declctl.manifest.model import LeaderElectionSpec
from declctl.runtime.own_namespace import namespace_of_lease, own_namespace
from declctl.runtime.runtime import RunOptions, Runtime
from declctl.sandbox import SandboxThread
from declctl.sandbox.faults import Match
from declctl.testing import BundleDir, ControllerUnderTest, until
from declctl.transport import Client
from declctl.transport.config import Identity

SPEC = """
apiVersion: declctl.dev/v1alpha1
kind: Controller
metadata: {name: web}
spec:
  resources:
    - {name: maps, apiVersion: v1, kind: ConfigMap, namespaces: [default]}
    - {name: secrets, apiVersion: v1, kind: Secret, namespaces: [default]}
  handlers:
    - {name: seen, resourceRef: {name: maps}, entryPoint: "code:seen"}
    - {name: keys, resourceRef: {name: maps}, entryPoint: "code:keys", mode: Reconcile}
  leaderElection: {enabled: true, retryPeriod: 200ms%s}
"""
CODE = """
from blackboard import tell

def seen(change):
    tell("seen", change.type, change.obj.name, change.obj["data"]["v"], change.initial)

def keys(request):
    tell("key", request.name, None if request.obj is None else request.obj["data"]["v"])
"""
OTHER = "other-process"
GOING = (("theirs", "default"), ("theirs", "other"), ("mine", "default"), ("left", "other"))
SHORT = 15  # seconds for which the lease of the other process is valid


def lease(holder: str, **spec: Any) -> dict[str, Any]:
    """The Lease, as a process that has just renewed it writes it."""
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    known = {"holderIdentity": holder, "leaseDurationSeconds": SHORT, "acquireTime": now, "renewTime": now}
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": "web", "namespace": "default"},
        "spec": {**known, "leaseTransitions": 1, **spec},
    }


class Rival:
    """Another process, as far as the server can tell: it holds the lease while it renews it."""

    def __init__(self, sandbox: SandboxThread) -> None:
        self._sandbox = sandbox

    def takes(self) -> None:
        """It has taken the lease for an hour, although another process may hold it."""
        body = lease(OTHER, leaseDurationSeconds=3600)
        if self._sandbox.objects("Lease", "default"):
            self._sandbox.patch("Lease", "web", {"spec": body["spec"]})
        else:
            self._sandbox.create(body)

    def dies(self) -> None:
        """It was killed: a lease of some seconds is left."""
        self._sandbox.patch("Lease", "web", {"spec": lease(OTHER)["spec"]})

    @property
    def holder(self) -> str:
        """Who holds the lease."""
        return self._sandbox.objects("Lease", "default")[0]["spec"]["holderIdentity"]


@pytest.fixture
def rival(sandbox: SandboxThread) -> Rival:
    return Rival(sandbox)


@pytest.fixture
def bundle(bundle_dir: BundleDir, board: ModuleType) -> BundleDir:
    bundle_dir.write("manifest.yaml", SPEC % "")
    bundle_dir.write("code.py", CODE)
    return bundle_dir


def test_the_namespace_of_the_lease_is_not_guessed(bundle: BundleDir, sandbox: SandboxThread) -> None:
    """Beside pods in another namespace it would lead, too: it ends before it has written anything."""
    follows, where = "configmap/b/x", {"context": "c", "server": "s", "user": None, "namespace": "own"}
    rows = [("a", "n", True), (None, "n", True), (None, None, True), (None, None, False)]
    own = [own_namespace(Identity(**where, in_cluster=i), given=g, config_map=follows) for _, g, i in rows]
    specs = [LeaderElectionSpec(namespace=named) for named, _, _ in rows]
    assert [namespace_of_lease(*each).name for each in zip(specs, own, strict=True)] == ["a", "n", "own", "b"]
    config = sandbox.kubeconfig()
    with pytest.raises(UsageError, match="start with --namespace NAMESPACE"):
        Runtime(RunOptions(str(bundle.path)), connect=lambda: Client.from_kubeconfig_dict(config)).run()
    assert sandbox.objects("Lease", "default") == []


def follows(controller: ControllerUnderTest) -> bool:
    """Whether it has seen that the other process leads."""
    found = controller.status().leader_election
    return found is not None and found.state == "Following"


def leads(controller: ControllerUnderTest) -> bool:
    """Whether its handlers have begun."""
    return controller.log.find("leads: handlers begin") is not None


@pytest.fixture
def follow(bundle: BundleDir, rival: Rival, controller: Any) -> Callable[..., ControllerUnderTest]:
    """Starts the process, beside objects, while the other one leads; returns when it is ready and follows."""

    def start(*objects: Any) -> ControllerUnderTest:
        rival.takes()
        process = controller(bundle.path, objects=objects)
        process.wait_ready()
        until("it follows", lambda: follows(process))
        return process

    return start


def take_lease(process: ControllerUnderTest, rival: Rival) -> None:
    """The other process dies, and its lease ends."""
    rival.dies()
    process.advance(SHORT / 2)
    assert not process.status().leader
    process.advance(SHORT / 2 + 1)


def take_over(process: ControllerUnderTest, rival: Rival) -> None:
    """The same; returns when the handlers of this process have begun."""
    take_lease(process, rival)
    until("it leads", lambda: leads(process), timeout=60)


def asks_before_it_acts(sandbox: SandboxThread, board: ModuleType, resource: str) -> None:
    """Return when it asks for what a cache lacks; without the check of freshness, handlers are called now."""

    def short_watches() -> list[Any]:
        watches = sandbox.ledger.requests("watch", resource=resource)
        return [each for each in watches if each.params.get("timeoutSeconds") == "3"]

    until("it asks for what the cache lacks, or acts", lambda: board.told or short_watches(), timeout=30)
    assert board.told == []


def full_lists(sandbox: SandboxThread) -> int:
    """The LISTs of all objects, and streaming lists."""
    lists = [each for each in sandbox.ledger.requests("list") if each.params.get("limit") != "1"]
    streams = [each for each in sandbox.ledger.requests("watch") if each.params.get("sendInitialEvents")]
    return len(lists) + len(streams)


@pytest.mark.thorough
@pytest.mark.client_go(320, 339, "Warmup")
def test_a_warm_follower_knows_everything_and_acts_on_nothing(
    bundle, follow, sandbox, rival, board, config_map
) -> None:
    """It is ready, its caches are current, and at the takeover handlers receive the present state once."""
    process = follow(config_map("a", v="1"))
    sandbox.create(config_map("b", v="1"))
    sandbox.patch("ConfigMap", "a", {"data": {"v": "2"}})
    until("the cache is current", lambda: process.lister("maps").get("default/a")["data"]["v"] == "2")
    until("both are known", lambda: process.lister("maps").get("default/b") is not None)
    status = process.status()
    assert (status.ready, status.leader) == (True, False)
    assert status.leader_election is not None
    assert (status.leader_election.holder, status.leader_election.lease) == (OTHER, "default/web")
    assert board.told == []
    assert [(each.queued, each.delivered, each.synced) for each in status.handlers] == [(0, 0, False)] * 2

    before = full_lists(sandbox)
    take_over(process, rival)
    process.wait_idle()
    assert sorted(row for row in board.told if row[0] == "seen") == [
        ("seen", "Added", "a", "2", True),
        ("seen", "Added", "b", "1", True),
    ]
    assert sorted(row for row in board.told if row[0] == "key") == [("key", "a", "2"), ("key", "b", "1")]
    assert full_lists(sandbox) == before
    assert all(each.relists == 0 for each in process.status().resources)
    assert all(each.synced for each in process.status().handlers)


@pytest.mark.thorough
@pytest.mark.client_go("Warmup")
def test_a_new_leader_waits_until_its_cache_has_what_the_old_one_has_done(
    bundle, follow, sandbox, rival, board, config_map
) -> None:
    """The watch of the follower is held back while the old leader acts, and is killed (kubernetes#137308).

    Without the check of freshness, the handler receives the old state, and an object that is gone.
    """
    process = follow(config_map("a", v="old"), config_map("gone", v="old"))
    sandbox.faults.silence("configmaps")
    sandbox.patch("ConfigMap", "a", {"data": {"v": "new"}})
    sandbox.delete("ConfigMap", "gone", "default")
    take_lease(process, rival)
    asks_before_it_acts(sandbox, board, "configmaps")
    assert process.status().leader_election.state == "TakingOver"
    sandbox.faults.speak()
    until("its handlers have begun", lambda: leads(process), timeout=30)
    process.wait_idle()
    assert {row[1:] for row in board.told if row[0] == "key"} == {("a", "new")}
    assert [row[1:] for row in board.told if row[0] == "seen"] == [("Added", "a", "new", True)]


def namespace(name: str, **labels: str) -> dict[str, Any]:
    """A Namespace."""
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}


@pytest.fixture
def team(bundle, follow, config_map):
    """A follower of the namespaces of a team: `one` is of them, and `two` is not yet."""
    bundle.edit(
        "manifest.yaml",
        "ConfigMap, namespaces: [default]",
        "ConfigMap, namespaces: {labelSelector: team=web}",
    )
    objects = [namespace("one", team="web"), namespace("two"), config_map("a", "one", v="1")]
    return follow(*objects, config_map("b", "two", v="1"))


@pytest.mark.thorough
def test_a_new_leader_knows_all_namespaces_of_its_selector(team, sandbox, rival, board) -> None:
    """A namespace came into the set while the watch of namespaces was held back: it is not overlooked."""
    sandbox.faults.silence("namespaces")
    sandbox.patch("Namespace", "two", {"metadata": {"labels": {"team": "web"}}}, namespace="")
    take_lease(team, rival)
    asks_before_it_acts(sandbox, board, "namespaces")
    sandbox.faults.speak()
    until("its handlers have begun", lambda: leads(team), timeout=30)
    assert team.lister("maps").get("two/b") is not None
    team.wait_idle()
    assert sorted(row[2] for row in board.told if row[0] == "seen") == ["a", "b"]


@pytest.mark.thorough
def test_a_namespace_that_cannot_be_read_does_not_hold_up_a_takeover(team, sandbox, rival, board) -> None:
    """A namespace without a Role came into the set: handlers begin with the others."""
    for verb in ("list", "watch"):
        sandbox.faults.refuse(403, Match(verb, "configmaps", namespace="two"))
    sandbox.patch("Namespace", "two", {"metadata": {"labels": {"team": "web"}}}, namespace="")
    until("it is refused", lambda: "two" in (team.resource("maps").error or ""))
    take_over(team, rival)
    until(
        "the object of the other namespace is handled",
        lambda: [row for row in board.told if row[0] == "seen"],
    )
    assert [row[2] for row in board.told if row[0] == "seen"] == ["a"]


@pytest.mark.thorough
def test_a_cache_whose_watch_brings_nothing_is_listed_anew(
    bundle, follow, sandbox, rival, board, config_map
) -> None:
    """A watch can be silent without an end. The takeover waits ten seconds, and lists that cache alone."""
    process = follow(config_map("a", v="old"))
    before = full_lists(sandbox)
    # Every watch from a version stays silent, as behind a proxy that has lost its server; lists work.
    sandbox.faults.watch_list = "invalid"
    sandbox.faults.silence("configmaps")
    sandbox.patch("ConfigMap", "a", {"data": {"v": "new"}})
    take_over(process, rival)
    until("both were called", lambda: len(board.told) == 2)
    assert {row[2] if row[0] == "key" else row[3] for row in board.told} == {"new"}
    assert process.resource("maps").relists == 1
    assert process.resource("secrets").relists == 0
    assert full_lists(sandbox) >= before + 1


FINALIZES = (
    CODE
    + """
import declctl

class Keys:
    @declctl.hookimpl
    def declctl_reconcile(self, request):
        tell("key", request.name)

    @declctl.hookimpl
    def declctl_finalize(self, request):
        tell("finalized", request.name)

finalizing = Keys()
"""
)


def found(sandbox: SandboxThread, name: str) -> dict[str, Any]:
    """A ConfigMap of the namespace `default`."""
    return next(each for each in sandbox.objects("ConfigMap", "default") if each["metadata"]["name"] == name)


@pytest.mark.thorough
def test_the_leader_alone_adds_and_releases_finalizers(
    bundle, follow, sandbox, rival, board, config_map
) -> None:
    """Also of objects outside of its scope. What the old leader has finalized is not finalized again."""
    bundle.edit(
        "manifest.yaml",
        'entryPoint: "code:keys"',
        'entryPoint: "code:finalizing", finalizer: example.dev/keys',
    )
    bundle.write("code.py", FINALIZES)
    going = [config_map(name, namespace, v="1") for name, namespace in GOING]
    for each in going:
        each["metadata"]["finalizers"] = ["example.dev/keys"]
    process = follow(config_map("a", v="1"), *going)
    for name, namespace in GOING:
        sandbox.delete("ConfigMap", name, namespace)
    until(
        "the deletions are known",
        lambda: process.lister("maps").get("default/mine")["metadata"].get("deletionTimestamp"),
    )
    # The leader finalizes two of them.
    for name, namespace in GOING[:2]:
        sandbox.patch("ConfigMap", name, {"metadata": {"finalizers": None}}, namespace=namespace)
    until("it is known", lambda: process.lister("maps").get("default/theirs") is None)
    assert board.told == []
    assert "finalizers" not in found(sandbox, "a")["metadata"]
    take_lease(process, rival)
    until("all are finalized", lambda: len(sandbox.objects("ConfigMap", "other")) == 0, timeout=30)
    until("the other one as well", lambda: len(sandbox.objects("ConfigMap", "default")) == 1, timeout=30)
    process.wait_idle()
    (left,) = sandbox.objects("ConfigMap", "default")
    assert left["metadata"]["finalizers"] == ["example.dev/keys"]
    assert sorted(row for row in board.told if row[0] == "finalized") == [
        ("finalized", "left"),
        ("finalized", "mine"),
    ]


@pytest.mark.thorough
@pytest.mark.client_go(320)
def test_an_edit_reaches_a_follower(bundle, follow, sandbox, rival, board, config_map) -> None:
    """A reload is staged and committed as ever, calls nothing, and the new code takes over."""
    process = follow(config_map("a", v="1"))
    bundle.edit("code.py", 'tell("seen"', 'tell("new code"')
    bundle.edit(
        "manifest.yaml",
        "name: secrets, apiVersion: v1, kind: Secret",
        "name: pods, apiVersion: v1, kind: Pod",
    )
    outcome = process.reload()
    assert outcome.line.startswith("generation 2")
    assert (outcome.lists, outcome.watches, board.told) == (1, 1, [])
    take_over(process, rival)
    process.wait_idle()
    assert sorted(board.told) == [("key", "a", "1"), ("new code", "Added", "a", "1", True)]
    # From now on, an edit is one of a leader: handlers go on where they are.
    bundle.edit("code.py", 'tell("new code"', 'tell("newest code"')
    assert "1 LIST" not in process.reload().line
    sandbox.patch("ConfigMap", "a", {"data": {"v": "2"}})
    until("the change comes to it", lambda: ("newest code", "Modified", "a", "2", False) in board.told)


@pytest.mark.client_go(320)
def test_a_cold_follower_asks_for_nothing(bundle, follow, sandbox, rival, board, config_map) -> None:
    """No LIST and no WATCH before it leads, also after an edit; it is ready, as a rolling update wants it."""
    bundle.write("manifest.yaml", SPEC % ", followers: Cold")
    process = follow(config_map("a", v="1"))
    bundle.edit("code.py", 'tell("seen"', 'tell("new code"')
    bundle.edit(
        "manifest.yaml",
        "namespaces: [default]}\n    - {name: s",
        "namespaces: [default, team]}\n    - {name: s",
    )
    assert process.reload().line.startswith("generation 2")
    assert (sandbox.ledger.count("list"), sandbox.ledger.count("watch")) == (0, 0)
    assert process.condition("Ready").reason == "Following"
    take_over(process, rival)
    process.wait_idle()
    assert sorted(board.told) == [("key", "a", "1"), ("new code", "Added", "a", "1", True)]
    assert process.condition("Ready").reason == "Synced"


LONG_CALLS = """
import asyncio
from blackboard import tell, wait
from declctl.errors import NotLeader

def child(name):
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "default"}}

async def seen(change, ctx):
    tell("async begins")
    try:
        await asyncio.sleep(600)
    except asyncio.CancelledError:
        tell("async is cancelled")
        raise

def keys(request, ctx):
    if request.name.startswith("child"):
        return
    tell("sync begins")
    wait("go on")
    for write in (lambda: ctx.sync.apply(child("child-1")), lambda: official(ctx)):
        try:
            write()
        except NotLeader as refused:
            tell("refused", str(refused))
        else:
            tell("written")

def official(ctx):
    from kubernetes.client import CoreV1Api
    CoreV1Api(ctx.sync_client).create_namespaced_config_map("default", child("child-2"))
"""


LAST_HOOK = """
def last(ctx):
    tell("last begins")
    wait("end")
    try:
        ctx.sync.apply(child("child-3"))
    except NotLeader:
        tell("last is refused")
"""


@pytest.mark.client_go("Manager")
def test_a_process_that_loses_the_lease_ends(bundle, controller, sandbox, rival, board, config_map) -> None:
    """Its calls are cancelled where that is possible, its writes are refused, and it exits with 1."""
    bundle.write("code.py", LONG_CALLS)
    process: ControllerUnderTest = controller(bundle.path, objects=[config_map("a", v="1")])
    until("both calls run", lambda: len(board.told) == 2, timeout=30)
    rival.takes()
    until("the asynchronous call is cancelled", lambda: ("async is cancelled",) in board.told, timeout=30)
    board.open_gate("go on")
    until("the writes were refused", lambda: len(board.told) == 5, timeout=30)
    refused = [row[1] for row in board.told if row[0] == "refused"]
    assert [text.partition(" was not sent: ")[2] for text in refused] == ["this process does not lead"] * 2
    assert process.stop() == 1
    assert [each["metadata"]["name"] for each in sandbox.objects("ConfigMap", "default")] == ["a"]
    line = process.log.find("the lease default/web is lost: the lease belongs to other-process")
    assert line is not None
    assert line.level == "error"
    assert rival.holder == OTHER
    # What the log says is true of a process that ends.
    failed = [event for event in process.log.events("error") if "failed on" in event]
    assert failed
    assert all(
        event.endswith("this process ends: the next leader begins with all objects") for event in failed
    )
    assert process.log.find(f"{OTHER} leads, and this process ends") is not None
    assert process.log.find("this process follows") is None


def test_a_process_that_loses_the_lease_does_not_wait_for_what_it_may_not_handle(
    bundle, controller, sandbox, rival, board, config_map
) -> None:
    """Changes that a debounce holds back belong to the new leader: the end of the process waits for none."""
    times = ", leaseDuration: 90s, renewDeadline: 30s"  # a drain may take 25 s
    bundle.write("manifest.yaml", (SPEC % times).replace('"code:seen"', '"code:seen", debounce: 1h'))
    process: ControllerUnderTest = controller(bundle.path, objects=[config_map("a", v="1")])
    process.wait_ready()
    until("a change rests", lambda: process.handler("seen").queued == 1, timeout=30)
    rival.takes()
    until("the lease is lost", lambda: process.log.find("the lease default/web is lost"), timeout=30)
    began = time.monotonic()
    assert process.stop() == 1
    assert time.monotonic() - began < 24
    assert not any(row[0] == "seen" for row in board.told)
    dropped = process.log.find("1 change that waited is dropped")
    assert dropped is not None
    assert "the next leader delivers every existing object again" in dropped.event


def test_a_process_that_stops_drains_and_then_releases(
    bundle, controller, sandbox, rival, board, config_map
) -> None:
    """SIGTERM: nothing new is taken, a call that runs may still write, and then another process can lead.

    A hook of the end that is slow holds nobody up; what it writes is refused.
    """
    code = LONG_CALLS.replace("async def seen", "async def unused") + "\ndef seen(): pass\n"
    bundle.write("code.py", code + LAST_HOOK)
    lifecycle = '  lifecycle: {shutdown: [{entryPoint: "code:last"}]}\n  leader'
    bundle.edit("manifest.yaml", "  leader", lifecycle)
    process: ControllerUnderTest = controller(bundle.path, objects=[config_map("a", v="1")])
    until("the call runs", lambda: ("sync begins",) in board.told, timeout=30)
    leader = rival.holder
    process.runtime.stop()
    until("it has heard of it", lambda: process.log.find("stopping") or _stops(process), timeout=30)
    assert rival.holder == leader
    board.open_gate("go on")
    until("the last hook runs", lambda: ("last begins",) in board.told, timeout=30)
    assert rival.holder == ""
    board.open_gate("end")
    assert process.stop() == 0
    told = ["sync begins", "written", "written", "last begins", "last is refused"]
    assert [row[0] for row in board.told] == told
    assert process.log.find("the lease default/web is released") is not None


def test_a_process_that_loses_the_lease_while_it_ends_leaves_its_calls(
    bundle, controller, rival, board, config_map
) -> None:
    """A call that takes its time after SIGTERM does not go on for 25 s beside those of a new leader."""
    bundle.write("manifest.yaml", SPEC % ", leaseDuration: 4s, renewDeadline: 3s")
    bundle.write("code.py", LONG_CALLS.replace("async def seen", "async def unused") + "\ndef seen(): pass\n")
    process: ControllerUnderTest = controller(bundle.path, objects=[config_map("a", v="1")])
    until("the call runs", lambda: ("sync begins",) in board.told, timeout=30)
    process.runtime.stop()
    until("it has heard of it", lambda: _stops(process), timeout=30)
    rival.takes()
    assert process.stop(timeout=20) == 1
    assert process.log.find("what runs has not ended within 1 s") is not None


def _stops(process: ControllerUnderTest) -> bool:
    election = process.status().leader_election
    return election is not None and election.state == "Stopping"


def test_a_process_that_lacks_a_right_ends_at_once(bundle, controller, sandbox) -> None:
    """It does not wait for caches that can't be filled: a kubelet would kill it before."""
    sandbox.faults.refuse(403, Match(resource="configmaps"), message="configmaps is forbidden")
    process: ControllerUnderTest = controller(bundle.path)
    until("the fault is known", lambda: process.log.find("configmaps is forbidden") is not None)
    began = time.monotonic()
    assert process.stop() == 0
    assert time.monotonic() - began < 50.0  # and not warmTimeout, which is a minute
    assert sandbox.ledger.count("create", resource="leases") == 0


def test_hooks_of_a_follower_read_and_do_not_write(bundle, follow, sandbox, rival, board) -> None:
    """`declctl_startup` is called in each process, before the election: its write is refused, and counted.

    A follower that stops ends at once, with 0, and the leader notices nothing.
    """
    bundle.write("code.py", CODE + STARTUP)
    bundle.edit(
        "manifest.yaml", "  handlers:", '  lifecycle: {startup: [{entryPoint: "code:begin"}]}\n  handlers:'
    )
    process = follow()
    assert [row[0] for row in board.told] == ["refused"]
    election = process.status().leader_election
    assert election is not None
    assert election.refused_writes == 1
    assert sandbox.objects("ConfigMap", "default") == []
    assert process.stop() == 0
    assert rival.holder == OTHER
    assert sandbox.ledger.count("update", resource="leases") == 0


STARTUP = """
from declctl.errors import NotLeader

async def begin(ctx):
    metadata = {"name": "x", "namespace": "default"}
    try:
        await ctx.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata})
    except NotLeader as refused:
        tell("refused", str(refused))
"""


@pytest.mark.thorough
def test_schedules_of_a_follower_do_not_fire(bundle, follow, rival, board) -> None:
    """Times while another process leads belong to that process; after the takeover they begin anew."""
    bundle.write("code.py", CODE + '\ndef pulse(schedule):\n    tell("pulse", schedule.time)\n')
    bundle.edit(
        "manifest.yaml",
        "  leader",
        '  schedules: [{name: pulse, every: 1s, entryPoint: "code:pulse"}]\n  leader',
    )
    process = follow()
    assert process.status().schedules[0].next_run is None
    ends = process.clock.now() + timedelta(seconds=SHORT)
    take_over(process, rival)
    process.advance(1)
    assert board.told[0][1] > ends
    assert process.status().schedules[0].skipped == 0
