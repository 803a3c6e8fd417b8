"""A real control plane on loopback: etcd, kube-apiserver and, where it is there, kube-controller-manager.

The binaries are those of KUBEBUILDER_ASSETS, as with envtest. RBAC is on, so that rights are real; etcd does
not wait for the disk; ports are free ones. The API server can be killed and started again on its port, and
writes an audit log in which LISTs and WATCHes are counted.
"""

import json
import secrets
import shutil
import socket
import subprocess
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from rest import Rest
from waiting import until

_AUDIT = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["ResponseStarted", "ResponseComplete", "Panic"],
    "rules": [{"level": "Metadata", "verbs": ["list", "watch"]}, {"level": "None"}],
}


class ControlPlane:
    """One, in a folder of its own. `start` and `stop` belong together.

    `flags` are more flags of the API server; without `controllers` nobody makes pods of a Deployment,
    and it starts sooner.
    """

    def __init__(
        self, assets: Path, folder: Path, *, flags: Sequence[str] = (), controllers: bool = True
    ) -> None:
        self._assets = assets
        self._folder = folder
        self._controllers = controllers
        self.flags = flags
        self._token = secrets.token_hex(16)
        self._etcd_port, self._peer_port, self._port = free_ports(3)
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self.kubeconfig = folder / "kubeconfig"
        self.authority = folder / "certs" / "apiserver.crt"
        self.audit_log = folder / "audit.log"

    @property
    def has_controllers(self) -> bool:
        """Whether a Deployment gets pods here."""
        return self._controllers and (self._assets / "kube-controller-manager").exists()

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of the API server."""
        return "127.0.0.1", self._port

    def start(self) -> None:
        """Start everything, and return when it is ready."""
        self._prepare()
        self._start_etcd()
        self.start_api_server()

    def start_api_server(self) -> None:
        """Start it (again), and return when it is ready.

        Controllers end if they find no API server while they start; they are started again, too.
        """
        key = self._folder / "sa.key"
        self._run(
            "kube-apiserver",
            f"--etcd-servers=http://127.0.0.1:{self._etcd_port}",
            "--bind-address=127.0.0.1",
            f"--secure-port={self._port}",
            f"--cert-dir={self._folder}/certs",
            f"--service-account-key-file={key}",
            f"--service-account-signing-key-file={key}",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--token-auth-file={self._folder}/tokens.csv",
            "--authorization-mode=RBAC",
            "--service-cluster-ip-range=10.0.0.0/24",
            "--disable-admission-plugins=ServiceAccount",
            f"--audit-policy-file={self._folder}/audit.yaml",
            f"--audit-log-path={self.audit_log}",
            *self.flags,
        )
        until("the API server writes its certificate", self._has_certificate, seconds=60)
        self.kubeconfig.write_text(yaml.safe_dump(self._kubeconfig()), "utf-8")
        self._wait_for_api_server()
        controllers = self._running.get("kube-controller-manager")
        if self.has_controllers and (controllers is None or controllers.poll() is not None):
            self._start_controllers()

    def kill_api_server(self) -> None:
        """As a crash: connections are cut, nobody says good bye."""
        process = self._running.pop("kube-apiserver")
        process.kill()
        process.wait()

    def save(self, folder: Path) -> None:
        """Copy the storage into a folder, while nobody writes: API server and etcd are stopped for it."""
        self._stop_storage()
        shutil.copytree(self._folder / "etcd", folder)
        self._start_etcd()
        self.start_api_server()

    def restore(self, folder: Path) -> None:
        """Put the storage back to what it was, as operators do: with the API server stopped."""
        self._stop_storage()
        shutil.rmtree(self._folder / "etcd")
        shutil.copytree(folder, self._folder / "etcd")
        self._start_etcd()
        self.start_api_server()

    def _stop_storage(self) -> None:
        self.kill_api_server()
        etcd = self._running.pop("etcd")
        etcd.terminate()
        etcd.wait()

    def compact(self) -> None:
        """Let etcd forget every version but the newest."""
        revision = self._etcd("range", {"key": "AA=="})["header"]["revision"]
        self._etcd("compaction", {"revision": revision, "physical": True})

    def stop(self) -> None:
        """End everything."""
        processes = list(reversed(self._running.values()))
        for process in processes:
            process.kill()  # nothing here outlives the tests: nobody waits for a graceful end
        for process in processes:
            process.wait()

    def _prepare(self) -> None:
        admin = f'{self._token},admin,admin,"system:masters"\n'
        (self._folder / "tokens.csv").write_text(admin, "utf-8")
        (self._folder / "audit.yaml").write_text(yaml.safe_dump(_AUDIT), "utf-8")
        key = ["openssl", "genrsa", "-out", str(self._folder / "sa.key"), "2048"]
        subprocess.run(key, check=True, capture_output=True)

    def _start_etcd(self) -> None:
        client, peer = f"http://127.0.0.1:{self._etcd_port}", f"http://127.0.0.1:{self._peer_port}"
        self._run(
            "etcd",
            f"--data-dir={self._folder}/etcd",
            "--unsafe-no-fsync",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
        )

    def _start_controllers(self) -> None:
        self._run(
            "kube-controller-manager",
            f"--kubeconfig={self.kubeconfig}",
            f"--service-account-private-key-file={self._folder}/sa.key",
            f"--root-ca-file={self.authority}",
            "--use-service-account-credentials=true",
            "--secure-port=0",
            "--leader-elect=false",
        )

    def _etcd(self, method: str, body: dict[str, Any]) -> Any:
        url = f"http://127.0.0.1:{self._etcd_port}/v3/kv/{method}"
        with urllib.request.urlopen(url, json.dumps(body).encode(), timeout=30.0) as answer:
            return json.load(answer)

    def _run(self, name: str, *flags: str) -> None:
        log = (self._folder / f"{name}.log").open("ab")
        with log:
            command: Sequence[str] = [str(self._assets / name), *flags]
            self._running[name] = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)

    def _has_certificate(self) -> bool:
        """Whether it is there, and whole."""
        return self.authority.exists() and "END CERTIFICATE" in self.authority.read_text("utf-8")

    def _wait_for_api_server(self) -> None:
        process = self._running["kube-apiserver"]

        def ready() -> bool:
            assert process.poll() is None, (self._folder / "kube-apiserver.log").read_text("utf-8")[-2000:]
            return Rest.of_kubeconfig(self._kubeconfig()).answers()

        until("the API server is ready", ready, seconds=90)

    def _kubeconfig(self) -> dict[str, Any]:
        cluster = {"server": f"https://127.0.0.1:{self._port}", "certificate-authority": str(self.authority)}
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "real",
            "contexts": [{"name": "real", "context": {"cluster": "real", "user": "admin"}}],
            "clusters": [{"name": "real", "cluster": cluster}],
            "users": [{"name": "admin", "user": {"token": self._token}}],
        }


def audited(log: Path) -> list[dict[str, Any]]:
    """The entries of an audit log; a last line that is still being written counts for nothing."""
    lines = log.read_text("utf-8").split("\n")[:-1] if log.exists() else []
    return [json.loads(line) for line in lines]


def free_ports(number: int) -> list[int]:
    """Ports that nobody listens on at the moment."""
    sockets = [socket.socket() for _ in range(number)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()
