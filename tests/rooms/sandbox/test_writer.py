"""Create and replace, as clients of a real API server know them."""

import re

import pytest

from declctl.errors import SandboxError
from declctl.sandbox.remover import Target, Write
from declctl.sandbox.status import Refusal
from tests.rooms.sandbox.shapes import config_map, definition, pod, store, widget

HTTP = Write(manager="kubectl")


def refused(call):
    with pytest.raises(Refusal) as caught:
        call()
    return caught.value


def create(cluster, obj, namespace="default", write=HTTP):
    return cluster.writer.create(cluster.kind(obj["kind"]), namespace, obj, write)


def replace(cluster, obj, write=HTTP):
    metadata = obj["metadata"]
    target = Target(cluster.kind(obj["kind"]), metadata.get("namespace", ""), metadata["name"])
    return cluster.writer.replace(target, obj, write)


def test_a_new_object_gets_its_identity():
    """A created object comes back with uid, creation time, version and generation."""
    created = create(store(), pod())["metadata"]
    assert created["uid"]
    assert created["creationTimestamp"] == "2026-01-01T00:00:00Z"
    assert created["generation"] == 1
    assert created["resourceVersion"].isdecimal()


SELECTOR, TEMPLATE = {"matchLabels": {"a": "b"}}, {"spec": {"containers": [{"name": "c", "image": "i"}]}}
ROLE_BINDING = "rbac.authorization.k8s.io/v1 RoleBinding"


@pytest.mark.parametrize(
    ("what", "field", "old", "new", "message"),
    [
        (
            "apps/v1 Deployment",
            "spec",
            {"selector": SELECTOR},
            {"selector": {}},
            "spec.selector: .*: field is",
        ),
        ("apps/v1 Deployment", "spec", {"selector": SELECTOR}, {"selector": SELECTOR, "replicas": 3}, None),
        ("batch/v1 Job", "spec", {"template": TEMPLATE}, {}, "spec.template: .*: field is immutable"),
        ("apps/v1 StatefulSet", "spec", {"serviceName": "a"}, {}, "updates to statefulset spec for fields"),
        ("apps/v1 StatefulSet", "spec", {"serviceName": "a"}, {"serviceName": "a", "replicas": 2}, None),
        ("v1 PersistentVolumeClaim", "spec", {"accessModes": ["X"]}, {}, "spec is immutable after creation"),
        ("v1 Service", "spec", {"clusterIP": "10.0.0.1"}, {"clusterIP": "None"}, "may not change once set"),
        ("v1 Service", "spec", {}, {"clusterIP": "None"}, "may not change once set"),
        ("v1 Service", "spec", {"clusterIP": "10.0.0.1"}, {"ports": []}, None),
        ("v1 ConfigMap", "immutable", True, False, "immutable: Forbidden: field is immutable when"),
        ("v1 Secret", "type", "a", "b", "type: Invalid value: .*: field is immutable"),
        (ROLE_BINDING, "roleRef", {"name": "a"}, {"name": "b"}, "cannot change roleRef"),
    ],
)
def test_some_fields_of_kinds_of_kubernetes_can_not_be_changed(cluster, what, field, old, new, message):
    """As a real server refuses it. Programs of the sandbox may change them."""
    api_version, _, kind = what.partition(" ")
    head = {"apiVersion": api_version, "kind": kind, "metadata": {"name": "x", "namespace": "default"}}
    create(cluster, {**head, field: old})
    if message is not None:
        refusal = refused(lambda: replace(cluster, {**head, field: new}))
        assert (refusal.code, refusal.reason) == (422, "Invalid")
        assert re.search(message, refusal.message)
    replace(cluster, {**head, field: new}, HTTP if message is None else Write(direct=True))


def test_names_can_be_generated(cluster):
    """A generateName gives each object a name of its own with that prefix."""
    given = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"generateName": "job-"}}
    first, second = (create(cluster, given)["metadata"]["name"] for _ in range(2))
    assert first.startswith("job-")
    assert first != second


