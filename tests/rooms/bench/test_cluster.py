"""The files that are edited, and the objects and changes that are made."""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from declctl.bench.cluster import BenchCluster, LoadGenerator, ObjectMaker, definitions
from declctl.bench.controller import FAILS, built_in, copied
from declctl.errors import SandboxError, UsageError
from declctl.manifest import ManifestSource, Plan, load, plan
from declctl.runtime.checking.check import check
from declctl.runtime.checking.inputs import InputFiles, Inputs
from declctl.sandbox import SandboxThread
from declctl.testing import BundleDir

HEAD = "apiVersion: declctl.dev/v1alpha1\nkind: Controller\nmetadata: {name: shop}\nspec:\n"
WIDGETS = "{name: widgets, apiVersion: shop.example/v1, kind: Widget}"
PODS = "{name: pods, apiVersion: v1, kind: Pod}"


def planned(*resources: str) -> Plan:
    """The plan of a manifest with these resources and no handler."""
    text = f"{HEAD}  resources:\n" + "".join(f"    - {resource}\n" for resource in resources)
    return plan(load(ManifestSource("manifest.yaml", text.encode())).controller)


def maker(resource: str, *samples: dict) -> ObjectMaker:
    return ObjectMaker(planned(resource).resources[0], samples)


@pytest.fixture(name="server")
def _server() -> Iterator[SandboxThread]:
    with SandboxThread() as server:
        yield server


@pytest.fixture(name="cluster_of")
def _cluster_of(server: SandboxThread, tmp_path: Path) -> Callable[..., BenchCluster]:
    """Makes a cluster with so many objects of these resources."""
    return lambda *kinds, objects: BenchCluster(server, planned(*kinds), (), objects=objects, folder=tmp_path)


@pytest.fixture(name="bundle")
def _bundle(tmp_path: Path) -> BundleDir:
    """Handlers in a package, beside files that nobody reads."""
    files = {
        "manifest.yaml": f"{HEAD}  resources: [{PODS}]\n"
        '  handlers: [{name: tell, resourceRef: {name: pods}, entryPoint: "handlers.pods:tell"}]\n',
        "handlers/__init__.py": "",
        "handlers/pods.py": "def tell(change): pass\n",
        "notes.txt": "nobody's business",
    }
    return BundleDir(tmp_path / "bundle", files)


def read(path: Path) -> Inputs:
    return InputFiles(str(path)).read()


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_built_in_manifest_is_valid_before_and_after_the_edit(tmp_path: Path):
    """With as many handlers as asked for; the edit changes their code, so that they fail no more."""
    bundle = built_in(3)
    assert [handler.name for handler in bundle.plan.handlers] == ["h1", "h2", "h3"]
    manifest, codes = str(bundle.write(tmp_path)), []
    for fails in (True, False):
        checked = check(manifest)
        assert checked.inputs is not None
        assert (checked.errors, FAILS in (tmp_path / "handlers.py").read_text()) == ((), fails)
        codes.append(checked.inputs.code)
        bundle.edit(tmp_path)
    assert codes[0] != codes[1]


def test_a_copy_has_what_runs_and_nothing_else(bundle: BundleDir, tmp_path: Path):
    """The original is never written to; the edit changes the code of every handler file."""
    was, inputs = contents(bundle.path), read(bundle.path)
    copy = copied(inputs)
    manifest = copy.write(tmp_path / "copy")
    names = {path.name for path in (tmp_path / "copy").rglob("*.*")}
    assert names == {"manifest.yaml", "__init__.py", "pods.py"}
    assert read(manifest).digest != ""
    assert read(manifest).code == inputs.code
    copy.edit(tmp_path / "copy")
    edited = read(manifest).bundle.files
    assert all(edited[name] != data for name, data in inputs.bundle.files.items())
    assert contents(bundle.path) == was


def test_without_a_handler_file_there_is_nothing_to_edit(bundle: BundleDir):
    """Installed handlers can't be edited."""
    bundle.edit("manifest.yaml", "handlers.pods:tell", "inspect:isgeneratorfunction")
    with pytest.raises(UsageError, match="nothing to edit"):
        copied(read(bundle.path))


def test_a_file_outside_of_the_folder_is_not_copied(bundle: BundleDir):
    """A copy would write outside of its own folder, too."""
    bundle.write("../elsewhere/token", "secret")
    manifest = (bundle.path / "manifest.yaml").read_text()
    plugins = "  plugins: [{name: slack, configFrom: [{name: token, file: ../elsewhere/token}]}]\n"
    bundle.write("manifest.yaml", manifest + plugins)
    with pytest.raises(UsageError, match=r"\.\./elsewhere/token is not below"):
        copied(read(bundle.path))


def test_objects_are_what_the_resource_selects(server: SandboxThread):
    """In its namespaces, with labels that its selector takes, each under a name of its own."""
    selector = "{matchLabels: {app: web}, matchExpressions: [{key: tier, operator: Exists}]}"
    resource = PODS.replace("}", f", namespaces: [a, b], labelSelector: {selector}}}")
    made = list(itertools.islice(maker(resource), 4))
    metadata = [obj["metadata"] for obj in made]
    assert [each["namespace"] for each in metadata] == ["a", "b", "a", "b"]
    assert all(each["labels"]["app"] == "web" and "tier" in each["labels"] for each in metadata)
    assert planned(resource).resources[0].watches[0].label_selector
    assert len({each["name"] for each in metadata}) == 4
    assert len(server.load(made)) == 4 + 2  # with the namespaces


