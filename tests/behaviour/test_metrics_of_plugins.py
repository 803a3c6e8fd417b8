"""Metrics that handler files and plugins add (`declctl_metrics`), over edits, refusals and rollbacks."""

import gc
import importlib
import sys
from pathlib import Path

import pytest

from declctl.runtime.checking.check import check
from declctl.testing import until

CODE = """
import declctl
from prometheus_client import Counter, Gauge, Histogram

SEEN = Counter("team_seen", "Changes.", ["type"], registry=None)
SIZES = Histogram("team_sizes", "Sizes.", buckets=(1.0, 10.0), registry=None)
NAMES = Gauge("team_names", "Names.", registry=None)


@declctl.hookimpl
def declctl_metrics(registry):
    for each in (SEEN, SIZES, NAMES):
        registry.register(each)


def tell(change, obj):
    SEEN.labels(str(change.type)).inc()
    SIZES.observe(len(obj.get("data", "")))
    NAMES.set(1)


def other(change): ...
"""
ADDED = 'team_seen_total{type="Added"}'


def test_counters_go_on_over_edits_that_leave_the_code_alone(rig, config_map) -> None:
    """Each edit imports the files anew; what they count does not fall, and no name is there twice.

    Other code begins at zero, as after a restart (`rate()` knows that), and its old metrics are gone.
    """
    rig.handler("tell")
    runs = rig.run(CODE, objects=[config_map("a")])
    runs.wait_idle()
    assert runs.metrics()[ADDED] == 1
    rig.handler("other")
    rig.apply()
    assert runs.reload(force=True).result == "Applied"
    assert runs.metrics()[ADDED] == 1
    runs.sandbox.create(config_map("b", x="1", y="2"))
    runs.wait_idle()
    shown = runs.metrics()
    assert shown[ADDED] == 2
    assert shown["team_sizes_count"] == 2
    assert shown['team_sizes_bucket{le="1.0"}'] == 1
    until("the old code is gone", lambda: runs.status().generations_alive == 1)
    assert runs.metrics() == shown
    rig.apply(CODE.replace("team_names", "team_words"))
    shown = runs.metrics()
    assert ADDED not in shown
    assert "team_words" in shown
    assert "team_names" not in shown
    rig.apply("def tell(change): ...\ndef other(change): ...\n")
    assert runs.metrics() == {}


@pytest.mark.parametrize(
    ("added", "words"),
    [
        (
            'Counter("declctl_reloads", "x", registry=registry)',
            "the metric declctl_reloads is one of declctl's",
        ),
        ('Counter("team_seen", "x", registry=registry)', "team_seen is registered twice"),
        ("1 / 0", "declctl_metrics of handlers raised ZeroDivisionError"),
    ],
)
@pytest.mark.parametrize("preflight", ["On", "Off"])
def test_a_bad_metric_is_refused_at_its_line(rig, config_map, added: str, words: str, preflight: str) -> None:
    """Before the commit, with and without a pre-flight: the old code runs on, with its metrics."""
    rig.reload_policy = f"settle: 20ms, preflight: '{preflight}'"
    rig.handler("tell")
    runs = rig.run(CODE, objects=[config_map("a")])
    runs.wait_idle()
    bad = CODE.replace("        registry.register(each)\n", f"        registry.register(each)\n    {added}\n")
    rig.write(bad)
    outcome = runs.reload()
    assert (outcome.result, outcome.generation) == ("Refused", 1)
    (fault,) = outcome.diagnostics
    line = next(number for number, text in enumerate(bad.strip().splitlines(), 1) if added in text)
    assert (fault.code, Path(fault.file).name, fault.line) == ("DCL110", "handlers.py", line)
    assert words in fault.message
    runs.sandbox.create(config_map("b"))
    runs.wait_idle()
    assert runs.metrics()[ADDED] == 2


def test_validate_finds_a_bad_metric(rig) -> None:
    """Before anything runs."""
    rig.reload_policy = "settle: 20ms"
    rig.handler("tell")
    path = rig.write(CODE.replace("team_seen", "workqueue_seen"))
    (fault,) = check(str(path)).errors
    assert (fault.code, fault.suggestion) == ("DCL110", "begin it with the name of your plugin")


def test_commands_in_a_handler_file_are_a_warning(rig) -> None:
    """They would never be there."""
    rig.reload_policy = "settle: 20ms"
    rig.handler("tell")
    path = rig.write(f"{CODE}\n@declctl.hookimpl\ndef declctl_commands(app): ...\n")
    (warning,) = check(str(path)).diagnostics
    assert (warning.severity, warning.code) == ("warning", "DCL047")
    assert "declctl_commands, which is never called there" in warning.message


PLUGIN = """
import declctl
from prometheus_client import Counter

calls = 0


@declctl.hookimpl
def declctl_metrics(registry):
    global SEEN, calls
    calls += 1
    SEEN = Counter("declctl_tester_seen", "Changes.", registry=registry)


@declctl.hookimpl
def declctl_event(ctx):
    SEEN.inc()
"""
MANIFEST = """
apiVersion: declctl.dev/v1alpha1
kind: Controller
metadata: {name: metrics}
spec:
  plugins: [PLUGINS]
  resources: [{name: maps, apiVersion: v1, kind: ConfigMap}]
  handlers: [HANDLERS]
"""
HANDLER = "{name: it, resourceRef: {name: maps}, pluginRef: {name: tester}}"


def manifest(*plugins: str, handlers: str = HANDLER) -> str:
    """A manifest with these plugins."""
    return MANIFEST.replace("PLUGINS", ", ".join(plugins)).replace("HANDLERS", handlers)


