"""Two processes of one controller: the leader is killed, stopped or told to end, and the other one acts."""

import signal
import time
from pathlib import Path

import pytest
from clusters import Cluster
from processes import Declctl
from rest import pod
from waiting import until

from declctl.testing import BundleDir

LEASE, RENEWAL, RETRY = 8.0, 6.0, 0.5  # seconds; a busy machine may be silent for some of them
MANIFEST = f"""\
apiVersion: declctl.dev/v1alpha1
kind: Controller
metadata: {{{{name: elected}}}}
spec:
  namespaces: [{{namespace}}]
  resources: [{{{{name: pods, apiVersion: v1, kind: Pod}}}}]
  handlers:
    - {{{{name: write, mode: Reconcile, resourceRef: {{{{name: pods}}}}, entryPoint: "code:write"}}}}
  leaderElection:
    enabled: true
    leaseDuration: {LEASE:g}s
    renewDeadline: {RENEWAL:g}s
    retryPeriod: {RETRY * 1000:g}ms
    namespace: {{namespace}}
"""
CODE = """\
import os
import time
from pathlib import Path

from declctl.errors import NotLeader

NAME, GATE = os.environ["NAME"], Path(os.environ["GATE"])

def write(request, ctx):
    if request.obj is None:
        print(f"gone {request.name}")
        return
    version = request.obj.labels.get("version", "1")
    print(f"sees {request.name} {version}")
    while not GATE.exists():  # a test stops the process here, between two writes
        time.sleep(0.02)
    data = {"by": NAME, "version": version}
    metadata = {"name": f"of-{request.name}"}
    try:
        ctx.sync.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data})
    except NotLeader as refused:
        print(f"refused {refused}")
        raise
    print(f"wrote {request.name} {version}")
"""

# The leader writes as fast as it can, on 40 ways at once, until an index function blocks its loop.
BUSY_MANIFEST = MANIFEST.replace(
    "kind: Pod}}", 'kind: Pod, indexers: [{{name: by, entryPoint: "code:block"}}]}}'
).replace("  leaderElection:", "  writes: {{qps: 0}}\n  leaderElection:")
BUSY_CODE = """\
import asyncio
import os
import time
from pathlib import Path

NAME, GATE = os.environ["NAME"], Path(os.environ["GATE"])

def block(obj):
    if obj.labels.get("blocks") == NAME and not GATE.exists():
        GATE.touch()
        time.sleep(SECONDS)
    return []

async def apply(ctx, name):
    metadata, data = {"name": name}, {"at": str(time.time_ns())}
    await ctx.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data})

async def apply_for_ever(ctx, name):
    while True:
        await apply(ctx, name)

async def write(request, ctx):
    if NAME == "one":
        await asyncio.gather(*(apply_for_ever(ctx, f"one-{n}") for n in range(40)))
    await apply(ctx, "two")
    print("wrote two")
    await asyncio.sleep(3600)  # once, so that its version tells when that was
""".replace("SECONDS", f"{LEASE + RENEWAL:g}")

THREAD = 'entryPoint: "code:write"'
# The handler in the process that is stopped or blocked, or in one of its own, which is not.
both_ways = pytest.mark.parametrize(
    "way", [THREAD, f"{THREAD}, isolation: {{{{mode: Process}}}}"], ids=["thread", "process"]
)


class Pair:
    """Two processes over one cluster. `gate`: while this file is missing, no call goes on to its write."""

    def __init__(
        self, cluster: Cluster, folder: Path, namespace: str, *, manifest: str = MANIFEST, code: str = CODE
    ) -> None:
        self.cluster = cluster
        self.namespace = namespace
        self.gate = folder / "gate"
        files = {"manifest.yaml": manifest.format(namespace=namespace), "code.py": code}
        self._bundle = BundleDir(folder / "bundle", files)

    def start(self, name: str) -> Declctl:
        """A process of this name."""
        env = {"NAME": name, "GATE": str(self.gate)}
        return Declctl(self._bundle.path, kubeconfig=self.cluster.kubeconfig, env=env)

    def child(self, name: str) -> dict[str, str]:
        """The data of the object that was written for a pod."""
        return self.cluster.rest.get("configmaps", f"of-{name}", self.namespace)["data"]

    @property
    def holder(self) -> str:
        """Who holds the lease."""
        lease = self.cluster.rest.get("leases", "elected", self.namespace)
        return lease["spec"].get("holderIdentity") or ""


@pytest.fixture
def pair(cluster: Cluster, tmp_path: Path, namespace: str) -> Pair:
    return Pair(cluster, tmp_path, namespace)


def _follows(process: Declctl) -> bool:
    status = process.status()
    return status["ready"] and status["leaderElection"]["state"] == "Following"


