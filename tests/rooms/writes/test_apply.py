"""Server-side apply: what is sent, and what is refused before that."""

import datetime as dt
import math
from contextlib import nullcontext
from dataclasses import dataclass
from enum import StrEnum

import msgspec
import pytest
from msgspec.structs import replace

from declctl.errors import Conflict, InvalidWrite, NotFound, UndeclaredWrite
from declctl.objects import GroupVersionKind, ObjectKey, status_error
from declctl.writes import CallScope, DeclaredWrites, WriteGate, document_of, documents_of, status_change
from declctl.writes.apply import field_manager

MAP = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "settings"}, "data": {"a": "1"}}
ROLE = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "r"}}

DEEP = {}
DEEP["deep"] = DEEP  # contains itself


@pytest.fixture
def apply(scene, scope):
    """Applies an object in a call about an object of team-a, or in another scope."""
    return lambda obj, where=None, **more: scene.run(
        scene.writer(**more).apply(document_of(obj), where or scope())
    )


def test_an_apply_has_force_and_a_stable_field_manager(scene, apply) -> None:
    """Each handler owns its fields under a name that a reload does not change."""
    written = apply(MAP)
    ((method, path, params, body),) = scene.server.requests
    assert (method, path) == ("PATCH", "/api/v1/namespaces/team-a/configmaps/settings")
    assert params == {"fieldManager": "declctl/guard/web", "force": "true"}
    assert scene.server.content_types == ["application/apply-patch+yaml"]
    assert body == {**MAP, "metadata": {"name": "settings", "namespace": "team-a"}}
    assert (str(written.kind), written.key, written.uid) == (
        "v1 ConfigMap",
        "team-a/settings",
        "uid-of-settings",
    )
    assert (written.resource_version, written.changed, written.dry_run) == ("101", True, False)


@pytest.mark.parametrize(("cached", "changed"), [("", [True, False, True]), ("101", [False, False, True])])
def test_an_apply_has_changed_what_has_a_version_that_was_not_known(scene, scope, cached, changed) -> None:
    """The server answers with the present version if it had all of it: known by a cache or an answer."""
    scene.cached, found, writer = cached, [], scene.writer()
    for before in (100, 100, 101):
        scene.server.version = before
        found.append(scene.run(writer.apply(document_of(MAP), scope())).changed)
    assert found == changed


def test_a_field_manager_may_be_named(scene, apply) -> None:
    """A handler that was renamed keeps its fields.

    The server takes 128 characters; two long names must not become one owner.
    """
    apply(MAP, manager="declctl/guard/old-name")
    assert scene.server.requests[0][2]["fieldManager"] == "declctl/guard/old-name"
    long, other = field_manager("g" * 253, "h" * 300), field_manager("g" * 253, "h" * 301)
    assert len(long) == len(other) == 128
    assert long != other
    assert long == field_manager("g" * 253, "h" * 300)


def test_a_namespace_is_that_of_the_object_of_the_call_unless_it_is_named(scene, apply) -> None:
    """A handler that writes beside its object need not repeat the namespace."""
    apply(MAP)
    apply({**MAP, "metadata": {"name": "settings", "namespace": "team-b"}})
    apply(ROLE)
    assert [path for _, path in scene.server.sent()] == [
        "/api/v1/namespaces/team-a/configmaps/settings",
        "/api/v1/namespaces/team-b/configmaps/settings",
        "/apis/rbac.authorization.k8s.io/v1/clusterroles/r",
    ]


OWN = "declctl/guard/web"
PATH = "/api/v1/namespaces/team-a/configmaps/settings"


def _entry(manager: str, fields: dict, operation: str = "Update", **more) -> dict:
    return {"manager": manager, "operation": operation, "apiVersion": "v1", "fieldsV1": fields, **more}


def _refused(manager: str) -> Exception:
    causes = [{"reason": "FieldManagerConflict", "message": f'conflict with "{manager}"'}]
    return status_error({"code": 409, "reason": "Conflict", "details": {"causes": causes}})