def test_namespaces_of_a_selector_are_made_with_its_labels(server: SandboxThread, cluster_of):
    """Otherwise nothing would be measured: no namespace matched, and no object was listed."""
    pods = PODS.replace("}", ", namespaces: {labelSelector: 'team in (web,api),tier'}}")
    cluster_of(pods, objects=0)
    spaces = [each["metadata"] for each in server.objects("Namespace")]
    made = [each for each in spaces if each["name"].startswith("bench-")]
    wanted = {"team": "api", "tier": "bench"}
    assert [wanted.items() <= each["labels"].items() for each in made] == [True, True]
    objects = list(itertools.islice(maker(pods), 4))
    assert [each["metadata"]["namespace"] for each in objects] == [each["name"] for each in made] * 2


def test_a_resource_that_names_its_objects_gets_those():
    """And no more of them."""
    resource = "{name: maps, apiVersion: v1, kind: ConfigMap, names: [settings, limits]}"
    assert [obj["metadata"]["name"] for obj in maker(resource)] == ["settings", "limits"]


def test_samples_are_copied_under_other_names():
    """Without what the server gives; the sample itself stays what it was."""
    metadata = {"name": "web", "uid": "u", "resourceVersion": "7", "labels": {"team": "shop"}}
    sample = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"nodeName": "n"}}
    first, second = itertools.islice(maker(PODS, sample), 2)
    assert first["spec"] == {"nodeName": "n"}
    assert first["metadata"]["labels"]["team"] == "shop"
    assert {"uid", "resourceVersion"}.isdisjoint(first["metadata"])
    assert first["metadata"]["name"] != second["metadata"]["name"]
    assert sample["metadata"]["name"] == "web"


def test_a_custom_kind_is_served_whether_it_is_defined_or_not(server: SandboxThread):
    """A definition among the samples is taken; otherwise one is made up."""
    plain = planned(WIDGETS, PODS)
    made = list(definitions(plain, []))
    assert [one["metadata"]["name"] for one in made] == ["widgets.shop.example"]
    assert list(definitions(plain, made)) == made
    server.load(made)
    server.load(itertools.islice(maker(WIDGETS), 1))
    assert len(server.objects("Widget")) == 1


def test_a_cluster_has_as_many_of_one_resource_as_of_another(server: SandboxThread, cluster_of):
    """As many as were asked for, in all; its kubeconfig leads to it."""
    cluster = cluster_of(WIDGETS, PODS, objects=5)
    assert (cluster.objects, len(server.objects("Widget")), len(server.objects("Pod"))) == (5, 3, 2)
    assert server.url in cluster.kubeconfig.read_text()


def stepped(cluster: BenchCluster, times: int) -> LoadGenerator:
    """A churn that has made so many changes."""
    churn = cluster.churn()
    for _ in range(times):
        churn.step()
    return churn


def test_changes_are_written_down_as_the_server_has_them(server: SandboxThread, cluster_of):
    """Objects change, come and go; those that were there stay, and each state has a version of its own."""
    churn = stepped(cluster_of(PODS, objects=10), 100)
    assert {change.type for change in churn.made} == {"Added", "Modified", "Deleted"}
    assert len(churn.made) == 100
    assert churn.version == max(change.version for change in churn.made)
    modified = [change.version for change in churn.made if change.type == "Modified"]
    assert len(set(modified)) == len(modified)
    keys = {f"{o['metadata']['namespace']}/{o['metadata']['name']}" for o in server.objects("Pod")}
    came, went = ({c.key for c in churn.made if c.type == kind} for kind in ("Added", "Deleted"))
    assert went < came
    assert keys >= came - went
    assert keys.isdisjoint(went)
    assert len(keys) == 10 + len(came) - len(went)


def test_a_second_churn_makes_changes_again(cluster_of):
    """What it sets differs from what the first has set: an update without a difference is none."""
    cluster = cluster_of(PODS, objects=4)
    first, second = cluster.churn(), cluster.churn()
    for churn in (first, second):
        for _ in range(3):
            churn.step()
    assert second.made[0].version > first.version


def test_a_fault_of_a_change_ends_the_context(server: SandboxThread, cluster_of):
    """Nobody measures a cluster that has stopped changing."""
    churn = cluster_of(PODS, objects=1).churn()
    server.delete("Pod", "bench-000000")
    with pytest.raises(SandboxError, match="bench-000000"), churn:
        churn.wait(10.0)


def test_objects_are_labelled_for_a_while(server: SandboxThread, cluster_of):
    """Some, that do not change otherwise meanwhile; afterwards none."""
    cluster = cluster_of(PODS, objects=10)

    def labelled() -> set[str]:
        return {o["metadata"]["name"] for o in server.objects("Pod") if FAILS in o["metadata"]["labels"]}

    with cluster.labelled(FAILS) as number:
        assert len(labelled()) == number == 5
        changed = {change.key.partition("/")[2] for change in stepped(cluster, 30).made}
        assert changed.isdisjoint(labelled())
    assert labelled() == set()
