"""The structure of a document is judged as JSON Schema judges it, by the keywords that people are told of."""

import subprocess
import sys
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from declctl.manifest.checks.structure import REPORTS, check_structure
from declctl.manifest.diagnostics import SourceText
from declctl.manifest.document import Document, Findings
from declctl.manifest.fields import NOTES, Schema, walk
from declctl.manifest.model import CONTROLLER

ROOT = Path(__file__).parents[3]
SHAPE = CONTROLLER


def controllers() -> Iterator[dict]:
    for path in sorted(ROOT.glob("examples/*/*.yaml")):
        for document in yaml.safe_load_all(path.read_text("utf-8")):
            if document and document.get("kind") == "Controller":
                yield document


EXAMPLES = list(controllers())
_ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 200_000),
    st.sampled_from([0.0, 1.0, 1.5]),
    st.sampled_from(["", "On", "Off", "Added", "10s", "pods", "v1"]),
    st.lists(st.sampled_from(["Added", "Deleted", "", 1, 1.0, True]), max_size=3),
    st.dictionaries(st.sampled_from(["name", "kind", "resources", "matchLabels"]), st.just("x"), max_size=2),
)


def reported(document: object, shape: Schema = SHAPE) -> bool:
    """Whether JSON Schema says that a keyword is broken of which a person is told."""
    return any(error.validator in REPORTS for error in Draft202012Validator(shape).iter_errors(document))


def judged(document: object, shape: Schema = SHAPE) -> bool:
    findings = Findings(Document(SourceText("manifest.yaml", ""), document), walk(document, shape))
    check_structure(findings)
    return bool(findings.diagnostics)


def places(data: object, path: tuple = ()) -> Iterator[tuple]:
    entries = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in entries:
        yield (*path, key)
        yield from places(value, (*path, key))


@st.composite
def edited(draw: st.DrawFn) -> object:
    """An example with a few values replaced, removed or added."""
    document = deepcopy(draw(st.sampled_from(EXAMPLES)))
    for _ in range(draw(st.integers(1, 3))):
        *parents, last = draw(st.sampled_from(list(places(document))))
        holder = document
        for step in parents:
            holder = holder[step]
        match draw(st.sampled_from(["replace", "remove", "add"])):
            case "replace":
                holder[last] = draw(_ODD)
            case "remove" if len(holder) > 1:  # so that something is left to edit
                del holder[last]
            case _ if isinstance(holder, list):
                holder.append(deepcopy(holder[last]))
            case _:
                holder[draw(st.sampled_from(["labelSelector", "events", "nonsense"]))] = draw(_ODD)
    return document


@given(edited())
def test_a_document_has_a_fault_where_json_schema_says_so(document: object):
    """Neither is a fault missed, nor is anything blamed that the published schema allows."""
    assert judged(document) == reported(document)


@pytest.mark.parametrize(
    ("shape", "value"),
    [
        ({"type": "integer"}, True),
        ({"type": ["string", "integer"]}, 1.5),
        ({"enum": ["a", "b"]}, "c"),
        ({"const": "v1"}, "v2"),
        ({"minimum": 1}, 0),
        ({"maximum": 9}, 10),
        ({"minItems": 1}, []),
        ({"minLength": 1}, ""),
        ({"uniqueItems": True}, ["a", "a"]),
        ({"required": ["a"]}, {"b": 1}),
        ({"properties": {"a": {}}, "additionalProperties": False}, {"b": 1}),
        ({"additionalProperties": {"type": "string"}}, {"b": 1}),
        ({"items": {"type": "string"}}, ["a", 1]),
    ],
)
def test_each_keyword_is_looked_at(shape: dict, value: object):
    """What breaks one keyword alone is a fault, and JSON Schema thinks so too."""
    assert judged(value, shape)
    assert reported(value, shape)


def test_the_schema_has_no_keyword_that_nothing_judges():
    """`pattern` and `oneOf` are reported by other checks; the rest says nothing of values, or is followed."""
    others = {"description", "default", "examples", NOTES, "properties", "items", "pattern", "oneOf"}
    waiting, keywords = [SHAPE], set[str]()
    while waiting:
        piece = waiting.pop()
        keywords |= piece.keys()
        inner = [*piece.get("properties", {}).values(), piece.get("items"), piece.get("additionalProperties")]
        waiting += [each for each in inner if isinstance(each, dict)]
    assert keywords == others | REPORTS.keys()


def test_a_check_does_not_load_jsonschema():
    """Loading jsonschema costs more than all the rest of a check."""
    program = (
        "import sys; from declctl.errors import ManifestErrors\n"
        "from declctl.manifest import ManifestSource, load\n"
        "try: load(ManifestSource.of([('m.yaml', b'kind: Controller')]))\n"
        "except ManifestErrors: print('jsonschema' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