LABELS, FINALIZERS = {"f:metadata": {"f:labels": {}}}, {"f:metadata": {"f:finalizers": {'v:"x"': {}}}}
STAYS = [  # others, own updates, finalizers, a status, another version of the API
    *(_entry(*each) for each in (("kubectl", LABELS), (OWN, LABELS), ("declctl", FINALIZERS))),
    *(_entry("declctl", {"f:z": {}}, **more) for more in ({"subresource": "status"}, {"apiVersion": "v0"})),
]
HELD, OLD = _entry("declctl", {"f:data": {".": {}, "f:b": {}}, **LABELS}), _entry("old", {"f:c": {"f:d": {}}})
APPLIED = _entry(OWN, {"f:data": {"f:a": {}}, "f:c": {}}, "Apply")
MERGED = {"f:data": {".": {}, "f:a": {}, "f:b": {}}, "f:c": {".": {}, "f:d": {}}, **LABELS}
CUT_OFF, FAILS = Conflict(409, "Conflict", "modified"), {"force": False}


@pytest.mark.parametrize(
    ("entries", "declared", "errors", "methods"),
    [
        ([HELD, *STAYS], {}, [], "PATCH PATCH PATCH, PATCH"),  # each object is looked at once
        ([OLD, *STAYS], {}, [], "PATCH, PATCH"),
        ([HELD], {}, [None, CUT_OFF], "PATCH PATCH PATCH PATCH PATCH, PATCH"),
        ([HELD], {}, [None, CUT_OFF] * 6, f"{'PATCH ' * 12}modified, PATCH PATCH PATCH"),
        ([], FAILS, [_refused("kubectl")], "PATCH refused, PATCH"),
        ([HELD], FAILS, [_refused("declctl"), None, None, None] * 2, "PATCH GET PATCH PATCH, " * 2),
        ([], FAILS, [_refused("declctl")], "PATCH GET refused, PATCH"),  # it has let go meanwhile
    ],
)  # fmt: skip
def test_the_first_apply_takes_fields_over(scene, scope, entries, declared, errors, methods) -> None:
    """A field that only updates have set would stay for ever. Whoever has none pays no request for it."""
    metadata = {"uid": "u", "resourceVersion": "7", "managedFields": entries}
    scene.server.answers |= {(method, PATH): {"metadata": metadata} for method in ("PATCH", "GET")}
    scene.server.errors, writer, found = [*errors], scene.writer(declared=DeclaredWrites(**declared)), []
    for _ in range(2):
        scene.server.requests.clear()
        is_first = not scene.written
        try:
            written, ended = scene.run(writer.apply(document_of(MAP), scope()), seconds=1), []
            assert written.changed is (is_first or len(scene.server.requests) > 1)
        except Conflict as error:
            ended = ["refused" if error.fields else error.message]
        found.append(" ".join([*(method for method, _ in scene.server.sent()), *ended]))
    assert ", ".join(found) == methods.removesuffix(", ")
    assert scene.server.requests[0][2].get("force") == (None if declared is FAILS else "true")


def test_a_takeover_merges_fields_and_leaves_the_rest(scene, scope) -> None:
    """Finalizers stay: an apply without one would let the object go. A dry run takes nothing over."""
    metadata = {"uid": "u", "resourceVersion": "7", "managedFields": [HELD, APPLIED, OLD, *STAYS]}
    scene.server.answers["PATCH", PATH] = {"metadata": metadata}
    document = document_of({**MAP, "metadata": {"name": "settings", "resourceVersion": "5"}})
    for dry_run in (True, False):
        factory, declared = scene.factory(dry_run=dry_run), DeclaredWrites(adopt_fields_from=("old", OWN))
        scene.run(factory.writer("web", 1, declared=declared).apply(document, scope()))
    _, _, (*_, params, patch), (*_, again) = scene.server.requests
    assert (params, again["metadata"]["resourceVersion"]) == ({"fieldManager": OWN}, "7")
    assert patch["metadata"] == {**metadata, "managedFields": [{**APPLIED, "fieldsV1": MERGED}, *STAYS]}


