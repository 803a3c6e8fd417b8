"""Sets of children: owner references, labels of KEP-3659, and what is deleted, and what never."""

import asyncio
import base64
import hashlib

import pytest

from declctl import AlreadyExists
from declctl.errors import (
    AlreadyOwned,
    Conflict,
    CrossNamespaceOwner,
    Forbidden,
    InvalidWrite,
    NotFound,
    ObjectGone,
)
from declctl.objects import FieldPath, GroupVersionKind, Resource
from declctl.writes import DeclaredWrites, WriteLedger, document_of, documents_of, drops_set_annotations

SHOP = "/apis/example.dev/v1/namespaces/team-a/webapps/shop"
MAPS = "/api/v1/namespaces/team-a/configmaps"
DEPLOYMENTS = "/apis/apps/v1/namespaces/team-a/deployments"
ID = "applyset.kubernetes.io/id"
PART_OF = "applyset.kubernetes.io/part-of"
TOOLING = "applyset.kubernetes.io/tooling"
KINDS = "applyset.kubernetes.io/contains-group-kinds"
SPACES = "applyset.kubernetes.io/additional-namespaces"
MARKED = {TOOLING: "declctl/v1.2.3", KINDS: "ConfigMap"}
SET = {"annotations": MARKED}


def set_id(text: str = "shop.team-a.WebApp.example.dev") -> str:
    """As the KEP computes it."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")
    return f"applyset-{digest}-v1"


def config_map(name: str, **metadata) -> dict:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, **metadata}}


def deployment(name: str) -> dict:
    """A child of another kind."""
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}}


def member(
    name: str,
    *,
    owner: str = "uid-shop",
    label: str | None = None,
    manager: str = "declctl/guard/web",
    **more,
):
    """A child as the server has it."""
    return {
        "metadata": {
            "name": name,
            "namespace": "team-a",
            "uid": f"uid-of-{name}",
            "labels": {PART_OF: set_id() if label is None else label},
            "ownerReferences": [{"uid": owner, "controller": True}],
            "managedFields": [{"manager": manager, "operation": "Apply"}],
            **more,
        }
    }


@pytest.fixture
def apply(scene, scope, view):
    """Applies sets of an object by one writer; `again` makes that of a new process."""
    writers = [scene.writer()]

    def run(objects, obj=None, *, again: bool = False, **more):
        if again or more:
            writers.append(scene.writer(**more))
        parent = view() if obj is None else obj
        documents = documents_of(objects)
        return scene.run(writers[-1].apply_set(parent, documents, scope(parent)), seconds=1)

    return run


def test_children_get_an_owner_and_the_labels_of_the_set(scene, apply) -> None:
    """The garbage collector deletes them with the object, and kubectl knows the set."""
    done = apply([config_map("a", labels={"app": "shop"}, ownerReferences=[{"uid": "other"}])])
    parent, child = scene.server.requests  # no object of a new set can be there
    assert parent[:2] == ("PATCH", SHOP)
    assert parent[3] == {
        "metadata": {
            "uid": "uid-shop",
            "resourceVersion": "50",
            "labels": {ID: set_id()},
            "annotations": MARKED,
        }
    }
    assert child[:2] == ("PATCH", f"{MAPS}/a")
    assert child[3]["metadata"]["labels"] == {"app": "shop", PART_OF: set_id()}
    assert child[3]["metadata"]["ownerReferences"] == [
        {"uid": "other"},
        {
            "apiVersion": "example.dev/v1",
            "kind": "WebApp",
            "name": "shop",
            "uid": "uid-shop",
            "controller": True,
            "blockOwnerDeletion": True,
        },
    ]
    assert [written.key for written in done.applied] == ["team-a/a"]
    assert done.pruned == ()


def test_a_child_that_is_not_in_the_set_any_more_is_deleted(scene, apply, view) -> None:
    """After a restart the former children are found by their label; a delete names the uid."""
    scene.server.answers["GET", MAPS] = {"items": [member("a"), member("b")]}
    scene.server.answers["GET", DEPLOYMENTS] = NotFound(404, "NotFound", "no")  # a former kind, which is gone
    marks = {**MARKED, KINDS: "ConfigMap,Deployment.apps"}
    done = apply([config_map("a")], view(metadata={"annotations": marks}))
    assert scene.server.sent() == [
        ("GET", MAPS),
        ("GET", DEPLOYMENTS),
        ("PATCH", f"{MAPS}/a"),
        ("GET", f"{MAPS}/b"),
        ("DELETE", f"{MAPS}/b"),
        ("PATCH", SHOP),
    ]
    assert scene.server.requests[0][2] == {"labelSelector": f"{PART_OF}={set_id()}", "limit": "500"}
    assert scene.server.requests[4][3] == {
        "apiVersion": "v1",
        "kind": "DeleteOptions",
        "preconditions": {"uid": "uid-of-b"},
        "propagationPolicy": "Background",
    }
    assert [written.key for written in done.pruned] == ["team-a/b"]


@pytest.mark.parametrize(
    "other",
    [
        member("b", owner="uid-of-another-shop"),
        member("b", label="applyset-of-another"),
        member("b", manager="declctl/guard/other-handler"),
        member("b", ownerReferences=[]),
        member("b", deletionTimestamp="2026-01-01T00:00:00Z"),
    ],
    ids=["another owner", "another set", "another handler", "no owner", "deleted already"],
)
def test_what_others_made_is_never_deleted(scene, apply, view, other) -> None:
    """The label alone is a claim that anybody can make."""
    scene.server.answers["GET", MAPS] = {"items": [other]}
    done = apply([config_map("a")], view(metadata=SET))
    assert scene.server.sent("DELETE") == []
    assert done.pruned == ()


def test_the_parent_is_marked_before_and_narrowed_after(scene, apply, view) -> None:
    """A process that ends in between leaves no child in a kind that the next one does not look into."""
    scene.server.answers["GET", DEPLOYMENTS] = {"items": [member("old")]}
    marked = {**MARKED, KINDS: "Deployment.apps"}
    apply([config_map("a")], view(metadata={"annotations": marked}))
    assert scene.server.sent() == [
        ("PATCH", SHOP),
        ("GET", DEPLOYMENTS),
        ("PATCH", f"{MAPS}/a"),
        ("GET", f"{DEPLOYMENTS}/old"),
        ("DELETE", f"{DEPLOYMENTS}/old"),
        ("PATCH", SHOP),
    ]
    wide, narrow = (request[3]["metadata"] for request in scene.server.requests if request[1] == SHOP)
    assert wide["annotations"][KINDS] == "ConfigMap,Deployment.apps"
    assert narrow["annotations"][KINDS] == "ConfigMap"
    assert narrow["resourceVersion"] == "101"  # that of the first patch


def test_a_parent_that_changes_before_it_is_narrowed_fails_the_call(scene, apply, view) -> None:
    """Another handler may have members of further kinds by now: the retry looks, and narrows."""
    marked = view(metadata={"annotations": {**MARKED, KINDS: "ConfigMap"}})
    scene.server.answers["PATCH", SHOP] = Conflict(409, "Conflict", "modified")
    with pytest.raises(Conflict, match="modified"):
        apply([], marked)
    del scene.server.answers["PATCH", SHOP]
    apply([], marked)
    last = [
        body["metadata"] for verb, path, _, body in scene.server.requests if (verb, path) == ("PATCH", SHOP)
    ][-1]
    assert last["annotations"][KINDS] == ""


def test_two_handlers_that_mark_one_parent_see_each_others_kinds(scene, apply) -> None:
    """The other one was faster: its kinds are read, and stay."""
    scene.server.errors = [Conflict(409, "Conflict", "modified")]
    scene.server.answers["GET", SHOP] = {
        "metadata": {
            "uid": "uid-shop",
            "resourceVersion": "60",
            "annotations": {**MARKED, KINDS: "Deployment.apps"},
        }
    }
    scene.server.answers["GET", DEPLOYMENTS] = {"items": [member("theirs", manager="declctl/guard/other")]}
    apply([config_map("a")])
    _, second = [body["metadata"] for _, path, _, body in scene.server.requests if path == SHOP and body]
    assert second["resourceVersion"] == "60"
    assert second["annotations"][KINDS] == "ConfigMap,Deployment.apps"
    assert scene.server.sent("DELETE") == []


@pytest.mark.parametrize(
    ("error", "uid", "fault"),
    [
        (NotFound(404, "NotFound", "gone"), None, ObjectGone),
        (Conflict(409, "Conflict", "another uid"), "uid-2", ObjectGone),
        (NotFound(404, "NotFound", "not served"), "uid-shop", NotFound),
    ],
)
def test_a_parent_that_is_gone_ends_its_call(scene, apply, error, uid, fault) -> None:
    """Also if it was made again; a 404 of one that is there may pass."""
    scene.server.errors = [error]
    if uid is not None:
        scene.server.answers["GET", SHOP] = {"metadata": {"uid": uid, "resourceVersion": "60"}}
    with pytest.raises(NotFound) as raised:
        apply([config_map("a")])
    assert type(raised.value) is fault
    assert scene.server.sent("PATCH") == [("PATCH", SHOP)]


def test_lost_annotations_are_known_by_a_child_that_is_there(scene, apply, view) -> None:
    """Somebody has replaced the parent while no process ran: all kinds of `applies` are looked into."""
    scene.server.answers["GET", MAPS] = {"items": [member("a")]}
    scene.server.answers["GET", DEPLOYMENTS] = {"items": [member("old")]}
    kinds = [("v1", "ConfigMap"), ("apps/v1", "Deployment"), ("ex.io/v1", "Gone")]
    declared = DeclaredWrites(tuple(GroupVersionKind.of(*kind) for kind in kinds))
    done = apply([config_map("a")], declared=declared)
    assert [written.key for written in done.pruned] == ["team-a/old"]
    # What this process has applied is known.
    done = apply([], view(metadata={"resourceVersion": "200"}))
    assert [written.key for written in done.pruned] == ["team-a/a"]


def test_a_second_call_lists_nothing(scene, apply, view) -> None:
    """A controller that reconciles often asks for single former children, and for none if there are none."""
    obj = view(metadata=SET)
    apply([config_map("a"), config_map("b"), config_map("c")], obj)
    scene.server.requests.clear()
    apply([config_map("a"), config_map("b"), config_map("c")], obj)
    assert scene.server.sent("GET") == []
    scene.server.answers["GET", f"{MAPS}/b"] = member("b")
    scene.server.answers["GET", f"{MAPS}/c"] = member("c", ownerReferences=[])
    done = apply([config_map("a")], obj)
    assert scene.server.sent("GET", "DELETE") == [
        ("GET", f"{MAPS}/b"),
        ("DELETE", f"{MAPS}/b"),
        ("GET", f"{MAPS}/c"),
    ]
    assert [written.key for written in done.pruned] == ["team-a/b"]


def test_a_child_that_the_list_brings_as_it_would_be_is_not_applied(scene, apply, view) -> None:
    """Its result is the whole object, though a list leaves out the kind; and the ledger knows the handler."""
    obj = view(metadata=SET)
    apply([config_map("a")], obj)
    metadata = scene.server.requests[-1][3]["metadata"]
    labels, owner = ({f"f:{PART_OF}": {}}, {'k:{"uid":"uid-shop"}': {}})
    fields = {"f:metadata": {"f:labels": labels, "f:ownerReferences": owner}}
    entry = {"manager": "declctl/guard/web", "operation": "Apply", "apiVersion": "v1", "fieldsV1": fields}
    child = {"metadata": {**metadata, "uid": "u", "resourceVersion": "7", "managedFields": [entry]}}
    scene.server.answers["GET", MAPS] = {"items": [child]}
    scene.ledger = WriteLedger()
    scene.server.requests.clear()
    (written,) = apply([config_map("a")], obj, again=True).applied
    assert scene.server.sent() == [("GET", MAPS)]
    assert written.obj == {"apiVersion": "v1", "kind": "ConfigMap", **child}
    assert (written.changed, written.uid, written.resource_version) == (False, "u", "7")
    assert [(each.verb, each.result) for each in scene.ledger.totals()] == [("apply", "skipped")]
    assert scene.ledger.applied_by() == {"web"}


def test_another_leader_is_noticed(scene, scope, view) -> None:
    """A process that leads again lists the children that the other one may have made."""
    factory, obj = scene.factory(), view(metadata=SET)
    writer = factory.writer("web", 1)
    for _ in range(2):
        scene.run(writer.apply_set(obj, documents_of([config_map("a")]), scope(obj)))
        factory.forget_sets()
    assert scene.server.sent("GET") == [("GET", MAPS)] * 2


def test_nothing_is_deleted_after_a_failure(scene, apply, view) -> None:
    """A child that could not be applied may replace one that would be deleted."""
    scene.server.answers["GET", MAPS] = {"items": [member("old")]}
    scene.server.answers["PATCH", f"{MAPS}/a"] = Forbidden(403, "Forbidden", "no")
    with pytest.raises(Forbidden):
        apply([config_map("a"), config_map("b")], view(metadata=SET))
    assert scene.server.sent("PATCH", "DELETE") == [("PATCH", f"{MAPS}/a")]


@pytest.mark.parametrize(
    "error", [NotFound(404, "NotFound", "gone"), Conflict(409, "Conflict", "another uid")]
)
def test_a_child_that_goes_meanwhile_is_no_failure(scene, apply, view, error) -> None:
    """Somebody else deleted it, or another object has its name now."""
    scene.server.answers["GET", MAPS] = {"items": [member("old")]}
    scene.server.answers["DELETE", f"{MAPS}/old"] = error

    async def made_again() -> None:
        if scene.server.sent()[-1][0] == "DELETE":
            scene.server.answers["GET", f"{MAPS}/old"] = {"metadata": {"name": "old", "uid": "another"}}

    scene.server.during = made_again
    assert apply([config_map("a")], view(metadata=SET)).pruned == ()


def test_long_lists_are_read_to_their_end(scene, scope, view) -> None:
    pages = {None: ["a", "b"], "next": ["c"]}

    async def page(method, path, *, params, body=None, content_type=""):
        scene.server.requests.append((method, path, params, body))
        if method != "GET":
            return {"metadata": {}}
        if not params:
            return member(path.rpartition("/")[2])
        names = pages[params.get("continue")]
        following = {} if "continue" in params else {"continue": "next"}
        return {"metadata": following, "items": [member(name) for name in names]}

    scene.server.request_json = page
    obj = view(metadata=SET)
    done = scene.run(scene.writer().apply_set(obj, documents_of([config_map("b")]), scope(obj)))
    assert [written.key for written in done.pruned] == ["team-a/a", "team-a/c"]


@pytest.mark.parametrize(
    ("child", "message"),
    [
        (
            config_map("a", namespace="team-b"),
            "is in the namespace team-b, so WebApp team-a/shop can't own it",
        ),
        (
            {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "r"}},
            "is cluster-scoped, so WebApp team-a/shop of a namespace can't own it",
        ),
    ],
)
def test_a_child_that_the_object_can_not_own_is_refused(scene, apply, child, message) -> None:
    """The garbage collector would delete it at once; nothing of the set is written."""
    with pytest.raises(CrossNamespaceOwner, match=message):
        apply([config_map("a"), child])
    assert scene.server.requests == []


def test_a_cluster_scoped_object_owns_children_anywhere(scene, apply, view) -> None:
    """Their namespaces are on the parent, so that the next process looks into them."""
    fleet = view("all", kind="Fleet", namespace=None)
    apply([config_map("a", namespace="team-b"), config_map("a", namespace="team-c")], fleet)
    path, body = next((path, body) for method, path, _, body in scene.server.requests if method == "PATCH")
    assert path == "/apis/example.dev/v1/fleets/all"
    assert body["metadata"]["annotations"][SPACES] == "team-b,team-c"
    assert body["metadata"]["labels"] == {ID: set_id("all..Fleet.example.dev")}
    fleet = view("all", kind="Fleet", namespace=None, metadata=body["metadata"])
    apply([], fleet, again=True)
    assert scene.server.sent("GET") == [
        ("GET", "/api/v1/namespaces/team-b/configmaps"),
        ("GET", "/api/v1/namespaces/team-c/configmaps"),
    ]
    with pytest.raises(InvalidWrite, match="needs a namespace"):
        apply([config_map("a")], fleet)


def test_mistakes_are_found_before_anything_is_written(scene, apply, view) -> None:
    """An object that is twice in a set, a dict in the place of a list, and the set of another tool."""
    with pytest.raises(InvalidWrite, match="ConfigMap a is twice in the set"):
        apply([config_map("a"), config_map("a", namespace="team-a")])
    # In two versions: the second apply would take back what the first one has set.
    with pytest.raises(InvalidWrite, match="HorizontalPodAutoscaler a is twice in the set"):
        apply([autoscaler("v1"), autoscaler("v2")])
    with pytest.raises(InvalidWrite, match=r"write \[obj\]"):
        documents_of(config_map("a"))
    with pytest.raises(InvalidWrite, match=r"is the parent of an ApplySet of kubectl/v1\.27"):
        apply([config_map("a")], view(metadata={"annotations": {TOOLING: "kubectl/v1.27"}}))
    assert scene.server.requests == []


def test_a_dry_run_deletes_nothing(scene, scope, view) -> None:
    scene.server.answers["GET", MAPS] = {"items": [member("old")]}
    obj = view(metadata=SET)
    writer = scene.factory(dry_run=True).writer("web", 1)
    for _ in range(2):
        done = scene.run(writer.apply_set(obj, documents_of([config_map("a")]), scope(obj)))
        assert [(written.key, written.dry_run) for written in done.pruned] == [("team-a/old", True)]
    deletes = [
        (params, body["dryRun"]) for method, _, params, body in scene.server.requests if method == "DELETE"
    ]
    assert deletes == [({"dryRun": "All"}, ["All"])] * 2
    assert scene.written == []


def autoscaler(version: str) -> dict:
    """A child of a kind with two versions."""
    return config_map("a") | {"apiVersion": f"autoscaling/{version}", "kind": "HorizontalPodAutoscaler"}


@pytest.mark.parametrize("again", [False, True], ids=["this process", "the next process"])
def test_a_child_in_another_version_is_the_same_child(scene, apply, view, again) -> None:
    """An edit from autoscaling/v1 to autoscaling/v2 keeps the autoscaler: it is one object in both."""
    there = "/apis/autoscaling/{}/namespaces/team-a/autoscalers"
    for version in ("v1", "v2"):
        scene.server.answers["GET", there.format(version)] = {"items": [member("a")]}
        scene.server.answers["GET", there.format(version) + "/a"] = member("a")
    obj = view(metadata={"annotations": {**MARKED, KINDS: "HorizontalPodAutoscaler.autoscaling"}})
    apply([autoscaler("v1")], obj)
    done = apply([autoscaler("v2")], obj, again=again)
    assert done.pruned == ()
    assert scene.server.sent("DELETE") == []
    assert [str(each.kind.version) for each in done.applied] == ["v2"]


def test_what_was_applied_is_not_deleted_under_another_group(scene, apply, view) -> None:
    """A server may have one object in two groups, such as Events: the uid of the answer tells it."""
    scene.resources["Event"] = Resource(GroupVersionKind.of("events.k8s.io/v1", "Event"), "events", True)
    new = "/apis/events.k8s.io/v1/namespaces/team-a/events"
    scene.server.answers["PATCH", f"{new}/a"] = {"metadata": {"name": "a", "uid": "uid-of-a"}}
    scene.server.answers["GET", "/api/v1/namespaces/team-a/events"] = {"items": [member("a")]}
    event = {"apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"name": "a"}}
    old = (GroupVersionKind.of("v1", "Event"),)
    declared = DeclaredWrites((*old, GroupVersionKind.of("events.k8s.io/v1", "Event")))
    marked = {**MARKED, KINDS: "Event,Event.events.k8s.io"}
    apply([event], view(metadata={"annotations": marked}), declared=declared)
    assert ("GET", "/api/v1/namespaces/team-a/events") in scene.server.sent()
    assert scene.server.sent("DELETE") == []


O2 = "/apis/example.dev/v1/namespaces/team-a/webapps/o2"


def controlled_by(name: str, kind: str = "WebApp", **more) -> dict:
    """A child as the server has it, with the owner reference of its controller."""
    own = kind == "WebApp"
    owner = {
        "apiVersion": "example.dev/v1" if own else "apps/v1",
        "kind": kind,
        "name": name,
        "uid": f"uid-{name}" if own else "uid-of-another",
        "controller": True,
        "blockOwnerDeletion": True,
    }
    return member("shared", ownerReferences=[owner], **more)


def stored(scene, name: str = "shared") -> None:
    """Let the server answer a read with what was written last."""
    patched = [body for method, path, _, body in scene.server.requests if path == f"{MAPS}/{name}" and body]
    scene.server.answers["GET", f"{MAPS}/{name}"] = {
        "metadata": {**member(name)["metadata"], **patched[-1]["metadata"]}
    }


def test_a_child_of_another_object_is_refused(scene, apply, view) -> None:
    """Two objects whose children have one name: the second one must not take the child of the first."""
    apply([config_map("shared")], view("o1"))
    stored(scene)
    scene.server.requests.clear()
    with pytest.raises(
        AlreadyOwned, match=r"ConfigMap team-a/shared is a child of WebApp o1, so WebApp team-a/o2"
    ):
        apply([config_map("shared"), config_map("mine")], view("o2"))
    # It is created only if it is not there.
    assert scene.server.sent() == [("PATCH", O2), ("PATCH", f"{MAPS}/shared"), ("GET", f"{MAPS}/shared")]
    apply([config_map("shared")], view("o1"))
    assert [path for _, path in scene.server.sent("PATCH")][-1] == f"{MAPS}/shared"


@pytest.mark.parametrize(
    ("other", "error", "message"),
    [
        (controlled_by("o1"), AlreadyOwned, "an object has one controller"),
        (controlled_by("shop", "Deployment"), AlreadyOwned, "an object has one controller"),
        ({"metadata": {"uid": "u"}}, AlreadyExists, "shared exists, and is no child of WebApp team-a/shop"),
    ],
)
@pytest.mark.parametrize("version", [None, "7"])
def test_the_next_process_refuses_it_as_well(scene, apply, view, other, error, message, version) -> None:
    """Nothing is remembered after a restart: an object that is there is read before it is written."""
    scene.server.answers["GET", f"{MAPS}/shared"] = other
    with pytest.raises(error, match=message):
        apply([config_map("shared", resourceVersion=version)], declared=DeclaredWrites(adopts=False))
    assert scene.server.sent()[-1] == ("GET", f"{MAPS}/shared")


FORMER = controlled_by("shop")["metadata"]["ownerReferences"][0] | {"uid": "uid-of-the-former-shop"}


@pytest.mark.parametrize(("owners", "lines"), [([FORMER], 0), ([], 1)], ids=["a former object", "nothing"])
def test_a_child_that_no_other_object_controls_is_adopted_and_told_once(scene, apply, owners, lines) -> None:
    """If nothing owned it, somebody should know: the whole object will be deleted with its new owner."""
    scene.server.answers["GET", f"{MAPS}/a"] = {"metadata": {"uid": "u", "ownerReferences": owners}}
    scene.server.errors = [None, None, None, Forbidden(403, "Forbidden", "no")]
    with pytest.raises(Forbidden):
        apply([config_map("a")])
    assert scene.log.lines == [], "it was not adopted"
    for _ in range(2):
        apply([config_map("a")])
    told = "web: ConfigMap team-a/a existed, and WebApp team-a/shop adopts it: "
    assert [told in line for line in scene.log.events("warning")] == [True] * lines


def test_a_child_that_another_object_has_got_meanwhile_is_not_taken_back(scene, apply, view) -> None:
    """The child was deleted by hand, and the other object was faster to make one with its name."""
    marked = {"annotations": MARKED}
    apply([config_map("shared")], view("o1", metadata=marked))
    apply([config_map("shared")], view("o2", metadata=marked))  # the server has no such object
    stored(scene)
    with pytest.raises(AlreadyOwned, match="is a child of WebApp o2"):
        apply([config_map("shared")], view("o1", metadata=marked))


def test_an_object_is_adopted_in_the_state_that_was_read(scene, apply) -> None:
    """Another object may adopt it at the same time: the second one is refused, and reads it again."""
    scene.server.answers["GET", f"{MAPS}/a"] = {"metadata": {"uid": "u", "resourceVersion": "7"}}
    scene.server.answers["PATCH", f"{MAPS}/a"] = Conflict(409, "Conflict", "modified")
    with pytest.raises(Conflict, match="modified"):
        apply([config_map("a")])
    assert scene.server.requests[-1][3]["metadata"]["resourceVersion"] == "7"
    assert scene.log.lines == []


def test_calls_for_one_object_come_one_after_the_other(scene, scope, view, clock) -> None:
    """A hook that gathers two sets has the children of the later one, and no error."""
    writer, obj = scene.writer(), view(metadata=SET)

    async def both() -> list:
        sets = ([config_map("a"), config_map("b")], [config_map("a")])
        return await asyncio.gather(*(writer.apply_set(obj, documents_of(each), scope(obj)) for each in sets))

    scene.server.during = clock.settle
    scene.server.answers["GET", f"{MAPS}/b"] = member("b")
    first, second = scene.run(both())
    assert [len(first.applied), len(second.applied)] == [2, 1]
    assert [written.key for written in second.pruned] == ["team-a/b"]


def applied(scene, scope, writer, obj, name: str = "shared"):
    """The metadata that `ctx.apply` sends for a ConfigMap."""
    scene.run(writer.apply(document_of(config_map(name, labels={"app": "x"})), scope(obj)))
    return scene.server.requests[-1][3]["metadata"]


def test_an_apply_of_a_child_keeps_it_in_the_set(scene, scope, view) -> None:
    """`ctx.apply` has the same field manager: without label and owner, the server would remove both."""
    writer, obj = scene.writer(), view()
    scene.run(writer.apply_set(obj, documents_of([config_map("shared")]), scope(obj)))
    child = scene.server.requests[-1][3]["metadata"]
    scene.server.requests.clear()
    metadata = applied(scene, scope, writer, obj)
    assert scene.server.sent() == [("PATCH", f"{MAPS}/shared")]
    assert metadata["labels"] == {"app": "x", PART_OF: set_id()}
    assert metadata["ownerReferences"] == child["ownerReferences"]


def test_an_apply_of_a_child_of_a_former_process_keeps_it_in_the_set(scene, scope, view) -> None:
    """The object of the call has a set of this kind: the child is read once, and no other object is."""
    marks = {"labels": {ID: set_id()}, "annotations": MARKED}
    writer, obj = scene.writer(), view(metadata=marks)
    scene.server.answers["GET", f"{MAPS}/shared"] = controlled_by("shop")
    for _ in range(2):
        metadata = applied(scene, scope, writer, obj)
        assert metadata["labels"] == {"app": "x", PART_OF: set_id()}
        assert [each["uid"] for each in metadata["ownerReferences"]] == ["uid-shop"]
    scene.server.answers["GET", f"{MAPS}/other"] = {"metadata": {"name": "other", "uid": "1"}}
    for _ in range(2):
        assert "ownerReferences" not in applied(scene, scope, writer, obj, "other")
    assert scene.server.sent("GET") == [("GET", f"{MAPS}/shared"), ("GET", f"{MAPS}/other")]


def test_an_apply_of_a_child_in_another_call_keeps_its_owner(scene, scope, view) -> None:
    """The call is about another object: the child stays that of its owner."""
    writer, obj = scene.writer(), view()
    scene.run(writer.apply_set(obj, documents_of([config_map("shared")]), scope(obj)))
    stored(scene)
    metadata = applied(scene, scope, writer, view("o2"))
    assert [each["uid"] for each in metadata["ownerReferences"]] == ["uid-shop"]
    # It is gone, and its owner may be gone with it.
    del scene.server.answers["GET", f"{MAPS}/shared"]
    assert "ownerReferences" not in applied(scene, scope, writer, view("o2"))


def test_annotations_that_the_cache_lacks_are_read_before(scene, scope, view) -> None:
    """With `dropFields: [metadata.annotations]`, children of a former process would stay for ever."""
    declared = DeclaredWrites(lacks_annotations=True)
    writer, obj = scene.writer(declared=declared), view()
    marked = {**MARKED, KINDS: "ConfigMap,Deployment.apps"}
    scene.server.answers["GET", SHOP] = {
        "metadata": {"uid": "uid-shop", "resourceVersion": "60", "annotations": marked}
    }
    scene.server.answers["GET", DEPLOYMENTS] = {"items": [member("old")]}
    done = scene.run(writer.apply_set(obj, documents_of([config_map("a")]), scope(obj)))
    assert [written.key for written in done.pruned] == ["team-a/old"]
    marks = [body["metadata"] for _, path, _, body in scene.server.requests if path == SHOP and body]
    assert [(each["resourceVersion"], each["annotations"][KINDS]) for each in marks] == [("60", "ConfigMap")]
    # At rest, neither a read nor a mark: what the former call has left is remembered.
    scene.server.requests.clear()
    scene.run(writer.apply_set(obj, documents_of([config_map("a")]), scope(obj)))
    assert scene.server.sent() == [("PATCH", f"{MAPS}/a")]


@pytest.mark.parametrize(
    ("dropped", "lacks"),
    [
        ("metadata.annotations", True),
        ("metadata.annotations[*]", True),
        (f"metadata.annotations['{KINDS}']", True),
        ("metadata.annotations['kubectl.kubernetes.io/last-applied-configuration']", False),
        ("metadata.managedFields", False),
        ("spec", False),
    ],
)
def test_fields_that_are_dropped_and_have_annotations_of_a_set(dropped, lacks) -> None:
    """A manifest that drops the annotation of kubectl costs no read."""
    assert drops_set_annotations([FieldPath.parse(dropped)]) is lacks


def test_a_kind_that_is_not_declared_any_more_is_left_alone(scene, scope, view) -> None:
    """`applies` is what a handler may delete, and its rights went with the kind: the call does not fail."""
    scene.server.answers["GET", DEPLOYMENTS] = Forbidden(403, "Forbidden", "no")
    scene.server.answers["GET", MAPS] = {"items": [member("b")]}
    obj = view(metadata={"annotations": {**MARKED, KINDS: "ConfigMap,Deployment.apps"}})
    writer = scene.writer(declared=DeclaredWrites((GroupVersionKind.of("v1", "ConfigMap"),)))
    done = scene.run(writer.apply_set(obj, documents_of([config_map("a")]), scope(obj)))
    assert [written.key for written in done.pruned] == ["team-a/b"]
    assert scene.server.sent("PATCH") == [("PATCH", f"{MAPS}/a")]  # the annotation stays as it is
    scene.run(writer.apply_set(obj, [], scope(obj)))
    (line,) = [each.event for each in scene.log.lines]
    assert line.startswith("web: WebApp team-a/shop may have children of the kind Deployment.apps")
    assert line.endswith("or add Deployment.apps to `applies` until they are gone")


def test_a_kind_that_is_declared_again_is_looked_into(scene, scope, view) -> None:
    """The advice of the log works without a restart: the next call deletes the children that were left."""
    scene.server.answers["GET", DEPLOYMENTS] = {"items": [member("old")]}
    obj = view(metadata={"annotations": {**MARKED, KINDS: "ConfigMap,Deployment.apps"}})
    kinds = [GroupVersionKind.of("v1", "ConfigMap"), GroupVersionKind.of("apps/v1", "Deployment")]
    factory = scene.factory()
    pruned = []
    for generation, applies in enumerate((kinds[:1], kinds[:1], kinds)):
        writer = factory.writer("web", generation, declared=DeclaredWrites(tuple(applies)))
        done = scene.run(writer.apply_set(obj, documents_of([config_map("a")]), scope(obj)))
        pruned.append([written.key for written in done.pruned])
    assert pruned == [[], [], ["team-a/old"]]
