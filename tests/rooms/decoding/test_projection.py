"""Projections: objects and lists become records, and nothing that a server or a user writes is fatal."""

import pytest

from declctl.decoding import MetadataCodec, Projection
from declctl.errors import MalformedAnswer
from declctl.objects import EventType, FieldPath, FrameCodec, ObjectCodec
from tests.rooms.objects.made_objects import IMAGES, NODE_NAME, compact, event, pod, projection, record


def page(*items, **metadata):
    return compact(
        {
            "kind": "PodList",
            "apiVersion": "v1",
            "metadata": {"resourceVersion": "42"} | metadata,
            "items": list(items),
        }
    )


def test_record_tells_identity_labels_and_projected_fields_without_decoding():
    """What listers, selectors and indexes ask for is read out of the bytes once."""
    made = record(pod(), NODE_NAME, IMAGES)
    assert (made.key, made.uid, made.resource_version) == ("team-a/web-1", "uid-of-web-1", "7")
    assert made.labels == {"app": "web", "tier": "front"}
    assert made.field(NODE_NAME) == ("node-1",)
    assert made.field(IMAGES) == ("i:1", "i:2")
    assert made.layout.codec.decode(made.frame) == compact(pod())


def test_list_gives_its_records_and_how_to_go_on():
    """A page carries its version, the next page's token and how many are left, and not what was filtered."""
    one = projection(transform=lambda obj: obj if obj["metadata"]["name"] != "x" else None)
    made = one.page(page(pod("a"), pod("x"), pod("b"), **{"continue": "token", "remainingItemCount": 9}))
    assert [r.key for r in made.records] == ["team-a/a", "team-a/b"]
    assert (made.resource_version, made.continue_token, made.remaining) == ("42", "token", 9)


@pytest.mark.parametrize("items", [[], None])
def test_empty_list_is_empty(items):
    """Go writes an empty list as [] or as null."""
    body = compact({"kind": "PodList", "metadata": {"resourceVersion": "1"}, "items": items})
    made = projection().page(body)
    assert (made.records, made.continue_token, made.remaining) == ([], "", None)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>",
        b"[]",
        b"null",
        b'{"items":[]}',
        b'{"metadata":null,"items":[]}',
        b'{"metadata":{},"items":{}}',
        b'{"kind":"PodList","metadata":{},"items":[1]}',
        b'{"kind":"PodList","metadata":{},"items":[null]}',
        page({"metadata": {}}),
        b'{"kind":"Table","metadata":{},"rows":[]}',
        b'{"kind":"Status","metadata":{},"status":"Failure"}',
        page(pod())[:-9],
        b'{"kind":"PodList","metadata":{},"items":[' + b'{"a":' * 5000 + b"1" + b"}" * 5000 + b"]}",
    ],
)
def test_answer_that_is_no_list_is_refused(body):
    """A proxy's page, a Status or a cut body is an error and never an empty cache."""
    with pytest.raises(MalformedAnswer):
        projection().page(body)


def test_relist_gives_back_what_the_cache_holds():
    """An object that has not changed is neither compressed nor held a second time."""
    one = projection()
    first = one.page(page(pod("a"), pod("b"))).records
    held = {r.key: r for r in first}
    newer = pod("b")
    newer["metadata"]["resourceVersion"] = "8"
    again = one.page(page(pod("a"), newer), known=held.get).records
    assert again[0] is first[0]
    assert (again[1] is first[1], again[1].resource_version) == (False, "8")


@pytest.mark.parametrize("change", [{"uid": "another"}, {"resourceVersion": "8"}])
def test_object_made_anew_under_its_old_name_is_not_taken_for_the_old_one(change):
    """A different uid or version is a different record."""
    one = projection()
    old = one.record(compact(pod()))
    new = pod()
    new["metadata"] |= change
    assert one.record(compact(new), known=lambda _: old) is not old


def test_relist_of_transformed_objects_reuses_them_too():
    """A transform runs once for what has not changed; another projection's record is not reused."""
    calls = []
    one = projection(transform=lambda obj: calls.append(1) or obj)
    held = one.record(compact(pod()))
    assert one.record(compact(pod()), known=lambda _: held) is held
    assert calls == [1]
    assert projection().record(compact(pod()), known=lambda _: held) is not held


