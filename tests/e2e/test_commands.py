"""A running process, the other commands, and what keeps it from its end: slow steps, user code that hangs."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from bundles import TELLING, telling
from clusters import Cluster, SandboxCluster, new_namespace
from processes import Declctl, environment
from rest import pod
from waiting import until


@pytest.mark.scenario
def test_status_and_reload_talk_to_a_running_process(sandbox_cluster: SandboxCluster, tmp_path: Path) -> None:
    """`declctl status` says what runs, `declctl reload` what it did, each with its exit status."""
    bundle = telling(tmp_path / "bundle", namespace=new_namespace(sandbox_cluster))
    with Declctl(bundle.path, "--no-watch", kubeconfig=sandbox_cluster.kubeconfig) as declctl:
        declctl.wait_until_synced()
        assert declctl.command("status").stdout.startswith("e2e generation 1")
        document = json.loads(declctl.command("status", "-o", "json").stdout)
        assert [resource["name"] for resource in document["resources"]] == ["pods"]
        assert document["ready"]
        unchanged = declctl.command("reload")
        assert (unchanged.returncode, unchanged.stdout) == (0, "generation 1: nothing changed\n")
        bundle.edit("handlers.py", "{change.type}", "new {change.type}")
        changed = declctl.command("reload")
        assert changed.returncode == 0
        assert changed.stdout.startswith("generation 2: ~handler tell (code), 0 LIST")
        bundle.write("handlers.py", "def tell(:")
        refused = declctl.command("reload")
        assert refused.returncode == 1
        assert "handlers.py:1:10: error DCL042" in refused.stderr
        assert "STALE" in declctl.command("status").stdout.splitlines()[0]


@pytest.mark.scenario
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_what_handlers_print_comes_at_once_and_in_whole_lines(
    sandbox_cluster: SandboxCluster, tmp_path: Path, unbuffered: str
) -> None:
    """Through a pipe, from several threads, whether or not PYTHONUNBUFFERED is set as images have it."""
    namespace = new_namespace(sandbox_cluster)
    bundle = telling(tmp_path / "bundle", namespace=namespace)
    handler = '    - {name: tell, resourceRef: {name: pods}, entryPoint: "handlers:tell"}\n'
    more = "".join(handler.replace("name: tell", f"name: tell-{number}") for number in range(4))
    bundle.edit("manifest.yaml", handler, more)
    for number in range(50):
        sandbox_cluster.rest.create(pod(f"p{number}", namespace))
    env = {"PYTHONUNBUFFERED": unbuffered}
    with Declctl(bundle.path, kubeconfig=sandbox_cluster.kubeconfig, env=env) as declctl:
        until("all is told while it runs", lambda: len(declctl.out) >= 200)
        assert {len(line.split()) for line in declctl.out} == {4}


@pytest.mark.scenario
def test_hangup_reloads(sandbox_cluster: SandboxCluster, tmp_path: Path) -> None:
    """SIGHUP reads the files again where nobody watches them."""
    bundle = telling(tmp_path / "bundle", namespace=new_namespace(sandbox_cluster))
    with Declctl(bundle.path, "--no-watch", kubeconfig=sandbox_cluster.kubeconfig) as declctl:
        declctl.wait_until_synced()
        bundle.edit("handlers.py", "{change.type}", "new {change.type}")
        declctl.hang_up()
        declctl.wait_for_generation(2)
        assert declctl.stop() == 0


_SLOW = """\
import declctl, pathlib, sys, time
{slow}
@declctl.hookimpl
def declctl_event(change):
    pass
