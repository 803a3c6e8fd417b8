"""The rules of `declctl generate alerts`, on series that controllers have made: which alerts fire."""

import shutil
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import CollectorRegistry

from declctl.admin.metrics import StatusCollector
from declctl.cli.generate.alerts import rule_groups
from declctl.sandbox.faults import Match
from declctl.testing import ControllerUnderTest, until

pytestmark = pytest.mark.thorough
CODE = """
import itertools
import declctl
from blackboard import wait
from declctl import Requeue, Terminal

times = itertools.count()

def works(change): pass
def comes_again(request): return Requeue(after=600)
def hangs(obj): wait("gate", 600) if obj.name == "odd" else None
def hangs_too(request): wait("gate", 600) if request.name == "odd" else None
def keys(request): pass
def refuses(request): raise Terminal("the typo of a user")
def raises(obj):
    if obj.name.startswith("odd"):
        raise ValueError("no")

@declctl.hookimpl
def declctl_finalize(request):
    raise ValueError("never")

async def stamps(request, ctx):
    if request.name == "odd":
        data = {"seen": str(next(times))}
        await ctx.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "odd"}, "data": data})
"""
RECONCILE = "mode: Reconcile"
MINUTES = 40  # longer than any alert waits


class Scraper:
    """Prometheus: it scrapes a controller each minute, and `promtool` judges the alerts on what it has."""

    def __init__(self, runs: ControllerUnderTest) -> None:
        self.runs: ControllerUnderTest | None = runs  # None: no process answers
        self._series: dict[str, list[str]] = {}  # by name with labels: the values in promtool's notation
        self._scrapes = 0

    def minutes(self, number: int, *, each: Callable[[], object] = lambda: None) -> None:
        """Let time pass, with something that happens in `each` minute."""
        for _ in range(number):
            if self.runs is not None:
                self.runs.advance(60)
            each()
            self._scrape()

    def _scrape(self) -> None:
        registry = CollectorRegistry()
        if self.runs is not None:
            registry.register(StatusCollector(self.runs.status, {}))
        found: dict[str, str] = {}
        for family in text_string_to_metric_families(generate_latest(registry).decode()):
            for sample in family.samples:
                labels = {"job": "guard", "instance": "pod", **sample.labels}
                written = ",".join(f'{name}="{value}"' for name, value in labels.items())
                found[f"{sample.name}{{{written}}}"] = str(sample.value)
        for name in found.keys() | self._series.keys():
            values = self._series.setdefault(name, ["_"] * self._scrapes)
            # A scrape without a series of the one before ends it.
            ended = "_" if values[-1:] in ([], ["_"], ["stale"]) else "stale"
            values.append(found.get(name, ended))
        self._scrapes += 1

    def check(self, folder: Path, *alerts: str) -> None:
        """Assert that these alerts have fired at some time, and no others; each with its handler, if any."""
        (folder / "rules.yaml").write_text(yaml.safe_dump(rule_groups("guard")), "utf-8")
        expected: list[dict[str, Any]] = []
        for name, _, handler in (each.partition(" ") for each in alerts):
            more = f', handler="{handler}"' if handler else ""
            expected.append({"labels": f'{{alertname="{name}"{more}}}', "value": 1})
        fired = {
            "expr": 'group by (alertname, handler) (count_over_time(ALERTS{alertstate="firing"}[1d]))',
            "eval_time": f"{self._scrapes - 1}m",
            "exp_samples": expected,
        }
        series = [{"series": name, "values": " ".join(each)} for name, each in self._series.items()]
        test = {"interval": "1m", "input_series": series, "promql_expr_test": [fired]}
        document = {"rule_files": ["rules.yaml"], "evaluation_interval": "1m", "tests": [test]}
        (folder / "test.yaml").write_text(yaml.safe_dump(document), "utf-8")
        promtool("test", "rules", str(folder / "test.yaml"))


