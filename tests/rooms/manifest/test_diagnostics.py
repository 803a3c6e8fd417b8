"""How faults are shown to people, programs and GitHub, and that the page of error codes explains each."""

import json
import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from declctl.codes import CODES
from declctl.manifest import Diagnostic, render_github, render_json, render_text
from declctl.manifest.diagnostics import in_order

FAULT = Diagnostic(
    file="manifest.yaml",
    line=15,
    column=7,
    code="DCL012",
    message='unknown field "resoruce" in spec.handlers[0]',
    suggestion='did you mean "resourceRef"?',
    source_line="      resoruce: {name: pods}",
)


def test_text_has_the_line_a_caret_and_help():
    """The form of the manual, to the character; what isn't known isn't shown."""
    assert render_text([FAULT]) == (
        'manifest.yaml:15:7: error DCL012: unknown field "resoruce" in spec.handlers[0]\n'
        "  15 |       resoruce: {name: pods}\n"
        "     |       ^\n"
        '  help: did you mean "resourceRef"?\n'
    )
    assert render_text([replace(FAULT, source_line=None, suggestion=None)]).count("\n") == 1


def test_colour_only_when_asked():
    assert "\x1b" not in render_text([FAULT])
    coloured = render_text([FAULT, replace(FAULT, severity="warning")], color=True)
    assert "\x1b[1;31merror DCL012:\x1b[0m" in coloured
    assert "\x1b[1;33mwarning DCL012:\x1b[0m" in coloured


@pytest.mark.parametrize(
    ("line", "column", "indent"),
    [
        ("\t\tname: x", 3, "\t\t"),
        ("日本: x", 3, "    "),
        ("é: x", 4, "   "),
        ("e\u0301: x", 3, " "),
        ("abc", 1, ""),
    ],
)
def test_the_caret_stands_below_its_character(line, column, indent):
    """Tabs stay tabs, and wide letters take two places."""
    text = render_text([replace(FAULT, source_line=line, column=column)])
    assert text.split("\n")[2] == f"     | {indent}^"


def test_a_source_line_can_not_move_the_cursor():
    """Escape sequences in a manifest don't reach the terminal."""
    text = render_text([replace(FAULT, source_line="a\x1b[2J: b", column=1)])
    assert "\x1b" not in text


def test_json_has_the_seven_fields_of_the_contract():
    """Programs get everything but the source line."""
    (entry,) = render_json([FAULT])
    assert list(entry) == ["file", "line", "column", "code", "severity", "message", "suggestion"]
    assert json.loads(json.dumps(entry))["line"] == 15
    assert render_json([]) == []


def test_github_annotates_the_line():
    """One workflow command each, with what GitHub wants escaped."""
    fault = replace(FAULT, file="a,b:c.yaml", message="50% of\nit", suggestion=None)
    assert render_github([fault]) == "::error file=a%2Cb%3Ac.yaml,line=15,col=7,title=DCL012::50%25 of%0Ait\n"
    assert render_github([FAULT]).endswith('spec.handlers[0]; did you mean "resourceRef"?\n')
    assert render_github([replace(FAULT, severity="warning")]).startswith("::warning ")


def test_order_is_by_position_and_each_only_once():
    first, later = replace(FAULT, line=2), replace(FAULT, line=10)
    other = replace(FAULT, file="a.yaml", line=99)
    assert in_order([later, first, other, later]) == (other, first, later)


DOCS = Path(__file__).parents[3] / "docs" / "reference" / "errors.md"
SECTIONS = dict(re.findall(r"^### (DCL\d{3})\n(.*?)(?=^##|\Z)", DOCS.read_text(), re.MULTILINE | re.DOTALL))
EXAMPLES = {
    code: example.group(1)
    for code, section in SECTIONS.items()
    if (example := re.search(r"```yaml\n(.*?)```", section, re.DOTALL))
}


def test_every_code_is_explained():
    """In order, with the catalogue's own sentence and advice; a fault of a manifest alone has an example."""
    assert list(SECTIONS) == sorted(CODES)
    for code, meaning in CODES.items():
        assert meaning in SECTIONS[code]
        assert re.search(r"\*\*Do:\*\* [\w`]", SECTIONS[code])
    shown = {code for code in CODES if code[:5] in ("DCL01", "DCL02", "DCL03", "DCL06", "DCL07")}
    assert shown <= set(EXAMPLES)


@pytest.mark.parametrize("code", sorted(EXAMPLES))
def test_each_example_gives_its_code(faults, code):
    """The examples are real: each gives the code under which it stands, and no other."""
    assert [fault.code for fault in faults(EXAMPLES[code])] == [code]
