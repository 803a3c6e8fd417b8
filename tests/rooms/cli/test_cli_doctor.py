"""`declctl doctor`: each check with what it finds, what it means and what to do."""

import asyncio
import json
import socket
from collections.abc import Callable, Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import yaml

from declctl.cli.doctor import (
    check_address,
    check_metrics_address,
    check_plugins,
    check_token,
    judge_skew,
    limited,
)
from declctl.cli.host_checks import (
    Check,
    CheckState,
    check_descriptors,
    check_inotify,
    check_memory,
    check_mount,
    check_notices,
    check_packages,
    check_python,
    memory_limit,
    mount_of,
)
from declctl.manifest.model import AdminAuthorization, AdminSpec, TlsFiles
from declctl.manifest.values import Address
from declctl.runtime.checking.declaration import ListedPlugin
from declctl.sandbox import SandboxThread
from declctl.sandbox.faults import Match
from tests.rooms.cli.answering import STATUS, Process

OK, WARNING, FAILED, SKIPPED = CheckState.OK, CheckState.WARNING, CheckState.FAILED, CheckState.SKIPPED
MOUNTINFO = r"""
21 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 21 0:30 / /srv rw - nfs4 server:/export rw
31 30 8:2 / /srv/local rw master:2 - xfs /dev/sdb rw
32 21 0:33 / /mnt/with\040space rw - fuse.sshfs me@host:/ rw
33 21 8:1 /var/lib/kubelet/pods/1/volume-subpaths/bundle/c/0 /etc/bundle/manifest.yaml ro - ext4 /dev/sda1 rw
34 21 0:40 / /image rw - overlay overlay rw
35 21 0:41 / /odd rw - oddfs odd rw
36 21 0:42 / /srv/local rw - tmpfs tmpfs rw
"""


@pytest.fixture(name="server")
def _server(hello: Path) -> Iterator[SandboxThread]:
    """A cluster, a kubeconfig of it, and a manifest in the current folder that uses a free admin port."""
    manifest = (hello / "manifest.yaml").read_text()
    (hello / "manifest.yaml").write_text(f"{manifest}  admin: {{bindAddress: '127.0.0.1:0'}}\n")
    with SandboxThread() as server:
        (hello / "kubeconfig").write_text(yaml.safe_dump(server.kubeconfig()))
        yield server


def checks_of(declctl: Callable, *arguments: str, status: int) -> Mapping[str, Mapping[str, Any]]:
    """The checks by name; of several with one name, the last."""
    ended = declctl("doctor", *arguments, "-o", "json")
    assert ended.status == status, ended.out + ended.err
    document = json.loads(ended.out)
    assert sum(document[state] for state in ("ok", "warning", "failed", "skipped")) == len(document["checks"])
    return {check["name"]: check for check in document["checks"]}


def test_all_is_well_with_a_cluster(declctl: Callable, server: SandboxThread):
    """Every check is made, and the user learns which server answered as whom."""
    found = checks_of(declctl, ".", "--kubeconfig", "kubeconfig", status=0)
    assert {name for name, check in found.items() if check["state"] == "failed"} == set()
    assert found["manifest"]["found"] == "hello: 1 resource, 1 handler"
    assert server.url in found["credentials"]["found"]
    assert found["cluster"]["state"] == found["clock"]["state"] == found["rights"]["state"] == "ok"
    assert "ms" in found["cluster"]["found"]


def test_a_missing_right_fails_with_the_rule_to_grant(declctl: Callable, server: SandboxThread):
    """It is what `validate --cluster` finds: one check for each right, and the exit status is 1."""
    server.faults.refuse(403, Match(verb="watch", resource="pods"))
    found = checks_of(declctl, ".", "--kubeconfig", "kubeconfig", status=1)
    assert found["rights"]["state"] == "failed"
    assert "you may not watch pods in the whole cluster (manifest.yaml:5)" in found["rights"]["found"]
    rule = '{apiGroups: [""], resources: ["pods"], verbs: ["list", "watch"]}'
    assert f"grant it by a ClusterRole with the rule {rule}" in found["rights"]["advice"]


