"""`declctl run`: how options become a runtime, and one real run."""

import asyncio
import gc
import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from declctl.cli import run as running
from declctl.errors import UsageError
from tests.rooms.cli.running import completed

HANDLER = "def on_pod(change, ctx):\n    print(change.type, change.key)\n    ctx.log.info('seen')\n"
OBJECTS = """\
apiVersion: v1
kind: Pod
metadata: {name: web-1, namespace: default}
spec: {containers: [{name: a, image: b}]}
---
apiVersion: v1
kind: List
items:
- apiVersion: v1
  kind: Pod
  metadata: {name: web-2, namespace: default}
  spec: {containers: [{name: a, image: b}]}
"""


class FakeRuntime:
    """Keeps what it was made with."""

    made: "FakeRuntime | None" = None
    restarts = False
    ends_with = 0

    def __init__(self, options: running.RunOptions, **given: Any) -> None:
        type(self).made = self
        self.log_level = options.log_level  # it is equal to itself only
        self.options = replace(options, log_level=None)
        self.given = given

    def run(self) -> int:
        return self.ends_with


@pytest.fixture(name="fake")
def _fake(folder: Path, monkeypatch: pytest.MonkeyPatch, process_restored: None) -> type[FakeRuntime]:
    """A runtime that starts nothing."""
    kind = type("Fake", (FakeRuntime,), {})
    monkeypatch.setattr(running, "Runtime", kind)
    return kind


@pytest.fixture(name="objects")
def _objects(hello: Path) -> Path:
    (hello / "handlers.py").write_text(HANDLER)
    (hello / "objects.yaml").write_text(OBJECTS)
    return hello


def test_options_reach_the_runtime(declctl, fake):
    """Each option of the command line is what the runtime is made with; its exit status is the command's."""
    fake.ends_with = 1
    options = "--once --timeout 1m30s --no-watch --log-level warning"
    declctl.refused("run", "m.yaml", *options.split(), status=1)
    assert fake.made.options == running.RunOptions("m.yaml", watch=False, once=True, timeout=90.0)
    assert fake.made.log_level.start == "warning"


def test_defaults_leave_it_to_the_manifest(declctl, fake):
    """Without options the manifest decides about watching, and the admin address is served."""
    declctl.done("run", "m.yaml")
    assert fake.made.options == running.RunOptions("m.yaml", keeps_state=True)
    # Two tell the logs the controller's name, and let garbage be collected.
    assert len(fake.made.given["fronts"]) == 3
    assert fake.made.given["on_dry_run"] is None
    declctl.done("run", "m.yaml", "--dry-run")
    assert fake.made.options.dry_run
    assert fake.made.given["on_dry_run"] is not None
    # Beside a controller that has the admin address, a run that ends by itself works; unless it is given one.
    declctl.done("run", "m.yaml", "--once")
    assert len(fake.made.given["fronts"]) == 2
    declctl.done("run", "m.yaml", "--once", "--admin", "127.0.0.1:0")
    assert len(fake.made.given["fronts"]) == 3


@pytest.mark.parametrize(("value", "thorough"), [("true", True), ("1", True), ("false", False), ("", False)])
def test_client_gos_variable_has_every_object_looked_at(declctl, fake, monkeypatch, value, thorough):
    """KUBE_CACHE_MUTATION_DETECTOR is read as client-go reads it; a typing error does not switch it off."""
    monkeypatch.setenv("KUBE_CACHE_MUTATION_DETECTOR", value)
    declctl.done("run", "m.yaml")
    assert fake.made.options.mutation_detector is thorough
    monkeypatch.setenv("KUBE_CACHE_MUTATION_DETECTOR", "yes please")
    said = declctl.refused("run", "m.yaml")
    assert "KUBE_CACHE_MUTATION_DETECTOR is 'yes please': write true or false" in said


def test_without_a_cluster_the_sentence_names_both_ways(declctl, fake):
    """Where no cluster is configured the sentence names a kubeconfig and the sandbox."""
    declctl("run", "m.yaml")
    with pytest.raises(UsageError, match=r"--kubeconfig.*--sandbox"):
        asyncio.run(fake.made.given["connect"]())


