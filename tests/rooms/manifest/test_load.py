"""Where manifests come from, which documents count, and that nothing but located faults ever comes out."""

import io
import sys

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from declctl.errors import ManifestErrors
from declctl.manifest import ManifestSource, load
from tests.rooms.manifest.conftest import FULL, HEAD

MINIMAL = HEAD.replace("{name: c}", "{name: %s}").replace("spec:", "spec: {}")
TEST = (MINIMAL % "t").replace("Controller", "ControllerTest").replace("{}", "{anything: 1, anything: 2}")

SNIPPETS = st.sampled_from(
    ["\n", "  ", "- ", ": ", "{", "}", "[", "]", "'", '"', "&a ", "*a", "<<: *a", "!!x ", "|\n", "on: 1", "#",
     "10:00", "0777", "~", "null", "9" * 40, "${env:X}", "${", "\t", "---\n", "é", "\u2028", "\x85", ".."]
)  # fmt: skip


def assert_located(diagnose, text: str) -> None:
    """Whatever is wrong is said with places inside the text."""
    lines = text.removeprefix("\ufeff").replace("\r\n", "\n")
    for char in "\r\x85\u2028\u2029":
        lines = lines.replace(char, "\n")
    for fault in diagnose(text):
        rows = lines.split("\n")
        assert 1 <= fault.line <= len(rows)
        assert 1 <= fault.column <= len(rows[fault.line - 1]) + 1
        assert fault.source_line == rows[fault.line - 1]
        assert fault.message
        assert fault.file == "manifest.yaml"


def test_the_example_of_these_tests_is_good(diagnose):
    """What the next tests break is whole to begin with."""
    assert diagnose(FULL) == ()


@given(st.text())
@example("")
@example("\ufeff")
@example("a: \ud7ff")
@example("? ")
@example("!")
@example("%YAML 3.0\n---\n")
@example("apiVersion: declctl.dev/v1alpha1\nkind: Controller")
@example("kind: Controller\nspec: {handlers: [{name: ~}, ~, 1, []], resources: {}}")
def test_any_text_gives_located_faults_or_a_controller(diagnose, text):
    """No text makes it raise anything but ManifestErrors, and every place is inside the text."""
    assert_located(diagnose, text)


@given(st.binary())
@example(b"\xff\xfea\x00")
@example(b"a: \x80")
def test_any_bytes_give_located_faults(data):
    with pytest.raises(ManifestErrors):
        load(ManifestSource("manifest.yaml", data), environ={})


@settings(max_examples=120)
@given(st.integers(0, len(FULL)), st.integers(0, 12), SNIPPETS | st.text(max_size=3))
def test_a_good_manifest_broken_anywhere_stays_located(diagnose, start, length, snippet):
    """An accident of the keyboard anywhere in a manifest never escapes as another exception."""
    assert_located(diagnose, FULL[:start] + snippet + FULL[start + length :])


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=80)
@given(st.data())
def test_any_value_for_any_field_stays_located(diagnose, data):
    """A value of any type at any field is judged, and never breaks the judge."""
    import json

    from declctl.manifest.schema import schema

    fields = schema("Controller")["properties"]["spec"]["properties"]
    section = data.draw(st.sampled_from(sorted(fields)))
    inner = fields[section].get("items", fields[section]).get("properties") or {"x": {}}
    chosen = data.draw(st.lists(st.sampled_from(sorted(inner)), max_size=4, unique=True))
    entry = {name: data.draw(JSON) for name in chosen}
    value = data.draw(st.sampled_from([entry, [entry], [entry, entry]]) | JSON)
    assert_located(
        diagnose, HEAD + f"  {section}: {json.dumps(value)}\n  handlers: [{{resourceRef: {{name: a}}}}]\n"
    )


def test_control_characters_are_shown_where_they_stand(diagnose):
    (fault,) = diagnose("kind: Controller\nspec: {}\x07\n")
    assert (fault.code, fault.line, fault.column) == ("DCL004", 2, 9)
    assert fault.message == "the character U+0007 is not allowed in YAML"


