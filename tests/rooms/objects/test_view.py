"""Views and records: an object as a handler and an index read it."""

import copy
import gc
import pickle
from collections.abc import Mapping
from datetime import UTC, datetime

import pytest
import yaml
from rich.pretty import pretty_repr

from declctl.errors import MalformedAnswer
from declctl.objects import FieldPath, ObjectKey, ObjectView, read_only
from declctl.objects.read_only import ReadOnlyDict, ReadOnlyList
from declctl.objects.record import Layout
from tests.rooms.objects.made_objects import NODE_NAME, pod, record


class Undecodable(Layout):
    """A layout that nobody may decode with."""

    __slots__ = ()

    def decode(self, frame):
        raise AssertionError("an object was decoded")


def undecodable(*paths, **fields):
    made = record(pod(**fields), *paths)
    layout = Undecodable(
        api_version="v1", kind="Pod", positions=made.layout.positions, codec=made.layout.codec
    )
    return type(made)(*(getattr(made, name) for name in made.__struct_fields__[:-1]), layout)


def test_times_of_an_object_are_aware_datetimes():
    """No handler has to parse them; what is no time is a fault of the object, with its key."""

    def timed(**times: str) -> ObjectView:
        made = pod()
        return ObjectView(record({**made, "metadata": {**made["metadata"], **times}}))

    view = timed(creationTimestamp="2026-01-02T03:04:05Z")
    assert view.creation_timestamp == datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert view.deletion_timestamp is None
    ends = timed(deletionTimestamp="2026-01-02T03:04:05Z")
    assert ends.deletion_timestamp == view.creation_timestamp
    with pytest.raises(MalformedAnswer, match=r"web-1 has no metadata\.creationTimestamp"):
        print(ends.creation_timestamp)
    with pytest.raises(MalformedAnswer, match=r"web-1: metadata\.deletionTimestamp is no time"):
        print(timed(deletionTimestamp="soon").deletion_timestamp)


def test_identity_and_labels_are_read_without_decoding():
    """A handler that looks at names and labels, or asks `if old:`, pays for nothing else."""
    view = ObjectView(undecodable())
    assert view
    assert (view.name, view.namespace, view.uid, view.resource_version) == (
        "web-1",
        "team-a",
        "uid-of-web-1",
        "7",
    )
    assert (view.key, view.key.namespace, dict(view.labels)) == (
        ObjectKey("team-a/web-1"),
        "team-a",
        {"app": "web", "tier": "front"},
    )
    assert repr(view) == "<Pod team-a/web-1 resourceVersion=7>"


def test_view_is_the_whole_object_as_a_mapping():
    """`obj["spec"]["nodeName"]` reads what kubectl shows."""
    view = ObjectView(record(pod()))
    assert (dict(view), len(view), view["spec"]["nodeName"]) == (pod(), 5, "node-1")
    assert view["spec"] is view["spec"], "it is decoded once"
    assert view.get("absent") is None
    assert dict(view.annotations) == {"note": 'said "hello"'}


def test_view_is_a_mapping_to_everybody_who_asks():
    """`isinstance`, `match`, `**`, comparisons, and each method that a mapping has."""
    view, same, other = ObjectView(record(pod())), ObjectView(record(pod())), ObjectView(record(pod("web-2")))
    assert isinstance(view, Mapping)
    match view:
        case {"spec": {"nodeName": node}}:
            assert node == "node-1"
        case _:
            pytest.fail("a view has the form of a mapping")
    assert {**view} == pod()
    assert (view == same, view == pod(), pod() == view, view == other) == (True, True, True, False)
    assert (view != same, view == list(pod()), view != 7) == (False, False, True)
    assert ("spec" in view, "absent" in view, view.get("absent", 7)) == (True, False, 7)
    assert (list(view), list(view.keys()), list(view.values()), list(view.items())) == (
        list(pod()),
        list(pod()),
        list(pod().values()),
        list(pod().items()),
    )
    with pytest.raises(KeyError, match="absent"):
        view["absent"]
    with pytest.raises(TypeError, match="unhashable"):
        hash(view)


def test_who_prints_a_view_shows_no_more_than_its_name():
    """Logs and tracebacks with local variables are read by people who may not see Secrets."""
    view = ObjectView(record(pod()))
    assert "web-1" in pretty_repr(view)
    assert "nodeName" in str(dict(view))
    for shown in (repr(view), str(view), f"{view}", pretty_repr(view)):
        assert "nodeName" not in shown


def test_views_cost_the_garbage_collector_nothing_until_they_are_read():
    """A list of thousands makes no collection longer; a cycle that a reader makes is found all the same."""
    view = ObjectView(record(pod()))
    assert not gc.is_tracked(view)
    assert view["spec"]
    assert gc.is_tracked(view)


