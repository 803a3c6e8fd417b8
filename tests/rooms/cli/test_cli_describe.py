"""`explain` and `schema`."""

import pytest

from declctl.codes import CODES
from declctl.runtime.reasons import CONDITIONS, REASONS


def test_explain_shows_type_default_and_fields(declctl):
    """A field has its type, its default as a person writes it, and whether a reload changes it."""
    shown = declctl.done("explain", "spec.handlers.retry").out
    assert shown.startswith("spec.handlers.retry  <mapping>\n")
    assert "Changes: live, by a reload" in shown
    assert "\n  maxAttempts     whole number  " in shown
    assert "Default: 64Mi" in declctl("explain", "spec.handlers.bufferBytes").out
    assert "need a new process" in declctl("explain", "spec.admin.bindAddress").out


@pytest.mark.parametrize("code", ["DCL002", "dcl002"])
def test_explain_of_a_code_says_what_to_do_without_the_repository(declctl, code):
    """Who has installed declctl with pip reads here what docs/reference/errors.md says of a code."""
    ended = declctl.done("explain", code)
    head = "DCL002\n\nA tab is used for indentation, which YAML forbids.\n\n"
    assert (ended.out, ended.err) == (f"{head}    resources:\n    \t- name: pods\n\nDo: use spaces.\n", "")


@pytest.mark.parametrize("code", sorted(CODES))
def test_every_code_is_explained(declctl, code):
    """Each code has its meaning and its advice, and no marks of Markdown outside of code."""
    out = declctl("explain", code).out
    assert CODES[code] in out
    assert "\nDo: " in out
    assert [mark for mark in ("**", "```", "](") if mark in out] == []


@pytest.mark.parametrize("reason", [*{each.name: None for each in REASONS}])
def test_every_reason_is_explained(declctl, reason):
    """What `status` shows at a condition can be looked up, with what to do."""
    out = declctl.done("explain", reason).out
    for each in REASONS:
        if each.name == reason:
            assert each.meaning in out
            assert f"Do: {each.advice}" in out
    assert declctl("explain", reason.lower()).out == out


def test_a_condition_is_explained_with_all_of_its_reasons(declctl):
    """The answer to a red condition begins with what it is about."""
    out = declctl("explain", "Degraded").out
    assert out.startswith(f"Degraded  <condition>\n\n  {CONDITIONS['Degraded']}\n")
    # `AsExpected` is a reason of two conditions.
    shown = {each.name for each in REASONS if f"\n{each.name}  <Degraded" in out}
    assert shown == {each.name for each in REASONS if each.condition == "Degraded"}


NEAR = "declctl: There is no code DCL019; did you mean DCL017? Else, the codes near it are DCL010, "


@pytest.mark.parametrize(
    ("written", "said"),
    [
        # A field, a reason, and a code without and with neighbours.
        ("spec.handlers.retri", 'did you mean "retry"?'),
        ("CacheLag", 'did you mean "CacheLags"?\n'),
        ("Xyzzy", "conditions are Ready, Reloaded, Degraded"),
        ("DCL019", NEAR),
        ("DCL999", "did you mean DCL099? Else, codes are DCL000 to DCL1"),
        # The same number written in another way, one wrong digit, or the next number.
        ("DCL12", "did you mean DCL012?"),
        ("dcl-012", "did you mean DCL012?"),
        ("DCL0012", "did you mean DCL012?"),
        ("DCL202", "did you mean DCL102?"),
        ("DCL058", "did you mean DCL057?"),
        ("DCL103", "did you mean DCL102?"),
        ("DCL999999", "did you mean DCL099?"),
    ],
)
def test_explain_of_what_is_mistyped_suggests_what_is_meant(declctl, written, said):
    assert said in declctl.refused("explain", written)


@pytest.mark.parametrize("arguments", [[], ["--kind", "Controller"], ["--kind", "ControllerTest"]])
def test_schema_is_one_json_document(declctl, arguments):
    """It can be piped into an editor or a validator; `--kind Controler` names the kind that is meant."""
    ended = declctl.done("schema", *arguments)
    assert ended.document["$schema"].startswith("https://json-schema.org/")
    assert ended.err == ""
    assert "Controller" in declctl.refused("schema", "--kind", "Controler")
