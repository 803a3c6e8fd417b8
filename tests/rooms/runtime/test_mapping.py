"""From changed objects to the keys of a reconciler: owners, references, and the filter before them."""

from unittest.mock import Mock

import pytest

from declctl.errors import MappingFailed, NotSynced
from declctl.hooks.calls import KeyFunction
from declctl.manifest.model import FilterSpec, MappingSpec, OwnerSelection
from declctl.objects import ChangeType, GroupVersionKind, Notification, ObjectView, Resource
from declctl.runtime.handling.binding import Filter
from declctl.runtime.reconciling.mapping import KeySource, ReconciledKind, keys_of
from tests.rooms.runtime.conftest import stored

ADDED, MODIFIED, DELETED, RESYNC = ChangeType
ALL = frozenset(ChangeType)
_DEPLOYMENT = GroupVersionKind.of("apps/v1", "Deployment")


def served(namespaced):
    return Resource(_DEPLOYMENT, "deployments", namespaced)


def record(version: int = 1, **metadata):
    head = {"name": "web-0", "namespace": "a", "uid": "u", "resourceVersion": str(version)}
    return stored(head | metadata, spec={"app": "web"})


def owner(name="web", *, controller=False, kind="Deployment", api_version="apps/v1"):
    return {"kind": kind, "name": name, "apiVersion": api_version, "controller": controller, "uid": "o"}


def owned(*owners, version=1):
    return record(version, ownerReferences=list(owners))


def source(spec=None, *, namespaced=True, function=None, judge=None, caches=None):
    """A watched resource whose changes lead to deployments."""
    kind = ReconciledKind(_DEPLOYMENT, lambda: served(namespaced), None)
    spec = MappingSpec(owner=OwnerSelection.ANY) if spec is None else spec
    return KeySource("pods", (), ALL, judge, keys_of(spec, kind, function), "", caches)


def led_to(where, notification):
    return list(where.keys(notification, lambda _: None).keys)


@pytest.mark.client_go(303, "Handlers")
@pytest.mark.parametrize(
    ("spec", "keys"),
    [
        (MappingSpec(owner=OwnerSelection.CONTROLLER), ["a/web"]),
        (MappingSpec(owner=OwnerSelection.ANY), ["a/web", "a/db"]),
        (MappingSpec(label="app"), ["a/shop"]),
        (MappingSpec(annotation="app"), ["b/shop"]),
        (MappingSpec(field_path="spec.app"), ["a/web"]),
        (MappingSpec(label="missing"), []),
    ],
)
def test_an_object_leads_to_keys(spec, keys):
    """By owner reference, label, annotation or field; a name is one in the namespace of the object."""
    others = [
        owner("other", controller=True, api_version="example.dev/v1"),
        owner(controller=True, kind="Job"),
    ]
    owners = [owner("web", controller=True), owner("db"), *others]
    obj = record(labels={"app": "shop"}, annotations={"app": "b/shop"}, ownerReferences=owners)
    assert led_to(source(spec), Notification(ADDED, obj)) == keys


@pytest.mark.client_go(303, "Handlers")
@pytest.mark.parametrize(
    ("before", "after", "keys"),
    [
        ([owner("web")], [owner("web")], ["a/web"]),
        ([owner("web")], [owner("db")], ["a/db", "a/web"]),
        ([owner("web")], [], ["a/web"]),
        ([], [owner("web"), owner("web")], ["a/web"]),
    ],
)
def test_an_update_leads_to_the_owners_before_and_after_it_each_once(before, after, keys):
    """An object that is given to another owner is missed by the one and found by the other."""
    change = Notification(MODIFIED, owned(*after, version=2), owned(*before))
    assert led_to(source(), change) == keys


@pytest.mark.client_go(303, 306)
@pytest.mark.parametrize("kind", [ADDED, DELETED, RESYNC])
def test_any_other_change_leads_to_the_owners_of_the_object(kind):
    """Of a delete that the watch missed, too. The key of a cluster-scoped owner has no namespace."""
    change = Notification(kind, owned(owner("web"), owner("db")), final_state_unknown=kind is DELETED)
    assert led_to(source(), change) == ["a/web", "a/db"]
    assert led_to(source(namespaced=False), change) == ["web", "db"]