def test_the_lease_of_an_election_needs_rights_too(declctl: Callable, hello: Path, server: SandboxThread):
    """Without them no process would ever lead, which only the log would say."""
    with (hello / "manifest.yaml").open("a") as manifest:
        manifest.write("  leaderElection: {enabled: true, namespace: kube-system}\n")
    server.faults.refuse(403, Match(verb="update", resource="leases", namespace="kube-system"))
    found = checks_of(declctl, ".", "--kubeconfig", "kubeconfig", status=1)
    assert "you may not update leases in the namespace kube-system" in found["rights"]["found"]


def test_a_cluster_that_accepts_and_never_answers_is_one_failed_check(
    declctl: Callable, server: SandboxThread
):
    """The command ends in the time that --timeout gives, and the checks after it are skipped."""
    config = server.kubeconfig()
    with socket.create_server(("127.0.0.1", 0)) as silent:  # connections wait in its backlog
        config["clusters"][0]["cluster"]["server"] = f"http://127.0.0.1:{silent.getsockname()[1]}"
        Path("kubeconfig").write_text(yaml.safe_dump(config))
        found = checks_of(declctl, ".", "--kubeconfig", "kubeconfig", "--timeout", "300ms", status=1)
    assert found["cluster"]["found"] == "it has not ended within 0.3 s"
    assert found["clock"]["state"] == found["rights"]["state"] == "skipped"


def test_without_a_cluster_the_other_checks_are_made(declctl: Callable, hello: Path):
    """A laptop without a kubeconfig is told so by one check; the manifest is that of the folder."""
    found = checks_of(declctl, status=1)
    assert [name for name, check in found.items() if check["state"] == "failed"] == ["credentials"]
    assert found["rights"]["state"] == "skipped"
    assert found["manifest"]["state"] == "ok"


def test_without_a_manifest_the_machine_is_checked(declctl: Callable, folder: Path):
    """Before the first manifest is written, `declctl doctor` says whether the installation works."""
    found = checks_of(declctl, status=1)
    assert found["manifest"]["state"] == "skipped"
    assert "mount" not in found
    assert found["python"]["state"] == found["packages"]["state"] == "ok"


def test_the_text_says_what_it_means_and_what_to_do(declctl: Callable, hello: Path):
    """Each check is a line; below one that is not ok are its meaning and the advice. No colour in a pipe."""
    (hello / "manifest.yaml").write_text("kind: [")
    ended = declctl("doctor")
    assert ended.status == 1
    assert "\x1b" not in ended.out
    lines = ended.out.splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("failed   manifest"))
    assert "manifest.yaml:1:1: error DCL001: this is not YAML" in lines[at]
    assert lines[at + 1].strip() == "means: declctl run and reloads refuse it"
    assert lines[at + 2].strip().startswith("do:    declctl validate shows all faults")
    assert lines[-1].endswith("failed, 3 skipped")


@pytest.mark.parametrize("timeout", ["0s", "soon"])
def test_a_timeout_is_a_duration(declctl: Callable, folder: Path, timeout: str):
    """Anything else is refused before a check is made."""
    ended = declctl("doctor", "--timeout", timeout)
    assert (ended.status, ended.out) == (2, "")
    assert ended.err.startswith("declctl: --timeout: ")


def test_a_check_that_hangs_ends():
    """What it waits for does not keep the other checks from being shown."""

    async def scenario() -> Check:
        found = await limited("mount", asyncio.Event().wait(), 0.01)
        assert isinstance(found, Check)
        return found

    found = asyncio.run(scenario())
    assert (found.name, found.state) == ("mount", FAILED)
    assert "--timeout gives each check more time" in found.advice


def test_a_check_with_a_fault_of_its_own_is_shown_as_failed():
    """One broken check does not hide the results of the others."""

    async def broken() -> Check:
        raise ValueError("no such thing")

    found = asyncio.run(limited("memory", broken(), 1.0))
    assert isinstance(found, Check)
    assert found.found == "the check itself failed: ValueError: no such thing"


