"""Typed objects: what a class of the user reads out of a cached object, and what it says if that is none."""

import base64
import dataclasses
import gc
import types
import weakref
from typing import Annotated, Any, Generic, TypedDict, TypeVar

import msgspec
import pytest

import declctl
from declctl.decoding import Projection
from declctl.kit.secret_values import HIDDEN, secret_values
from declctl.objects import FrameCodec, ObjectCodec, ObjectView
from declctl.objects.typed import require_fit, typed_fields

Replicas = Annotated[int, msgspec.Meta(ge=1, le=50)]


class Spec(msgspec.Struct):
    image: str
    replicas: Replicas = 1
    hosts: dict[str, list[int]] = {}


class Status(msgspec.Struct):
    ready: int = 0


@dataclasses.dataclass
class SpecClass:
    image: str
    replicas: int = 1


class SpecDict(TypedDict):
    image: str
    replicas: int


@declctl.custom_resource("acme.dev/v1", plural="previews")
class Preview(declctl.Object[Spec, Status]):
    @property
    def is_ready(self) -> bool:
        return self.status.ready == self.spec.replicas


def _frames() -> Any:
    return FrameCodec()


def _held() -> Any:
    return ObjectCodec(api_version="acme.dev/v1", kind="Preview")


def _record(codec: Any = None, api_version="acme.dev/v1", kind="Preview", **fields: Any) -> Any:
    projection = Projection(api_version=api_version, kind=kind, codec=codec or FrameCodec())
    metadata = {"name": "web", "namespace": "a", "uid": "u", "resourceVersion": "1", "labels": {"x": "y"}}
    return projection.record(msgspec.json.encode({"metadata": metadata, **fields}))


@pytest.mark.parametrize("codec", [_frames, _held])
def test_a_field_is_read_into_its_type_and_the_object_stays_whole(codec):
    """`obj.spec` is the user's class; what it does not know is in `obj` all the same."""
    spec = {"image": "nginx", "replicas": 2, "unknown": [1]}
    view = Preview(_record(codec(), spec=spec, status={"ready": 2}, more=1))
    assert view.spec == Spec("nginx", 2)
    assert view.spec is view.spec
    assert view.is_ready
    assert (view["spec"], view["more"], view.key, view.labels) == (spec, 1, "a/web", {"x": "y"})
    assert view.to_dict()["spec"] == spec
    assert view["spec"] is view["spec"]
    assert dict(view) == view.to_dict() == Preview(_record(spec=spec, status={"ready": 2}, more=1))
    with pytest.raises(TypeError, match="read-only"):
        view["spec"]["image"] = "other"


@pytest.mark.parametrize("codec", [_frames, _held])
@pytest.mark.parametrize("absent", [{}, {"spec": None, "status": None}])
def test_an_absent_field_is_read_as_an_empty_one(codec, absent):
    """A new object has no status; a spec that needs a field does not fit without it."""
    view = Preview(_record(codec(), **absent))
    assert view.status == Status()
    with pytest.raises(declctl.InvalidObject) as raised:
        _ = view.spec
    assert (raised.value.key, raised.value.path) == ("a/web", "spec")
    assert raised.value.sentence == "Object missing required field `image`"


@pytest.mark.parametrize("codec", [_frames, _held])
@pytest.mark.parametrize(
    ("spec", "path", "sentence"),
    [
        ({"image": "i", "replicas": 99}, "spec.replicas", "Expected `int` <= 50"),
        ({"image": "i", "replicas": "2"}, "spec.replicas", "Expected `int`, got `str`"),
        ({"image": "i", "hosts": {"a": [1, "x"]}}, "spec.hosts[*][1]", "Expected `int`, got `str`"),
        ([1], "spec", "Expected `object`, got `array`"),
    ],
)
def test_an_object_that_does_not_fit_names_the_place(codec, spec, path, sentence):
    """The error has the path of the field, and what is wrong there."""
    view = Preview(_record(codec(), spec=spec))
    with pytest.raises(declctl.InvalidObject) as raised:
        require_fit(view)
    assert str(raised.value) == f"a/web does not fit Preview: {path}: {sentence}"
    assert view["spec"] == spec


@pytest.mark.parametrize("codec", [_frames, _held])
@pytest.mark.parametrize("kind", [SpecClass, SpecDict, Spec, dict[str, Any]])
def test_specs_of_all_sorts(codec, kind):
    """Structs, dataclasses, TypedDicts and plain dictionaries."""
    given = {"image": "nginx", "replicas": 3}
    own = types.new_class("Own", (declctl.Object[kind, Status],))
    record = _record(codec(), spec=given | ({} if kind is not SpecDict else {"unknown": 1}))
    spec = own(record).spec
    assert spec == (kind(**given) if kind not in (SpecDict, dict[str, Any]) else given)