@pytest.mark.client_go(303)
@pytest.mark.parametrize(
    "references",
    [
        None,
        5,
        "web",
        {"web": 1},
        ["web", None, owner()],
        [owner(None), owner(7), owner()],
        [owner(api_version=None), owner(api_version="apps/v1/x"), owner(api_version=""), owner()],
        [owner(kind=None), owner(kind="Job"), owner(api_version="v1"), owner()],
    ],
)
def test_a_reference_that_is_none_leads_nowhere_and_hides_no_other(references):
    """Whatever an aggregated API serves: the change is not lost, nor those that came with it."""
    expected = ["a/web"] if isinstance(references, list) else []
    assert led_to(source(), Notification(ADDED, record(ownerReferences=references))) == expected


@pytest.mark.parametrize("annotations", [None, 5, ["app"], {"app": None}, {"app": {"x": 1}}])
def test_an_annotation_that_is_no_text_leads_nowhere(annotations):
    change = Notification(ADDED, record(annotations=annotations))
    assert led_to(source(MappingSpec(annotation="app")), change) == []


@pytest.mark.client_go(304, "Handlers")
def test_a_function_leads_to_each_key_once_for_both_states():
    """It is called with the new state and with the old one; keys that it repeats are one."""
    seen = []

    def function(obj):
        seen.append(obj.resource_version)
        return ["a/web", "a/db", "a/web", f"a/{obj.resource_version}"]

    change = Notification(MODIFIED, owned(version=2), owned(version=1))
    assert led_to(source(function=function), change) == ["a/web", "a/db", "a/2", "a/1"]
    assert seen == ["2", "1"]


@pytest.mark.parametrize(("namespaced", "keys"), [(True, ["a/web", "b/web"]), (False, ["web"])])
def test_a_name_from_a_function_is_one_in_the_namespace_of_the_object(namespaced, keys):
    """As a name in a label or a field: a key without a namespace would be an object that does not exist."""
    where = source(function=lambda _: ["web", "b/web", ""], namespaced=namespaced)
    assert led_to(where, Notification(ADDED, record())) == keys


@pytest.mark.client_go(304)
@pytest.mark.parametrize(
    ("namespaced", "text", "keys"),
    [
        *[(True, text, []) for text in (" acme ", "a/ acme", "acme\n", " ", "a/b/c", "/acme", "a/", "/")],
        *[(False, text, []) for text in (" acme ", "a/acme")],
        (True, "acme", ["a/acme"]),
        (False, "acme", ["acme"]),
        (True, "system:node:One", ["a/system:node:One"]),
    ],
)
def test_a_value_that_is_no_key_leads_nowhere_and_is_named(namespaced, text, keys):
    """A typing error in an annotation is found in the log. A key with white space would be no object's."""
    where = source(MappingSpec(annotation="app"), namespaced=namespaced)
    mapped = where.keys(Notification(ADDED, record(annotations={"app": text})), lambda _: None)
    assert list(mapped.keys) == keys
    assert [each.text for each in mapped.no_keys] == ([] if keys else [repr(text)])
    assert not mapped.failures


def test_an_index_leads_by_key_and_in_the_namespace_by_name():
    """A field with the name of a ConfigMap is indexed as it is; one of another namespace is not meant."""

    def view(key):
        namespace, _, name = key.partition("/")
        return ObjectView(stored({"name": name, "namespace": namespace}, spec={}))

    found = {"a/web-0": [view("b/by-key")], "web-0": [view("a/by-name"), view("b/other")]}
    lister = Mock(by_index=lambda _, value: found.get(value, []))
    kind = ReconciledKind(_DEPLOYMENT, lambda: served(namespaced=True), lister)
    where = KeySource("pods", (), ALL, None, keys_of(MappingSpec(index="byPod"), kind, None))
    assert led_to(where, Notification(ADDED, record())) == ["b/by-key", "a/by-name"]