def test_a_namespace_must_exist():
    """Creating in a namespace that isn't there is refused with 404 for the namespace."""
    refusal = refused(lambda: create(store(), config_map("a", "missing"), "missing"))
    assert (refusal.code, refusal.message) == (404, 'namespaces "missing" not found')


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        ({}, "name or generateName is required"),
        ({"name": "A_b"}, "a lowercase RFC 1123 subdomain must consist of"),
        ({"name": "a", "labels": {"a b": "c"}}, "name part must consist of"),
        ({"name": "a", "labels": {"a": "c d"}}, "a valid label must be an empty string or consist of"),
        ({"name": "a", "finalizers": ["-x"]}, "metadata.finalizers"),
        ({"name": "a", "annotations": {"k": "x" * 300_000}}, "Too long"),
        ({"name": "a" * 254}, "must be no more than 253 bytes"),
    ],
)
def test_wrong_metadata_is_invalid(metadata, words):
    """Metadata that Kubernetes does not take is refused with 422, saying why."""
    refusal = refused(lambda: create(store(), {"kind": "ConfigMap", "metadata": metadata}))
    assert refusal.code == 422
    assert words in refusal.message
    assert refusal.document()["details"]["causes"]


def test_an_older_version_is_a_conflict(cluster):
    """Replacing an object that somebody else has changed is refused with 409, so that nothing is lost."""
    mine = create(cluster, config_map("a", x="1"))
    replace(cluster, {**mine, "data": {"x": "2"}})
    refusal = refused(lambda: replace(cluster, {**mine, "data": {"x": "3"}}))
    assert (refusal.code, refusal.reason) == (409, "Conflict")
    assert "please apply your changes to the latest version and try again" in refusal.message


def test_custom_objects_are_replaced_by_version_only(cluster):
    """A replace of a custom object must name the version that it replaces, unlike that of a config map."""
    cluster.load([definition(), widget("w")])
    assert "must be specified for an update" in refused(lambda: replace(cluster, widget("w", size=2))).message


def test_an_older_fault_refuses_no_write_that_leaves_it(cluster):
    """The schema has become stricter: what was stored before stays, and only a new fault is refused."""
    crd = definition()
    cluster.load([crd, widget("w", size=5, parts=[{"id": "a", "n": 5}])])
    for version in crd["spec"]["versions"]:
        spec = version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
        spec["size"] = {"type": "integer", "maximum": 3, "x-kubernetes-validations": [{"rule": "self < 4"}]}
        spec["parts"]["items"]["properties"]["n"] = {"type": "integer", "maximum": 3}
    cluster.load([crd])
    parts = [{"id": "b", "n": 1}, {"id": "a", "n": 5}]
    cluster.patch("Widget", "w", {"metadata": {"labels": {"a": "1"}}, "spec": {"parts": parts}})
    with pytest.raises(SandboxError, match=r"should be less than or equal to 3, spec\.size:"):
        cluster.patch("Widget", "w", {"spec": {"size": 6}})


def test_a_spec_is_an_object():
    """A spec that is text is refused with 400, naming the field."""
    refusal = refused(lambda: create(store(), {**pod(), "spec": "x"}))
    assert refusal.code == 400
    assert "cannot unmarshal string into Go struct field Pod.spec" in refusal.message


def test_a_definition_serves_its_kinds(cluster):
    """A created CustomResourceDefinition is Established, and all served versions show the same objects."""
    crd = cluster.create(definition())
    conditions = {each["type"]: each["status"] for each in crd["status"]["conditions"]}
    assert conditions == {"NamesAccepted": "True", "Established": "True"}
    cluster.create(widget("one", "v1beta1", size=2))
    assert cluster.objects("Widget")[0]["apiVersion"] == "example.com/v1"
    assert cluster.objects("wd")[0]["spec"]["size"] == 2


