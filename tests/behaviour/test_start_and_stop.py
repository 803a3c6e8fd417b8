"""How a process starts and stops: its order, a start that fails, `--once`, signals, and what it loads."""

import asyncio
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest

from declctl.errors import ReloadRefused
from declctl.objects import GroupVersionKind
from declctl.runtime import runtime as process
from declctl.runtime.caching.informer_pool import InformerPool
from declctl.runtime.ending import SignalHandlers
from declctl.runtime.runtime import RunOptions, Runtime
from declctl.sandbox import SandboxThread
from declctl.testing import ControllerUnderTest, Logged, until
from declctl.transport import Client
from tests.behaviour.conftest import config_map

CONFIG_MAP = GroupVersionKind("", "v1", "ConfigMap")
HOOKS = """
import declctl
from blackboard import tell as note, wait

@declctl.hookimpl
def declctl_startup(ctx):
    note("startup", ctx.listers["maps"].has_synced, ctx.listers["pods"].has_synced)
    {startup}

@declctl.hookimpl
async def declctl_prepare(ctx):
    note("prepare", ctx.listers["maps"].has_synced, ctx.listers["pods"].has_synced)
    {prepare}

@declctl.hookimpl
def declctl_event(obj, ctx):
    note("begins", ctx.listers["maps"].has_synced, ctx.listers["pods"].has_synced)
    wait("call")
    note("ends", obj.name)

@declctl.hookimpl
def declctl_shutdown(ctx):
    note("shutdown", len(ctx.listers["maps"].list()))

@declctl.hookimpl
def declctl_teardown():
    note("teardown")
    {teardown}
"""


def _code(*, startup: str = "pass", prepare: str = "pass", teardown: str = "pass") -> str:
    return HOOKS.format(startup=startup, prepare=prepare, teardown=teardown)


@pytest.fixture
def hooked(rig):
    """A handler whose module has all hooks of the life cycle."""
    rig.resources.append("- {name: pods, apiVersion: v1, kind: Pod}")
    rig.handler("tell", entry="handlers")
    return rig


def _threads() -> set[str]:
    """The names of all threads, without that of the process which starts threads."""
    return {thread.name for thread in threading.enumerate() if thread.name != "declctl-starter_0"}


@pytest.mark.client_go(333, 335, 338, 339, "Manager")
def test_parts_start_and_stop_in_order(hooked, sandbox) -> None:
    """Hooks, caches, handlers; at the end the call that runs, then hooks that still read the caches."""
    before = _threads()
    runs = hooked.run(_code(), objects=[config_map("a"), config_map("b")])
    until("a call runs", lambda: hooked.told("begins"))
    runs.runtime.stop()
    until("nothing is taken any more", lambda: runs.runtime.parts.slots.get("tell").workers.is_dismissed)
    assert hooked.told("shutdown") == []
    hooked.board.open_gate("call")
    assert runs.stop() == 0
    assert hooked.board.told == [
        ("startup", False, False),
        ("prepare", False, False),
        ("begins", True, True),
        ("ends", "a"),
        ("shutdown", 2),
        ("teardown",),
    ]
    asked = sandbox.ledger.count("list"), sandbox.ledger.count("watch")
    until("no thread is left", lambda: _threads() <= before)
    sandbox.create(config_map("c"))
    assert (sandbox.ledger.count("list"), sandbox.ledger.count("watch")) == asked


HANGING = """
import asyncio
from blackboard import tell as note, wait
def tell(change):
    note("begins")
    wait("never")
async def hang(ctx):
    await asyncio.sleep(600)
def late(ctx):
    note("late")
"""


@pytest.mark.client_go(335)
def test_the_end_is_bounded_by_one_grace_period(rig) -> None:
    """A call and a hook that hang share it; a hook for which no time is left is not called, and named."""
    rig.more = """\
  lifecycle:
    gracePeriod: 1s
    shutdown: [{entryPoint: "handlers:hang"}, {entryPoint: "handlers:late"}]
"""
    rig.handler("tell")
    runs = rig.run(HANGING, objects=[config_map("a")])
    until("the call runs", lambda: rig.told("begins"))
    began = time.monotonic()
    assert runs.stop(timeout=50) == 0
    assert time.monotonic() - began < 40
    assert runs.log.find("not waited for any longer: tell default/a")
    assert runs.log.find("declctl_shutdown of handlers:hang took longer than 0.")
    assert runs.log.find("declctl_shutdown of handlers:late was not called: no time was left for it")
    assert rig.told("late") == []
    rig.board.open_gate("never")


