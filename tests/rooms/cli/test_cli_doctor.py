"""`declctl doctor`: each check with what it finds, what it means and what to do."""

import asyncio
import json
import socket
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import yaml

from declctl.cli import doctor
from declctl.cli import host_checks as host
from declctl.cli.host_checks import Check, CheckState
from declctl.manifest.model import AdminAuthorization, AdminSpec, TlsFiles
from declctl.manifest.values import Address
from declctl.runtime.checking.declaration import ListedPlugin
from declctl.sandbox import SandboxThread
from declctl.sandbox.faults import Match
from tests.rooms.cli import hello as good
from tests.rooms.cli.answering import Process
from tests.rooms.cli.conftest import Command

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
def _server(hello: Path, sandbox: SandboxThread) -> SandboxThread:
    """A cluster, a kubeconfig of it, and a manifest in the current folder that uses a free admin port."""
    with (hello / "manifest.yaml").open("a") as manifest:
        manifest.write("  admin: {bindAddress: '127.0.0.1:0'}\n")
    return sandbox


def checks_of(declctl: Command, *arguments: str, status: int) -> Mapping[str, Mapping[str, Any]]:
    """The checks by name; of several with one name, the last."""
    ended = declctl("doctor", *arguments, "-o", "json")
    assert ended.status == status, ended
    document = ended.document
    assert sum(document[state] for state in ("ok", "warning", "failed", "skipped")) == len(document["checks"])
    return {check["name"]: check for check in document["checks"]}


def in_cluster(declctl: Command, *options: str, status: int) -> Mapping[str, Mapping[str, Any]]:
    """The checks with the cluster of the fixture `server`."""
    return checks_of(declctl, ".", "--kubeconfig", "kubeconfig", *options, status=status)


def test_all_is_well_with_a_cluster(declctl, server):
    """Every check is made, and the user learns which server answered as whom."""
    found = in_cluster(declctl, status=0)
    assert {name for name, check in found.items() if check["state"] == "failed"} == set()
    assert found["manifest"]["found"] == "hello: 1 resource, 1 handler"
    assert server.url in found["credentials"]["found"]
    assert {found[name]["state"] for name in ("cluster", "clock", "rights")} == {"ok"}
    assert "ms" in found["cluster"]["found"]


def test_a_missing_right_fails_with_the_rule_to_grant(declctl, server):
    """It is what `validate --cluster` finds."""
    server.faults.refuse(403, Match(verb="watch", resource="pods"))
    rights = in_cluster(declctl, status=1)["rights"]
    assert rights["state"] == "failed"
    assert "you may not watch pods in the whole cluster (manifest.yaml:5)" in rights["found"]
    rule = '{apiGroups: [""], resources: ["pods"], verbs: ["list", "watch"]}'
    assert f"grant it by a ClusterRole with the rule {rule}" in rights["advice"]


@pytest.mark.parametrize(
    ("by", "filters", "state", "said"),
    [
        ("UID", True, "ok", "the API server sends to each process those of its slots"),
        ("UID", False, "warning", "the API server sends all objects to each process"),
        ("Namespace", True, "ok", "each process receives all objects, and keeps its own"),
    ],
)
def test_whether_the_server_filters_by_slots(declctl, hello, folder, by, filters, state, said):
    """A list of custom resources does not show it, so a selector is sent that no filter can read."""
    with (hello / "manifest.yaml").open("a") as manifest:
        manifest.write(f"  admin: {{bindAddress: '127.0.0.1:0'}}\n  sharding: {{slots: 4, by: {by}}}\n")
    with SandboxThread(shard_selectors=filters) as sandbox:
        (folder / "kubeconfig").write_text(json.dumps(sandbox.kubeconfig()))
        found = in_cluster(declctl, status=0)["slots"]
    assert (found["state"], said in found["found"]) == (state, True)


def test_a_cluster_that_accepts_and_never_answers_is_one_failed_check(declctl, server):
    """The command ends in the time that --timeout gives, and the checks after it are skipped.

    It has to wait: the checks before it have the same limit, also on a busy machine.
    """
    config = server.kubeconfig()
    with socket.create_server(("127.0.0.1", 0)) as silent:  # connections wait in its backlog
        config["clusters"][0]["cluster"]["server"] = f"http://127.0.0.1:{silent.getsockname()[1]}"
        Path("kubeconfig").write_text(yaml.safe_dump(config))
        found = in_cluster(declctl, "--timeout", "2s", status=1)
    assert found["cluster"]["found"] == "it has not ended within 2 s"
    assert found["clock"]["state"] == found["rights"]["state"] == "skipped"