@pytest.mark.thorough
def test_an_installed_plugin_keeps_its_metrics(install, bundle_dir, controller, config_map) -> None:
    """Its hook is called once, though it makes its metrics there; edits of its config lose no count."""
    install("tester", PLUGIN)
    path = bundle_dir.write("manifest.yaml", manifest("{name: tester, config: {level: 1}}"))
    runs = controller(path, objects=[config_map("a")])
    runs.wait_ready()
    runs.wait_idle()
    bundle_dir.write("manifest.yaml", manifest("{name: tester, config: {level: 2}}"))
    assert runs.reload().result == "Applied"
    runs.sandbox.create(config_map("b"))
    runs.wait_idle()
    until("the old generation is gone", lambda: runs.status().generations_alive == 1)
    assert runs.metrics() == {"declctl_tester_seen_total": 2}
    assert sys.modules["dc_tester"].calls == 1
    bundle_dir.write("manifest.yaml", manifest(handlers=""))
    assert runs.reload().result == "Applied"
    assert runs.metrics() == {}
    until("the plugin is gone", lambda: runs.status().generations_alive == 1)
    bundle_dir.write("manifest.yaml", manifest("{name: tester}"))
    assert runs.reload().result == "Applied"
    runs.wait_idle()
    assert runs.metrics() == {"declctl_tester_seen_total": 2}  # both objects were Added again
    assert sys.modules["dc_tester"].calls == 2


def test_a_class_counts_on(install, bundle_dir, controller, config_map) -> None:
    """It is made anew for each generation; its counters go on, as its version is the same."""
    code = """
import declctl
from prometheus_client import Counter


class Plugin:
    @declctl.hookimpl
    def declctl_metrics(self, registry):
        self.seen = Counter("seen", "Changes.", registry=registry)

    @declctl.hookimpl
    def declctl_event(self):
        self.seen.inc()
"""
    info = install("tester", code) / "dc_tester-1.0.dist-info"
    (info / "entry_points.txt").write_text("[declctl]\ntester = dc_tester:Plugin\n")
    importlib.invalidate_caches()
    path = bundle_dir.write("manifest.yaml", manifest("{name: tester}"))
    runs = controller(path, objects=[config_map("a")])
    runs.wait_ready()
    runs.wait_idle()
    assert runs.reload(force=True).result == "Applied"
    runs.sandbox.create(config_map("b"))
    runs.wait_idle()
    assert runs.metrics() == {"seen_total": 2}


def test_a_class_a_module_and_two_functions_have_metrics(rig, config_map) -> None:
    """All hooks of the files are called, each once, whatever an entry point names."""
    rig.handler("tell")
    rig.handler("other")
    rig.handler("guard", entry="handlers:Guard")
    code = """
class Guard:
    @declctl.hookimpl
    def declctl_metrics(self, registry):
        self.guarded = Counter("team_guarded", "Changes.", registry=registry)

    @declctl.hookimpl
    def declctl_event(self):
        self.guarded.inc()


@declctl.hookimpl(specname="declctl_metrics")
def more_metrics(registry):
    Gauge("team_limit", "A limit.", registry=registry).set(3)
"""
    runs = rig.run(CODE + code, objects=[config_map("a")])
    runs.wait_idle()
    shown = runs.metrics()
    assert (shown[ADDED], shown["team_guarded_total"], shown["team_limit"]) == (1, 1, 3)
    assert runs.runtime.plugin_metrics.owners == ("handlers:Guard", "handlers")


COLLECTOR = """
import weakref

import declctl
from blackboard import tell as note
from prometheus_client.core import GaugeMetricFamily


class Sizes:
    def __init__(self):
        self.last = 0

    def collect(self):
        EXTRA
        yield GaugeMetricFamily("team_last", "The last size.", value=self.last)


sizes = Sizes()
note("sizes", weakref.ref(sizes))


@declctl.hookimpl
def declctl_metrics(registry):
    registry.register(sizes)


def tell(obj):
    sizes.last = len(obj.get("data", ""))
"""


@pytest.mark.thorough
def test_collectors_of_old_code_are_freed(rig, config_map) -> None:
    """Scrapes keep nothing of a generation that is gone, whether it was scraped or not."""
    rig.handler("tell")
    runs = rig.run(COLLECTOR.replace("EXTRA", "pass"), objects=[config_map("a", x="1")])
    runs.wait_idle()
    assert runs.metrics() == {"team_last": 1}
    for number in range(3):
        rig.apply(COLLECTOR.replace("EXTRA", f"pass  # {number}"))
        assert runs.metrics() == {"team_last": 0}
    until("old generations are retired", lambda: runs.status().generations_alive == 1)

    def alive() -> int:
        gc.collect()
        return sum(made() is not None for _, made in rig.told("sizes"))

    until("the old collectors are freed", lambda: alive() == 1)
    assert len(rig.told("sizes")) == 4


def test_a_plugin_that_is_left_out_has_no_names(install, bundle_dir, controller, config_map) -> None:
    """Its hook has registered one, and raised: another plugin may have it."""
    install("twin", PLUGIN.replace("declctl_tester_seen", "seen"))
    broken = PLUGIN.replace("declctl_tester_seen", "seen").replace(
        "registry=registry)", "registry=registry) / 0"
    )
    install("tester", broken)
    both = manifest(
        "{name: tester, onError: Disable}", "{name: twin}", handlers=HANDLER.replace("tester", "twin")
    )
    runs = controller(bundle_dir.write("manifest.yaml", both), objects=[config_map("a")])
    runs.wait_ready()
    runs.wait_idle()
    assert runs.metrics() == {"seen_total": 1}
    (line,) = [line for line in runs.log.events("warning") if "tester is disabled" in line]
    assert "declctl_metrics of tester raised TypeError" in line
