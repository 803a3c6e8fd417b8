"""A bundle as a pod finds it: a mounted ConfigMap edited in the API server, `subPath`, single files."""

import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from clusters import Cluster
from kubelet import Kubelet, python_with_files
from processes import Declctl
from rest import pod
from waiting import until

from declctl.runtime.checking.inputs import InputFiles
from declctl.testing import BundleDir

_EDITS = 50
_MANIFEST = """\
apiVersion: declctl.dev/v1alpha1
kind: Controller
metadata: {{name: mounted}}
spec:
  namespaces: [{namespace}]
  resources: [{{name: pods, apiVersion: v1, kind: Pod}}]
  handlers: [{{name: tell, resourceRef: {{name: pods}}, entryPoint: "handlers:tell_{revision}"}}]
  reload: {{watch: {watch}, settle: 20ms}}
"""
_HANDLERS = """\
import parts

def tell_{revision}(change):
    print("{revision}", parts.REVISION, change.type, change.obj.name)
"""


def _files(revision: int, namespace: str, watch: str) -> dict[str, str]:
    """A bundle whose three files belong together: torn ones fail, or tell two revisions."""
    return {
        "manifest.yaml": _MANIFEST.format(namespace=namespace, revision=revision, watch=watch),
        "handlers.py": _HANDLERS.format(revision=revision),
        "parts.py": f"REVISION = {revision}\n",
    }


class Mounted:
    """The ConfigMap `bundle` of the test's namespace; `edit` is what a user does to it."""

    def __init__(self, cluster: Cluster, namespace: str, watch: str) -> None:
        self.cluster = cluster
        self.namespace = namespace
        self._watch = watch
        metadata = {"name": "bundle", "namespace": namespace}
        self.latest = cluster.rest.create(
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": self._data(0)}
        )

    def edit(self, revision: int) -> None:
        """All three files become those of another revision."""
        self.patch(self._data(revision))

    def patch(self, data: Mapping[str, str]) -> None:
        """Some files become others."""
        self.latest = self.cluster.rest.patch("configmaps", "bundle", {"data": data}, self.namespace)

    def mounted(self, folder: Path, chance: random.Random) -> Kubelet:
        """It, in a folder, for the length of a context."""
        return Kubelet(self.cluster.rest, "bundle", self.namespace, folder, chance)

    def _data(self, revision: int) -> dict[str, str]:
        return _files(revision, self.namespace, self._watch)


@pytest.fixture(params=["Auto", pytest.param("Poll", marks=pytest.mark.thorough)])
def watch(request: pytest.FixtureRequest) -> str:
    """How files are watched."""
    return request.param


@pytest.fixture
def config_map(cluster: Cluster, namespace: str) -> Mounted:
    """A ConfigMap with a bundle in it."""
    return Mounted(cluster, namespace, "Auto")


def _hash(manifest: Path) -> str:
    """The bundle hash of what is there now."""
    return InputFiles(str(manifest)).read().digest


def _runs(declctl: Declctl, bundle_hash: str) -> Callable[[], bool]:
    return lambda: declctl.status()["bundleHash"] == bundle_hash


def _tells(declctl: Declctl, line: str) -> Callable[[], bool]:
    return lambda: line in declctl.out


def _write_in_place(file: Path, text: str) -> None:
    """The same file, which is not shorter than before, and never empty."""
    with file.open("r+", encoding="utf-8") as opened:
        opened.write(text)


def _attempts(declctl: Declctl, *results: str) -> list[Any]:
    """The bundle hashes of the attempts that ended so, the start's among them."""
    attempts = declctl.ask("/history")["attempts"]
    return [attempt["bundleHash"] for attempt in attempts if attempt["result"] in results]