def test_what_is_not_there_leaves_the_other_checks(declctl, write):
    """Before the first manifest is written, the installation is checked; without a cluster, the manifest."""
    found = checks_of(declctl, status=1)
    states = {name: check["state"] for name, check in found.items()}
    assert "mount" not in states
    assert [states[name] for name in ("manifest", "python", "packages")] == ["skipped", "ok", "ok"]
    write("manifest.yaml", good.MANIFEST)
    write("handlers.py", good.HANDLERS)
    states = {name: check["state"] for name, check in checks_of(declctl, status=1).items()}
    assert [name for name, state in states.items() if state == "failed"] == ["credentials"]
    assert (states["rights"], states["manifest"]) == ("skipped", "ok")


def test_the_text_says_what_it_means_and_what_to_do(declctl, hello):
    """Each check is a line; below one that is not ok are its meaning and the advice. No colour in a pipe."""
    (hello / "manifest.yaml").write_text("kind: [")
    ended = declctl("doctor")
    assert (ended.status, "\x1b" in ended.out) == (1, False)
    at = next(number for number, line in enumerate(ended.lines) if line.startswith("failed   manifest"))
    line, means, advice = (each.strip() for each in ended.lines[at : at + 3])
    assert "manifest.yaml:1:1: error DCL001: this is not YAML" in line
    assert means == "means: declctl run and reloads refuse it"
    assert advice.startswith("do:    declctl validate shows all faults")
    assert ended.lines[-1].endswith("failed, 3 skipped")


@pytest.mark.parametrize("timeout", ["0s", "soon"])
def test_a_timeout_is_a_duration(declctl, folder, timeout):
    """Anything else is refused before a check is made."""
    assert declctl.refused("doctor", "--timeout", timeout).startswith("declctl: --timeout: ")


async def test_a_check_that_hangs_or_breaks_is_shown_as_failed():
    """One check does not hide the results of the others."""

    async def broken() -> Check:
        raise ValueError("no such thing")

    hangs = await doctor.limited("mount", asyncio.Event().wait(), 0.01)
    assert isinstance(hangs, Check)
    assert (hangs.name, hangs.state) == ("mount", FAILED)
    assert "--timeout gives each check more time" in hangs.advice
    breaks = await doctor.limited("memory", broken(), 30.0)
    assert isinstance(breaks, Check)
    assert breaks.found == "the check itself failed: ValueError: no such thing"


@pytest.mark.parametrize(
    ("check", "given", "state", "words"),
    [
        (host.check_python, ((3, 10, 4), "CPython"), FAILED, ""),
        (host.check_python, ((3, 14, 0), "CPython"), OK, ""),
        (host.check_python, ((3, 11, 9), "PyPy"), WARNING, ""),
        # Each watch has a connection of its own, beside what declctl needs itself.
        (host.check_descriptors, (5, (1024, 4096)), OK, "about 205 needed"),
        (host.check_descriptors, (5, (64, 4096)), FAILED, "about 205 needed"),
        (host.check_descriptors, (900, (1024, 4096)), FAILED, "about 1,100 needed"),
        # Below what a start takes it fails, a little above it warns.
        (host.check_memory, (None,), OK, ""),
        (host.check_memory, (256 << 20,), OK, ""),
        (host.check_memory, (100 << 20,), WARNING, ""),
        (host.check_memory, (32 << 20,), FAILED, ""),
        # Of an hour, certificates and tokens count as expired.
        (doctor.judge_skew, (0.4,), OK, ""),
        (doctor.judge_skew, (-20.0,), WARNING, "the clock of the API server is 20 s behind"),
        (doctor.judge_skew, (20.0,), WARNING, ""),
        (doctor.judge_skew, (3600.0,), FAILED, ""),
    ],
)
def test_interpreter_open_files_memory_and_clock(check, given, state, words):
    """Each has bounds for what fails and for what is a warning."""
    found = check(*given)
    assert found.state is state
    assert words in found.found