@pytest.mark.parametrize(
    ("version", "implementation", "state"),
    [((3, 10, 4), "CPython", FAILED), ((3, 14, 0), "CPython", OK), ((3, 11, 9), "PyPy", WARNING)],
)
def test_the_interpreter(version: tuple[int, ...], implementation: str, state: CheckState):
    """Too old fails; another implementation is a warning."""
    assert check_python(version, implementation).state is state


def test_packages_are_compared_with_what_declctl_requires():
    """Missing and old packages are named; those of other systems and extras are not needed."""
    installed = {"aiohttp": "3.1", "rich": "14.0"}

    def version_of(name: str) -> str:
        if name not in installed:
            raise metadata.PackageNotFoundError(name)
        return installed[name]

    needed = ["aiohttp>=3.10", "rich>=13", "pluggy>=1.5", 'x; extra == "cel"', 'y; sys_platform == "win32"']
    found = check_packages(needed, version_of)
    assert found.state is FAILED
    assert found.found == "aiohttp 3.1 (it has to be >=3.10); pluggy is not installed"
    assert check_packages(["rich>=13"], version_of).state is OK


@pytest.mark.parametrize(("watches", "soft", "state"), [(5, 1024, OK), (5, 64, FAILED), (900, 1024, FAILED)])
def test_open_files(watches: int, soft: int, state: CheckState):
    """Each watch has a connection of its own, beside what declctl needs itself."""
    found = check_descriptors(watches, (soft, 4096))
    assert found.state is state
    assert f"about {watches + 200:,} needed" in found.found


@pytest.mark.parametrize(
    ("limit", "state"), [(None, OK), (256 << 20, OK), (100 << 20, WARNING), (32 << 20, FAILED)]
)
def test_memory(limit: int | None, state: CheckState):
    """Below what a start takes it fails, a little above it warns."""
    assert check_memory(limit).state is state


@pytest.mark.parametrize(
    ("line", "files", "limit"),
    [
        ("0::/pods/a", {"pods/memory.max": "200", "pods/a/memory.max": "max"}, 200),
        ("0::/pods/a", {"pods/memory.max": "200", "pods/a/memory.max": "100"}, 100),
        ("5:cpu,memory:/docker/b", {"memory/memory.limit_in_bytes": "300"}, 300),
        ("5:memory:/b", {"memory/b/memory.limit_in_bytes": str(2**63 - 4096)}, None),
        ("4:cpu:/b", {"memory/memory.limit_in_bytes": "300"}, None),
    ],
)
def test_the_memory_limit_of_a_container_is_read(
    tmp_path: Path, line: str, files: Mapping[str, str], limit: int | None
):
    """Of both versions of cgroups; of nested groups the lowest limit holds."""
    own = tmp_path / "cgroup"
    own.write_text(f"{line}\n")
    for name, text in files.items():
        file = tmp_path / "fs" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")
    assert memory_limit(tmp_path / "fs", own) == limit


def test_inotify_limits(tmp_path: Path):
    """Without an instance left, declctl polls; a system without inotify has nothing to check."""
    assert check_inotify(tmp_path, tmp_path).state is SKIPPED
    (tmp_path / "max_user_instances").write_text("1\n")
    (tmp_path / "max_user_watches").write_text("8192\n")
    assert check_inotify(tmp_path, tmp_path).state is OK
    descriptors = tmp_path / "42" / "fd"
    descriptors.mkdir(parents=True)
    (descriptors / "7").symlink_to("anon_inode:inotify")
    found = check_inotify(tmp_path, tmp_path)
    assert (found.state, "1 of 1 instances in use" in found.found) == (WARNING, True)


def test_a_change_of_a_file_is_noticed_here():
    """The check writes to a folder of its own, and measures."""
    found = check_notices()
    assert (found.state, found.name) == (OK, "notices"), found


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/home/me", "ext4"),
        ("/srv/team", "nfs4"),
        ("/srv/local/x", "tmpfs"),
        ("/srvx", "ext4"),
        ("/mnt/with space/x", "fuse.sshfs"),
    ],
)
def test_the_mount_of_a_path(path: str, kind: str):
    """The longest mount point counts, and of two at one point the later, which hides the earlier."""
    mount = mount_of(Path(path), MOUNTINFO)
    assert mount is not None
    assert mount.kind == kind
    assert mount_of(Path(path), "") is None


