"""`docs/errors.md` is complete, and its examples give what they promise."""

import re
from pathlib import Path

import pytest

from declctl.manifest.codes import CODES

DOCS = Path(__file__).parents[3] / "docs" / "errors.md"
SECTIONS = dict(re.findall(r"^### (DCL\d{3})\n(.*?)(?=^##|\Z)", DOCS.read_text(), re.MULTILINE | re.DOTALL))
EXAMPLES = {
    code: example.group(1)
    for code, section in SECTIONS.items()
    if (example := re.search(r"```yaml\n(.*?)```", section, re.DOTALL))
}


def test_every_code_has_a_section_in_order():
    """Who looks up a code finds it."""
    assert list(SECTIONS) == sorted(CODES)


@pytest.mark.parametrize("code", sorted(CODES))
def test_each_section_says_what_and_what_to_do(code):
    """The meaning is the catalogue's own sentence, and advice follows."""
    assert CODES[code] in SECTIONS[code]
    assert re.search(r"\*\*(Do|Meanwhile):\*\* [\w`]", SECTIONS[code])


@pytest.mark.parametrize("code", sorted(EXAMPLES))
def test_each_example_gives_its_code(faults, code):
    """The examples are real: each gives the code under which it stands, and no other."""
    assert [fault.code for fault in faults(EXAMPLES[code])] == [code]


def test_families_of_the_desk_have_examples():
    """Whatever a manifest alone can show has an example."""
    shown = {code for code in CODES if code[:5] in ("DCL01", "DCL02", "DCL03", "DCL06", "DCL07")}
    assert shown <= set(EXAMPLES)