@pytest.mark.parametrize(
    "options", [{}, {"drop_fields": [FieldPath.parse("metadata.finalizers")]}, {"transform": lambda _: None}]
)
def test_finalizers_are_noted_with_the_first_objects_that_have_them(options):
    """As the server sent them, whatever the cache has of them; a list that is no list of names has none."""
    one = projection(**options)
    for number in range(8):
        obj = pod(f"web-{number}")
        obj["metadata"]["finalizers"] = {6: ["a.dev/x", "b.dev/y"], 7: [7]}.get(number, ["a.dev/x"])
        one.record(compact(obj))
    one.record(compact(pod("without")))
    first = [f"team-a/web-{number}" for number in range(5)]
    assert one.finalizers.by_name() == {"a.dev/x": first, "b.dev/y": ["team-a/web-6"]}


def test_equal_labels_and_strings_are_held_once():
    """A thousand pods of one deployment share their labels, a node's name is held once for its pods."""
    one = projection(NODE_NAME)
    a, b = (one.record(compact(pod(name))) for name in "ab")
    assert a.labels is b.labels
    assert a.values[0] is b.values[0]


@pytest.mark.parametrize(
    ("obj", "key", "node"),
    [
        (pod(spec=None), "team-a/web-1", ()),
        (pod(spec=7), "team-a/web-1", ()),
        (pod(spec=[{"nodeName": "n"}]), "team-a/web-1", ()),
        (pod(spec={"nodeName": "n", "containers": {"image": "x"}}), "team-a/web-1", ("n",)),
        (pod(spec={"nodeName": "n", "containers": [None]}), "team-a/web-1", ("n",)),
        (pod(metadata={"name": "a", "uid": 7}), "a", ("node-1",)),
        (pod(metadata={"name": 5, "namespace": "b", "labels": [1]}), "b/5", ("node-1",)),
        (pod(metadata={"name": "a", "resourceVersion": 7, "labels": {"a": {}}}), "a", ("node-1",)),
    ],
)
def test_object_that_the_compiled_decoder_cannot_read_is_delivered_and_counted(obj, key, node):
    """It is told as any other, has in an index what it has, and the statistics say that it was read whole."""
    one = projection(NODE_NAME, IMAGES)
    told = one.event(event("ADDED", obj).strip())
    assert told.type is EventType.ADDED
    assert told.record is not None
    assert (told.record.key, told.record.field(NODE_NAME), told.record.decode()) == (key, node, obj)
    figures = one.statistics()
    assert (figures.objects, figures.decoded_whole, figures.failed) == (1, 1, 0)


@pytest.mark.parametrize(
    ("metadata", "labels"),
    [
        ({"labels": None}, {}),
        ({"labels": []}, {}),
        ({"labels": "x"}, {}),
        ({"labels": {"a": 1, "b": None}}, {"a": "1", "b": ""}),
        ({"namespace": None}, {}),
        ({"uid": 7}, {}),
        ({"resourceVersion": 7}, {}),
        ({"managedFields": "x"}, {}),
        ({"annotations": 1}, {}),
    ],
)
def test_odd_metadata_is_held_too(metadata, labels):
    """Only a name is needed."""
    made = record({"metadata": {"name": "a"} | metadata})
    assert (made.key, made.labels) == ("a", labels)
    assert made.resource_version == str(metadata.get("resourceVersion", ""))


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"null",
        b"[]",
        b"1",
        b'{"metadata":null}',
        b'{"metadata":[]}',
        b'{"metadata":{}}',
        b'{"metadata":{"name":""}}',
        b'{"metadata":{"name":null}}',
        b'{"metadata":{"name":"a"}',
        b'{"metadata":{"name":"a"}}x',
        b'{"metadata":{"name":"\xff"}}',
        b'{"metadata":{"name":"a","labels":{"a":"\xff"}}}',
        b'{"a":' * 5000 + b"1" + b"}" * 5000,
    ],
)
@pytest.mark.parametrize("options", [{}, {"transform": lambda obj: obj}])
def test_what_is_no_object_is_refused_with_its_beginning(raw, options):
    """The message shows what came, and no other exception gets out."""
    with pytest.raises(MalformedAnswer, match="an object "):
        projection(**options).record(raw)