@pytest.mark.parametrize(
    "spec",
    [MappingSpec(label="app"), MappingSpec(field_path="spec.app"), MappingSpec(owner=OwnerSelection.ANY)],
    ids=str,
)
def test_while_the_kind_is_not_known_a_mapping_leads_to_no_key(spec):
    """A guess would be the key of an object that does not exist. Later it leads to the right one."""
    found = []
    kind = ReconciledKind(_DEPLOYMENT, lambda: found[-1] if found else None, None)
    where = KeySource("pods", (), ALL, None, keys_of(spec, kind, None))
    change = Notification(ADDED, record(labels={"app": "web"}, ownerReferences=[owner()]))
    mapped = where.keys(change, lambda _: None)
    assert mapped.keys == ()
    assert [type(failure) for failure in mapped.failures] == [NotSynced]
    found.append(served(namespaced=False))
    assert led_to(where, change) == ["web"]
    found.append(None)  # forgotten for a moment: a request has got a 404
    assert led_to(where, change) == ["web"]
    found.append(served(namespaced=True))  # the definition was replaced by another one
    assert led_to(where, change) == ["a/web"]


@pytest.mark.client_go("Multi-namespace cache")
def test_a_mapping_leads_to_no_key_of_a_namespace_that_is_not_watched():
    """The reconciler would take an object that it does not watch for one that is gone, and clean up."""
    change = Notification(MODIFIED, owned(version=2), owned(version=1))
    where = source(function=lambda obj: ["a/web", "b/web", "web"], caches={"a", "c"}.__contains__)
    assert led_to(where, change) == ["a/web"]


@pytest.mark.client_go(304)
@pytest.mark.parametrize(
    ("returned", "keys"),
    [(None, []), ("web", ["a/web"]), ({"web": 1, "db": 2}, ["a/web", "a/db"]), (iter(["web"]), ["a/web"])],
)
def test_a_function_returns_one_key_or_several(returned, keys):
    """Whatever can be read one by one; anything else is named, with what to return."""
    where = source(function=KeyFunction("h:of_pod", lambda _: returned))
    assert led_to(where, Notification(ADDED, record())) == keys
    where = source(function=KeyFunction("h:of_pod", lambda _: 5))
    (failure,) = where.keys(Notification(ADDED, record()), lambda _: None).failures
    assert str(failure) == "the mapping h:of_pod returned a value of type int: return a list of keys"


@pytest.mark.client_go(304)
def test_a_state_that_fails_hides_no_key_of_the_other_one():
    """An object that is repaired, or damaged, leads to the keys that are known."""

    def function(obj):
        if obj.resource_version == "1":
            raise MappingFailed("no such app")
        return ["a/web"]

    change = Notification(MODIFIED, owned(version=2), owned(version=1))
    mapped = source(function=function).keys(change, lambda _: None)
    assert (mapped.keys, [str(failure) for failure in mapped.failures]) == (("a/web",), ["no such app"])


@pytest.mark.client_go(306)
def test_the_filter_is_asked_before_the_mapping():
    """What does not pass is not mapped; an object that ceases to pass leads to its keys, as from a delete."""
    mapped = []

    def function(obj):
        mapped.append(obj.labels["app"])
        return ["a/web"]

    judge = Filter(FilterSpec("app", ()), ("Added",), lambda obj: obj.labels["app"] == "web")
    where = source(function=function, judge=judge)
    found = [led_to(where, Notification(ADDED, record(labels={"app": app}))) for app in ("web", "api")]
    assert led_to(where, Notification(ADDED, record())) == []
    assert (found, mapped) == ([["a/web"], []], ["web"])
    judge = Filter(FilterSpec("app=web", ()), ("Added", "Modified", "Deleted"), None)
    before = record(labels={"app": "web"}, ownerReferences=[owner("web")])
    after = record(2, labels={"app": "api"}, ownerReferences=[owner("web")])
    assert led_to(source(judge=judge), Notification(MODIFIED, after, before)) == ["a/web"]


def test_the_objects_of_the_own_resource_lead_to_their_own_keys():
    """Without a mapping; a type that the handler does not want leads nowhere."""
    where = KeySource("pods", (), frozenset({ADDED}))
    assert led_to(where, Notification(ADDED, owned())) == ["a/web-0"]
    assert led_to(where, Notification(DELETED, owned())) == []
    assert ObjectView(owned()).key == "a/web-0"
