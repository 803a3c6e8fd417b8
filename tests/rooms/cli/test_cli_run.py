"""`declctl run`: how options become a runtime, and one real run."""

import asyncio
import gc
import json
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from declctl import transport
from declctl.cli import run as running
from declctl.errors import UsageError
from tests.rooms.cli.hello import MANIFEST

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
def _fake(folder: Path, monkeypatch: pytest.MonkeyPatch, logging_restored: None) -> type[FakeRuntime]:
    """A runtime that starts nothing."""
    kind = type("Fake", (FakeRuntime,), {})
    monkeypatch.setattr(running, "Runtime", kind)
    return kind


@pytest.fixture(name="hello")
def _hello(folder: Path) -> Path:
    """A manifest, its handler, and objects."""
    (folder / "manifest.yaml").write_text(MANIFEST)
    (folder / "handlers.py").write_text(HANDLER)
    (folder / "objects.yaml").write_text(OBJECTS)
    return folder


def test_options_reach_the_runtime(declctl: Callable, fake: type[FakeRuntime]):
    """Each option of the command line is what the runtime is made with; its exit status is the command's."""
    fake.ends_with = 1
    ended = declctl("run", "m.yaml", "--once", "--timeout", "1m30s", "--no-watch", "--log-level", "warning")
    assert ended.status == 1
    assert fake.made is not None
    assert fake.made.options == running.RunOptions("m.yaml", watch=False, once=True, timeout=90.0)
    assert fake.made.log_level is not None
    assert fake.made.log_level.start == "warning"


def test_defaults_leave_it_to_the_manifest(declctl: Callable, fake: type[FakeRuntime]):
    """Without options the manifest decides about watching, and the admin address is served."""
    assert declctl("run", "m.yaml").status == 0
    assert fake.made is not None
    assert fake.made.options == running.RunOptions("m.yaml")
    assert len(fake.made.given["fronts"]) == 2  # one of them tells the logs the controller's name


@pytest.mark.parametrize(("value", "thorough"), [("true", True), ("1", True), ("false", False), ("", False)])
def test_client_gos_variable_has_every_object_looked_at(
    declctl: Callable, fake: type[FakeRuntime], monkeypatch: pytest.MonkeyPatch, value: str, thorough: bool
):
    """KUBE_CACHE_MUTATION_DETECTOR is read as client-go reads it."""
    monkeypatch.setenv("KUBE_CACHE_MUTATION_DETECTOR", value)
    assert declctl("run", "m.yaml").status == 0
    assert fake.made is not None
    assert fake.made.options.mutation_detector is thorough


def test_a_variable_that_says_neither_is_refused(
    declctl: Callable, fake: type[FakeRuntime], monkeypatch: pytest.MonkeyPatch
):
    """A typing error does not switch the detector off in silence."""
    monkeypatch.setenv("KUBE_CACHE_MUTATION_DETECTOR", "yes please")
    ended = declctl("run", "m.yaml")
    assert ended.status == 2
    assert "KUBE_CACHE_MUTATION_DETECTOR is 'yes please': write true or false" in ended.err


@pytest.mark.parametrize(
    ("arguments", "fronts"), [(["--once"], 0), (["--once", "--admin", "127.0.0.1:0"], 1)]
)
def test_a_run_that_ends_by_itself_serves_nobody(
    declctl: Callable, fake: type[FakeRuntime], arguments: list[str], fronts: int
):
    """`run --once` works beside a controller that has the admin address, unless it is given one."""
    declctl("run", "m.yaml", *arguments)
    assert fake.made is not None
    assert len(fake.made.given["fronts"]) == fronts + 1  # one of them tells the logs the controller's name


def test_without_a_cluster_the_sentence_names_both_ways(declctl: Callable, fake: type[FakeRuntime]):
    """Where no cluster is configured the sentence names a kubeconfig and the sandbox."""
    declctl("run", "m.yaml")
    assert fake.made is not None
    with pytest.raises(UsageError, match=r"--kubeconfig.*--sandbox"):
        asyncio.run(fake.made.given["connect"]())


def test_the_sandbox_holds_the_objects_and_says_so_first(
    declctl: Callable, fake: type[FakeRuntime], hello: Path
):
    """With --sandbox the first line says that the cluster is one in memory, and how many objects it has."""
    ended = declctl("run", "m.yaml", "--sandbox", "--objects", "objects.yaml")
    assert ended.status == 0
    first = ended.err.splitlines()[0]
    assert "sandbox at http://127.0.0.1:" in first
    assert "2 objects" in first


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--sandbox", "--kubeconfig", "x"], "--sandbox is a cluster of its own"),
        (["--sandbox", "--context", "x"], "--sandbox is a cluster of its own"),
        (["--churn", "2"], "--churn changes pods of the sandbox: add --sandbox"),
        (["--sandbox", "--churn", "2", "--once"], "--churn goes on for ever, and --once waits for rest"),
        (["--objects", "x"], "add --sandbox"),
        (["--timeout", "5s"], "add --once"),
        (["--once", "--timeout", "5"], 'did you mean "5s"'),
        (["--once", "--timeout", "0s"], "longer than nothing"),
        (["--sandbox", "--objects", "nowhere.yaml"], "--objects nowhere.yaml: no such file"),
        (["--admin", "8081"], 'did you mean "127.0.0.1:8081"'),
    ],
)
def test_what_contradicts_itself_is_refused(
    declctl: Callable, fake: type[FakeRuntime], arguments: list[str], told: str
):
    """Options that would be ignored or make no sense end with 2 and a sentence, before anything starts."""
    ended = declctl("run", "m.yaml", *arguments)
    assert ended.status == 2
    assert told in ended.err
    assert fake.made is None