def test_the_object_of_the_handler_is_left_alone(scene, apply) -> None:
    """The namespace is added to a copy; a later change of the handler's dict is not sent."""
    document = document_of(given := {**MAP, "metadata": {"name": "settings"}})
    given["metadata"]["name"] = "other"
    scene.run(scene.writer().apply(document, CallScope("team-a/shop")))
    assert scene.server.requests[0][3]["metadata"] == {"name": "settings", "namespace": "team-a"}
    assert given["metadata"] == {"name": "other"}


def test_an_object_of_the_cache_is_applied_without_what_the_server_sets(scene, view, apply) -> None:
    """The server refuses owners of fields, and takes a uid and a version for preconditions.

    A part of it is read-only, and what is sent is plain.
    """
    metadata = {
        "managedFields": [{"manager": "x"}],
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "labels": {"a": "b"},
    }
    apply(view(metadata=metadata, spec={"size": 1}))
    assert scene.server.requests[0][3]["metadata"] == {
        "name": "shop",
        "namespace": "team-a",
        "labels": {"a": "b"},
    }
    apply({**MAP, "data": view(spec={"map": {"a": ["1"]}})["spec"]["map"]})
    assert scene.server.requests[1][3]["data"] == {"a": ["1"]}


@pytest.mark.parametrize(
    ("obj", "message"),
    [
        (3, "a int can't be applied"),
        (["x"], "a list can't be applied: apply takes an object as in YAML"),
        ({"kind": "ConfigMap", "metadata": {"name": "x"}}, "apiVersion is missing: apply takes"),
        ({"apiVersion": "v1", "kind": 3, "metadata": {"name": "x"}}, "kind is 3: apply takes"),
        ({"apiVersion": "v1", "kind": "ConfigMap"}, "a ConfigMap without metadata can't be applied"),
        ({**MAP, "metadata": {}}, "metadata.name is missing"),
        ({**MAP, "metadata": {"generateName": "x-"}}, "as each apply would make another object: compute a"),
        ({**MAP, "metadata": {"name": "x", "namespace": 3}}, "metadata.namespace of the ConfigMap x is 3"),
        (
            {**MAP, "metadata": {"name": "x", "ownerReferences": ["x"]}},
            r"metadata.ownerReferences\[0\] of the ConfigMap x is 'x'; it has to be a dict",
        ),
        ({**MAP, "metadata": {"name": "x", "ownerReferences": {"uid": "x"}}}, "it has to be a list"),
        ({**MAP, "metadata": {"name": "x", "labels": ["a"]}}, "metadata.labels of the ConfigMap x is"),
        ({**MAP, "data": {"at": [dt.date(2026, 1, 1)]}}, r"a value at data.at\[0\] that JSON can't write"),
        ({**MAP, "data": {"at": {1, 2}}}, "a value at data.at that JSON can't write"),
        ({**MAP, "data": {"at": math.nan}}, "a value at data.at that JSON can't write: JSON has no nan"),
        ({**MAP, "data": {True: "a"}}, r"at data that .* the key True is no text; .* YAML reads on, off"),
        ({**MAP, "data": {None: "a"}}, "at data that .* the key None is no text; write the key in quotes"),
        ({**MAP, "data": {1: "a", "1": "b"}}, "at data that .* the key 1 is no text"),
        ({**MAP, "data": {"at": "\ud800"}}, r"at data.at that .*'\\ud800' has half of a surrogate pair"),
        ({**MAP, "data": {"at": 2**70}}, "at data.at that .* does not fit into 64 bits; write a text"),
        ({**MAP, "data": DEEP}, "there are more than 200 levels, or a value contains itself"),
    ],
)
def test_what_can_not_be_applied_is_refused_with_advice(scene, obj, message) -> None:
    """The fault is found at the line of the call, and nothing is sent."""
    with pytest.raises(InvalidWrite, match=message):
        document_of(obj)


