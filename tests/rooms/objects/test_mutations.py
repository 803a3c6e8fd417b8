"""Mutation detection: every change of a shared object is found, told and put right, and nothing else is."""

import copy
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from declctl.objects.differences import MutationDetector
from declctl.objects.frame import ObjectCodec
from tests.rooms.objects.made_objects import JSON, TEXTS, compact, pod


def held(*objects, kind="Pod"):
    codec = ObjectCodec(api_version="v1", kind=kind)
    return MutationDetector(codec), [codec.encode(compact(obj)) for obj in objects]


def spoil_node(body):
    body["spec"]["nodeName"] = "spoilt"


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (spoil_node, 'spec.nodeName was "node-1" and became "spoilt"'),
        (lambda body: body["spec"].pop("nodeName"), 'spec.nodeName was "node-1" and became absent'),
        (lambda body: body.update(mine=True), "mine was absent and became true"),
        (
            lambda body: body["spec"]["containers"].pop(),
            'spec.containers[1] was {"name":"b","image":"i:2"} and became absent',
        ),
        (
            lambda body: body["metadata"]["labels"].update({"a.io/x": "1"}),
            "metadata.labels['a.io/x'] was absent and became \"1\"",
        ),
        (lambda body: body.update(status=None), 'status was {"phase":"Running"} and became null'),
        (
            lambda body: body["metadata"].update(resourceVersion=7),
            'metadata.resourceVersion was "7" and became 7',
        ),
        # Python takes them for equal, and JSON does not.
        (lambda body: body["spec"].update(replicas=True), "spec.replicas was 1 and became true"),
        (lambda body: body.update(status={1}), 'status was {"phase":"Running"} and became a set'),
    ],
)  # fmt: skip
def test_a_change_is_told_with_its_object_its_path_and_both_values(spoil, told):
    """Kind, key, and for each place what stood there and what stands there now."""
    whole = pod("a", spec={**pod()["spec"], "replicas": 1})
    detector, [one, other] = held(whole, pod("b"))
    spoil(one.body)
    (found,) = detector.look_at_all()
    assert str(found) == f"Pod team-a/a: {told}"
    assert (detector.count, detector.last) == (1, found)
    assert one.body == whole
    assert other.body == pod("b")


def test_the_values_of_a_secret_are_not_told():
    """A log is read by more people than a Secret."""
    secret = {"metadata": {"name": "token"}, "data": {"password": "aHVudGVyMg=="}}
    detector, [kept] = held(secret, kind="Secret")
    kept.body["data"]["password"] = "c3BvaWx0"
    (found,) = detector.look_at_all()
    assert str(found) == "Secret token: data.password was (hidden) and became (hidden)"


def test_what_was_put_right_is_not_told_again():
    """A new change is counted anew. Places alone are for those who may not see values."""
    detector, [one] = held(pod())
    spoil_node(one.body)
    assert len(detector.look_at_all()) == 1
    assert detector.look_at_all() == []
    spoil_node(one.body)
    one.body["status"] = {}
    assert detector.look_at_all()[0].places == "Pod team-a/web-1: spec.nodeName, status.phase"
    assert detector.count == 2


def test_many_differences_are_few_words():
    """Three are told and the others counted; long values are cut."""
    detector, [one] = held(pod(spec={f"f{n}": "x" * 200 for n in range(10)}))
    one.body["spec"].clear()
    (found,) = detector.look_at_all()
    assert len(found.differences) == 3
    assert found.more == 7
    assert all(len(each.before) == 60 for each in found.differences)


def test_keys_in_another_order_are_no_change():
    """A reader that takes a field out and puts it back has changed nothing."""
    detector, [one] = held(pod())
    one.body["kind"] = one.body.pop("kind")
    assert detector.look_at_all() == []


def test_an_object_that_contains_itself_is_a_change_like_any_other():
    """Whatever a reader puts in, looking ends."""
    detector, [one] = held(pod())
    one.body["spec"]["me"] = one.body
    (found,) = detector.look_at_all()
    assert found.differences[0].path == "spec.me"


def test_no_code_of_what_was_put_in_is_called():
    """Comparing and telling never ask an object of somebody's class."""

    class Trap:
        def __eq__(self, other):
            raise AssertionError("compared")

        def __repr__(self):
            raise AssertionError("shown")

        __hash__ = None

    detector, [one] = held(pod())
    one.body["spec"]["nodeName"] = Trap()
    (found,) = detector.look_at_all()
    assert found.differences[0].after == "a Trap"


def test_objects_are_looked_at_in_turn():
    """A look is as long as it is allowed to be; some looks later every object has been compared."""
    detector, objects = held(*[pod(f"p{n}") for n in range(10)])
    for each in objects:
        spoil_node(each.body)
    looks = [len(detector.look(4)) for _ in range(3)]
    assert looks == [4, 4, 2]
    assert detector.at_end_of_round
    assert detector.look(4) == []


def test_an_object_without_metadata_is_told_without_a_name():
    """A transform may take all metadata away."""
    detector, [kept] = held({"spec": {}})
    kept.body["spec"]["a"] = 1
    assert detector.look_at_all()[0].key == "without a name"


def test_what_cannot_be_decoded_is_passed_over():
    codec = ObjectCodec(api_version="v1", kind="Pod")
    kept = codec.encode(b'{"spec":1e999}')
    assert MutationDetector(codec).look_at_all() == []
    assert kept.body is None


@given(before=st.dictionaries(TEXTS, JSON, max_size=4), after=st.dictionaries(TEXTS, JSON, max_size=4))
def test_any_change_is_found_and_any_object_is_put_right(before, after):
    before = {"apiVersion": "v1", "kind": "Pod", **before}
    detector, [one] = held(before)
    assert detector.look_at_all() == []
    one.body.clear()
    one.body.update(copy.deepcopy(after))
    found = detector.look_at_all()
    assert bool(found) == (json.dumps(after, sort_keys=True) != json.dumps(before, sort_keys=True))
    assert one.body == before
