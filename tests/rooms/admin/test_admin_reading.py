"""Reads of the live cache over HTTP."""

from collections.abc import Callable

import pytest


def test_a_resource_lists_its_keys(ask: Callable):
    """GET /cache/pods tells which objects the process knows."""
    assert ask("/cache/pods").json == {
        "resource": "pods",
        "count": 2,
        "keys": ["default/web-1", "team-a/web-2"],
    }


def test_keys_can_be_narrowed(ask: Callable):
    """?namespace= narrows the keys."""
    assert ask("/cache/pods?namespace=team-a").json["keys"] == ["team-a/web-2"]


def test_a_wrong_selector_is_400(ask: Callable):
    """A label selector that can't be read is told as such."""
    answer = ask("/cache/pods?labelSelector=((")
    assert answer.status == 400
    assert "labelSelector: " in answer.json["error"]


def test_a_key_gives_the_object(ask: Callable):
    """GET /cache/pods/team-a/web-2 shows the object as the handlers see it."""
    assert ask("/cache/pods/team-a/web-2").json["spec"] == {"nodeName": "node-1"}


def test_an_index_gives_keys_and_without_a_value_its_values(ask: Callable):
    """GET /index/pods/byNode/node-1 answers what a lister would."""
    assert ask("/index/pods/byNode/node-1").json["keys"] == ["team-a/web-2"]
    assert ask("/index/pods/byNode/").json["values"] == ["node-1", "node-2"]


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("/cache/nodes", "the manifest declares pods"),
        ("/cache/nodes/a", "the manifest declares pods"),
        ("/index/nodes/byNode/a", "the manifest declares pods"),
        ("/cache/pods/default/gone", "a key is namespace/name"),
        ("/index/pods/byTeam/a", "there is: byNode"),
    ],
)
def test_what_is_not_there_is_404_with_what_is(ask: Callable, path: str, told: str):
    """A name that the manifest or the cache doesn't have is answered with those that it has."""
    answer = ask(path)
    assert answer.status == 404
    assert told in answer.json["error"]
