"""Objects of which the server sends metadata only are read as objects of their own kind."""

import json

import pytest

from declctl.decoding import MetadataCodec, Projection
from declctl.objects import EventType, FieldPath, ObjectView
from declctl.objects.record import record_of
from tests.rooms.objects.made_objects import compact, event, pod

NOTE = FieldPath.parse("metadata.annotations.note")
HEAD = {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1"}


def partial(name: str = "web-1", **more) -> dict:
    return {**HEAD, "metadata": pod(name)["metadata"], **more}


def projection(**options) -> Projection:
    return Projection(
        api_version="apps/v1", kind="Deployment", metadata_only=True, codec=MetadataCodec(), **options
    )


def read(record) -> ObjectView:
    assert record is not None
    return ObjectView(record)


@pytest.mark.parametrize(
    "sent",
    [
        partial(),
        {"apiVersion": HEAD["apiVersion"], "kind": HEAD["kind"], "metadata": pod()["metadata"]},
        {"metadata": pod()["metadata"], **HEAD},
        {"metadata": pod()["metadata"]},
    ],
    ids=["type first", "version first", "metadata first", "no type"],
)
def test_the_kind_is_the_real_one_however_it_is_sent(sent):
    """In an item of a list, in an event, and in a view's name; key, labels and annotations are there."""
    made = projection()
    page = made.page(compact({"kind": "PartialObjectMetadataList", "metadata": {}, "items": [sent]}))
    whole = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": pod()["metadata"]}
    for view in (read(page.records[0]), read(made.event(event("ADDED", sent).strip()).record)):
        assert view.to_dict() == whole
        assert repr(view) == "<Deployment team-a/web-1 resourceVersion=7>"
        assert (dict(view.labels), dict(view.annotations)) == (
            {"app": "web", "tier": "front"},
            {"note": 'said "hello"'},
        )
        assert record_of(view).field(NOTE) == ('said "hello"',)


def test_a_whole_object_is_not_taken_for_metadata():
    """A server that answers with the object itself is found out: it is skipped and told."""
    told = projection().event(event("ADDED", pod()).strip())
    assert told.type is EventType.SKIPPED
    assert told.decode_warning == "an object is a Pod (v1) and not a PartialObjectMetadata (meta.k8s.io/v1)"


def test_a_transform_may_write_the_fields_in_another_order():
    """Its own, or the informer's in the place of it: what it gives back is of the real kind, too."""

    def reverse(obj):
        return dict(reversed(obj.items()))

    for made in (projection(transform=reverse), projection().with_transform(reverse)):
        assert read(made.event(event("ADDED", partial()).strip()).record)["kind"] == "Deployment"


def test_what_cannot_be_decoded_is_kept_as_it_came():
    """Metadata with a number beyond all bounds in it: nothing is lost, and nothing raises."""
    plain = json.dumps({"metadata": {"name": "a"}})[:-1].encode() + b',"x":1e999}'
    codec = MetadataCodec()
    assert codec.decode(codec.encode(plain)) == plain