def test_bytes_that_are_not_utf_8_are_shown_where_they_stand():
    """A file in another encoding says which byte."""
    with pytest.raises(ManifestErrors) as caught:
        load(ManifestSource("m.yaml", b"kind: Controller\nname: caf\xe9\n"))
    (fault,) = caught.value.diagnostics
    assert (fault.code, fault.line, fault.column) == ("DCL004", 2, 10)
    assert (fault.message, fault.suggestion) == ("the byte 0xe9 is not UTF-8", "save the file as UTF-8")


@pytest.mark.parametrize("text", ["", "# only a comment\n", "---\n", "\n\n"])
def test_an_empty_manifest(diagnose, text):
    (fault,) = diagnose(text)
    assert (fault.code, fault.line, fault.column) == ("DCL005", 1, 1)
    assert fault.suggestion == "begin it with apiVersion: declctl.dev/v1alpha1 and kind: Controller"


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("apiVersion: v1\nkind: Pod\n", "found Pod"),
        ("[1, 2]\n", "found a document without kind"),
        (TEST, "found ControllerTest"),
        ("just text\n", "found a document without kind"),
    ],
)
def test_a_manifest_without_a_controller_says_what_it_found(diagnose, text, seen):
    """The wrong file is recognised by what is in it."""
    (fault,) = diagnose(text)
    assert fault.code == "DCL006"
    assert fault.message == f"no document here is a Controller; {seen}"


@pytest.mark.parametrize("spec", ["spec:", "spec: []", "spec: text"])
def test_a_spec_of_the_wrong_type_is_one_fault(diagnose, spec):
    """An empty spec doesn't make every reference unknown."""
    text = f"apiVersion: declctl.dev/v1alpha1\nkind: Controller\nmetadata: {{name: c}}\n{spec}\n"
    (fault,) = diagnose(text)
    assert (fault.code, fault.line) == ("DCL010", 4)


def test_a_document_without_apiversion_and_kind_is_told_to_have_them(diagnose):
    """Forgetting the head of the document isn't an unknown document."""
    found = diagnose("metadata: {name: c}\nspec: {handlers: []}\n")
    assert [(fault.code, fault.line) for fault in found] == [("DCL011", 1), ("DCL011", 1)]
    assert {fault.suggestion for fault in found} == {
        "add apiVersion: declctl.dev/v1alpha1",
        "add kind: Controller",
    }


def test_other_documents_beside_a_controller_are_left_alone(loaded):
    """Tests, ConfigMaps and whatever else stands in the file are nobody's business here."""
    found = loaded(f"apiVersion: v1\nkind: ConfigMap\n---\n{MINIMAL % 'c'}---\n{TEST}---\n[on: 1]\n---\n")
    assert found.controller.name == "c"


def test_a_second_controller_is_shown_at_its_kind(only_fault):
    """One process runs one Controller; the first one is named."""
    fault = only_fault(
        f"{MINIMAL % 'a'}---\napiVersion: declctl.dev/v1alpha1\n§kind: Controller\nmetadata: {{name: b}}\n"
    )
    assert fault.code == "DCL007"
    assert fault.message == "there is a Controller already, at manifest.yaml:2, and one process runs one"


def test_a_later_document_doesnt_hide_faults_of_the_first(diagnose):
    """Neither a second Controller nor a fault of the syntax."""
    for later, fault in ((MINIMAL % "b", ("DCL007", 7)), ("a: b: c\n", ("DCL001", 6))):
        found = diagnose((MINIMAL % "a").replace("{}", "{a: 1}") + "---\n" + later)
        assert [(fault.code, fault.line) for fault in found] == [("DCL012", 4), fault]


def refused(name):
    """The faults of a file or a folder."""
    with pytest.raises(ManifestErrors) as caught:
        load(ManifestSource.read(str(name)))
    return caught.value.diagnostics