def test_a_definition_must_make_sense():
    """A definition without exactly one storage version, or with the wrong name, is refused with 422."""
    broken = definition()
    broken["metadata"]["name"] = "gadgets.example.com"
    for version in broken["spec"]["versions"]:
        version["storage"] = True
    with pytest.raises(SandboxError, match="exactly one version marked as storage") as refusal:
        store().create(broken)
    assert "metadata.name" in str(refusal.value)


def test_load_creates_in_the_right_order():
    """Definitions and namespaces come first, lists are taken apart, missing namespaces are made."""
    items = [pod("a"), {k: v for k, v in pod("b").items() if k not in ("apiVersion", "kind")}]
    pods = {"apiVersion": "v1", "kind": "PodList", "items": items}
    lines = store().load([widget("one"), config_map("c", "team"), None, pods, definition()])
    crd = "customresourcedefinition/widgets.example.com"
    assert lines == [crd, "widget/one", "namespace/team", "configmap/c", "pod/a", "pod/b"]


def test_load_keeps_the_status_that_a_file_brings(cluster):
    """A pod that a file calls Running is Running: there is no kubelet that would say so."""
    cluster.load([pod("a", phase="Running", node="n")])
    assert cluster.get("Pod", "a")["status"]["phase"] == "Running"


def test_the_objects_of_an_exported_file_keep_their_owners(cluster):
    """Owner references name uids: without the uids of the file, each pod would be an orphan."""
    owner, owned = config_map("owner"), pod("owned")
    owner["metadata"] |= {"uid": "0f0e0d0c-0000-4000-8000-000000000001", "resourceVersion": "7000"}
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner["metadata"]["uid"]}
    owned["metadata"]["ownerReferences"] = [reference]
    cluster.load([owned, owner])
    (stored,) = cluster.get("Pod", "owned")["metadata"]["ownerReferences"]
    assert stored["uid"] == cluster.get("ConfigMap", "owner")["metadata"]["uid"] == reference["uid"]


def test_an_object_that_a_file_replaces_keeps_its_uid(cluster):
    """An export has the namespace `default`, with a uid and a version of another cluster."""
    before = cluster.get("Namespace", "default")["metadata"]
    metadata = {"name": "default", "uid": "1", "resourceVersion": "7000", "labels": {"team": "a"}}
    assert cluster.load([{"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}]) == [
        "namespace/default"
    ]
    after = cluster.get("Namespace", "default")["metadata"]
    assert (after["uid"], after["labels"]["team"]) == (before["uid"], "a")


def test_what_only_the_server_writes_stays(cluster):
    """No client chooses a uid or a time of creation; a replace that names another uid is a conflict."""
    given = config_map("a", x="1")
    given["metadata"]["uid"] = "another"
    created = create(cluster, given)["metadata"]
    assert created["uid"] != "another"
    assert refused(lambda: replace(cluster, given)).code == 409
    given["metadata"] = {"name": "a", "namespace": "default", "creationTimestamp": "1999-01-01T00:00:00Z"}
    replaced = replace(cluster, given)["metadata"]
    assert replaced["uid"] == created["uid"]
    assert replaced["creationTimestamp"] == created["creationTimestamp"]


@pytest.mark.parametrize(
    ("documents", "words"),
    [
        ([pod("a"), pod("A_b")], "document 1: Pod A_b: .*RFC 1123"),
        ([pod("a"), pod("a")], 'document 1: Pod a: pods "a" already exists'),
        (
            [{"apiVersion": "v9", "kind": "Nope", "metadata": {"name": "x"}}],
            "document 0: .*serves no kind 'Nope'",
        ),
        ([["x"]], "document 0: expected an object, found list"),
    ],
)
def test_a_fault_in_a_file_is_located(documents, words):
    """A document that the sandbox can't hold is named by its place in the file, with the reason."""
    with pytest.raises(SandboxError, match=words):
        store().load(documents)