@pytest.mark.client_go(341)
def test_a_broken_objects_file_is_located(declctl: Callable, fake: type[FakeRuntime], hello: Path):
    """A fault in an --objects file ends with 1 and names its place."""
    (hello / "objects.yaml").write_text("kind: [\n")
    ended = declctl("run", "m.yaml", "--sandbox", "--objects", "objects.yaml")
    assert ended.status == 1
    assert "objects.yaml:2:1" in ended.err


@pytest.mark.client_go(341)
def test_an_objects_file_that_is_missing_is_named(declctl: Callable, fake: type[FakeRuntime], hello: Path):
    """No controller runs over an empty cluster by a typing error."""
    ended = declctl("run", "m.yaml", "--sandbox", "--objects", "object.yaml")
    assert ended.status == 2
    assert "--objects object.yaml" in ended.err
    assert fake.made is None


def test_a_handler_that_computes_gives_way_soon(declctl: Callable, fake: type[FakeRuntime]):
    """The caches and the other handlers wait no longer for the interpreter than that."""
    before = sys.getswitchinterval()
    try:
        declctl("run", "m.yaml")
        assert sys.getswitchinterval() == pytest.approx(0.0002)
    finally:
        sys.setswitchinterval(before)


def test_garbage_is_collected_once_it_is_connected(
    declctl: Callable, fake: type[FakeRuntime], monkeypatch: pytest.MonkeyPatch
):
    """The collector, off while a command starts, works in one that stays, and passes its imports over."""

    async def connect(**_: Any) -> str:
        return "the client"

    monkeypatch.setattr(transport.Client, "connect", connect)
    gc.disable()
    declctl("run", "m.yaml")
    assert fake.made is not None
    assert asyncio.run(fake.made.given["connect"]()) == "the client"
    assert gc.isenabled()
    assert gc.get_freeze_count() > 10_000
    gc.unfreeze()


def declctl_process(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command as a process of its own, in a folder."""
    return subprocess.run(
        [sys.executable, "-m", "declctl", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_once_against_the_sandbox_delivers_and_ends(hello: Path):
    """`run --sandbox --once` calls the handler for every object and ends with 0; its log is on stderr."""
    done = declctl_process(
        hello, "run", ".", "--sandbox", "--objects", "objects.yaml", "--once", "--log-format", "json"
    )
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["Added default/web-1", "Added default/web-2"]
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert [line["key"] for line in lines if line["event"] == "seen"] == ["default/web-1", "default/web-2"]


WRITING = """\
async def on_pod(obj, ctx):
    labels = {"labels": {"of": obj.name}}
    made = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": f"{obj.name}-settings", **labels}}
    await ctx.apply(made)
"""


def test_a_dry_run_prints_what_handlers_would_change(hello: Path):
    """The sandbox checks each write and stores nothing; stdout has the diffs, as `kubectl diff`."""
    (hello / "handlers.py").write_text(WRITING)
    done = declctl_process(hello, "run", ".", "--sandbox", "--objects", "objects.yaml", "--once", "--dry-run")
    assert done.returncode == 0, done.stderr
    heads = [line for line in done.stdout.splitlines() if line.startswith("+++")]
    assert sorted(heads) == [
        f"+++ v1 ConfigMap default/web-{number}-settings (apply by greet)" for number in (1, 2)
    ]
    assert "+    of: web-1" in done.stdout


def test_a_dry_run_has_a_printer(declctl: Callable, fake: type[FakeRuntime]):
    """`--dry-run` reaches the runtime; without it nothing is printed."""
    assert declctl("run", "m.yaml", "--dry-run").status == 0
    assert fake.made is not None
    assert fake.made.options.dry_run
    assert fake.made.given["on_dry_run"] is not None
    declctl("run", "m.yaml")
    assert (fake.made.options.dry_run, fake.made.given["on_dry_run"]) == (False, None)


def test_a_busy_admin_address_ends_with_2(hello: Path):
    """A second controller at the same admin address names it, and has called no handler."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        done = declctl_process(
            hello, "run", ".", "--sandbox", "--objects", "objects.yaml", "--admin", address
        )
    assert done.returncode == 2, done.stderr
    assert f"The admin address {address} is in use" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
