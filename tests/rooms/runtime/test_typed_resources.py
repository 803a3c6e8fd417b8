"""A resource with a `type`: what a check says of it, and what the plan gets of the class."""

import pytest

import declctl
from declctl.informer.stores.lister import Lister
from declctl.manifest import ManifestSource, load
from declctl.manifest.model import CONTROLLER
from declctl.manifest.plan import plan
from declctl.runtime.checking.check import check
from declctl.runtime.checking.inputs import InputFiles, load_beside
from declctl.runtime.handling.context import Listers
from tests.children import share_children

MODELS = """
import declctl, msgspec
class Spec(msgspec.Struct):
    image: str
class Status(msgspec.Struct): ...
@declctl.custom_resource("acme.dev/v1", plural="previews")
class Preview(declctl.Object[Spec, Status]): ...
class Settings(declctl.Object):
    data = declctl.field(dict[str, str])
class Disk: ...
class Odd(declctl.Object[Disk]): ...
number = 3
"""
MANIFEST = """\
apiVersion: declctl.dev/v1alpha1
kind: Controller
metadata: {name: typed}
spec:
  resources:
    - name: previews
      type: "models:Preview"
    - {name: maps, apiVersion: v1, kind: ConfigMap, type: "models:Settings"}
  handlers:
    - {name: notify, resourceRef: {name: previews}, entryPoint: "handlers:notify"}
"""


@pytest.fixture(autouse=True)
def _children_are_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    share_children(monkeypatch)


@pytest.fixture
def typed(bundle):
    """The bundle of the manifest above."""
    bundle.write("manifest.yaml", MANIFEST)
    bundle.write("models.py", MODELS)
    bundle.write("handlers.py", "def notify(change): ...\n")
    return bundle


def test_the_kind_is_that_of_the_class(typed) -> None:
    """The plan has it, with and without an import; the file of the class is part of the bundle."""
    for in_child in (True, False):
        checked = check(str(typed.path), in_child=in_child)
        assert checked.diagnostics == ()
        assert "models.py" in checked.inputs.bundle.files
        made = plan(checked.inputs.loaded.controller)
        assert [str(watch.key) for watch in made.watches] == [
            "acme.dev/v1 Preview in all namespaces",
            "v1 ConfigMap in all namespaces",
        ]
        assert [str(each) for each in made.handlers[0].types] == ["models:Preview"]
    assert load_beside(str(typed.path / "manifest.yaml")).controller.resources[0].kind == "Preview"


def test_an_edit_of_the_decorator_is_an_edit_of_the_manifest(typed) -> None:
    """The text of the manifest is the same, and its kind is another one."""
    files = InputFiles(str(typed.path))
    before, digest = files.read(), files.digest()
    typed.edit("models.py", "acme.dev/v1", "acme.dev/v2")
    assert files.digest() != digest
    assert [each.loaded.controller.resources[0].api_version for each in (before, files.read())] == [
        "acme.dev/v1",
        "acme.dev/v2",
    ]


@pytest.mark.parametrize(
    ("old", "new", "code", "line", "told"),
    [
        ('type: "models:Preview"', 'type: "models:Preveiw"', "DCL120", 7, "has no class Preveiw"),
        ('type: "models:Preview"', 'type: "modells:Preview"', "DCL120", 7, "modells is not beside"),
        ('type: "models:Preview"', 'type: "models:Settings"', "DCL120", 7, "needs apiVersion and kind"),
        ('type: "models:Preview"', 'type: "models"', "DCL037", 7, "names a module, and a class is needed"),
        ('type: "models:Preview"', "type: 3", "DCL009", 7, "must be text"),
        ('      type: "models:Preview"\n', "", "DCL011", 6, 'needs the field "apiVersion"'),
        ('      type: "mod', '      kind: Priview\n      type: "mod', "DCL017", 7, "the class of its type"),
        ('type: "models:Settings"', 'type: "models:Nothing"', "DCL041", 8, "Nothing"),
        ('type: "models:Settings"', 'type: "models:number"', "DCL048", 8, "is a int, and a class"),
        ('type: "models:Settings"', 'type: "models:Disk"', "DCL048", 8, "is the class Disk, and"),
        ('type: "models:Settings"', 'type: "models:Odd"', "DCL121", 8, "it is the class Disk"),
    ],
)  # fmt: skip
def test_each_mistake_has_its_code_and_its_place(typed, old, new, code, line, told) -> None:
    """With a suggestion; what needs an import comes after what does not."""
    typed.edit("manifest.yaml", old, new)
    faults = check(str(typed.path)).errors
    assert (faults[0].code, faults[0].line, told in faults[0].message) == (code, line, True), faults
    assert all(fault.suggestion for fault in faults)


def test_a_class_of_objects_that_are_metadata_alone_is_doubtful(typed) -> None:
    """Every object would lack what its spec needs."""
    typed.edit(
        "manifest.yaml", 'type: "models:Settings"}', 'type: "models:Settings", cache: {mode: MetadataOnly}}'
    )
    (warning,) = check(str(typed.path), in_child=False).diagnostics
    assert (warning.code, warning.line, warning.severity) == ("DCL017", 8, "warning")


def test_without_the_sources_a_kind_may_stay_open() -> None:
    """As for a text alone, in docs and editors; the schema wants either."""
    loaded = load(ManifestSource.of([("m.yaml", MANIFEST.encode())]))
    assert loaded.controller.resources[0].kind == ""
    schema = CONTROLLER["properties"]["spec"]["properties"]["resources"]["items"]
    assert schema["anyOf"] == [{"required": ["apiVersion", "kind"]}, {"required": ["type"]}]


class Preview(declctl.Object): ...


class Other(declctl.Object): ...


def test_a_lister_is_found_by_the_class_of_its_objects() -> None:
    """One resource has it; for none, and for several, the error names what there is."""

    def lister(name: str, view: type[declctl.ObjectView] | None = None) -> Lister:
        return Lister([], name=name, view=view)

    listers = Listers({"pods": lister("pods"), "previews": lister("previews", Preview)})
    assert listers.of_class(Preview) is listers["previews"]
    with pytest.raises(LookupError, match=r"has the type Other; those with a type are: previews \(Preview\)"):
        listers.of_class(Other)
    twice = Listers({name: lister(name, Preview) for name in ("a", "b")})
    with pytest.raises(LookupError, match=r"write ctx\.listers\[…\] for one of a, b"):
        twice.of_class(Preview)