def test_dropped_fields_are_in_no_frame_and_in_no_index():
    """What the manifest drops is cut out without decoding; managedFields only if it is named.

    What is indexed is what is left; who and in which version an object is stays known.
    """
    status = FieldPath.parse("status.phase")
    texts = ("spec.nodeName", "metadata.annotations", "metadata.labels.tier", "metadata.uid", "status")
    one = projection(NODE_NAME, IMAGES, status, drop_fields=[FieldPath.parse(text) for text in texts])
    obj = pod()
    obj["metadata"]["managedFields"] = [1]
    made = one.record(compact(obj))
    for path in texts:
        FieldPath.parse(path).remove_from(obj)
    assert made.decode() == obj
    assert (made.uid, made.resource_version, made.labels) == ("uid-of-web-1", "7", {"app": "web"})
    assert (made.field(NODE_NAME), made.field(IMAGES), made.field(status)) == ((), ("i:1", "i:2"), ())
    assert (one.statistics().objects, one.statistics().decoded_whole) == (1, 0)


def test_transform_decides_what_is_held_and_indexed_but_not_the_name():
    """The cache holds what the transform returns, under the name that the server gave."""

    def transform(obj):
        return {
            "metadata": {"name": "other", "labels": {"x": "y"}},
            "spec": {"nodeName": "node-9"},
            "seen": "managedFields" in obj["metadata"],
        }

    made = record(pod(), NODE_NAME, transform=transform)
    assert (made.key, made.uid, made.labels, made.field(NODE_NAME)) == (
        "team-a/web-1",
        "uid-of-web-1",
        {"x": "y"},
        ("node-9",),
    )
    assert made.decode()["seen"] is False


def explode(_):
    raise RuntimeError("no such field")


def loop(obj):
    obj["self"] = obj
    return obj


@pytest.mark.parametrize(
    ("transform", "counted", "fault"),
    [
        (lambda _: None, (1, 0), None),
        (explode, (0, 1), "the transform raised RuntimeError on web-1: no such field"),
        (lambda _: [1], (0, 1), "the transform returned a list for web-1, not an object"),
        (loop, (0, 1), "the transform raised RecursionError"),
        (lambda _: {"a": object()}, (0, 1), "the transform raised TypeError on web-1"),
    ],
)
def test_transform_that_drops_or_fails_is_counted_and_told(transform, counted, fault):
    """A user's mistake costs the object, shows in the statistics, and stops nothing."""
    one = projection(transform=transform)
    assert one.record(compact(pod())) is None
    figures = one.statistics()
    assert ((figures.dropped, figures.failed), figures.objects, figures.decoded_whole) == (counted, 1, 1)
    assert figures.last_fault == fault if fault is None else (figures.last_fault or "").startswith(fault)


def test_another_transform_takes_the_place_of_the_first_and_nothing_else_changes():
    """Paths, dropped fields and codec stay; what was held under the first transform is decoded anew."""
    before = Projection(
        api_version="v1",
        kind="Pod",
        paths=[NODE_NAME],
        drop_fields=[FieldPath.parse("metadata.managedFields"), FieldPath.parse("status")],
        transform=lambda obj: {**obj, "by": "first"},
    )
    after = before.with_transform(lambda obj: {**obj, "by": "second"})
    raw = compact(
        {
            "metadata": {"name": "a", "resourceVersion": "1", "uid": "u", "managedFields": [{}]},
            "spec": {"nodeName": "n1"},
            "status": {"phase": "Running"},
        }
    )
    held = before.record(raw)
    made = after.record(raw, known=lambda _: held)
    plain = after.with_transform(None).record(raw)
    assert (held.decode()["by"], made.decode()["by"]) == ("first", "second")
    assert made.field(NODE_NAME) == ("n1",)
    assert set(plain.decode()) == {"apiVersion", "kind", "metadata", "spec"}
    assert "managedFields" not in plain.decode()["metadata"]
    assert made.layout.codec is held.layout.codec


def test_statistics_tell_how_small_frames_are():
    """Whatever keeps the objects: frames, metadata or decoded objects."""
    for codec in (FrameCodec(), MetadataCodec(), ObjectCodec(api_version="v1", kind="Pod")):
        one = projection(codec=codec)
        for n in range(300):
            one.record(compact(pod(f"web-{n}")))
        frames = one.statistics().frames
        assert (frames.trainings, frames.dictionaries) == (1, 1)
        assert frames.ratio > 2
