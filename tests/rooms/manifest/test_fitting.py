"""A document that fits is spared the judge; every other is judged."""

from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from declctl.manifest.checks.structure import REPORTS, fits
from declctl.manifest.fields import walk
from declctl.manifest.model import CONTROLLER

ROOT = Path(__file__).parents[3]
SHAPE = CONTROLLER
JUDGE = Draft202012Validator(SHAPE)


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


def reported(document: object) -> list[str]:
    """The keywords that JSON Schema says are broken, of those that a person is told."""
    return [error.validator for error in JUDGE.iter_errors(document) if error.validator in REPORTS]


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


@pytest.mark.parametrize("document", EXAMPLES, ids=lambda document: document["metadata"]["name"])
def test_what_is_right_fits(document: dict):
    """No example of ours needs the judge: otherwise nobody would be spared it."""
    assert fits(walk(document, SHAPE))
    assert reported(document) == []


@given(edited())
def test_what_fits_has_no_fault_to_report(document: object):
    """The quick look never lets through what JSON Schema would blame."""
    if fits(walk(document, SHAPE)):
        assert reported(document) == []


@pytest.mark.parametrize(
    ("shape", "value"),
    [
        ({"type": "integer"}, True),
        ({"type": ["string", "integer"]}, 1.5),
        ({"enum": ["a", 1]}, True),
        ({"const": 1}, True),
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
    """What breaks one keyword alone does not fit, and JSON Schema thinks so too."""
    assert not fits(walk(value, shape))
    assert not Draft202012Validator(shape).is_valid(value)


def test_a_keyword_that_is_not_known_is_left_to_the_judge():
    """A shape that says more than is understood here is never taken for fulfilled."""
    assert not fits(walk("short", {"type": "string", "maxLength": 9}))