def test_a_model_of_pydantic():
    """A model reads its part itself, and its fault has a path, too. The text of pydantic quotes no value."""
    pydantic = pytest.importorskip("pydantic")

    class Model(pydantic.BaseModel):
        image: str
        ports: list[int]

    class Own(declctl.Object[Model, Status]): ...

    assert Own(_record(spec={"image": "nginx", "ports": [1]})).spec == Model(image="nginx", ports=[1])
    with pytest.raises(declctl.InvalidObject) as raised:
        _ = Own(_record(spec={"image": "nginx", "ports": ["no"]})).spec
    assert raised.value.path == "spec.ports[0]"
    assert "valid integer" in raised.value.sentence
    assert "no" not in raised.value.sentence.split()


def test_other_fields_have_types_too():
    """A ConfigMap has no spec, and a Secret has bytes; no text shows what was read of a Secret."""

    class Settings(declctl.Object):
        data = declctl.field(dict[str, str])
        binary = declctl.field(dict[str, bytes], name="binaryData")
        rules = declctl.field(list[str])

    view = Settings(_record(data={"a": "b"}, binaryData={"c": "ZA=="}))
    assert (view.data, view.binary, view.rules, view.spec) == ({"a": "b"}, {"c": b"d"}, [], {})

    class Credentials(declctl.Object):
        data = declctl.field(dict[str, bytes])

    password = b"a password of test_typed"
    body = {"kind": "Secret", "apiVersion": "v1", "data": {"x": base64.b64encode(password).decode()}}
    metadata = {"name": "s", "namespace": "a", "uid": "u", "resourceVersion": "1"}
    secret = Projection(api_version="v1", kind="Secret").record(
        msgspec.json.encode(body | {"metadata": metadata})
    )
    assert Credentials(secret).data == {"x": password}
    assert secret_values.hide(password.decode()) == HIDDEN


def test_a_broken_object_is_a_malformed_answer():
    """As with an untyped view."""
    broken = msgspec.structs.replace(_record(), frame=b'{"spec": {')
    with pytest.raises(declctl.DeclctlError, match="can't be decoded"):
        _ = Preview(broken).spec


READY = {"type": "Ready", "status": "True", "lastProbeTime": None, "lastTransitionTime": None}


@pytest.mark.parametrize("kind", [Preview, ObjectView])
@pytest.mark.parametrize("codec", [_frames, _held])
def test_a_condition_is_found_by_its_type(kind, codec):
    """In an object with types and without; one of another controller may have no reason and no message."""

    def found(*conditions: Any, of: str = "Ready") -> declctl.Condition | None:
        return kind(_record(codec(), status={"conditions": [*conditions]})).condition(of)

    assert found({"type": "Synced", "status": "False"}, READY) == declctl.Condition(
        type="Ready", status="True"
    )
    assert found(READY, of="Synced") is None
    for nothing in ({}, {"status": None}, {"status": {"conditions": None}}):
        assert kind(_record(codec(), **nothing)).condition("Ready") is None
    with pytest.raises(
        declctl.InvalidObject, match=r"status\.conditions\[type=Ready\].*Invalid enum value 'Yes'"
    ):
        found(READY | {"status": "Yes"})


A = TypeVar("A")


class Generation(declctl.Object[A, Status], Generic[A]): ...


class Derived(Generation[Spec]): ...


class Further(Derived): ...


@pytest.mark.parametrize("kind", [Derived, Further])
def test_a_base_of_ones_own_may_be_generic(kind):
    """A team's own base class leaves the type of spec to those that derive from it."""
    assert kind(_record(spec={"image": "i"})).spec == Spec("i")
    assert [field.kind for field in typed_fields(kind)] == [Status, Spec]


def test_a_type_that_json_has_not_is_told():
    """The place in the type, and its class; a name in quotes is no type."""

    class Disk: ...

    class WithDisk(msgspec.Struct):
        disks: list[Disk]

    own = types.new_class("Own", (declctl.Object[WithDisk, Status],))
    with pytest.raises(
        TypeError, match=r"WithDisk\.disks is of the class Disk, which can't be read from JSON"
    ):
        typed_fields(own)[0].check()
    with pytest.raises(TypeError, match=r"the spec of Own is the text 'Spec': write the class itself"):
        types.new_class("Own", (declctl.Object["Spec", Status],))