"""
_SLOW_STEPS = {
    "the import in the child": "pathlib.Path({sign!r}).touch()\ntime.sleep(1000)",
    "a hook that prepares": "@declctl.hookimpl\nasync def declctl_prepare():\n    import asyncio\n"
    "    pathlib.Path({sign!r}).touch()\n    await asyncio.sleep(1000)",
}


@pytest.mark.guarantee("G25")
@pytest.mark.parametrize("step", _SLOW_STEPS)
def test_the_process_ends_while_a_reload_is_waited_for(
    step: str, sandbox_cluster: SandboxCluster, tmp_path: Path
) -> None:
    """SIGTERM: the process exits 0 all the same; `declctl reload` says why nothing was done, and exits 1."""
    bundle = telling(tmp_path / "bundle", namespace=new_namespace(sandbox_cluster))
    bundle.edit("manifest.yaml", "settle: 50ms", "preflightTimeout: 5m, warmTimeout: 5m")
    bundle.edit("manifest.yaml", "handlers:tell", "handlers")
    bundle.write("handlers.py", _SLOW.format(slow=""))
    with Declctl(bundle.path, "--no-watch", kubeconfig=sandbox_cluster.kubeconfig) as declctl:
        declctl.wait_until_synced()
        sign = _make_slow(bundle.path / "handlers.py", step)
        with _waiting("reload", "--admin", declctl.admin().removeprefix("http://")) as reload:
            until("the reload is under way", sign.exists)
            assert declctl.stop() == 0
            said = reload.communicate(timeout=60)[0]
        assert (reload.returncode, said) == (
            1,
            "generation 1: the process is stopping, and reads its files no more\n",
        )


@pytest.mark.client_go(311)
@pytest.mark.parametrize("step", _SLOW_STEPS)
def test_the_process_ends_while_it_starts(step: str, sandbox_cluster: SandboxCluster, tmp_path: Path) -> None:
    """SIGTERM does not wait for imports and hooks of the start; what has begun is undone, and it exits 0."""
    bundle = telling(tmp_path / "bundle", namespace=new_namespace(sandbox_cluster))
    bundle.edit("manifest.yaml", "settle: 50ms", "preflightTimeout: 5m, warmTimeout: 5m")
    bundle.edit("manifest.yaml", "handlers:tell", "handlers")
    sign = _make_slow(bundle.path / "handlers.py", step)
    with Declctl(bundle.path, "--no-watch", kubeconfig=sandbox_cluster.kubeconfig) as declctl:
        until("the start is under way", sign.exists)
        assert declctl.stop() == 0
        assert declctl.err[-1].endswith("stopped")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_who_waits_for_a_reload_goes_away(
    number: signal.Signals, sandbox_cluster: SandboxCluster, tmp_path: Path
) -> None:
    """Ctrl-C of `declctl reload`: it ends as a shell expects, and the reload goes on without it."""
    bundle = telling(tmp_path / "bundle", namespace=new_namespace(sandbox_cluster))
    bundle.edit("manifest.yaml", "settle: 50ms", "preflightTimeout: 5m")
    with Declctl(bundle.path, "--no-watch", kubeconfig=sandbox_cluster.kubeconfig) as declctl:
        declctl.wait_until_synced()
        sign, gate = tmp_path / "sign", tmp_path / "gate"
        waits = f"pathlib.Path({str(sign)!r}).touch()\nwhile not pathlib.Path({str(gate)!r}).exists(): pass\n"
        bundle.write("handlers.py", f"import pathlib\n{waits}def tell(change):\n    pass\n")
        with _waiting("reload", "--admin", declctl.admin().removeprefix("http://")) as reload:
            until("the reload is under way", sign.exists)
            reload.send_signal(number)
            reload.communicate(timeout=60)
        assert reload.returncode in (128 + number, -number)
        gate.touch()
        declctl.wait_for_generation(2)


def _waiting(*words: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "declctl", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment(),
    )


def _make_slow(file: Path, step: str) -> Path:
    """Write a handler of which this step never ends; returns the file that is there once it has begun."""
    sign = file.parent.parent / "sign"
    file.write_text(_SLOW.format(slow=_SLOW_STEPS[step].format(sign=str(sign))))
    return sign


def test_the_process_ends_while_it_logs_in(tmp_path: Path) -> None:
    """A credential plugin of the kubeconfig never answers: SIGTERM does not wait for it."""
    bundle = telling(tmp_path / "bundle", namespace="default")
    sign = tmp_path / "sign"
    login = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": sys.executable,
        "args": ["-c", f"open({str(sign)!r}, 'w'); import time; time.sleep(1000)"],
        "interactiveMode": "Never",
    }
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "c",
                "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
                "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}],
                "users": [{"name": "u", "user": {"exec": login}}],
            }
        )
    )
    with Declctl(bundle.path, kubeconfig=kubeconfig) as declctl:
        until("it logs in", sign.exists)
        assert declctl.stop() == 0


_STUCK = """\
def stuck(obj):
    while obj["metadata"]["name"] == "bad": pass
    return [obj["metadata"]["name"]]
"""


def test_a_live_function_that_computes_for_ever_is_named_and_sigterm_is_obeyed(
    cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    """It is called where events pass: nothing goes on, but the log says why, and the process ends."""
    bundle = telling(tmp_path / "bundle", namespace=namespace)
    bundle.write("handlers.py", TELLING + _STUCK)
    bundle.edit(
        "manifest.yaml", "name: byNode, fieldPath: spec.nodeName", "name: x, entryPoint: 'handlers:stuck'"
    )
    bundle.edit("manifest.yaml", "  reload:", "  lifecycle: {gracePeriod: 6s}\n  reload:")
    with Declctl(bundle.path, kubeconfig=cluster.kubeconfig) as declctl:
        declctl.wait_until_synced()
        cluster.rest.create(pod("bad", namespace))
        said = f"the machinery has been blocked for 5 s at {bundle.path / 'handlers.py'}:4 in stuck"
        until("the log says so", lambda: any(said in line for line in tuple(declctl.err)))
        began = time.monotonic()
        assert declctl.stop(seconds=60) == 1
        assert time.monotonic() - began < 25
        assert any("ending without it" in line for line in declctl.err)
