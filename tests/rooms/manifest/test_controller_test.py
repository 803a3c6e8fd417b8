"""ControllerTest documents: each fault is told at its place, with what to do; none is passed over."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from declctl.errors import ManifestErrors, UsageError
from declctl.manifest import Diagnostic, ManifestSource
from declctl.manifest.controller_test import JsonObject, load_test, load_tests
from declctl.manifest.values import Json, mapping_at
from declctl.manifest.values import Path as FieldPath
from declctl.objects import GroupVersionKind, KubeObject

MARK = "§"  # stands directly before the character at which the fault must be shown
HEAD = "apiVersion: declctl.dev/v1alpha1\nkind: ControllerTest\nmetadata: {name: t}\nspec:\n"
STEP = "  steps:\n    - %s\n"
EXPECT = STEP % "expect: [%s]"
FINE = STEP % "expect: [{match: {kind: Preview}}]"


class Bundle(NamedTuple):
    """A Controller with one handler."""

    path: Path = Path("manifest.yaml")
    handlers: Sequence[str] = ("preview", "cleaner")
    kinds: Sequence[GroupVersionKind] = (
        GroupVersionKind("acme.dev", "v1", "Preview"),
        GroupVersionKind("", "v1", "ConfigMap"),
        GroupVersionKind("apps", "v1", "Deployment"),
        GroupVersionKind("", "v1", "Event"),
        GroupVersionKind("events.k8s.io", "v1", "Event"),
    )
    plurals: Sequence[str] = ("configmaps", "deployments", "events")
    definitions: Sequence[KubeObject] = (
        {
            "kind": "CustomResourceDefinition",
            "spec": {
                "group": "acme.dev",
                "names": {"plural": "previews", "kind": "Preview"},
                "versions": [{"name": "v1", "schema": {"openAPIV3Schema": {"image": None}}}],
            },
        },
    )

    def unknown_fields(
        self, kind: GroupVersionKind, schema: Json, part: JsonObject
    ) -> Sequence[tuple[FieldPath, Sequence[str]]] | None:
        """Of Previews, those of `spec` that the schema does not have."""
        assert (kind.kind == "Preview") == isinstance(schema, dict)
        if not isinstance(schema, dict):
            return None
        return [(("spec", name), list(schema)) for name in mapping_at(part, "spec") if name not in schema]


class Surroundings:
    """A folder with a manifest, and one file of objects."""

    def bundle(self, place: Path, *, nearest: bool) -> Bundle:
        if not nearest and place.name != "manifest.yaml":
            raise UsageError("no such file")
        return Bundle()

    def objects(self, file: Path) -> Sequence[KubeObject]:
        if file.name == "empty.yaml":
            return []
        return [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": file.read_text("utf-8")}}]


def load(text: str, folder: Path = Path()):
    """The documents of a text."""
    return load_tests(ManifestSource("t.yaml", text.encode()), Surroundings(), folder=folder, environ={})


FAULTS = [
    # What it is, the text, the code, and a part of message or suggestion. Without a mark there is no fault.
    ("a misspelt step", STEP % "{§aply: {kind: ConfigMap}}", "DCL012", 'did you mean "apply"?'),
    ("a word of another tool", STEP % "{§assert: []}", "DCL012", 'did you mean "expect"?'),
    ("two actions", STEP % "{advance: 1h, §restart: {}}", "DCL017", "a step has one action"),
    ("a step that does nothing", STEP % "§{}", "DCL011", "does nothing"),
    (
        "a test that can't fail",
        "  §steps: [{advance: 1h}]\n".replace("§steps: ", "steps: §"),
        "DCL011",
        "can't fail",
    ),
    ("no steps", "  steps: §[]\n", "DCL014", "empty"),
    ("a wait for nothing", STEP % "{§wait: 5m}", "DCL017", "write advance"),
    ("a duration without a unit", STEP % "{advance: §30}", "DCL030", 'did you mean "30s"'),
    (
        "two things in one expectation",
        EXPECT % "{match: {kind: Preview}, §absent: {kind: Preview}}",
        "DCL015",
        "",
    ),
    ("an expectation of nothing", EXPECT % "§{}", "DCL015", "needs one of the fields"),
    ("a count of what is absent", EXPECT % "{absent: {kind: Preview}, §count: 1}", "DCL017", "beside match"),
    ("a match that is a text", EXPECT % "{match: §Preview}", "DCL010", "must be a mapping"),
    ("a match without kind", EXPECT % "{match: §{metadata: {name: a}}}", "DCL011", "kind"),
    (
        "a name beside metadata",
        EXPECT % "{match: {kind: Preview, §name: a}}",
        "DCL012",
        "metadata: {name: …}",
    ),
    (
        "a name that is a number",
        EXPECT % "{match: {kind: Preview, metadata: {name: §1}}}",
        "DCL010",
        "quotes",
    ),
    (
        "a misspelt top field",
        EXPECT % "{absent: {kind: ConfigMap, §metdata: {}}}",
        "DCL012",
        'mean "metadata"?',
    ),
    (
        "a misspelt field of metadata",
        EXPECT % "{absent: {kind: ConfigMap, metadata: {§lables: {a: b}}}}",
        "DCL012",
        'did you mean "labels"?',
    ),
    (
        "an unknown field of metadata",
        EXPECT % "{match: {kind: ConfigMap, metadata: {§x: 1}}}",
        "DCL012",
        "it has",
    ),
    (
        "a field that a kind does not have",
        EXPECT % "{absent: {kind: Preview, spec: {§imag: a}}}",
        "DCL012",
        'mean "image"?',
    ),
    (
        "one of an object",
        "  objects: [{apiVersion: acme.dev/v1, kind: Preview, metadata: {name: a}, spec: {§imag: a}}]\n"
        + FINE,
        "DCL012",
        'mean "image"?',
    ),
    (
        "one of an applied object",
        STEP % "apply: {apiVersion: acme.dev/v1, kind: Preview, spec: {§imag: a}}",
        "DCL012",
        'mean "image"?',
    ),
    (
        "one of a patch",
        STEP % "patch: {kind: Preview, name: a, patch: {spec: {§x: null}}}",
        "DCL012",
        "it has image",
    ),
    (
        "one of a reference",
        EXPECT % "{event: {regarding: {§nam: a}, count: 0}}",
        "DCL012",
        'mean "name"?',
    ),
    (
        "writes of a version",
        EXPECT % "{writes: {§apiVersion: v1, count: 0}}",
        "DCL017",
        "add kind",
    ),
    (
        "a fault of a misspelt resource",
        STEP % "{fault: {fault: lose, resource: §deploymets/status}, expect: [{quiet: 1s}]}",
        "DCL020",
        'did you mean "deployments"?',
    ),
    (
        "a misspelt file of the bundle",
        STEP % "reload: {files: {§manifes.yaml: ok.yaml}}",
        "DCL130",
        'did you mean "manifest.yaml"?',
    ),
    ("metadata that is a text", EXPECT % "{match: {kind: Preview, metadata: §a}}", "DCL010", "mapping"),
    ("a misspelt kind", EXPECT % "{match: {kind: §Previev}}", "DCL020", 'did you mean "Preview"?'),
    ("an unknown kind", EXPECT % "{absent: {kind: §Gateway}}", "DCL020", "CustomResourceDefinition"),
    ("a kind of several groups", EXPECT % "{match: {kind: §Event}}", "DCL020", "v1 and events.k8s.io/v1"),
    (
        "a wrong version",
        EXPECT % "{match: {kind: Preview, apiVersion: §acme.dev/v2}}",
        "DCL020",
        "acme.dev/v1",
    ),
    ("an unknown kind of a patch", STEP % "patch: {kind: §Gate, name: a, patch: {}}", "DCL020", "no kind"),
    ("a misspelt handler", EXPECT % "{calls: {handler: §previw, count: 1}}", "DCL020", 'mean "preview"?'),
    ("an unknown handler", EXPECT % "{calls: {handler: §zzz, count: 1}}", "DCL020", "preview and cleaner"),
    ("calls without a number", EXPECT % "{calls: §{handler: preview}}", "DCL015", "add count: 1"),
    ("a number that none is", EXPECT % "{calls: {handler: preview, min: 2, max: §1}}", "DCL017", "exchange"),
    (
        "writes of an unknown verb",
        EXPECT % "{writes: {kind: Preview, count: 1, verb: §post}}",
        "DCL013",
        "apply",
    ),
    (
        "a condition of no status",
        EXPECT % "{condition: {kind: Preview, name: a, type: R, status: §True}}",
        "",
        "",
    ),
    ("an unknown fault", STEP % "fault: {fault: §refuze, status: 409}", "DCL013", 'did you mean "refuse"?'),
    ("a fault without its number", STEP % "fault: §{fault: refuse}", "DCL011", "status"),
    ("an object without kind", "  objects: [§{metadata: {name: a}}]\n" + FINE, "DCL011", "file: PATH"),
    ("a file that is not there", "  objects: [{file: §nowhere.yaml}]\n" + FINE, "DCL130", "nowhere.yaml"),
    ("a file without objects", "  objects: [{file: §empty.yaml}]\n" + FINE, "DCL130", "no object"),
    ("a file and a field", "  objects: [§{file: a.yaml, metadata: {}}]\n" + FINE, "DCL010", "alone"),
    ("a new file that is not there", STEP % "reload: {files: {a.py: §b.py}}", "DCL130", "no such file"),
    ("a file outside of the bundle", STEP % "reload: {files: {§../a.py: ok.yaml}}", "DCL130", "within it"),
    ("no Controller", "  manifest: §other.yaml\n" + FINE, "DCL131", "spec.manifest"),
    ("a key twice", FINE + "  §steps: []\n", "DCL003", "twice"),
    ("a field of the old draft", "  §given: {}\n" + FINE, "DCL012", 'did you mean "objects"?'),
    # What is only like a typo: kinds have fields of their own, clusters resources of others, and a bundle
    # gets new files.
    (
        "fields of a ConfigMap",
        EXPECT % "{match: {kind: ConfigMap, type: a, binaryData: {}, stringData: {}, rules: []}}",
        "",
        "",
    ),
    (
        "a resource of a kind",
        STEP % "{fault: {fault: lose, resource: previews}, expect: [{quiet: 1s}]}",
        "",
        "",
    ),
    (
        "a resource of another kind",
        STEP % "{fault: {fault: lose, resource: widgets}, expect: [{quiet: 1s}]}",
        "",
        "",
    ),
    (
        "new files",
        STEP % "{reload: {files: {manifest2.yaml: manifest2.yaml, ok.yaml: ok.yaml}}, expect: [{quiet: 1s}]}",
        "",
        "",
    ),
]


@pytest.mark.parametrize(
    ("text", "code", "said"), [each[1:] for each in FAULTS], ids=[each[0] for each in FAULTS]
)
def test_a_fault_is_told_at_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, code: str, said: str
) -> None:
    """A typo, an unknown name or a contradiction is shown where it stands, and never a test that passes."""
    monkeypatch.chdir(tmp_path)
    for name in ("ok.yaml", "manifest.yaml", "manifest2.yaml"):
        (tmp_path / name).write_text("a")
    before, mark, after = (HEAD + text).partition(MARK)
    if not mark:
        assert load(before, tmp_path)
        return
    with pytest.raises(ManifestErrors) as raised:
        load(before + after, tmp_path)
    (fault,) = raised.value.diagnostics
    assert isinstance(fault, Diagnostic)
    place = (before.count("\n") + 1, len(before.rpartition("\n")[2]) + 1)
    assert ((fault.line, fault.column), code in fault.code) == (place, True), fault
    assert said in f"{fault.message} {fault.suggestion}"


def test_a_name_that_two_documents_have_is_a_fault() -> None:
    """Reports of a run name tests: two of one name could not be told apart."""
    with pytest.raises(ManifestErrors) as raised:
        load(f"{HEAD}{FINE}---\n{HEAD}{FINE}")
    assert "first at line 3" in str(raised.value)


def test_documents_of_other_kinds_are_passed_over(tmp_path: Path) -> None:
    """Tests may stand in the file of the manifest, or beside objects."""
    (tmp_path / "ok.yaml").write_text("a")
    text = f"kind: Controller\n---\n{HEAD}  objects: [{{file: ok.yaml}}]\n{FINE}---\n- 1\n"
    (found,) = load(text, tmp_path)
    assert [each["metadata"]["name"] for each in found.objects_of(found.spec.objects[0])] == ["a"]


def test_a_document_can_be_made_in_python() -> None:
    """Plain data is checked as a file is, and its texts are what they are: no variable is looked for."""
    text = "${env:HOME} $${x}"
    expect = [{"match": {"kind": "ConfigMap", "data": {"on": text}}}, {"quiet": "30s"}]
    head = {"apiVersion": "declctl.dev/v1alpha1", "kind": "ControllerTest", "metadata": {"name": "made"}}
    made = load_test({**head, "spec": {"steps": [{"expect": expect}]}}, Surroundings(), folder=Path())
    first, second = made.spec.steps[0].expect
    assert (first.match, second.quiet) == (expect[0]["match"], 30.0)
    with pytest.raises(ManifestErrors, match=r"spec\.steps is empty"):
        load_test({**head, "spec": {"steps": []}}, Surroundings(), folder=Path())