@pytest.mark.guarantee("G1", "G2", "G24")
def test_fifty_edits_of_a_configmap_are_one_reload_each_and_never_torn(
    cluster: Cluster, namespace: str, watch: str, tmp_path: Path
) -> None:
    """Someone edits the ConfigMap in the API server while pods come: what is mounted is what runs, whole."""
    config_map = Mounted(cluster, namespace, watch)
    chance = random.Random(f"moments of {watch}")
    with (
        config_map.mounted(tmp_path / "etc", chance) as kubelet,
        Declctl(kubelet.path, kubeconfig=cluster.kubeconfig) as declctl,
    ):
        declctl.wait_until_synced()
        asked = cluster.asked("list", "pods"), cluster.asked("watch", "pods")
        mounted, settled = [_hash(kubelet.path)], [_hash(kubelet.path)]
        for revision in range(1, _EDITS + 1):
            config_map.edit(revision)
            cluster.rest.create(pod(f"p{revision:02}", namespace))
            kubelet.wait_for(config_map.latest)
            mounted.append(_hash(kubelet.path))
            if revision == _EDITS or chance.random() < (0.4 if watch == "Auto" else 0.15):
                settled.append(mounted[-1])
                until(f"revision {revision} runs", _runs(declctl, mounted[-1]))
        until("all pods are told", lambda: len(declctl.out) >= _EDITS)
        assert len(set(mounted)) == _EDITS + 1
        live = _attempts(declctl, "Applied")
        assert [mounted.index(each) for each in live] == sorted({mounted.index(each) for each in live})
        assert set(settled) <= set(live)
        assert _attempts(declctl, "Refused", "RolledBack") == []
        assert declctl.status()["generation"] == len(live)
        told = [line.split() for line in declctl.out]
        assert [(kind, name) for _, _, kind, name in told] == [
            ("Added", f"p{revision:02}") for revision in range(1, _EDITS + 1)
        ]
        assert [manifest for manifest, part, _, _ in told if manifest != part] == []
        assert (cluster.asked("list", "pods"), cluster.asked("watch", "pods")) == asked
        assert declctl.stop() == 0


@pytest.mark.guarantee("G24")
def test_a_subpath_stays_what_it_was_until_the_container_starts_again(
    config_map: Mounted, tmp_path: Path
) -> None:
    """The kubelet mounts the files of one moment: no edit reaches them, and `declctl reload` says so."""
    app = tmp_path / "app"
    app.mkdir()
    with config_map.mounted(tmp_path / "volume", random.Random(3)) as kubelet:
        files = {app / name: kubelet.path / name for name in ("manifest.yaml", "handlers.py", "parts.py")}
        python = python_with_files(tmp_path / "python", files)
        for revision in (0, 1):
            with Declctl(app, kubeconfig=config_map.cluster.kubeconfig, python=python) as declctl:
                declctl.wait_until_synced()
                runs = declctl.status()["bundleHash"]
                config_map.edit(revision + 1)
                kubelet.wait_for(config_map.latest)
                assert declctl.reload()["result"] == "Unchanged"
                config_map.cluster.rest.create(pod(f"p{revision}", config_map.namespace))
                until(
                    "the code of the start tells it",
                    _tells(declctl, f"{revision} {revision} Added p{revision}"),
                )
                assert _attempts(declctl, "Applied", "Refused") == [runs]
                assert declctl.stop() == 0


@pytest.mark.guarantee("G24")
def test_edits_of_which_no_notice_comes_are_found_by_looking(
    cluster: Cluster, namespace: str, watch: str, tmp_path: Path
) -> None:
    """A link to a file elsewhere, and `docker -v handlers.py:…`, which shows edits in place and no others."""
    files = _files(0, namespace, watch)
    outside = BundleDir(tmp_path / "outside", files)
    app = BundleDir(tmp_path / "app", files)
    app.remove("parts.py")
    (app.path / "parts.py").symlink_to("../outside/parts.py")
    mounts = {app.path / "handlers.py": outside.path / "handlers.py"}
    python = python_with_files(tmp_path / "python", mounts)
    with Declctl(app.path, kubeconfig=cluster.kubeconfig, python=python) as declctl:
        declctl.wait_until_synced()
        outside.write("parts.py", "REVISION = 1\n")
        declctl.wait_for_generation(2)
        _write_in_place(outside.path / "handlers.py", f"{files['handlers.py']}# an edit\n")
        declctl.wait_for_generation(3)
        outside.write("handlers.py", "raise OSError('nobody reads this')\n")
        assert declctl.reload()["result"] == "Unchanged"
        assert len(_attempts(declctl, "Applied", "Refused")) == 3


@pytest.mark.scenario
@pytest.mark.guarantee("G24")
def test_files_that_are_replaced_or_written_in_place_are_reloaded(
    cluster: Cluster, namespace: str, watch: str, tmp_path: Path
) -> None:
    """Without a ConfigMap: a file is renamed over another, or written again."""
    bundle = BundleDir(tmp_path / "app", _files(0, namespace, watch))
    with Declctl(bundle.path / "manifest.yaml", kubeconfig=cluster.kubeconfig) as declctl:
        declctl.wait_until_synced()
        for edit in range(1, 5):
            text = f"REVISION = {edit}\n"
            if edit % 2:
                bundle.write("parts.py", text)
            else:
                _write_in_place(bundle.path / "parts.py", text)
            until(f"edit {edit} runs", _runs(declctl, _hash(bundle.path / "manifest.yaml")))
            cluster.rest.create(pod(f"p{edit}", namespace))
            until("its code tells the next pod", _tells(declctl, f"0 {edit} Added p{edit}"))
        assert len(_attempts(declctl, "Applied", "Refused")) == 5
