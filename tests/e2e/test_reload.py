"""Files change while it runs: new code, the same cache."""

from collections.abc import Callable
from pathlib import Path

import pytest
from bundles import MANIFEST, TELLING, telling
from clusters import Cluster
from processes import Declctl
from rest import pod
from waiting import stays, until

from declctl.testing import BundleDir, ConfigMapDir


@pytest.fixture
def bundle(tmp_path: Path, namespace: str) -> BundleDir:
    """A handler that tells every change of the pods of the test's namespace."""
    return telling(tmp_path / "bundle", namespace=namespace)


def _asked(cluster: Cluster) -> tuple[int, int]:
    return cluster.asked("list", "pods"), cluster.asked("watch", "pods")


def _says(declctl: Declctl, words: str) -> Callable[[], bool]:
    return lambda: any(words in line for line in declctl.out)


@pytest.mark.scenario
@pytest.mark.guarantee("G1")
def test_an_edited_handler_takes_over_without_a_list_or_watch(
    cluster: Cluster, bundle: BundleDir, namespace: str
) -> None:
    """The next change is told by the new code, and the API server was not asked for anything again."""
    cluster.rest.create(pod("before", namespace))
    with Declctl(bundle.path, kubeconfig=cluster.kubeconfig) as declctl:
        declctl.wait_until_synced()
        until("the first pod is told", _says(declctl, f"Added pods {namespace}/before"))
        asked = _asked(cluster)
        assert sum(asked) > 0
        bundle.edit("handlers.py", "{change.type}", "edited {change.type}")
        declctl.wait_for_generation(2)
        cluster.rest.create(pod("after", namespace))
        until("the new code tells it", _says(declctl, f"edited Added pods {namespace}/after"))
        assert _asked(cluster) == asked
        assert not _says(declctl, f"edited Added pods {namespace}/before")()
        said = "generation 2: ~handler tell (code), 0 LIST"
        until("the log says so", lambda: any(said in line for line in tuple(declctl.err)))
        assert declctl.stop() == 0


@pytest.mark.scenario
@pytest.mark.guarantee("G2")
def test_no_change_is_lost_or_told_twice_while_code_is_edited(
    cluster: Cluster, bundle: BundleDir, namespace: str
) -> None:
    """Pods come while the handler is edited again and again: each is told exactly once."""
    with Declctl(bundle.path, kubeconfig=cluster.kubeconfig) as declctl:
        declctl.wait_until_synced()
        for number in range(40):
            if number % 10 == 5:
                bundle.write("handlers.py", f"{TELLING}\nEDIT = {number}\n")
            cluster.rest.create(pod(f"p{number:02}", namespace))
        until("the last edit runs", lambda: declctl.status()["generation"] >= 2)
        until("all pods are told", lambda: len([line for line in declctl.out if "Added" in line]) >= 40)
        told = [line.split()[2] for line in declctl.out if line.startswith("Added")]
        assert told == [f"{namespace}/p{number:02}" for number in range(40)]
        assert declctl.resource("pods")["relists"] == 0


@pytest.mark.guarantee("G13", "G18")
def test_what_is_added_is_read_once_and_the_rest_not_again(
    cluster: Cluster, bundle: BundleDir, namespace: str
) -> None:
    """A new resource costs its own LIST or WATCH; a new index and a new handler cost nothing."""
    cluster.rest.create(pod("old", namespace))
    with Declctl(bundle.path, kubeconfig=cluster.kubeconfig) as declctl:
        declctl.wait_until_synced()
        asked = _asked(cluster)
        more = MANIFEST.format(namespace=namespace)
        more = more.replace("]}\n", ', {name: byApp, fieldPath: "metadata.labels.app"}]}\n', 1)
        more = more.replace(
            "  handlers:\n",
            "    - {name: configmaps, apiVersion: v1, kind: ConfigMap}\n"
            "  handlers:\n"
            '    - {name: second, resourceRef: {name: pods}, entryPoint: "handlers:tell"}\n'
            '    - {name: maps, resourceRef: {name: configmaps}, entryPoint: "handlers:tell"}\n',
        )
        bundle.write("manifest.yaml", more)
        declctl.wait_for_generation(2)
        until(
            "the new handler hears the cache",
            lambda: [line for line in declctl.out if f"{namespace}/old" in line][1:],
        )
        cluster.rest.create(pod("new", namespace, app="web"))
        until("both handlers tell it", lambda: len([x for x in declctl.out if f"{namespace}/new" in x]) == 2)
        assert _asked(cluster) == asked
        assert cluster.asked("list", "configmaps") + cluster.asked("watch", "configmaps") > 0
        assert declctl.ask("/index/pods/byApp/web")["keys"] == [f"{namespace}/new"]
        bundle.write("manifest.yaml", MANIFEST.format(namespace=namespace))
        declctl.wait_for_generation(3)
        cluster.rest.delete("pods", "new", namespace)
        until("one handler is left", lambda: any(f"Deleted pods {namespace}/new" in x for x in declctl.out))
        assert [handler["name"] for handler in declctl.status()["handlers"]] == ["tell"]
        assert _asked(cluster) == asked


