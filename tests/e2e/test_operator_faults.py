"""The operator of examples/09 on bad days: whatever fails, nothing is stuck, and all is as declared."""

import json
from pathlib import Path

import clusters
import operators
from clusters import Cluster, drop_namespace
from front import front
from operators import Operator
from processes import Declctl, run
from waiting import until

OBJECTS = 50
SHARE = 0.3  # of the writes that are answered 409 or 500
LONG = 80.0  # seconds that a step may take on a busy machine
QUIET = 5.0  # seconds without a write and without a call
ELECTION = (
    "{{enabled: true, namespace: {namespace}, leaseDuration: 4s, renewDeadline: 3s, retryPeriod: 500ms}}"
)


def test_nothing_is_stuck_whatever_fails(
    operator: Operator, cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    """50 objects: writes fail, the server restarts, code changes, objects and a namespace are deleted."""
    other = clusters.new_namespace(cluster)
    places = [namespace if number % 5 else other for number in range(OBJECTS)]
    names = [f"cache-{number}" for number in range(OBJECTS)]
    bundle = operators.bundle(tmp_path, retry="{initialBackoff: 50ms, maxBackoff: 500ms}")
    with front(cluster.rest) as between:
        between.harm_writes(SHARE)
        with Declctl(bundle, kubeconfig=between.kubeconfig(tmp_path)) as declctl:
            declctl.wait_until_synced()
            for name, place in zip(names, places, strict=True):
                operator.create(name, place, size=1)

            # The server goes while the first objects are worked on, and comes back.
            until("some are made", lambda: len(operator.replicas(namespace)) >= 5, seconds=LONG)
            cluster.outage()
            for name, place in zip(names, places, strict=True):
                operator.patch(name, place, size=2)
            wanted = _by_place(names, places)
            for place, members in wanted.items():
                every = dict.fromkeys(members, 2)
                until("all are as declared", lambda p=place, e=every: operator.replicas(p) == e, seconds=LONG)
            until(
                "all have an entry",
                lambda: set(operator.entries()) == {f"{p}.{n}" for n, p in zip(names, places, strict=True)},
                seconds=LONG,
            )

            # Half of a namespace goes while the code changes.
            gone = wanted[namespace][::2]
            for name in gone:
                operator.delete(name, namespace)
            code = bundle / "memcached.py"
            code.write_text(
                code.read_text("utf-8").replace(
                    'print(f"{request.key}: out', 'print(f"{request.key}: now out'
                )
            )
            declctl.wait_for_generation(2)
            left = [name for name in wanted[namespace] if name not in gone]
            until("they are gone", lambda: set(operator.observed(namespace)) == set(left), seconds=LONG)
            if cluster.has_controllers:
                until(
                    "their Deployments, too",
                    lambda: operator.replicas(namespace) == dict.fromkeys(left, 2),
                    seconds=LONG,
                )

            # The other namespace goes, with all that is in it.
            drop_namespace(cluster, other)
            entries = {f"{namespace}.{name}" for name in left}
            until("their entries are gone", lambda: set(operator.entries()) == entries, seconds=LONG)
            assert sum(between.harmed.values()) > OBJECTS, between.harmed
            assert len(between.harmed) == 3, "each kind of harm was done"

            # At rest nothing is called, and nothing is written.
            between.harm_writes(0.0)
            until(
                "all statuses are written", lambda: all(operator.observed(namespace).values()), seconds=LONG
            )
            declctl.wait_until_quiet(QUIET, seconds=LONG)
            status = declctl.status()
            assert all(not handler["queued"] and not handler["running"] for handler in status["handlers"])
            assert status["ready"], status["conditions"]
            assert declctl.stop() == 0

    # The operator is uninstalled, and its objects go without it.
    options = (str(bundle), "--kubeconfig", str(cluster.kubeconfig))
    released = run("finalizers", "release", "--yes", *options)
    assert (released.returncode, len(released.stdout.splitlines())) == (0, len(left)), released.stderr
    shown = run("finalizers", "list", "-o", "json", *options)
    assert json.loads(shown.stdout) == {"objects": []}
    for name in left:
        operator.delete(name, namespace)
    until("all are gone", lambda: operator.all() == [], seconds=LONG)


def test_a_leader_that_stops_halfway_leaves_nothing_half_done(
    operator: Operator, cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    """SIGSTOP while 50 objects are made: the follower goes on, and the old leader ends."""
    names = [f"cache-{number}" for number in range(OBJECTS)]
    gone, left = names[::5], [name for number, name in enumerate(names) if number % 5]
    bundle = operators.bundle(tmp_path, election=ELECTION.format(namespace=namespace))
    with Declctl(bundle, kubeconfig=cluster.kubeconfig) as one:
        until("the first one leads", lambda: one.status()["leader"], seconds=LONG)
        with Declctl(bundle, kubeconfig=cluster.kubeconfig) as two:
            until("the other one follows", lambda: _election(two) == "Following", seconds=LONG)
            for name in names:
                operator.create(name, namespace, size=1)
            until("some are made", lambda: len(operator.replicas(namespace)) >= 5, seconds=LONG)
            one.pause()
            for name in left:
                operator.patch(name, namespace, size=2)
            for name in gone:
                operator.delete(name, namespace)
            until("the other one leads", lambda: _election(two) == "Leading", seconds=LONG)
            until("they are gone", lambda: set(operator.observed(namespace)) == set(left), seconds=LONG)
            one.resume()
            assert one.wait() == 1, "it has lost the lease"

            every = dict.fromkeys(left, 2)
            # Without a garbage collector the Deployments of the deleted ones stay.
            until(
                "all are as declared",
                lambda: {k: v for k, v in operator.replicas(namespace).items() if k in every} == every,
                seconds=LONG,
            )
            until("all have an entry", lambda: len(operator.entries()) == len(left), seconds=LONG)
            until(
                "all statuses are written", lambda: all(operator.observed(namespace).values()), seconds=LONG
            )
            two.wait_until_quiet(QUIET, seconds=LONG)
            assert two.status()["ready"], two.status()["conditions"]
            for name in left:
                operator.delete(name, namespace)
            until("all are finalized", lambda: operator.all() == [], seconds=LONG)
            assert operator.entries() == {}
            assert two.stop() == 0


def _election(process: Declctl) -> str:
    return process.status()["leaderElection"]["state"]


def _by_place(names: list[str], places: list[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, place in zip(names, places, strict=True):
        found.setdefault(place, []).append(name)
    return found