@pytest.mark.parametrize(
    ("kind", "state", "words"),
    [
        ("ext4", OK, "is on ext4"),
        ("overlay", OK, "edits within this container are noticed"),
        ("oddfs", OK, "which declctl does not know"),
        ("nfs4", WARNING, "(NFS)"),
        ("9p", WARNING, "a folder of a host"),
        ("fuse.sshfs", WARNING, "a file system in user space"),
    ],
)
def test_whether_edits_are_noticed_on_a_mount(tmp_path: Path, kind: str, state: CheckState, words: str):
    """On file systems of other machines, the advice is to poll."""
    found = check_mount(tmp_path, f"1 0 8:1 / {tmp_path} rw - {kind} source rw\n")
    assert (found.state, words in found.found) == (state, True), found
    assert ("watch: Poll" in found.advice) is (state is WARNING)


def test_a_config_map_and_a_sub_path(tmp_path: Path):
    """The links of a ConfigMap are exchanged at once; a file that is mounted alone is never updated."""
    manifest = tmp_path / "manifest.yaml"
    manifest.write_text("")
    alone = check_mount(manifest, f"1 0 8:1 /volume-subpaths/b/0 {manifest} ro - ext4 /dev/sda rw\n")
    assert (alone.state, "without subPath" in alone.advice) == (WARNING, True)
    (tmp_path / "..1").mkdir()
    (tmp_path / "..data").symlink_to("..1")
    assert "ConfigMap" in check_mount(manifest, f"1 0 0:1 / {tmp_path} ro - tmpfs tmpfs rw\n").found


def plugin(name: str, reason: str | None = None) -> ListedPlugin:
    """An installed plugin; with a reason, one that can't be loaded."""
    state = "Ready" if reason is None else "Quarantined"
    return ListedPlugin(name, f"declctl-{name}", "1.0", (), state, reason)


def test_plugins_fail_only_if_the_manifest_uses_them():
    """A broken plugin that no manifest names is a warning; a missing one that is named fails."""
    listed = [plugin("good"), plugin("bad", "ImportError: x")]
    assert [check.state for check in check_plugins(listed, frozenset({"good"}))] == [WARNING]
    assert [check.state for check in check_plugins(listed, frozenset({"bad"}))] == [FAILED]
    missing = list(check_plugins([plugin("good")], frozenset({"slack"})))
    assert [check.state for check in missing] == [FAILED, OK]
    assert "slack is not installed" in missing[0].found


LOOPBACK, EVERYWHERE = AdminSpec(Address("127.0.0.1", 8081)), AdminSpec(Address("0.0.0.0", 8081))


@pytest.mark.parametrize(
    ("address", "token", "state"),
    [
        (LOOPBACK, None, OK),
        (EVERYWHERE, None, WARNING),
        (EVERYWHERE, "a" * 32, OK),
        (LOOPBACK, "hunter2", WARNING),
        (LOOPBACK, "naïve" * 5, FAILED),
    ],
)
def test_the_token(address: AdminSpec, token: str | None, state: CheckState):
    """Its text is never shown."""
    found = check_token(address, Path(), {"DECLCTL_ADMIN_TOKEN": token} if token else {})
    assert found.state is state
    assert not token or token not in str(found)


def test_the_token_in_a_file(tmp_path: Path):
    """The variable comes before the manifest, whose relative path begins at its folder."""
    manifest = AdminSpec(token_file="secret/token")
    missing = check_token(manifest, tmp_path, {})
    assert (missing.state, "No such file or directory" in missing.found) == (FAILED, True)
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "token").write_text("t" * 32 + "\n")
    assert check_token(manifest, tmp_path, {}).state is OK
    (tmp_path / "short").write_text("hunter2")
    short = check_token(manifest, tmp_path, {"DECLCTL_ADMIN_TOKEN_FILE": str(tmp_path / "short")})
    assert (short.state, "hunter2" in str(short)) == (WARNING, False)
    both = {"DECLCTL_ADMIN_TOKEN": "t" * 32, "DECLCTL_ADMIN_TOKEN_FILE": "f"}
    assert check_token(manifest, tmp_path, both).state is FAILED