@pytest.mark.scenario
@pytest.mark.parametrize("how", [pytest.param(signal.SIGKILL, marks=pytest.mark.thorough), signal.SIGTERM])
def test_the_follower_takes_over_with_what_the_leader_has_left(pair: Pair, how: signal.Signals) -> None:
    """Within the lease and two seconds, or at once after a SIGTERM; no LIST but those of one object."""
    pair.gate.touch()
    rest, namespace = pair.cluster.rest, pair.namespace
    rest.create(pod("a", namespace))
    rest.create(pod("b", namespace))
    with pair.start("one") as one:
        until("the leader has acted", lambda: {"wrote a 1", "wrote b 1"} <= set(one.out), seconds=60)
        with pair.start("two") as two:
            until("the other one follows", lambda: _follows(two), seconds=60)
            assert (one.status()["leader"], two.status()["leader"], two.out) == (True, False, [])
            lists = pair.cluster.asked("list", "pods")
            rest.patch("pods", "a", {"metadata": {"labels": {"version": "2"}}}, namespace)
            until("the leader has seen it", lambda: "wrote a 2" in one.out)
            rest.delete("pods", "b", namespace)
            began = time.monotonic()
            if how is signal.SIGTERM:
                assert one.stop() == 0
                assert any("is released" in line for line in one.err)
            else:
                one.kill()
            until("the other one acts", lambda: "wrote a 2" in two.out, seconds=60)
            took = time.monotonic() - began
            assert "sees a 1" not in two.out
            assert not any(" b" in line for line in two.out), two.out
            assert pair.child("a") == {"by": "two", "version": "2"}
            assert pair.cluster.asked("list", "pods") == lists
            assert two.resource("pods")["relists"] == 0
            # The follower sees the last renewal up to 2.2 retry periods late. The rest is for the machine.
            print(f"{pair.cluster.name}, {how.name}: acts after {took:.2f} s")
            assert took < (0 if how is signal.SIGTERM else LEASE) + 2.2 * RETRY + 2 + 25
            assert two.stop() == 0
            assert pair.holder == ""


@both_ways
def test_a_leader_that_was_stopped_for_a_while_writes_nothing_any_more(
    cluster: Cluster, tmp_path: Path, namespace: str, way: str
) -> None:
    """SIGSTOP in the middle of a call, a takeover, SIGCONT: its write is refused, and it exits with 1."""
    pair = Pair(cluster, tmp_path, namespace, manifest=MANIFEST.replace(THREAD, way))
    rest = cluster.rest
    rest.create(pod("a", namespace))
    with pair.start("one") as one:
        until("the leader is in a call", lambda: "sees a 1" in one.out, seconds=60)
        with pair.start("two") as two:
            until("the other one follows", lambda: _follows(two), seconds=60)
            one.pause()
            until("the other one leads", lambda: "sees a 1" in two.out, seconds=60)
            rest.patch("pods", "a", {"metadata": {"labels": {"version": "2"}}}, namespace)
            pair.gate.touch()
            until("the new leader has acted", lambda: "wrote a 2" in two.out, seconds=60)
            one.resume()
            assert one.wait() == 1
            # Its call may have come to its write before the process ended, or not.
            assert [line for line in one.out if line.startswith("wrote")] == []
            assert any("is lost" in line for line in one.err), one.err
            assert pair.child("a") == {"by": "two", "version": "2"}
            assert two.status()["leader"]
            assert two.stop() == 0


@both_ways
def test_a_leader_whose_loop_was_blocked_writes_nothing_late(
    cluster: Cluster, tmp_path: Path, namespace: str, way: str
) -> None:
    """Writes that had a connection when an index function began to compute for seconds are not sent after it.

    Versions of the server are the witness: the old leader's last write comes before the new one's first.
    """
    pair = Pair(cluster, tmp_path, namespace, manifest=BUSY_MANIFEST.replace(THREAD, way), code=BUSY_CODE)
    rest = cluster.rest
    rest.create(pod("a", namespace))
    with pair.start("one") as one:
        until("the leader writes", lambda: rest.is_there("configmaps", "one-39", namespace), seconds=60)
        with pair.start("two") as two:
            until("the other one follows", lambda: _follows(two), seconds=60)
            rest.patch("pods", "a", {"metadata": {"labels": {"blocks": "one"}}}, namespace)
            until("the new leader has acted", lambda: "wrote two" in two.out, seconds=60)
            assert one.wait() == 1
            first = int(rest.get("configmaps", "two", namespace)["metadata"]["resourceVersion"])
            late = [
                name
                for name in (f"one-{number}" for number in range(40))
                if int(rest.get("configmaps", name, namespace)["metadata"]["resourceVersion"]) > first
            ]
            assert late == []
            two.kill()