@pytest.mark.parametrize(
    "copied", [ObjectView.to_dict, copy.deepcopy, lambda v: pickle.loads(pickle.dumps(v))]
)
def test_a_deep_copy_of_an_object_is_plain(copied):
    """`copy.deepcopy(obj)` is what many write who mean `obj.to_dict()`; a pickle is for another process."""
    view = ObjectView(record(pod()))
    assert view["spec"]["containers"][0]["name"] == "a"
    mine = copied(view)
    mine["metadata"]["labels"]["app"] = "changed"
    mine["spec"]["containers"][0]["env"] = []
    assert (type(mine), view, view.to_dict()) == (dict, pod(), pod())


def test_view_itself_is_read_only():
    """Labels, annotations and fields can't be set by mistake."""
    view = ObjectView(record(pod()))
    for mapping in (view, view.labels, view.annotations):
        with pytest.raises(TypeError):
            mapping["a"] = "b"
    with pytest.raises(TypeError, match=r"read-only, .* lost; obj\.to_dict\(\) gives a private copy"):
        del view["spec"]


def test_a_yaml_writer_of_ones_own_writes_what_is_inside_an_object_as_plain_values():
    """Whether it was made before declctl was loaded or after, and whether its table has a line for dict."""
    writers = [type(f"Writer{n}", (yaml.SafeDumper,), {}) for n in range(4)]
    for early in writers[:2]:
        early.add_representer(tuple, yaml.SafeDumper.represent_list)  # from here on it has a table of its own
        for kind in (ReadOnlyDict, ReadOnlyList):
            del early.yaml_representers[kind]
    read_only.teach(yaml.representer.SafeRepresenter)
    for unsorted in writers[::2]:
        unsorted.add_representer(
            dict, lambda to, data: to.represent_mapping("tag:yaml.org,2002:map", data.items())
        )
    for writer in writers:
        plain = yaml.dump(pod(), Dumper=writer)
        assert yaml.dump(dict(ObjectView(record(pod()))), Dumper=writer) == plain


def test_what_is_read_inside_an_object_is_decoded_once_and_a_default_is_that_of_the_reader():
    spec, default = ObjectView(record(pod()))["spec"], {}
    assert (isinstance(spec, dict), isinstance(spec["containers"], list)) == (True, True)
    assert spec.get("absent", default) is default
    assert spec["containers"][0] is next(iter(spec["containers"]))
    assert (type(copy.copy(spec)), type(copy.copy(spec["containers"]))) == (dict, list)


@pytest.mark.parametrize("metadata", [{"name": "a"}, {"name": "a", "annotations": None, "labels": None}])
def test_object_without_labels_and_annotations_has_empty_ones(metadata):
    """No handler has to look whether there are any."""
    view = ObjectView(record({"metadata": metadata}))
    assert (dict(view.labels), dict(view.annotations), view.namespace) == ({}, {}, None)


def test_object_whose_metadata_a_transform_took_away_is_readable():
    """Name and key come from the server, annotations are empty."""
    view = ObjectView(record(pod(), transform=lambda obj: {"metadata": None, "spec": obj["spec"]}))
    assert (view.name, dict(view.annotations), dict(view.labels)) == ("web-1", {}, {})


def test_projected_and_metadata_fields_are_read_without_decoding():
    """Indexes and filters over declared fields never decode, not even where the label is absent."""
    made = undecodable(NODE_NAME)
    wanted = {
        "spec.nodeName": ("node-1",),
        "metadata.labels.app": ("web",),
        "metadata.labels['a/b']": (),
        "metadata.name": ("web-1",),
        "metadata.namespace": ("team-a",),
        "metadata.uid": ("uid-of-web-1",),
    }
    assert {text: made.field(FieldPath.parse(text)) for text in wanted} == wanted


def test_other_fields_are_read_by_decoding():
    made = record(pod())
    assert made.field(FieldPath.parse("status.phase")) == ("Running",)
    assert made.field(FieldPath.parse("spec.containers[1].image")) == ("i:2",)
    assert made.field(FieldPath.parse("metadata.labels[*]")) == ("web", "front")


def test_cluster_scoped_object_has_the_empty_namespace_in_indexes():
    """client-go's MetaNamespaceIndexFunc does the same."""
    assert record({"metadata": {"name": "n"}}).field(FieldPath.parse("metadata.namespace")) == ("",)


def test_records_cost_the_garbage_collector_nothing():
    """A hundred thousand records make no collection longer."""
    assert not gc.is_tracked(record(pod()))