def test_packages_are_compared_with_what_declctl_requires():
    """Missing and old packages are named; those of other systems and extras are not needed."""
    installed = {"aiohttp": "3.1", "rich": "14.0"}

    def version_of(name: str) -> str:
        if name not in installed:
            raise metadata.PackageNotFoundError(name)
        return installed[name]

    needed = ["aiohttp>=3.10", "rich>=13", "pluggy>=1.5", 'x; extra == "cel"', 'y; sys_platform == "win32"']
    found = host.check_packages(needed, version_of)
    assert found.state is FAILED
    assert found.found == "aiohttp 3.1 (it has to be >=3.10); pluggy is not installed"
    assert host.check_packages(["rich>=13"], version_of).state is OK


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
def test_the_memory_limit_of_a_container_is_read(folder, write, line, files, limit):
    """Of both versions of cgroups; of nested groups the lowest limit holds."""
    write("cgroup", f"{line}\n")
    for name, text in files.items():
        write(f"fs/{name}", f"{text}\n")
    assert host.memory_limit(folder / "fs", folder / "cgroup") == limit


def test_inotify_limits(tmp_path, write):
    """Without an instance left, declctl polls; a system without inotify has nothing to check."""
    assert host.check_inotify(tmp_path, tmp_path).state is SKIPPED
    write("max_user_instances", "1\n")
    write("max_user_watches", "8192\n")
    assert host.check_inotify(tmp_path, tmp_path).state is OK
    write("42/fd/6", "")
    (tmp_path / "42" / "fd" / "7").symlink_to("anon_inode:inotify")
    found = host.check_inotify(tmp_path, tmp_path)
    assert (found.state, "1 of 1 instances in use" in found.found) == (WARNING, True)
    # A change of a file is noticed here: that check writes to a folder of its own, and measures.
    found = host.check_notices()
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
def test_the_mount_of_a_path(path, kind):
    """The longest mount point counts, and of two at one point the later, which hides the earlier."""
    mount = host.mount_of(Path(path), MOUNTINFO)
    assert mount is not None
    assert (mount.kind, host.mount_of(Path(path), "")) == (kind, None)


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
def test_whether_edits_are_noticed_on_a_mount(tmp_path, kind, state, words):
    """On file systems of other machines, the advice is to poll."""
    found = host.check_mount(tmp_path, f"1 0 8:1 / {tmp_path} rw - {kind} source rw\n")
    assert (found.state, words in found.found) == (state, True), found
    assert ("watch: Poll" in found.advice) is (state is WARNING)


def test_a_config_map_and_a_sub_path(tmp_path):
    """The links of a ConfigMap are exchanged at once; a file that is mounted alone is never updated."""
    manifest = tmp_path / "manifest.yaml"
    manifest.write_text("")
    alone = host.check_mount(manifest, f"1 0 8:1 /volume-subpaths/b/0 {manifest} ro - ext4 /dev/sda rw\n")
    assert (alone.state, "without subPath" in alone.advice) == (WARNING, True)
    (tmp_path / "..1").mkdir()
    (tmp_path / "..data").symlink_to("..1")
    assert "ConfigMap" in host.check_mount(manifest, f"1 0 0:1 / {tmp_path} ro - tmpfs tmpfs rw\n").found


def test_plugins_fail_only_if_the_manifest_uses_them():
    """A broken plugin that no manifest names is a warning; a missing one that is named fails."""
    good = ListedPlugin("good", "declctl-good", "1.0", (), "Ready", None)
    bad = ListedPlugin("bad", "declctl-bad", "1.0", (), "Quarantined", "ImportError: x")
    for named, state in (("good", WARNING), ("bad", FAILED)):
        assert [check.state for check in doctor.check_plugins([good, bad], frozenset({named}))] == [state]
    missing, other = doctor.check_plugins([good], frozenset({"slack"}))
    assert (missing.state, other.state) == (FAILED, OK)
    assert "slack is not installed" in missing.found


LOOPBACK, EVERYWHERE = AdminSpec(Address("127.0.0.1", 8081)), AdminSpec(Address("0.0.0.0", 8081))
# No token of the process is needed then.
REVIEWED = AdminSpec(Address("0.0.0.0", 8081), authorization=AdminAuthorization.KUBERNETES)


@pytest.mark.parametrize(
    ("address", "token", "state"),
    [
        (LOOPBACK, None, OK),
        (EVERYWHERE, None, WARNING),
        (REVIEWED, None, OK),
        (EVERYWHERE, "a" * 32, OK),
        (LOOPBACK, "hunter2", WARNING),
        (LOOPBACK, "naïve" * 5, FAILED),
    ],
)
def test_the_token(address, token, state):
    """Its text is never shown."""
    found = doctor.check_token(address, Path(), {"DECLCTL_ADMIN_TOKEN": token} if token else {})
    assert found.state is state
    assert not token or token not in str(found)


