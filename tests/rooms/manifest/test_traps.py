"""YAML 1.1 traps: keys and values that YAML reads as something that nobody meant."""

import pytest


def test_key_on_becomes_true_and_events_is_suggested(only_fault):
    """The trap that `events` is named to avoid; what `on` says isn't reported as an unknown field too."""
    fault = only_fault(
        """
        resources: [{name: pods, apiVersion: v1, kind: Pod}]
        handlers:
          - name: a
            resourceRef: {name: pods}
            entryPoint: m
            §on: [Added]
        """
    )
    assert fault.code == "DCL008"
    assert fault.message == 'the key "on" is read as true by YAML 1.1, and must be text'
    assert fault.suggestion.startswith('write "events" for the changes that a handler receives')


@pytest.mark.parametrize(
    ("key", "read"),
    [("no", "false"), ("Yes", "true"), ("off", "false"), ("1", "1"), ("~", "null"), ("1.5", "1.5")],
)
def test_other_keys_that_are_not_text_want_quotes(only_fault, key, read):
    """A key of any free mapping must be text too."""
    fault = only_fault(f"plugins: [{{name: p, config: {{§{key}: x}}}}]")
    assert fault.code == "DCL008"
    assert fault.message == f'the key "{key}" is read as {read} by YAML 1.1, and must be text'
    assert fault.suggestion == f'put it in quotes: "{key}"'


def test_a_list_as_a_key(only_fault):
    """A template's braces without quotes are a key that is a mapping, and are told so."""
    fault = only_fault("plugins: [{name: p, config: {§[a]: x}}]")
    assert (fault.code, fault.suggestion) == ("DCL008", 'put it in quotes if it begins with "[" or "{"')


@pytest.mark.parametrize(
    ("word", "read"),
    [
        ("no", "the boolean false"),
        ("yes", "the boolean true"),
        ("On", "the boolean true"),
        ("OFF", "the boolean false"),
    ],
)
def test_words_that_become_booleans_want_quotes(only_fault, word, read):
    """Norway's namespace is a text."""
    fault = only_fault(f"namespaces: [§{word}]")
    assert fault.code == "DCL009"
    assert fault.message == f"spec.namespaces[0] must be text, and YAML reads {word} as {read}"
    assert fault.suggestion == f'put it in quotes: "{word}"'


def test_quoted_words_are_text(loaded):
    """In quotes they are what they are."""
    found = loaded(
        """
        namespaces: ["no", 'yes']
        resources: [{name: pods, apiVersion: v1, kind: Pod}]
        """
    )
    assert found.controller.resources[0].namespaces == ("no", "yes")


def test_base_60_duration(only_fault):
    """`10:00` is 600 to YAML, and ten of something to a person."""
    fault = only_fault("reload: {settle: §10:00}")
    assert fault.code == "DCL009"
    assert (
        fault.message == "spec.reload.settle must be text, and YAML reads 10:00 as the number 600 (base 60)"
    )
    assert fault.suggestion == 'write a duration with its unit, such as "10m" or "1h30m"'


def test_octal_number(only_fault):
    """A leading zero makes another number of it."""
    fault = only_fault("lifecycle: {startup: [{entryPoint: a, order: §010}]}")
    assert fault.code == "DCL009"
    assert fault.message == "spec.lifecycle.startup[0].order is 010, which YAML reads as the number 8 (octal)"
    assert fault.suggestion == "write 8 if that is meant"


@pytest.mark.parametrize(
    ("fragment", "written", "read", "suggestion"),
    [
        (
            "plugins: [{name: p, version: §1.20}]",
            "1.20",
            "the number 1.2",
            'put it in quotes, with a comparison: ">=1.20"',
        ),
        ("metadata: {name: §1.10}", "1.10", "the number 1.1", 'put it in quotes: "1.10"'),
        ("metadata: {name: §true}", "true", "the boolean true", 'put it in quotes: "true"'),
    ],
)
def test_numbers_and_booleans_for_text(only_fault, fragment, written, read, suggestion):
    """`1.20` loses its zero, so it is refused where text is wanted."""
    if fragment.startswith("metadata"):
        fragment = f"apiVersion: declctl.dev/v1alpha1\nkind: Controller\n{fragment}\nspec: {{}}"
    fault = only_fault(fragment)
    assert fault.code == "DCL009"
    assert fault.message.endswith(f"must be text, and YAML reads {written} as {read}")
    assert fault.suggestion == suggestion


@pytest.mark.parametrize(("value", "read"), [("10:00", "600 (base 60)"), ("0777", "511 (octal)")])
def test_doubtful_values_in_a_plugin_config_are_warnings(only_fault, value, read):
    """Only the plugin knows what it wants, so the manifest is loaded, and the doubt is told."""
    fault = only_fault(f"plugins: [{{name: p, config: {{a: [§{value}]}}}}]")
    assert (fault.code, fault.severity) == ("DCL009", "warning")
    assert fault.message == f"spec.plugins[0].config.a[0] is {value}, which YAML reads as the number {read}"
    assert fault.suggestion == f'put it in quotes if text is meant: "{value}"'


@pytest.mark.parametrize(
    ("written", "watch"), [("Off", "Off"), ("off", "Off"), ("false", "Off"), ('"Off"', "Off")]
)
def test_off_without_quotes_is_off(loaded, written, watch):
    """The manual's own `watch: Off` works, although YAML 1.1 makes a boolean of it."""
    assert loaded(f"reload: {{watch: {written}}}").controller.reload.watch == watch


@pytest.mark.parametrize(
    ("written", "on"), [("On", True), ("true", True), ('"On"', True), ("Off", False), ("no", False)]
)
def test_preflight_is_a_switch_however_it_is_written(loaded, written, on):
    """Tools that rewrite YAML turn `On` into `true`; it stays what it was."""
    assert loaded(f"reload: {{preflight: {written}}}").controller.reload.preflight is on