def test_object_is_any_json():
    """Who writes no `Any` says so in strict types, for a part that is not read by its fields."""
    own = types.new_class("Own", (declctl.Object[dict[str, object], Status],))
    spec = {"image": "i", "hosts": [{"port": 80}]}
    assert own(_record(spec=spec)).spec == spec
    assert own.of({"metadata": {"name": "web"}, "spec": spec}).spec == spec


def test_a_new_object_as_a_mapping():
    """For `ctx.apply` and tests: apiVersion and kind of the class, and nothing that is not set."""
    assert Preview.new("web", "a", spec=Spec("i", 2), labels={"x": "y"}) == {
        "apiVersion": "acme.dev/v1",
        "kind": "Preview",
        "metadata": {"name": "web", "namespace": "a", "labels": {"x": "y"}},
        "spec": {"image": "i", "replicas": 2, "hosts": {}},
    }
    with pytest.raises(TypeError, match="needs apiVersion and kind, which @declctl"):
        Derived.new("web")


def test_code_that_is_replaced_is_freed():
    """A class that nobody uses any more goes, with its module: no cache keeps it."""
    source = """
import declctl, msgspec
class Spec(msgspec.Struct):
    image: str = ""
class Own(declctl.Object[Spec, Spec]):
    def method(self): return Spec
"""
    module = types.ModuleType("module_of_test_typed")
    exec(source, vars(module))
    assert module.Own(_record()).spec == module.Spec()
    left = weakref.ref(module.Own), weakref.ref(module.Spec)
    del module
    gc.collect()
    assert [each() for each in left] == [None, None]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"api_version": "v1"}, "api_version is 'v1': a custom resource has a group, such as acme.dev/v1"),
        ({"api_version": "acme/v1"}, "the group of api_version is 'acme'"),
        ({"api_version": "acme.dev/1"}, "the version of api_version is '1'"),
        ({"plural": "Previews"}, "plural is 'Previews': write small letters, such as previews"),
        ({"plural": 3}, "plural is a int: write a text"),
        ({"kind": "preview"}, "kind is 'preview': write a word such as Preview"),
        ({"singular": "A B"}, "singular is 'A B'"),
        ({"short_names": "pv"}, r"short_names is the text 'pv': write a list, such as \['pv'\]"),
        ({"categories": ["All"]}, "a word of categories is 'All': write small letters, such as all"),
        ({"scope": "Global"}, "scope is 'Global': write Namespaced or Cluster"),
        ({"columns": {"Ready": 3}}, r"columns\['Ready'\] is a int"),
        ({"columns": {"Ready": "status"}}, r"columns\['Ready'\] is 'status': a JSON path begins with a dot"),
        ({"columns": {"R": declctl.Column(".a", "bool")}}, r"the type of columns\['R'\] is 'bool'"),
        ({"scale": {"spec": ".spec.n"}}, "scale has no 'spec'"),
        ({"scale": {"specReplicasPath": ".spec.n"}}, "scale needs 'statusReplicasPath'"),
        ({"scale": {"specReplicasPath": ".status.n"}}, "write a simple path below .spec."),
    ],
)
def test_what_a_server_would_refuse_is_told_at_the_import(given, told):
    """Each argument of `custom_resource` is named in its error."""
    with pytest.raises((ValueError, TypeError), match=told):
        declctl.custom_resource(**({"api_version": "acme.dev/v1", "plural": "previews"} | given))(Preview)


def test_a_custom_resource_keeps_what_was_said_of_it():
    """With the types of the class, for a definition that is made of it."""

    @declctl.custom_resource(
        "acme.dev/v1beta1",
        plural="caches",
        short_names=["ca"],
        scope="Cluster",
        columns={"Ready": ".status.ready", "Age": declctl.Column(".metadata.creationTimestamp", "date", 1)},
        scale={"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.ready"},
        deprecated=True,
    )
    class Cache(declctl.Object[Spec, Status]): ...

    found: declctl.CustomResource = Cache.__custom_resource__
    assert (found.name, found.group, found.version) == ("caches.acme.dev", "acme.dev", "v1beta1")
    assert (found.kind, found.singular, found.short_names) == ("Cache", "cache", ("ca",))
    assert (found.spec, found.status, found.deprecated) == (Spec, Status, "")
    assert found.columns["Ready"] == declctl.Column(".status.ready")
    assert found.scale is not None
    assert found.scale.label_selector_path == ""
    with pytest.raises(TypeError, match="for a class that derives from"):
        declctl.custom_resource("acme.dev/v1", plural="specs")(Spec)