class Size(StrEnum):
    """An enumeration of texts."""

    SMALL = "small"


def test_texts_and_numbers_of_other_types_become_plain(scene, apply) -> None:
    """A key of an object, an enumeration, a tuple: what they are is sent."""
    key = ObjectKey("team-a/shop")
    apply({**MAP, "data": {Size.SMALL: Size.SMALL, "key": key, "big": 2**63 - 1, "all": (1, 2.5, False)}})
    data = scene.server.requests[0][3]["data"]
    assert data == {"small": "small", "key": "team-a/shop", "big": 2**63 - 1, "all": [1, 2.5, False]}
    assert {type(each) for each in (*data, *data.values())} == {str, int, list}
    assert [len(scene.written), scene.ledger.totals()[0].result] == [1, "succeeded"]


class Labels(msgspec.Struct, omit_defaults=True):
    """Part of an object."""

    name: str
    labels: dict[str, str] = {}


@dataclass
class Typed:
    """A ConfigMap as an author types it."""

    metadata: Labels
    data: object
    kind: str = "ConfigMap"
    apiVersion: str = "v1"  # noqa: N815


def test_typed_objects_are_written_as_msgspec_encodes_them(scene, apply) -> None:
    """A Struct or a dataclass is the object, or any part of it; the place of a fault is that in JSON."""
    apply(Typed(Labels("settings"), {"at": dt.datetime(2026, 1, 1, tzinfo=dt.UTC)}))
    apply({**MAP, "metadata": Labels("settings", {"a": "b"}), "data": [Labels("x")]})
    first, second = (body for *_, body in scene.server.requests)
    assert first == {**MAP, "metadata": first["metadata"], "data": {"at": "2026-01-01T00:00:00Z"}}
    assert first["metadata"] == {"name": "settings", "namespace": "team-a"}
    assert second["metadata"] == {"name": "settings", "namespace": "team-a", "labels": {"a": "b"}}
    assert second["data"] == [{"name": "x"}]
    for data, message in (
        (object(), "a Typed can't be encoded: .*object"),
        (2**70, "at data that .* 64 bits"),
    ):
        with pytest.raises(InvalidWrite, match=message):
            document_of(Typed(Labels("settings"), data))
    with pytest.raises(InvalidWrite, match=r"at data.x that .* a Typed can't be encoded"):
        document_of({**MAP, "data": {"x": Typed(Labels("x"), object())}})
    with pytest.raises(InvalidWrite, match="apply_set takes a list"):
        documents_of(Typed(Labels("x"), None))


def test_a_field_of_a_status_that_can_not_be_written_is_refused(scope) -> None:
    """The place is that in the argument of `patch_status`."""
    with pytest.raises(InvalidWrite, match="at x that JSON can't write: the key None"):
        status_change(scope(), [], {"x": {None: 2}})
    with pytest.raises(InvalidWrite, match="at message that JSON can't write"):
        status_change(scope(), [{"type": "Ready", "status": True, "reason": "R", "message": b"x"}], {})


def test_a_namespace_that_does_not_fit_the_kind_is_refused(scene, apply) -> None:
    """The server would answer 404 or 400, which says less."""
    with pytest.raises(InvalidWrite, match="needs a namespace, because the call is not about an object"):
        apply(MAP, CallScope())
    with pytest.raises(InvalidWrite, match=r"clusterroles.* are cluster-scoped: leave it out"):
        apply({**ROLE, "metadata": {"name": "r", "namespace": "team-a"}})
    with pytest.raises(NotFound, match="no Pot"):
        apply({**MAP, "kind": "Pot"})
    assert scene.server.requests == []


DEPLOYMENT = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}}


