"""The status document, the conditions, and what a log keeps: the contract of `GET /status`."""

import asyncio
import json
from datetime import timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace

from declctl.informer import FakeControllerSource, InformerStatistics, SharedIndexInformer
from declctl.kit import ManualClock
from declctl.manifest import Diagnostic
from declctl.runtime.handling.handler_figures import percentiles
from declctl.runtime.reloading.changes import ImportSeconds, Outcome, Result
from declctl.runtime.reporting.reporter import ReloadHistory, resource_status
from declctl.runtime.reporting.status import Conditions, DecodingStatus, decoding_status
from declctl.testing import BundleDir, running
from tests.rooms.informer.shapes import fresh_projection, pod

TEXT = """
apiVersion: declctl.dev/v1alpha1
kind: Controller
metadata: {name: guard}
spec:
  resources:
    - {name: maps, apiVersion: v1, kind: ConfigMap}
  lifecycle: {}
"""


@pytest.mark.guarantee("G25")
@pytest.mark.client_go("Informer identity / metrics")
def test_the_status_of_a_running_controller_has_what_the_contract_names() -> None:
    """Every key that scripts may rely on, and the figures of every station of a watch, as JSON has them."""
    with running(TEXT, objects=[_config_map("a"), _config_map("b")]) as controller:
        controller.wait_idle()
        controller.wait_ready()
        document = controller.status().document()
    assert json.loads(json.dumps(document)) == document
    assert {"name", "generation", "bundleHash", "ready", "leader"} < set(document)
    assert {"conditions", "resources", "handlers"} < set(document)
    assert (document["name"], document["generation"], document["ready"]) == ("guard", 1, True)
    types = [c["type"] for c in document["conditions"]]
    assert types == ["Ready", "Reloaded", "Degraded", "HandlersHealthy"]
    assert set(document["conditions"][0]) == {"type", "status", "reason", "message", "lastTransitionTime"}
    (maps,) = document["resources"]
    assert set(maps) >= {
        "name", "synced", "objects", "bytes", "lists", "watches", "relists", "resourceVersion",
        "lastEventAge", "error",
    }  # fmt: skip
    assert (maps["synced"], maps["objects"], maps["relists"], maps["error"]) == (True, 2, 0, None)
    assert (maps["queued"], maps["skipped"], maps["slow"]) == (0, 0, 0)
    (watch,) = maps["informers"]
    assert "ConfigMap" in watch["name"]
    assert (watch["reflector"]["state"], watch["reflector"]["lists"]) == ("Watching", 1)
    assert "lastEventAt" not in watch["reflector"], "a moment on a clock of that process"
    assert (watch["controller"]["entries"], watch["controller"]["queued"]) == (2, 0)
    assert watch["controller"]["seconds"] >= 0
    assert (watch["processor"]["distributed"], watch["processor"]["faults"]) == (2, 0)
    assert watch["indexFaults"] == {}


def _config_map(name: str) -> dict:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "default"}}


def test_a_condition_keeps_its_time_while_it_holds(clock) -> None:
    """`lastTransitionTime` moves when the status changes, not when it is stated again."""
    conditions = Conditions(clock)
    assert conditions.set("Ready", holds=False, reason="Starting")
    first = conditions.get("Ready").last_transition_time
    clock.set(60)
    assert not conditions.set("Ready", holds=False, reason="NotSynced", message="pods")
    assert conditions.get("Ready").last_transition_time == first
    assert conditions.get("Ready").reason == "NotSynced"
    assert conditions.set("Ready", holds=True, reason="Synced")
    assert conditions.get("Ready").last_transition_time > first


def test_p95_is_what_all_but_the_slowest_twentieth_took() -> None:
    """A hundred calls, the five slowest are left out."""
    assert percentiles((), 0.95) == [0.0]
    assert percentiles(range(1, 101), 0.5, 0.95, 0.99) == [51, 96, 100]