_BROKEN = {
    "a syntax error": ("handlers.py", "def tell(change:\n", "handlers.py:1"),
    "an import that raises": ("handlers.py", f"{TELLING}\nraise OSError('no disk')\n", "no disk"),
    "an import that ends the process": (
        "handlers.py",
        f"import os\nos._exit(0)\n{TELLING}",
        "ended the process",
    ),
    "a function that is not there": ("handlers.py", "def tel(change):\n    print(change)\n", "tel"),
    "a parameter that no hook has": ("handlers.py", "def tell(chnage):\n    print(chnage)\n", "chnage"),
    "a field that there is not": ("manifest.yaml", "resourceRef", "resuorceRef"),
}


@pytest.mark.scenario
@pytest.mark.guarantee("G6", "G25")
def test_a_broken_edit_changes_nothing_but_the_status(
    cluster: Cluster, bundle: BundleDir, namespace: str
) -> None:
    """Whatever is broken, the old code goes on, the status says where, and the mended file is taken."""
    with Declctl(bundle.path, kubeconfig=cluster.kubeconfig) as declctl:
        declctl.wait_until_synced()
        asked = _asked(cluster)
        for number, (what, (file, text, place)) in enumerate(_BROKEN.items()):
            good = (bundle.path / file).read_text("utf-8")
            bundle.write(file, text if file == "handlers.py" else good.replace(text, place))
            until(f"{what} is refused", lambda: declctl.condition("Reloaded")["status"] == "False")
            assert place in declctl.condition("Reloaded")["message"], what
            assert declctl.status()["generation"] == 1
            assert declctl.status()["ready"]
            cluster.rest.create(pod(f"p{number}", namespace))
            until("the old code goes on", _says(declctl, f"Added pods {namespace}/p{number}"))
            bundle.write(file, good)
            until(f"{what} is mended", lambda: declctl.condition("Reloaded")["status"] == "True")
        assert declctl.status()["generation"] == 1
        assert _asked(cluster) == asked
        told = [line for line in declctl.out if line.startswith("Added")]
        assert len(told) == len(_BROKEN)


@pytest.mark.guarantee("G24")
def test_the_swap_of_a_configmap_reloads(cluster: Cluster, tmp_path: Path, namespace: str) -> None:
    """In a pod the kubelet moves one link: manifest and handlers change together, again and again."""
    files = {"manifest.yaml": MANIFEST.format(namespace=namespace), "handlers.py": TELLING}
    mounted = ConfigMapDir(tmp_path / "etc", files)
    with Declctl(mounted.path / "manifest.yaml", kubeconfig=cluster.kubeconfig) as declctl:
        declctl.wait_until_synced()
        for number in (2, 3, 4):
            mounted.swap({**files, "handlers.py": TELLING.replace('f"', f'f"v{number} ')})
            declctl.wait_for_generation(number)
            cluster.rest.create(pod(f"p{number}", namespace))
            until("the new code tells it", _says(declctl, f"v{number} Added pods {namespace}/p{number}"))
        mounted.swap({**files, "handlers.py": TELLING.replace('f"', 'f"v4 ')})
        stays(
            "a swap that changes nothing is no reload",
            lambda: declctl.status()["generation"] == 4,
            seconds=0.7,
        )