def test_tokens_that_the_api_server_reviews():
    """No token of the process is needed then."""
    reviewed = AdminSpec(Address("0.0.0.0", 8081), authorization=AdminAuthorization.KUBERNETES)
    assert check_token(reviewed, Path(), {}).state is OK


def test_the_admin_address(process: Process):
    """The own process, another one, another program, and nobody."""
    host, _, port = process.address.partition(":")
    address = AdminSpec(Address(host, int(port)))
    assert check_address(address, "pod-guard").found.startswith("pod-guard generation 6 runs at")
    assert check_address(address, None).state is OK
    other = check_address(address, "hello")
    assert (other.state, "pod-guard runs at" in other.found) == (FAILED, True)
    process.body = b"<html>"
    assert "is in use by another program" in check_address(address, "hello").found
    process.answers(401, {"error": "no"})
    assert check_address(address, "hello").state is WARNING
    process.answers(200, STATUS)


def test_an_admin_address_that_nobody_uses():
    """A free one is ok; one that is not of this machine can't be listened on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    assert check_address(AdminSpec(Address("127.0.0.1", port)), None).found.endswith("nothing runs there now")
    assert check_address(AdminSpec(Address("127.0.0.1", 0)), None).state is OK
    assert check_address(AdminSpec(Address("192.0.2.1", 8081)), None).state is FAILED


def test_an_admin_address_with_tls_is_not_asked(process: Process):
    """It is asked by plain HTTP otherwise, and would look like another program."""
    host, _, port = process.address.partition(":")
    admin = AdminSpec(Address(host, int(port)), tls=TlsFiles("cert", "key"))
    found = check_address(admin, "hello")
    assert (found.state, "by HTTPS" in found.found) == (OK, True)
    assert not process.asked


def test_the_metrics_address(process: Process):
    """The own process, another one, another program, the admin address itself, and nobody."""
    host, _, port = process.address.partition(":")
    admin, metrics = AdminSpec(), Address(host, int(port))
    process.answers(404, {"error": "There is nothing at /."})
    own = check_metrics_address(admin, metrics, "pod-guard")
    assert (own.state, f"pod-guard serves its metrics at {metrics}" in own.found) == (OK, True)
    other = check_metrics_address(admin, metrics, "hello")
    assert (other.state, "does not answer as hello" in other.found) == (FAILED, True)
    assert "spec.metrics.bindAddress" in other.advice
    process.body = b"# HELP of_another_exporter"
    assert check_metrics_address(admin, metrics, "pod-guard").state is FAILED
    asked = len(process.asked)
    encrypted = check_metrics_address(AdminSpec(tls=TlsFiles("cert", "key")), metrics, "pod-guard")
    assert (encrypted.state, encrypted.found) == (OK, f"something listens at {metrics}, by HTTPS")
    assert len(process.asked) == asked
    shared = check_metrics_address(AdminSpec(Address("", int(port))), metrics, "pod-guard")
    assert (shared.state, "is served by the admin address" in shared.found) == (OK, True)
    assert check_metrics_address(admin, Address("127.0.0.1", 0), "pod-guard").state is OK
    away = check_metrics_address(admin, Address("192.0.2.1", 9090), "pod-guard")
    assert (away.state, away.name) == (FAILED, "metrics address")


def test_doctor_looks_at_the_metrics_address_of_the_manifest(declctl: Callable, hello: Path):
    """A start that would end with status 2 is told before it."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        with (hello / "manifest.yaml").open("a") as manifest:
            manifest.write(f"  metrics: {{bindAddress: '127.0.0.1:{other.getsockname()[1]}'}}\n")
        found = checks_of(declctl, status=1)
    assert found["metrics address"]["state"] == "failed"
    assert "is in use" in found["metrics address"]["found"]


@pytest.mark.parametrize(("skew", "state"), [(0.4, OK), (-20.0, WARNING), (20.0, WARNING), (3600.0, FAILED)])
def test_clock_skew(skew: float, state: CheckState):
    """Of an hour, certificates and tokens count as expired."""
    found = judge_skew(skew)
    assert found.state is state
    if skew == -20.0:
        assert found.found == "the clock of the API server is 20 s behind"