@pytest.mark.guarantee("G25", "G21")
def test_an_outcome_is_one_line_and_one_document() -> None:
    """What `declctl reload` prints. A refused rollback is no refused reload; a stopping process says so."""
    refused = Outcome(Result.REFUSED, 6, "4f2c", reason="SyntaxError", message="handlers.py:1: no")
    assert refused.line == "reload refused, generation 6 goes on: handlers.py:1: no"
    assert Outcome(Result.UNCHANGED, 6, "4f2c").line == "generation 6: nothing changed"
    assert json.loads(json.dumps(refused.document()))["result"] == "Refused"
    refused = Outcome(Result.REFUSED, 6, "4f2c", reason="Forbidden", message="v1 Pod: 403").as_rollback()
    assert refused.line == "rollback refused, generation 6 goes on: v1 Pod: 403"
    assert refused.advice.endswith("; `declctl rollback` tries it again")
    line = Outcome(Result.UNCHANGED, 6, "4f2c", reason="Stopping").line
    assert line == "generation 6: the process is stopping, and reads its files no more"
    for result in (Result.APPLIED, Result.UNCHANGED, Result.SUPERSEDED):
        assert Outcome(result, 6, "4f2c", reason=str(result)).advice is None
    fault = Diagnostic("h.py", 1, 1, "DCL043", "importing it raises", suggestion="install it")
    refused = Outcome(Result.REFUSED, 6, "4f2c", reason="ImportFailed", diagnostics=(fault,))
    assert refused.advice is None


def test_a_reload_has_its_own_time_and_a_condition_that_of_its_status(tmp_path: Path) -> None:
    """A reload changes no status that holds already; the second refusal in a row does not either."""
    handler = "handlers: [{name: look, resourceRef: {name: maps}, entryPoint: 'handlers:look'}]"
    manifest = TEXT.replace("lifecycle: {}", handler)
    bundle = BundleDir(tmp_path / "b", {"manifest.yaml": manifest, "handlers.py": "def look(change): ..."})
    with running(bundle.path) as controller:
        controller.wait_ready()
        started = controller.condition("Reloaded").last_transition_time
        assert controller.status().last_reload is None
        assert controller.status().document()["lastReload"] is None

        def reload(text: str) -> tuple[str, int, int]:
            """An hour later: the result, and hours from the start to the attempt and to the transition."""
            controller.advance(3600)
            bundle.write("handlers.py", text)
            controller.reload()
            last, reloaded = controller.status().last_reload, controller.condition("Reloaded")
            attempt, transition = last.time - started, reloaded.last_transition_time - started
            hour = timedelta(hours=1)
            return last.result, round(attempt / hour), round(transition / hour)

        assert reload("def look(change): return None") == ("Applied", 1, 0)
        assert reload("def look(change:") == ("Refused", 2, 2)
        assert reload("def look(change") == ("Refused", 3, 2)
        assert reload("def look(change): return 1") == ("Applied", 4, 4)
        assert controller.condition("Ready").last_transition_time < started + timedelta(hours=1)
        last = controller.status().document()["lastReload"]
        assert set(last) == {"time", "result", "reason"}


@pytest.mark.parametrize(
    ("imports", "told"),
    [
        (ImportSeconds(20.0, 20.4), "0 LIST, 41000 ms (imports took 20 s in the pre-flight and 20 s here)"),
        (ImportSeconds(0.6, 0.5), "0 LIST, 41000 ms (imports took 0.6 s in the pre-flight and 0.5 s here)"),
        (ImportSeconds(0.0, 2.0), "0 LIST, 41000 ms (imports took 2.0 s here)"),  # preflight: Off
        (ImportSeconds(0.5, 0.5), "0 LIST, 41000 ms"),
        (ImportSeconds(), "0 LIST, 41000 ms"),
    ],
)
@pytest.mark.guarantee("G25")
def test_a_reload_that_is_slow_by_its_imports_says_so(imports: ImportSeconds, told: str) -> None:
    """Each import is paid twice, which nobody would guess; the document always has both figures."""
    outcome = Outcome(Result.APPLIED, 6, "4f2c", seconds=41.0, imports=imports)
    assert outcome.line == f"generation 6: nothing changed, {told}"
    document = outcome.document()
    assert (document["preflightImportSeconds"], document["importSeconds"]) == imports


