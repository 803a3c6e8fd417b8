"""`${env:NAME}` in text values."""

import pytest

from declctl.manifest.document import substitute
from declctl.manifest.values import BadValue


def test_a_reference_is_replaced_anywhere_in_a_text(loaded):
    """Also more than one, and within other characters."""
    found = loaded(
        "plugins: [{name: p, config: {url: 'https://${env:HOST}:${env:PORT}/'}}]",
        environ={"HOST": "h", "PORT": "1"},
    )
    assert found.controller.plugins[0].config.value() == {"url": "https://h:1/"}


def test_a_replaced_text_stays_text(loaded):
    """What comes out isn't read as YAML again: `true` from the environment is the text."""
    found = loaded(
        "plugins: [{name: p, config: {a: '${env:A}', b: '${env:B}'}}]", environ={"A": "true", "B": "${env:A}"}
    )
    assert found.controller.plugins[0].config.value() == {"a": "true", "b": "${env:A}"}


def test_a_replaced_text_is_checked_like_any_other(loaded):
    """A duration may come from the environment."""
    found = loaded("reload: {settle: '${env:SETTLE}'}", environ={"SETTLE": "2s"})
    assert found.controller.reload.settle == 2.0


def test_two_dollars_escape(loaded):
    """The characters themselves can be written."""
    found = loaded("plugins: [{name: p, config: {a: '$${env:A} and $x and ${x}'}}]")
    assert found.controller.plugins[0].config.value() == {"a": "${env:A} and $x and ${x}"}


def test_keys_are_not_replaced(loaded):
    """Only values are."""
    found = loaded("plugins: [{name: p, config: {'${env:A}': 1}}]", environ={"A": "x"})
    assert found.controller.plugins[0].config.value() == {"${env:A}": 1}


@pytest.mark.parametrize(
    ("value", "message", "suggestion"),
    [
        (
            "a §${env:TOKN} b",
            "the environment variable TOKN is not set",
            'did you mean "TOKEN"? Otherwise set TOKN before you start declctl',
        ),
        (
            "'a §${env:OTHER}'",
            "the environment variable OTHER is not set",
            "set OTHER before you start declctl",
        ),
        (
            '"§${env:A B}"',
            "${env:A B} is not a whole reference",
            "write ${env:NAME}, with the name of an environment variable and a closing brace",
        ),
        (
            "'§${env:TOKEN'",
            "${env:TOKEN is not a whole reference",
            "write ${env:NAME}, with the name of an environment variable and a closing brace",
        ),
        (
            "'§${file:/etc/token}'",
            '"file" is not a kind of reference',
            "write ${env:NAME} for a variable, or $${file:… for these characters",
        ),
    ],
)
def test_a_reference_that_fails_is_shown_where_it_begins(only_fault, value, message, suggestion):
    """An undefined variable is an error and never the empty text, and its own place is shown."""
    fault = only_fault(f"plugins:\n  - name: p\n    config:\n      a: {value}", environ={"TOKEN": "secret"})
    assert (fault.code, fault.message, fault.suggestion) == ("DCL038", message, suggestion)


@pytest.mark.parametrize(
    ("fragment", "code"),
    [
        ("reload: {settle: §'${env:SECRET}'}", "DCL030"),
        ("reload: {drainPolicy: §'${env:SECRET}'}", "DCL013"),
        ("namespaces: [§'${env:SECRET}']", "DCL035"),
        ("admin: {bindAddress: §'${env:SECRET}'}", "DCL036"),
        ("resources: [{name: a, apiVersion: v1, kind: Pod, labelSelector: §'${env:SECRET}'}]", "DCL032"),
        ("resources: [{name: a, apiVersion: v1, kind: Pod, fieldSelector: §'${env:SECRET}'}]", "DCL033"),
        (
            (
                "resources: [{name: a, apiVersion: v1, kind: Pod, labelSelector: "
                "{matchExpressions: [§{key: a, operator: In, values: ['${env:SECRET}']}]}}]"
            ),
            "DCL032",
        ),
        (
            (
                "resources: [{name: a, apiVersion: v1, kind: Pod}]\n"
                "handlers: [{name: a, resourceRef: {name: §'${env:SECRET}'}, entryPoint: m}]"
            ),
            "DCL020",
        ),
        (
            (
                "resources: [{name: a, apiVersion: v1, kind: Pod}]\n"
                "handlers: [{name: a, mode: Reconcile, resourceRef: {name: a}, entryPoint: m, "
                "watches: [{resourceRef: {name: a}, mapTo: {label: §'${env:SECRET}'}}]}]"
            ),
            "DCL035",
        ),
    ],
)
def test_what_came_from_the_environment_is_never_shown(only_fault, fragment, code):
    """A wrong value may be a secret in the wrong place: the message shows the reference only."""
    fault = only_fault(fragment, environ={"SECRET": "Hunter/2!"})
    assert fault.code == code
    assert "Hunter" not in f"{fault}{fault.suggestion}{fault.source_line}"


def test_substitute_says_where_it_failed():
    """The offset counts from the beginning of the text."""
    with pytest.raises(BadValue) as caught:
        substitute("ab${env:X}", {})
    assert caught.value.offset == 2
