"""`declctl sandbox`."""

import json
import signal
import socket
import subprocess
import sys
import urllib.request

import yaml

POD = """\
apiVersion: v1
kind: Pod
metadata: {name: a, namespace: default}
spec: {containers: [{name: a, image: b}]}
"""


def test_it_serves_until_ctrl_c(folder):
    """The sandbox says its URL and what to try, serves the objects, and Ctrl-C ends it with 0."""
    (folder / "objects.yaml").write_text(POD)
    command = ["-m", "declctl", "sandbox", "--objects", "objects.yaml", "--kubeconfig-out", "kc"]
    with subprocess.Popen(
        [sys.executable, *command], cwd=folder, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        first, second, third = (process.stdout.readline() for _ in range(3))
        server = yaml.safe_load((folder / "kc").read_text())["clusters"][0]["cluster"]["server"]
        with urllib.request.urlopen(f"{server}/api/v1/pods") as answer:
            names = [pod["metadata"]["name"] for pod in json.load(answer)["items"]]
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
    assert first.startswith(f"sandbox at {server}, with 1 object")
    assert f"export KUBECONFIG={folder / 'kc'}" in second
    assert "kubectl get pods -A -w" in third
    assert names == ["a"]
    assert oct((folder / "kc").stat().st_mode & 0o777) == "0o600"


def test_a_foreign_kubeconfig_is_not_overwritten(declctl, folder):
    """--kubeconfig-out ~/.kube/config by mistake does no harm; one that can't be written is named."""
    config = folder / "config"
    config.write_text("current-context: production\n")
    assert "another file" in declctl.refused("sandbox", "--kubeconfig-out", str(config))
    assert config.read_text() == "current-context: production\n"
    assert "nowhere/config" in declctl.refused("sandbox", "--kubeconfig-out", "nowhere/config")


def test_a_busy_port_is_named(declctl, folder):
    """A port that is taken ends with 2 and says what to do."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        ended = declctl("sandbox", "--port", port)
    assert ended.status == 2
    assert port in ended.err
    assert "--port" in ended.err