class TestFiles:
    """Files, folders, standard input."""

    def test_a_file_is_shown_as_it_was_named(self, tmp_path, monkeypatch):
        """Diagnostics repeat the path from the command line, so that editors can jump there."""
        monkeypatch.chdir(tmp_path)
        (tmp_path / "m.yaml").write_text((MINIMAL % "a").replace("spec", "spek"))
        assert str(refused("m.yaml")[0]).startswith(
            'm.yaml:4:1: error DCL012: unknown field "spek" in the document'
        )

    def test_a_missing_file(self):
        """A wrong path is a located fault like any other."""
        (fault,) = refused("no-such-file.yaml")
        assert (fault.code, fault.file) == ("DCL000", "no-such-file.yaml")
        assert fault.message == "the manifest can't be read: no such file or directory"

    def test_a_folder_with_one_controller(self, tmp_path):
        """Files of other kinds, and files that aren't YAML at all, are left alone."""
        (tmp_path / "a.yaml").write_text("apiVersion: v1\nkind: ConfigMap\n")
        (tmp_path / "b.yml").write_text(MINIMAL % "here")
        (tmp_path / "c.txt").write_text("kind: Controller")
        (tmp_path / "helm.yaml").write_text("{{- if .Values.x }}\nkind: [\n")
        (tmp_path / ".hidden.yaml").write_text(MINIMAL % "hidden")
        found = load(ManifestSource.read(str(tmp_path)))
        assert found.controller.name == "here"
        assert found.document.path == str(tmp_path / "b.yml")

    def test_a_folder_with_two_controllers(self, tmp_path):
        """The second one, by name of file, is shown, and the first is named."""
        (tmp_path / "a.yaml").write_text(MINIMAL % "a")
        (tmp_path / "b.yaml").write_text(MINIMAL % "b")
        (fault,) = refused(tmp_path)
        assert (fault.file, fault.code, fault.line) == (str(tmp_path / "b.yaml"), "DCL007", 2)
        assert f"{tmp_path / 'a.yaml'}:2" in fault.message

    @pytest.mark.parametrize(
        ("first", "second"),
        [
            # A broken file that speaks of declctl is never passed over, even beside a good one.
            (MINIMAL % "a", "apiVersion: declctl.dev/v1alpha1\nkind: [\n"),
            # With nothing to run, what could not be read is told.
            ("a: [\n", "kind: Pod\n"),
        ],
    )
    def test_a_folder_with_broken_files(self, tmp_path, first, second):
        (tmp_path / "a.yaml").write_text(first)
        (tmp_path / "b.yaml").write_text(second)
        assert [fault.code for fault in refused(tmp_path)] == ["DCL001"]

    def test_what_has_nothing_to_read(self, tmp_path):
        """An empty folder, and a name that no file can have."""
        assert [refused(name)[0].code for name in (tmp_path, "a\0b")] == ["DCL000"] * 2

    def test_standard_input(self, monkeypatch):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a: [")))
        assert str(refused("-")[0]).startswith("<stdin>:1:")

    def test_bytes_that_somebody_else_has_read(self):
        """The runtime reads files itself and gives names and bytes."""
        files = [("a.yaml", b"kind: Pod\n"), ("b.yaml", (MINIMAL % "b").encode())]
        source = ManifestSource.of(files)
        assert [(file.name, file.data) for file in source.files] == files
        assert load(source).controller.name == "b"

    def test_a_file_that_is_no_manifest_by_its_size(self):
        """An object dump isn't parsed for minutes."""
        with pytest.raises(ManifestErrors) as caught:
            load(ManifestSource("dump.yaml", b"a" * 5_000_000))
        assert caught.value.diagnostics[0].code == "DCL000"


def test_the_environment_of_the_process_is_the_default(monkeypatch):
    """Without being told otherwise, variables are those of the process."""
    monkeypatch.setenv("DECLCTL_TEST_NAME", "from-outside")
    found = load(ManifestSource("m.yaml", (MINIMAL % "'${env:DECLCTL_TEST_NAME}'").encode()))
    assert found.controller.name == "from-outside"


def test_later_faults_are_located_through_the_path_of_a_spec(loaded):
    """Who finds that a handler's module is missing can show the line that names it."""
    found = loaded(
        """
        resources: [{name: pods, apiVersion: v1, kind: Pod}]
        handlers:
          - name: a
            resourceRef: {name: pods}
            entryPoint: nowhere:f
        """
    )
    handler = found.controller.handlers[0]
    fault = found.fault("DCL040", (*handler.path, "entryPoint"), "there is no module nowhere")
    assert (fault.line, fault.column, fault.source_line) == (9, 19, "      entryPoint: nowhere:f")
    at_key = found.fault("DCL040", (*handler.path, "entryPoint"), "x", key=True)
    assert (at_key.line, at_key.column) == (9, 7)
