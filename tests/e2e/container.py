"""A container of a generated pod, as a container runtime starts it, but without one and without an image.

The process has the user, the environment and the mounts that the pod and the Dockerfile name. Its root is
read-only. It has the interpreter and the packages of the tests, at their own paths, and the libraries of the
system; it has nothing else of this machine.
"""

import base64
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from rest import Rest

from declctl.testing import ConfigMapDir

_ROOT = Path(__file__).parents[2]
_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
# What the interpreter needs of the system; links such as /lib stay links.
_SYSTEM = ("/usr", "/bin", "/lib", "/lib64", "/etc/ld.so.cache", "/etc/ssl")
_DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")
_ENV = re.compile(r"^ENV ((?:.*\\\n)*.*)$", re.MULTILINE)
_USER = re.compile(r"^USER (\d+):(\d+)$", re.MULTILINE)


def image_environment() -> dict[str, str]:
    """The variables that the Dockerfile sets, other than PATH, which names programs of the image."""
    text = (_ROOT / "Dockerfile").read_text("utf-8")
    pairs = [each for found in _ENV.findall(text) for each in shlex.split(found.replace("\\\n", " "))]
    variables = dict(each.split("=", 1) for each in pairs)
    del variables["PATH"]
    return variables


def image_user() -> tuple[int, int]:
    """The user and the group of the image."""
    found = _USER.findall((_ROOT / "Dockerfile").read_text("utf-8"))
    return int(found[-1][0]), int(found[-1][1])


def volumes_of(spec: Mapping[str, Any], rest: Rest, namespace: str, folder: Path) -> dict[str, Path]:
    """The volumes of a pod below `folder`, by name: those that a kubelet fills once, and empty ones.

    ConfigMaps that are a volume of their own are left out: `Kubelet` follows them.
    """
    found: dict[str, Path] = {}
    for volume in spec["volumes"]:
        path = folder / volume["name"]
        if "emptyDir" in volume:
            path.mkdir(parents=True)
            path.chmod(0o777)  # as a kubelet makes it
        elif "configMap" in volume:
            continue
        elif "secret" in volume:
            ConfigMapDir(path, _files(rest, namespace, volume["secret"]["secretName"], None))
        else:
            files: dict[str, str] = {}
            for source in volume["projected"]["sources"]:
                files |= _files(rest, namespace, source["secret"]["name"], source["secret"]["items"])
            ConfigMapDir(path, files)
        found[volume["name"]] = path
    return found


def _files(
    rest: Rest, namespace: str, name: str, items: Sequence[Mapping[str, str]] | None
) -> dict[str, str]:
    """The texts of a Secret by the names of its files."""
    data = rest.request("GET", f"/api/v1/namespaces/{namespace}/secrets/{name}")["data"]
    paths = {key: key for key in data} if items is None else {each["key"]: each["path"] for each in items}
    return {path: base64.b64decode(data[key]).decode() for key, path in paths.items()}


