"""Files change while it runs: new code, the same cache."""

from collections.abc import Callable
from pathlib import Path

import pytest
from bundles import TELLING, telling
from clusters import Cluster
from processes import Declctl
from rest import pod
from waiting import until

from declctl.testing import BundleDir


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
