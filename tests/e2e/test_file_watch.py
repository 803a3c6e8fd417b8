"""The process can't look at its files for a while: it goes on, says so, and applies the edit afterwards."""

import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from bundles import TELLING, telling
from clusters import SandboxCluster, make_namespace
from processes import Declctl
from rest import pod
from waiting import until

# Does in the child what only a system can do that is short of something, while a file is there.
_SITE = """
import os, threading
_start, _stat = threading.Thread.start, os.stat
_threads, _bundle = os.environ["NO_THREADS"], os.environ["NO_ACCESS"]
def start(self):
    if os.access(_threads, os.F_OK):
        raise RuntimeError("can't start new thread")
    _start(self)
def stat(path, *arguments, **how):
    if "/bundle" in os.fspath(path) and os.access(_bundle, os.F_OK):
        raise PermissionError(13, "Permission denied", os.fspath(path))
    return _stat(path, *arguments, **how)
threading.Thread.start, os.stat = start, stat
"""


class _Shortage:
    """What a child can lack, from outside of it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._no_threads, self._no_access = folder / "no-threads", folder / "no-access"
        (folder / "sitecustomize.py").write_text(_SITE)

    @property
    def environment(self) -> dict[str, str]:
        """For the child."""
        return {
            "PYTHONPATH": str(self._folder),
            "NO_THREADS": str(self._no_threads),
            "NO_ACCESS": str(self._no_access),
        }

    @contextmanager
    def of_descriptors(self, child: Declctl) -> Iterator[None]:
        """Not one more file can be opened."""
        before = resource.prlimit(child.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(child.pid, resource.RLIMIT_NOFILE, (3, before[1]))
        try:
            yield
        finally:
            resource.prlimit(child.pid, resource.RLIMIT_NOFILE, before)

    @contextmanager
    def of_threads(self, _child: Declctl) -> Iterator[None]:
        """Not one more thread can be started."""
        self._no_threads.touch()
        try:
            yield
        finally:
            self._no_threads.unlink()

    @contextmanager
    def of_access(self, _child: Declctl) -> Iterator[None]:
        """The folder can't be entered, as after `chmod 000`; root, who may run the tests, always can."""
        self._no_access.touch()
        try:
            yield
        finally:
            self._no_access.unlink()


# What is lacking, and the words that the log has of it.
SHORTAGES: dict[str, tuple[Callable, str]] = {
    "descriptors": (_Shortage.of_descriptors, "files can't be looked at"),
    "threads": (_Shortage.of_threads, "files can't be looked at"),
    "access": (_Shortage.of_access, "permission denied"),
}


@pytest.mark.guarantee("G6", "G25")
@pytest.mark.parametrize("watch", ["Auto", "Poll"])
@pytest.mark.parametrize("what", SHORTAGES)
def test_what_looking_lacks_ends_nothing_and_the_edit_is_applied_afterwards(
    what: str, watch: str, sandbox_cluster: SandboxCluster, tmp_path: Path
) -> None:
    """No descriptors, threads or access: changes are delivered, it is told once, and the edit is not lost."""
    cluster, namespace = sandbox_cluster, "short"
    make_namespace(cluster, namespace)
    bundle = telling(tmp_path / "bundle", namespace=namespace)
    manifest = (bundle.path / "manifest.yaml").read_text().replace("50ms", f"50ms, watch: {watch}")
    bundle.write("manifest.yaml", manifest)
    (tmp_path / "site").mkdir()
    shortage = _Shortage(tmp_path / "site")
    begin, words = SHORTAGES[what]
    with Declctl(bundle.path, kubeconfig=cluster.kubeconfig, env=shortage.environment) as declctl:
        declctl.wait_until_synced()
        with begin(shortage, declctl):
            bundle.write("handlers.py", TELLING.replace("{change.type}", "new {change.type}"))
            until("it is told", lambda: words in "\n".join(declctl.err))
            cluster.rest.create(pod("meanwhile", namespace))
            until("the old code goes on", lambda: any("meanwhile" in line for line in declctl.out))
        declctl.wait_for_generation(2)
        cluster.rest.create(pod("after", namespace))
        until("the new code runs", lambda: any(line.startswith("new Added pods") for line in declctl.out))
        until("all is well", lambda: declctl.condition("Degraded")["status"] == "False")
        until("it is what the files say", lambda: declctl.condition("Reloaded")["status"] == "True")
        assert len([line for line in declctl.err if words in line]) <= 2
        looks = declctl.status()["fileWatch"]
        assert looks["error"] is None
        assert looks["failures"] or what == "access"
        assert declctl.stop() == 0