def test_a_kind_that_the_manifest_does_not_declare_is_refused(scene, scope) -> None:
    """The rights of the controller are those that it declares; the message has the line to add."""
    declared = DeclaredWrites((GroupVersionKind.of("apps/v1", "Deployment"),))
    writer = scene.writer(declared=declared)
    with pytest.raises(UndeclaredWrite, match=r"add \{apiVersion: v1, kind: ConfigMap\} to its `applies`"):
        scene.run(writer.apply(document_of(MAP), scope()))
    with pytest.raises(UndeclaredWrite):
        scene.run(writer.apply_set(scope().obj, documents_of([DEPLOYMENT, MAP]), scope()))
    assert scene.server.requests == []
    # A declared kind may be written in every version: rights know no versions.
    scene.resources["Deployment"] = replace(
        scene.resources["Deployment"], gvk=GroupVersionKind.of("apps/v1beta1", "Deployment")
    )
    scene.run(writer.apply(document_of({**DEPLOYMENT, "apiVersion": "apps/v1beta1"}), scope()))
    assert len(scene.server.requests) == 1


def test_a_status_that_the_manifest_excludes_is_refused(scene, scope) -> None:
    """`status: false` is a promise to whoever reviews the manifest."""
    writer = scene.writer(declared=DeclaredWrites(status=False))
    with pytest.raises(UndeclaredWrite, match="write status: true"):
        scene.run(writer.patch_status(status_change(scope(), [], {"phase": "x"}), scope()))
    assert scene.server.requests == []


MOVED = {**MAP, "apiVersion": "example.dev/v1", "kind": "WebApp"}
OLD_PATH, NEW = (
    f"/apis/example.dev/v1/namespaces/team-a/{plural}/settings" for plural in ("webapps", "webapplications")
)


@pytest.fixture(name="moved")
def _moved(scene):
    """Forgetting the kind lets a discovery find what the server has now: another plural, or nothing."""

    def moved(now) -> None:
        class Forgotten(list):
            def append(self, kind) -> None:
                super().append(kind)
                scene.resources.pop("WebApp")
                if now is not None:
                    scene.resources["WebApp"] = now

        scene.forgotten = Forgotten()
        scene.server.answers["PATCH", OLD_PATH] = NotFound(404, "NotFound", "404 page not found")

    return moved


@pytest.mark.parametrize(
    ("plural", "fault"),
    # Of a namespace that is missing, the same request is not repeated.
    [("webapplications", ""), ("webapps", "404 page not found"), (None, "no WebApp")],
)
def test_a_kind_whose_path_is_not_found_is_discovered_again(scene, apply, moved, plural, fault) -> None:
    """Its definition was deleted and made anew: the apply goes to the new path, without a restart."""
    moved(None if plural is None else replace(scene.resources["WebApp"], plural=plural))
    result = "refused" if fault else "succeeded"
    with pytest.raises(NotFound, match=fault) if fault else nullcontext():
        apply(MOVED)
    assert scene.server.sent() == [("PATCH", OLD_PATH), ("PATCH", NEW)][: 1 if fault else 2]
    (record,) = scene.ledger.newest()
    assert f"{record.result} {record.resource}" == f"{result} {plural or 'webapps'}.example.dev"


def test_a_list_of_a_kind_that_has_another_plural_now_is_read_there(scene, moved) -> None:
    """Children of a set are found by lists."""
    moved(replace(scene.resources["WebApp"], plural="webapplications"))
    lists = OLD_PATH.rpartition("/")[0], NEW.rpartition("/")[0]
    scene.server.answers["GET", lists[0]] = NotFound(404, "NotFound", "404 page not found")
    scene.server.answers["GET", lists[1]] = {"items": []}

    async def rediscover(kind):
        scene.forgotten.append(kind)
        return scene.resources["WebApp"]

    gate = WriteGate(scene.server, scene.ledger, clock=scene.clock, rediscover=rediscover)
    assert scene.run(gate.read(scene.resources["WebApp"], "team-a")) == {"items": []}
    assert scene.server.sent() == [("GET", lists[0]), ("GET", lists[1])]
