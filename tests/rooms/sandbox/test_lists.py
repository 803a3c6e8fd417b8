"""LIST: pages, versions, selectors."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from declctl.sandbox.lists import list_page, read_options
from declctl.sandbox.status import Refusal
from tests.rooms.sandbox.shapes import config_map, pod, store

MAPS = ("", "configmaps")
WATCH = {"watch": "true"}


def page(cluster, resource=MAPS, namespace="", **params):
    texts = {"continue" if key == "token" else key: str(value) for key, value in params.items()}
    return list_page(cluster.history, resource, read_options(texts, namespace, watch=False))


def names(found):
    return [stored.name for stored in found.items]


def filled(count):
    cluster = store()
    for number in range(count):
        cluster.create(config_map(f"c{number}"))
    return cluster


def test_pages_are_one_snapshot():
    """All pages show the cluster at the version of the first one, whatever happens in between."""
    cluster = filled(5)
    first = page(cluster, limit=2)
    cluster.delete("ConfigMap", "c3")
    cluster.create(config_map("c9"))
    second = page(cluster, limit=2, token=first.token)
    third = page(cluster, limit=2, token=second.token)
    assert names(first) + names(second) + names(third) == ["c0", "c1", "c2", "c3", "c4"]
    assert first.version == second.version == third.version
    assert (first.remaining, second.remaining, third.remaining, third.token) == (3, 1, None, "")


@given(st.integers(0, 12), st.integers(1, 13))
def test_pages_lose_nothing_and_repeat_nothing(count, limit):
    """Whatever the page size, every object comes exactly once (client-go 131)."""
    cluster = filled(count)
    found, token = [], ""
    while True:
        part = page(cluster, limit=limit, token=token)
        found += names(part)
        token = part.token
        if not token:
            break
    assert found == sorted(f"c{number}" for number in range(count))


def test_an_expired_token_offers_another():
    """After a compaction the next page is 410 Expired, with a token that goes on with the present state."""
    cluster = filled(3)
    first = page(cluster, limit=1)
    cluster.delete("ConfigMap", "c1")
    cluster.history.compact()
    with pytest.raises(Refusal) as refused:
        page(cluster, limit=1, token=first.token)
    assert (refused.value.code, refused.value.reason) == (410, "Expired")
    offered = refused.value.document()["metadata"]["continue"]
    assert names(page(cluster, token=offered)) == ["c2"]


@pytest.mark.parametrize("token", ["zzz", "e30", "eyJ2IjoieCIsInN0YXJ0IjoiIn0", "ü"])
def test_a_malformed_token_is_a_bad_request(token):
    with pytest.raises(Refusal, match="continue key is not valid") as refused:
        page(filled(1), token=token)
    assert refused.value.code == 400


def test_version_zero_is_answered_whole():
    """A list at version 0 ignores the limit, as a watch cache does."""
    assert len(page(filled(5), resourceVersion=0, limit=2).items) == 5


def test_an_exact_version_shows_the_past():
    """Exact shows that version; NotOlderThan and a plain version show the newest."""
    cluster = filled(2)
    then = cluster.version
    cluster.create(config_map("new"))
    assert names(page(cluster, resourceVersion=then, resourceVersionMatch="Exact")) == ["c0", "c1"]
    newest = ["c0", "c1", "new"]
    assert names(page(cluster, resourceVersion=then, resourceVersionMatch="NotOlderThan")) == newest
    assert names(page(cluster, resourceVersion=then)) == newest
    assert names(page(cluster, resourceVersion=then, limit=9)) == ["c0", "c1"]


def test_a_compacted_version_can_not_be_listed_exactly():
    cluster = filled(2)
    then = cluster.version
    cluster.create(config_map("new"))
    cluster.history.compact()
    with pytest.raises(Refusal) as refused:
        page(cluster, resourceVersion=then, resourceVersionMatch="Exact")
    assert refused.value.code == 410
    assert len(page(cluster, resourceVersion=then, resourceVersionMatch="NotOlderThan").items) == 3


@pytest.mark.parametrize("match", ["", "NotOlderThan", "Exact"])
def test_a_version_of_the_future_is_too_large(match):
    """A version that the server has not reached is 504 with the cause that clients look for."""
    with pytest.raises(Refusal) as refused:
        page(filled(1), resourceVersion=9999, resourceVersionMatch=match)
    document = refused.value.document()
    assert (document["code"], document["reason"]) == (504, "Timeout")
    assert document["details"]["causes"][0]["reason"] == "ResourceVersionTooLarge"


def test_selectors_select(cluster):
    """Labels, names and fields narrow a list down; what remains is not counted then."""
    cluster.create(pod("a", node="n1", labels={"app": "web"}))
    cluster.create(pod("b", node="n2", labels={"app": "web"}))
    cluster.create(pod("c", node="n1", labels={"app": "db"}, phase="Running"))
    pods = ("", "pods")
    assert names(page(cluster, pods, labelSelector="app=web")) == ["a", "b"]
    assert names(page(cluster, pods, fieldSelector="spec.nodeName=n1")) == ["a", "c"]
    assert names(page(cluster, pods, fieldSelector="metadata.name!=a,spec.nodeName=n1")) == ["c"]
    both = page(cluster, pods, fieldSelector="status.phase=Running", labelSelector="app in (db)")
    assert names(both) == ["c"]
    default = page(cluster, pods, "default", fieldSelector="metadata.namespace=default")
    assert names(default) == ["a", "b", "c"]
    assert names(page(cluster, pods, "kube-system")) == []
    assert page(cluster, pods, labelSelector="app", limit=1).remaining is None


@pytest.mark.parametrize(
    ("params", "code", "words"),
    [
        ({"limit": "abc"}, 400, 'strconv.ParseInt: parsing "abc": invalid syntax'),
        ({"resourceVersion": "abc"}, 400, "invalid resource version"),
        ({"labelSelector": "a b c"}, 400, "unable to parse requirement: found 'b', expected: in, notin, ="),
        ({"labelSelector": "a,,b"}, 400, "unable to parse requirement"),
        ({"fieldSelector": "a"}, 400, "invalid selector: 'a'"),
        ({"resourceVersionMatch": "Exact"}, 422, "forbidden unless resourceVersion is provided"),
        ({"resourceVersion": "0", "resourceVersionMatch": "Exact"}, 422, 'forbidden for resourceVersion "0"'),
        (
            {"resourceVersion": "1", "resourceVersionMatch": "Foo"},
            422,
            'supported values: "Exact", "NotOlderThan", ""',
        ),
        ({"sendInitialEvents": "true"}, 422, "sendInitialEvents is forbidden for list"),
        ({"continue": "x", "resourceVersion": "5"}, 400, "not allowed when using continue"),
        ({**WATCH, "resourceVersion": "abc"}, 500, "strconv.ParseUint"),
        ({**WATCH, "resourceVersionMatch": "NotOlderThan"}, 422, "unless sendInitialEvents is provided"),
        ({**WATCH, "sendInitialEvents": "true"}, 422, "setting resourceVersionMatch to NotOlderThan"),
        (
            {**WATCH, "sendInitialEvents": "true", "resourceVersionMatch": "Exact"},
            422,
            'supported values: "NotOlderThan"',
        ),
    ],
)
def test_wrong_options_are_refused(params, code, words):
    """Query parameters that contradict each other are refused as the real server refuses them."""
    with pytest.raises(Refusal) as refused:
        read_options(params, "", watch="watch" in params)
    assert refused.value.code == code
    assert words in refused.value.message
