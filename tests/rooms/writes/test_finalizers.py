"""Finalizers are added and removed without an effect on those of others."""

import pytest

from declctl.errors import Conflict, NotFound, NotLeader, StatusError
from declctl.objects import GroupVersionKind

NAME = "example.dev/web"
WEBAPP = GroupVersionKind.of("example.dev/v1", "WebApp")
PATH = "/apis/example.dev/v1/namespaces/team-a/webapps/shop"


def _conflict():
    return Conflict(409, "Conflict", "the object has been modified")


def _change(scene, scope, obj, *, adds, reads_first=False, seconds=0.0):
    work = scene.writer().change_finalizer(WEBAPP, NAME, scope(obj), adds=adds, reads_first=reads_first)
    return scene.run(work, seconds=seconds)


def _sent(scene):
    """The metadata of the patches."""
    return [body["metadata"] for method, _, _, body in scene.server.requests if method == "PATCH"]


def _stored(*finalizers, version="60", **more):
    return {"metadata": {"uid": "uid-shop", "resourceVersion": version, "finalizers": [*finalizers], **more}}


def test_it_is_added_behind_the_others(scene, scope, view):
    """With the uid and the version of the state that was seen; the handler is the field manager."""
    written = _change(scene, scope, view(metadata={"finalizers": ["other.dev/a"]}), adds=True)
    assert _sent(scene) == [{"uid": "uid-shop", "resourceVersion": "50", "finalizers": ["other.dev/a", NAME]}]
    assert scene.server.requests[0][2] == {"fieldManager": "declctl/guard/web"}
    assert written.changed
    assert [str(each.verb) for each in scene.ledger.newest()] == ["patch"]


@pytest.mark.parametrize(
    ("adds", "metadata"),
    [
        (True, {"finalizers": [NAME]}),
        (True, {"deletionTimestamp": "now", "finalizers": ["other.dev/a"]}),
        (False, {"finalizers": ["other.dev/a"]}),
        (False, {}),
    ],
)
def test_nothing_is_sent_when_nothing_would_change(scene, scope, view, adds, metadata):
    """And an object that is being deleted never gets one."""
    assert _change(scene, scope, view(metadata=metadata), adds=adds) is None
    assert scene.server.requests == []


def test_conflicts_have_an_end(scene, scope, view):
    """After six patches the call fails, and is retried with the back-off of its key."""
    scene.server.answers["PATCH", PATH] = _conflict()
    scene.server.answers["GET", PATH] = _stored()
    with pytest.raises(Conflict):
        _change(scene, scope, view(), adds=True, seconds=60.0)
    assert len(_sent(scene)) == 6
    assert scene.ledger.retries()["conflict"] == 5


def test_only_a_gone_object_needs_nothing(scene, scope, view):
    """A proxy answers 404 for an object that lives, which would keep its finalizer for ever."""
    scene.server.answers["PATCH", PATH] = NotFound(404, "NotFound", "gone")
    assert _change(scene, scope, view(), adds=True) is None
    scene.server.answers["GET", PATH] = _stored(NAME)
    with pytest.raises(NotFound):
        _change(scene, scope, view(metadata={"finalizers": [NAME]}), adds=False)


def test_what_a_transform_may_have_dropped_is_read(scene, scope, view):
    """The cached object shows no finalizer of others: the patch must not remove it."""
    scene.server.answers["GET", PATH] = _stored("other.dev/a")
    _change(scene, scope, view(), adds=True, reads_first=True)
    assert _sent(scene)[-1]["finalizers"] == ["other.dev/a", NAME]


def test_other_refusals_and_a_lost_lead_are_raised(scene, scope, view):
    """The key is retried."""
    scene.server.errors = [StatusError(500, "InternalError", "no")]
    with pytest.raises(StatusError):
        _change(scene, scope, view(), adds=True)
    scene.leads = False
    with pytest.raises(NotLeader):
        _change(scene, scope, view(), adds=True)