@pytest.mark.parametrize(
    ("outcome", "words"),
    [
        (Outcome(Result.REFUSED, 6, "4f2c", reason="Forbidden"), "grant list and watch"),
        (Outcome(Result.REFUSED, 6, "4f2c", reason="NotSynced"), "spec.reload.warmTimeout"),
        (Outcome(Result.ROLLED_BACK, 7, "4f2c", reason="RolledBack"), "mend the files"),
        (Outcome(Result.REFUSED, 6, "4f2c", reason="NotKept"), "`declctl history` marks those"),
    ],
)
@pytest.mark.guarantee("G25")
def test_an_outcome_says_what_to_do(outcome: Outcome, words: str) -> None:
    """Where the fault is not in a line of a file, somebody needs more than its name."""
    assert words in outcome.advice
    assert outcome.document()["suggestion"] == outcome.advice


@pytest.mark.guarantee("G25")
def test_the_history_keeps_the_suggestion_of_a_fault_that_it_leaves_out() -> None:
    """A refused attempt says what to do, also if only a fault of the files knows it."""
    faults = (
        Diagnostic("h.py", 1, 1, "DCL030", "unused", suggestion="remove it", severity="warning"),
        Diagnostic("h.py", 1, 1, "DCL043", "importing it raises", suggestion="install it"),
    )
    history = ReloadHistory(ManualClock())
    history.add(Outcome(Result.REFUSED, 6, "4f2c", reason="ImportFailed", diagnostics=faults))
    history.add(Outcome(Result.REFUSED, 6, "4f2d", reason="NotSynced"))
    first, second = history.document()
    assert first["suggestion"] == "install it"
    assert "diagnostics" not in first
    assert "raise spec.reload.warmTimeout" in second["suggestion"]


@pytest.mark.parametrize(
    ("digest", "told"),
    [
        ("4f2c", "4f2c"),
        ("faulty 4f2c", "4f2c"),
        ("faulty /etc/app: no such folder", ""),
        ("unreadable: no", ""),
    ],
)
def test_a_bundle_hash_is_a_digest_or_nothing(digest: str, told: str) -> None:
    """Files with faults have a digest, too; what could not be read has none, and no words in its place."""
    assert Outcome(Result.REFUSED, 6, digest).document()["bundleHash"] == told


DEEP = b'{"metadata":{"name":"deep","namespace":"demo","resourceVersion":"1"},"spec":%b}' % (
    b"[" * 1_000_000 + b"]" * 1_000_000
)


def _watched(*objects: dict, deep: bool = False) -> InformerStatistics:
    async def scenario() -> InformerStatistics:
        clock, source = ManualClock(), FakeControllerSource(projection=fresh_projection())
        for obj in objects:
            source.add(obj)
        if deep:
            source.add(pod("deep"))
            source.corrupt("demo/deep", DEEP)
        informer = SharedIndexInformer(source, name="pods", clock=clock)
        task = asyncio.create_task(informer.run())
        await clock.settle()
        assert informer.has_synced
        task.cancel()
        await asyncio.wait([task])
        return informer.statistics()

    return asyncio.run(scenario())


@pytest.fixture(name="parts")
def _parts() -> list[InformerStatistics]:
    """Two watches, with one object that has a field of another type, and one that nobody can decode."""
    return [_watched(pod("a"), pod("b"), deep=True), _watched(pod("odd") | {"spec": 7})]


def test_the_watches_of_a_resource_are_added_up(parts):
    """A transform is given whole objects; a resource without a watch has zeros."""
    found = decoding_status(parts, transformed=False)
    assert (found.objects, found.projected, found.whole, found.unexpected) == (4, 3, 1, 1)
    assert found.unread == 1
    document = replace(resource_status("pods", parts), decoding=found).document()["decoding"]
    assert json.loads(json.dumps(document)) == document
    assert document["frameRatio"] > 0
    assert decoding_status(parts, transformed=True).unexpected == 0
    assert decoding_status([], transformed=False) == resource_status("pods", []).decoding == DecodingStatus()