def test_an_end_that_hangs_is_left_a_second_after_the_grace_period(rig, sandbox) -> None:
    """Whatever hangs, such as a server of a program that has declctl inside: the process ends with 1."""
    rig.more = "  lifecycle: {gracePeriod: 500ms}\n"
    rig.handler("tell")

    @asynccontextmanager
    async def front(runtime: Runtime) -> AsyncIterator[None]:
        async with asyncio.timeout(5):  # the kinds are asked for while a front is loaded
            while runtime.client is None or runtime.client.known(CONFIG_MAP) is None:
                await asyncio.sleep(0.01)
        yield
        await asyncio.sleep(600)

    log = Logged()
    runtime = Runtime(
        RunOptions(str(rig.write(TELL)), once=True),
        connect=lambda: Client.from_kubeconfig_dict(sandbox.kubeconfig()),
        fronts=[front],
        log=log,
    )
    assert runtime.run() == 1
    assert log.find("what runs has not ended within 0.5 s (lifecycle.gracePeriod, or what a lost lease")
    assert runtime.machinery.stop(), "its thread has ended"


@pytest.mark.client_go(334, "Manager")
@pytest.mark.parametrize("hook", ["startup", "prepare"])
def test_a_hook_that_fails_ends_the_start_and_what_has_begun_is_undone(hook, hooked, sandbox) -> None:
    """No handler is called; the error of the start is raised, and that of the undoing is logged beside it."""
    before = _threads()
    code = _code(**{hook: "raise OSError('no disk')"}, teardown="raise OSError('no memory')")
    starts = ControllerUnderTest(hooked.write(code), objects=[config_map("a")], sandbox=sandbox)
    with pytest.raises(ReloadRefused, match=f"^declctl_{hook} of handlers raised OSError: no disk "):
        starts.start()
    assert [row[0] for row in hooked.board.told if row[0] in ("begins", "shutdown", "teardown")] == [
        "teardown"
    ]
    assert "declctl_teardown of handlers raised OSError: no memory" in "\n".join(starts.log.events("error"))
    assert sandbox.ledger.count("watch") == 0
    until("no thread is left", lambda: _threads() <= before)


TELL = "from blackboard import tell as note\ndef tell(change): note('told', change.obj.name)\n"


@pytest.mark.parametrize("count", [2, 1200])
def test_a_cache_that_is_full_before_its_handler_comes_is_dealt_with(
    rig, sandbox, monkeypatch, count
) -> None:
    """On a busy machine the list is there before the first generation: its objects are told all the same."""
    names = [f"m{n}" for n in range(count)]
    sandbox.load([config_map(name) for name in names])
    rig.handler("tell")

    build_indexes = InformerPool.build_indexes

    async def slowly(pool: InformerPool, *arguments, **options) -> None:
        async with asyncio.timeout(30):
            while not all(cached.informer.has_synced for cached in runtime.parts.caches.all()):
                await asyncio.sleep(0.01)
        await build_indexes(pool, *arguments, **options)

    runtime = Runtime(
        RunOptions(str(rig.write(TELL)), once=True),
        connect=lambda: Client.from_kubeconfig_dict(sandbox.kubeconfig()),
    )
    monkeypatch.setattr(InformerPool, "build_indexes", slowly)
    assert runtime.run() == 0
    assert sorted(row[1] for row in rig.told("told")) == sorted(names)


class _LogWithLock(Logged):
    """A log with a lock, as a screen has it; SIGTERM comes while the line about the machinery is written."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self.released = threading.Event()

    def info(self, event, **fields) -> None:
        """Write a line."""
        assert self._lock.acquire(timeout=30), f"a deadlock over {event!r}"
        super().info(event, **fields)
        self._lock.release()

    def error(self, event, **fields) -> None:
        """Write a line, during which the signal comes."""
        with self._lock:
            super().error(event, **fields)
            signal.raise_signal(signal.SIGTERM)
        self.released.set()


def test_a_signal_in_the_middle_of_a_log_line_stops_the_process(rig, sandbox, monkeypatch) -> None:
    """Python runs the signal's handler in the main thread, which has the lock of the log at that moment."""
    monkeypatch.setattr(process, "LOOK_SECONDS", 0.05)  # so that five looks do not take five seconds
    rig.handler("tell")
    log = _LogWithLock()
    runtime = Runtime(
        RunOptions(str(rig.write(TELL))),
        connect=lambda: Client.from_kubeconfig_dict(sandbox.kubeconfig()),
        log=log,
    )

    def block() -> None:
        runtime.machinery.loop.call_soon_threadsafe(log.released.wait, 30)

    starts = threading.Timer(0.5, block)
    starts.start()
    assert runtime.run() == 0
    assert log.find("stopping: running calls may finish") is not None
    assert log.events("info").count("stopping: running calls may finish; once more to end at once") == 1