def test_the_sandbox_holds_the_objects_and_says_so_first(declctl, fake, objects):
    """With --sandbox the first line says that the cluster is one in memory, and how many objects it has."""
    ended = declctl.done("run", "m.yaml", "--sandbox", "--objects", "objects.yaml")
    first = ended.err.splitlines()[0]
    assert ("sandbox at http://127.0.0.1:" in first, "2 objects" in first) == (True, True)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("--sandbox --kubeconfig x", "--sandbox is a cluster of its own"),
        ("--sandbox --context x", "--sandbox is a cluster of its own"),
        ("--churn 2", "--churn changes pods of the sandbox: add --sandbox"),
        ("--kubeconfig-out x", "--kubeconfig-out is that of a sandbox: add --sandbox"),
        ("--sandbox --churn 2 --once", "--churn goes on for ever, and --once waits for rest"),
        ("--objects x", "add --sandbox"),
        ("--timeout 5s", "add --once"),
        ("--once --timeout 5", 'did you mean "5s"'),
        ("--once --timeout 0s", "longer than nothing"),
        # No controller runs over an empty cluster by a typing error.
        pytest.param(
            *("--sandbox --objects nowhere.yaml", "--objects nowhere.yaml: no such file"),
            marks=pytest.mark.client_go(341),
        ),
        ("--admin 8081", 'did you mean "127.0.0.1:8081"'),
    ],
)
def test_what_contradicts_itself_is_refused(declctl, fake, arguments, told):
    """Options that would be ignored or make no sense end with 2 and a sentence, before anything starts."""
    assert told in declctl.refused("run", "m.yaml", *arguments.split())
    assert fake.made is None


@pytest.mark.client_go(341)
def test_a_broken_objects_file_is_located(declctl, fake, objects):
    """A fault in an --objects file ends with 1 and names its place."""
    (objects / "objects.yaml").write_text("kind: [\n")
    said = declctl.refused("run", "m.yaml", "--sandbox", "--objects", "objects.yaml", status=1)
    assert "objects.yaml:2:1" in said


async def test_a_process_that_stays_is_set_up(declctl, fake):
    """A handler that computes gives way soon; garbage is collected once all is loaded, without imports."""
    gc.disable()
    declctl("run", "m.yaml")
    assert sys.getswitchinterval() == pytest.approx(0.0002)  # the fixture of all commands puts it back
    async with fake.made.given["fronts"][-1](fake.made):
        assert gc.isenabled()
    assert gc.get_freeze_count() > 10_000
    gc.unfreeze()


SANDBOX = ("run", ".", "--sandbox", "--objects", "objects.yaml")


def test_once_against_the_sandbox_delivers_and_ends(objects):
    """`run --sandbox --once` calls the handler for every object and ends with 0; its log is on stderr."""
    # In a process of its own, as a user runs it.
    done = completed(objects, *SANDBOX, "--once", "--log-format", "json")
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["Added default/web-1", "Added default/web-2"]
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert [line["key"] for line in lines if line["event"] == "seen"] == ["default/web-1", "default/web-2"]


HANGING = """\
import threading
def on_pod(change):
    threading.Thread(target=threading.Event().wait, name="uploads", daemon=False).start()
    print("it hangs")
    threading.Event().wait()
"""


@pytest.mark.parametrize(
    ("grace", "signals", "status"), [("500ms", 1, 1), ("10m", 2, 128 + signal.SIGTERM)], ids=["one", "two"]
)
def test_threads_of_handlers_do_not_keep_the_process(objects, begin, grace, signals, status):
    """They have what is left of the grace period and, after a second signal, nothing."""
    (objects / "handlers.py").write_text(HANGING)
    with (objects / "manifest.yaml").open("a") as manifest:
        manifest.write(f"  lifecycle: {{gracePeriod: {grace}}}\n")
    running = begin(str(objects), "--sandbox", "--objects", str(objects / "objects.yaml"))
    running.wait_for("it hangs")
    if signals > 1:
        running.process.send_signal(signal.SIGTERM)
        running.wait_for("stopping")
    assert running.stop() == status
    assert running.said("threads that are no daemons run on (uploads"), "\n".join(running.lines)