def test_the_token_in_a_file(folder, write):
    """The variable comes before the manifest, whose relative path begins at its folder."""
    manifest = AdminSpec(token_file="secret/token")
    missing = doctor.check_token(manifest, folder, {})
    assert (missing.state, "No such file or directory" in missing.found) == (FAILED, True)
    write("secret/token", "t" * 32 + "\n")
    assert doctor.check_token(manifest, folder, {}).state is OK
    write("short", "hunter2")
    variable = {"DECLCTL_ADMIN_TOKEN_FILE": str(folder / "short")}
    short = doctor.check_token(manifest, folder, variable)
    assert (short.state, "hunter2" in str(short)) == (WARNING, False)
    both = {**variable, "DECLCTL_ADMIN_TOKEN": "t" * 32}
    assert doctor.check_token(manifest, folder, both).state is FAILED


@pytest.fixture(name="address")
def _address(process: Process) -> Address:
    """The address of the running process `pod-guard`."""
    host, _, port = process.address.partition(":")
    return Address(host, int(port))


TLS = TlsFiles("cert", "key")
ANY_PORT = Address("127.0.0.1", 0)


def test_the_admin_address(process, address):
    """The own process, another one, another program, and nobody."""
    admin = AdminSpec(address)
    assert doctor.check_address(admin, "pod-guard").found.startswith("pod-guard generation 6 runs at")
    assert doctor.check_address(admin, None).state is OK
    other = doctor.check_address(admin, "hello")
    assert (other.state, "pod-guard runs at" in other.found) == (FAILED, True)
    blocked = {"name": "pod-guard", "conditions": [{"reason": "LoopBlocked", "message": "at a.py:7"}]}
    process.answers(200, blocked)
    found = doctor.check_address(admin, "pod-guard")
    assert (found.state, found.meaning) == (WARNING, "at a.py:7")
    process.body = b"<html>"
    assert "is in use by another program" in doctor.check_address(admin, "hello").found
    process.answers(401, {"error": "no"})
    assert doctor.check_address(admin, "hello").state is WARNING
    # With TLS it is not asked: by plain HTTP it would look like another program.
    asked = len(process.asked)
    encrypted = doctor.check_address(AdminSpec(address, tls=TLS), "hello")
    assert (encrypted.state, "by HTTPS" in encrypted.found) == (OK, True)
    assert len(process.asked) == asked
    # A free one is ok; one that is not of this machine can't be listened on.
    with socket.create_server(("127.0.0.1", 0)) as listener:
        free = Address("127.0.0.1", listener.getsockname()[1])
    assert doctor.check_address(AdminSpec(free), None).found.endswith("nothing runs there now")
    assert doctor.check_address(AdminSpec(ANY_PORT), None).state is OK
    assert doctor.check_address(AdminSpec(Address("192.0.2.1", 8081)), None).state is FAILED


def test_the_metrics_address(process, address):
    """The own process, another one, another program, the admin address itself, and nobody."""

    def check(
        where: Address = address, controller: str = "pod-guard", admin: AdminSpec | None = None
    ) -> Check:
        return doctor.check_metrics_address(admin or AdminSpec(), where, controller)

    process.answers(404, {"error": "There is nothing at /."})
    own, other = check(), check(controller="hello")
    assert (own.state, f"pod-guard serves its metrics at {address}" in own.found) == (OK, True)
    assert (other.state, "does not answer as hello" in other.found) == (FAILED, True)
    assert "spec.metrics.bindAddress" in other.advice
    process.body = b"# HELP of_another_exporter"
    assert check().state is FAILED
    asked = len(process.asked)
    encrypted = check(admin=AdminSpec(tls=TLS))
    assert (encrypted.state, encrypted.found) == (OK, f"something listens at {address}, by HTTPS")
    assert len(process.asked) == asked
    shared = check(admin=AdminSpec(Address("", address.port)))
    assert (shared.state, "is served by the admin address" in shared.found) == (OK, True)
    assert check(ANY_PORT).state is OK
    away = check(Address("192.0.2.1", 9090))
    assert (away.state, away.name) == (FAILED, "metrics address")


def test_doctor_looks_at_the_metrics_address_of_the_manifest(declctl, hello, address):
    """A start that would end with status 2 is told before it."""
    with (hello / "manifest.yaml").open("a") as manifest:
        manifest.write(f"  metrics: {{bindAddress: '{address}'}}\n")
    found = checks_of(declctl, status=1)["metrics address"]
    assert (found["state"], "is in use" in found["found"]) == ("failed", True)