class Container:
    """The container of declctl in a generated pod. `python` is its Python, which a test starts.

    `volumes` are the folders of the volumes by name, `account` is the folder of the service account. Skips
    where the tests may not mount, or may not become the user of the pod.
    """

    def __init__(
        self,
        folder: Path,
        spec: Mapping[str, Any],
        *,
        volumes: Mapping[str, Path],
        account: Path,
        env: Mapping[str, str],
    ) -> None:
        _require_root()
        (container,) = spec["containers"]
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        given = {each["name"]: each["value"] for each in container.get("env", ()) if "value" in each}
        self._env = {**image_environment(), **given, **env}
        self._user = spec["securityContext"]["runAsUser"], spec["securityContext"]["runAsGroup"]
        self._root = folder / "root"
        self._root.mkdir(parents=True)
        binds = [(account, _ACCOUNT, True)]
        binds += [
            (volumes[each["name"]], each["mountPath"], bool(each.get("readOnly")))
            for each in container["volumeMounts"]
        ]
        self._script = "\n".join(["set -e", *self._mounts(binds)])
        self.python = self._program(folder / "python", sys.executable)

    def run(self, *arguments: str, without: str = "") -> subprocess.CompletedProcess[str]:
        """A command of declctl beside the process, as `kubectl exec` runs it; `without` a variable."""
        variables = {name: value for name, value in self._env.items() if name != without}
        command = self._command(variables, [sys.executable, "-m", "declctl", *arguments])
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)

    def _program(self, script: Path, program: str) -> str:
        command = shlex.join(self._command(self._env, [program]))
        script.write_text(f'#!/bin/sh\nexec {command} "$@"\n', "utf-8")
        script.chmod(0o755)
        return str(script)

    def _command(self, env: Mapping[str, str], command: Sequence[str]) -> list[str]:
        """A command that becomes `command` in the container, without a process in between."""
        user, group = self._user
        become = ["setpriv", f"--reuid={user}", f"--regid={group}", "--clear-groups", "--no-new-privs"]
        become += ["--bounding-set=-all", "--inh-caps=-all"]
        variables = [f"{name}={value}" for name, value in env.items()]
        inside = ["chroot", str(self._root), *become, "env", "-i", *variables, *command]
        # setpriv and env are looked up after the chroot; `$@` are further arguments of the program.
        text = f'{self._script}\nexec {shlex.join(inside)} "$@"'
        return ["unshare", "--mount", "sh", "-c", text, "sh"]

    def _mounts(self, binds: Sequence[tuple[Path, str, bool]]) -> Iterator[str]:
        """Commands that mount the root, in a mount namespace of its own, and make it read-only."""
        root = str(self._root)
        yield shlex.join(["mount", "-t", "tmpfs", "-o", "mode=0755", "tmpfs", root])
        yield f"mkdir -p {root}/etc && echo 'root:x:0:0:root:/root:/sbin/nologin' > {root}/etc/passwd"
        # The volumes come first: the interpreter, or this repository, may be below /tmp.
        for source, target, read_only in sorted(binds, key=lambda each: each[1]):
            yield from self._bind(source, target, read_only=read_only)
        for each in map(Path, _SYSTEM):
            if each.is_symlink():
                yield f"cp -P {each} {root}{each}"
        system = [each for each in map(Path, _SYSTEM) if each.exists() and not each.is_symlink()]
        wanted = [*system, _ROOT, *(Path(each) for each in (sys.base_prefix, sys.prefix))]
        bound: list[Path] = []
        for path in dict.fromkeys(wanted):
            if not any(path.is_relative_to(each) for each in bound):
                yield from self._bind(path, str(path), read_only=True)
                bound.append(path)
        yield f"mkdir -p {root}/proc {root}/dev && mount --rbind /proc {root}/proc"
        for each in _DEVICES:
            yield from self._bind(Path(each), each, read_only=False)
        yield shlex.join(["mount", "-o", "remount,ro", root])

    def _bind(self, source: Path, target: str, *, read_only: bool) -> Iterator[str]:
        place = f"{self._root}{target}"
        if source.is_dir():
            yield shlex.join(["mkdir", "-p", place])
        else:
            yield f"{shlex.join(['mkdir', '-p', str(Path(place).parent)])} && {shlex.join(['touch', place])}"
        yield shlex.join(["mount", "--bind", str(source), place])
        if read_only:
            yield shlex.join(["mount", "-o", "remount,bind,ro", place])


def _require_root() -> None:
    """Skip where nobody may mount and become another user."""
    if sys.platform != "linux" or os.geteuid() != 0:
        pytest.skip("only root, on Linux, can become the user of a pod, and mount what the pod has")
    missing = [each for each in ("unshare", "setpriv", "chroot") if shutil.which(each) is None]
    if missing:
        pytest.skip(f"a container needs {', '.join(missing)} of util-linux and coreutils")
    tried = subprocess.run(["unshare", "--mount", "true"], check=False, capture_output=True, text=True)
    if tried.returncode != 0:
        pytest.skip(f"mounts of one's own are not allowed here: {tried.stderr.strip()}")