def promtool(*words: str) -> None:
    """Run it, and have it succeed. Without it, the test is skipped."""
    found = shutil.which("promtool")
    if found is None:
        pytest.skip("needs promtool: `make tools` builds it with Go, and PATH has to have its folder")
    ended = subprocess.run([found, *words], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.fixture
def prometheus(rig, config_map) -> Callable[..., Scraper]:
    """Starts handlers, each with its options, on three ConfigMaps, and scrapes them at rest."""

    def start(*handlers: tuple[str, str]) -> Scraper:
        for name, rest in handlers:
            rig.handler(name.replace("_", "-"), entry=f"handlers:{name}", rest=rest)
        runs = rig.run(CODE, objects=[config_map(f"m{number}") for number in range(3)])
        runs.wait_idle()
        found = Scraper(runs)
        found.minutes(10)
        return found

    return start


def test_a_healthy_controller_fires_nothing(prometheus, rig, config_map, tmp_path) -> None:
    """At rest, with a change each minute, and while it is started anew; a file of rules has to be one."""
    numbers = iter(range(MINUTES))

    def change() -> None:
        rig.runs.sandbox.create(config_map(f"new{next(numbers)}"))
        rig.runs.wait_idle()

    scraper = prometheus(("works", ""), ("keys", RECONCILE))
    scraper.minutes(MINUTES, each=change)
    scraper.runs = None
    scraper.minutes(3)
    scraper.runs = rig.runs
    scraper.minutes(MINUTES)
    scraper.check(tmp_path)
    promtool("check", "rules", str(tmp_path / "rules.yaml"))


def test_keys_that_wait_for_their_requeue_fire_nothing(prometheus, rig, config_map, tmp_path) -> None:
    """A thousand of them, and more and more: no change waits."""
    scraper = prometheus(("comes_again", RECONCILE))
    numbers = iter(range(1000))

    def more() -> None:
        for _ in range(40):
            rig.runs.sandbox.create(config_map(f"new{(last := next(numbers))}"))
        until("they are handled", lambda: rig.runs.handler("comes-again").succeeded > last)

    scraper.minutes(25, each=more)
    scraper.minutes(MINUTES)
    scraper.check(tmp_path)


@pytest.mark.parametrize(
    ("handler", "rest", "odd", "fires"),
    [
        ("hangs", "", 1, ["DeclctlCallHangs hangs"]),
        ("hangs", "timeout: 100ms", 1, ["DeclctlCallHangs hangs"]),
        ("hangs_too", RECONCILE, 1, ["DeclctlCallHangs hangs-too"]),
        ("raises", "", 1, ["DeclctlKeysFail raises"]),
        ("raises", "", 5, ["DeclctlHandlerFails raises"]),
        ("raises", "retry: {maxAttempts: 1}, onFailure: DeadLetter", 1, ["DeclctlDeadLetters raises"]),
        ("keys", f"{RECONCILE}, finalizer: example.dev/odd", 1, ["DeclctlKeysFail keys"]),
        ("refuses", RECONCILE, 1, []),
        ("stamps", RECONCILE, 1, ["DeclctlWriteLoop"]),
    ],
)
def test_a_handler_that_does_not_do_its_work_fires_one_alert(
    prometheus, rig, config_map, tmp_path, handler, rest, odd, fires
) -> None:
    """The alert of its trouble, and no other; a reconciler's Terminal is none."""
    scraper = prometheus((handler, rest), ("works", ""))
    name, before = handler.replace("_", "-"), rig.runs.handler(handler.replace("_", "-"))
    for number in range(odd):
        rig.runs.sandbox.create(config_map("odd" + str(number or "")))
    until("it is called", lambda: rig.runs.handler(name).delivered >= before.delivered + odd)
    if "finalizer" in rest:
        rig.runs.wait_idle()
        rig.runs.sandbox.delete("ConfigMap", "odd")
        until("it fails", lambda: rig.runs.handler(name).retried)
    reason = "WriteLoop" if handler == "stamps" else "AsExpected"
    # Each jump of the clock is a minute without writes, after which the loop has to be found again.
    found = partial(until, "it is found", lambda: rig.runs.condition("Degraded").reason == reason)
    scraper.minutes(MINUTES, each=found)
    rig.board.open_gate("gate")
    scraper.check(tmp_path, *fires)


def test_a_refused_edit_and_a_lost_right_fire(prometheus, rig, config_map, tmp_path) -> None:
    """As the edit is not live, and changes are not received."""
    scraper = prometheus(("works", ""))
    assert rig.reload("def works(:\n").result == "Refused"
    scraper.minutes(MINUTES)
    scraper.check(tmp_path, "DeclctlEditNotLive")
    assert rig.reload(CODE).result == "Unchanged"
    rig.runs.sandbox.faults.refuse(403, Match(resource="configmaps"), message="configmaps is forbidden")
    rig.runs.sandbox.faults.cut_watches()
    scraper.minutes(2)
    until("it is refused", lambda: rig.runs.condition("Degraded").reason == "ResourceError")
    scraper.minutes(MINUTES)
    scraper.check(tmp_path, "DeclctlEditNotLive", "DeclctlDegraded")


SHARED = """
apiVersion: declctl.dev/v1alpha1
kind: Controller
metadata: {name: web}
spec:
  resources: [{name: maps, apiVersion: v1, kind: ConfigMap}]
  handlers: [{name: works, resourceRef: {name: maps}, entryPoint: "handlers:works"}]
  sharding: {slots: 4, namespace: default}
"""


def test_slots_that_no_process_handles_fire(bundle_dir, controller, board, config_map, tmp_path) -> None:
    """A process that may not renew its Leases any more loses its slots, says so, and handles nothing."""
    bundle_dir.write("manifest.yaml", SHARED)
    bundle_dir.write("handlers.py", CODE)
    runs: ControllerUnderTest = controller(bundle_dir.path, objects=[config_map("a")])
    scraper = Scraper(runs)
    scraper.minutes(MINUTES)
    scraper.check(tmp_path)
    runs.sandbox.faults.refuse(403, Match(resource="leases"), message="leases is forbidden")
    runs.advance(60)
    until("it is said", lambda: runs.condition("Degraded").reason == "SlotsNotShared")
    scraper.minutes(MINUTES)
    scraper.check(tmp_path, "DeclctlSlotsUnhandled", "DeclctlDegraded")
    sharding = runs.status().sharding
    assert (sharding.held, sharding.handled, sharding.lost) == (0, 0, 4)