def test_sighup_reloads_until_the_end_of_the_block() -> None:
    """Before and after, the signal does what it did."""
    asked: list[str] = []
    before = signal.signal(signal.SIGHUP, lambda *_: asked.append("before"))
    try:
        with SignalHandlers(stop=lambda: asked.append("stop"), hangup=lambda: asked.append("reload")):
            signal.raise_signal(signal.SIGHUP)
        signal.raise_signal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert asked == ["reload", "before"]


MANIFEST = """
apiVersion: declctl.dev/v1alpha1
kind: Controller
metadata: {name: plain}
spec:
  resources:
    - name: configs
      apiVersion: v1
      kind: ConfigMap
      indexers: [{name: byOwner, fieldPath: metadata.name}]
"""
# Of no use to an informer that is made by a factory.
RARE = {"declctl.sandbox", "declctl.testing"}
# Loaded for a manifest with faults, for a plugin with a config or a range, for a table, by a first scrape.
UNASKED = {"jsonschema", "packaging.specifiers", "prometheus_client", "declctl.admin.metrics", "watchfiles"}
HEAVY = {"aiohttp", "kubernetes", "jsonschema", "packaging"}
HEAVY |= {"pluggy", "prometheus_client", "structlog", "typer"}

LIBRARY = """
from declctl import Client, Registration, SharedIndexInformer, SharedInformerFactory, field_index
"""
INFORMER = """
import asyncio, sys
from declctl import Client, SharedInformerFactory, field_index

async def main():
    client = await Client.connect(kubeconfig=sys.argv[1])
    async with SharedInformerFactory(client) as factory:
        informer = factory.informer("v1", "ConfigMap", indexers={"byOwner": field_index("metadata.name")})
        await factory.wait_for_cache_sync()
        assert [str(key) for key in informer.lister.keys()] == ["default/one"]
    await client.close()

asyncio.run(main())
"""
COMMAND = """
import sys
from declctl.cli.main import status_of

assert status_of(sys.argv[1:]) == 0
"""


@pytest.fixture(scope="module", name="files")
def _files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Path]]:
    """The kubeconfig of a cluster with one ConfigMap, and a manifest that watches it."""
    folder = tmp_path_factory.mktemp("start")
    manifest, kubeconfig = folder / "manifest.yaml", folder / "kubeconfig"
    manifest.write_text(MANIFEST)
    with SandboxThread() as server:
        server.create(config_map("one"))
        kubeconfig.write_text(json.dumps(server.kubeconfig()))
        yield kubeconfig, manifest


def loaded_by(program: str, *arguments: str) -> set[str]:
    """The modules that a program of its own has loaded when it ends."""
    telling = "import json, sys; print(json.dumps(sorted(sys.modules)))"
    command = [sys.executable, "-c", f"{program}\n{telling}", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1]))


# Of no use to any command on a manifest without faults, plugins, scrapers and `ctx.client`.
UNUSED = RARE | UNASKED | {"kubernetes.aio", "opentelemetry", "cronsim", "tzdata"}
UNUSED |= {"declctl.leadership", "declctl.runtime.leading", "declctl.informer.freshness"}  # of an election
SERVED = {"declctl.admin", "aiohttp"}  # of the admin address
CONTROLLER = {"structlog", "typer", "pluggy", "declctl.manifest", "declctl.hooks"}
PARSER = HEAVY - {"typer"} | SERVED | {"rich", "asyncio"}


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("program", "arguments", "unused"),
    [
        (LIBRARY, "", HEAVY | RARE | {"declctl.objects.differences"}),
        (INFORMER, "{kubeconfig}", RARE | UNASKED | SERVED | CONTROLLER),
        (COMMAND, "run --help", PARSER | {"msgspec", "declctl.manifest"}),
        (COMMAND, "explain DCL012", PARSER | {"declctl.hooks"}),
        (COMMAND, "validate {manifest}", UNUSED | SERVED | {"declctl.transport", "kubernetes", "structlog"}),
        (COMMAND, "run {manifest} --once --kubeconfig {kubeconfig}", UNUSED | SERVED),
        (COMMAND, "run {manifest} --once --kubeconfig {kubeconfig} --admin 127.0.0.1:0", UNUSED),
    ],
)
def test_a_program_loads_what_it_uses(
    files: tuple[Path, Path], program: str, arguments: str, unused: set[str]
) -> None:
    """An import, an informer, a command and a start take no time for what is not used."""
    assert all(find_spec(name) for name in unused)
    kubeconfig, manifest = files
    words = arguments.format(kubeconfig=kubeconfig, manifest=manifest).split()
    assert loaded_by(program, *words) & unused == set()
