"""Fields that are unknown, missing, mistyped or out of range: where they are shown, and what is suggested."""

import pytest


@pytest.mark.parametrize(
    ("fragment", "meant"),
    [
        ("§resorces: []", "resources"),
        ("handlers: [{name: a, §resoruce: {name: pods}, entryPoint: m}]", "resourceRef"),
        ("handlers: [{name: a, §RESOURCEREF: {name: pods}, entryPoint: m}]", "resourceRef"),
        ("resources: [{name: a, apiVersion: v1, kind: Pod, §namespace: x}]", "namespaces"),
        ("resources: [{name: a, apiVersion: v1, kind: Pod, §resync: 10m}]", "resyncPeriod"),
        ("resources: [{name: a, apiVersion: v1, kind: Pod, §selector: {}}]", "labelSelector"),
        ("reload: {§drainTimout: 5s}", "drainTimeout"),
        ("lifecycle:\n  §start: []", "startup"),
    ],
)
def test_unknown_field_is_shown_at_its_key_with_the_nearest_field(only_fault, fragment, meant):
    """A misspelt field is found at its key, and what was meant isn't reported as missing too."""
    fault = only_fault(fragment)
    assert fault.code == "DCL012"
    assert fault.suggestion == f'did you mean "{meant}"?'


def test_unknown_field_message_names_field_and_place(only_fault):
    """The message of the manual: what is unknown, and in what."""
    fault = only_fault("handlers: [{name: a, §resoruce: {name: pods}, entryPoint: m}]")
    assert fault.message == 'unknown field "resoruce" in spec.handlers[0]'


def test_unknown_field_without_likeness_lists_what_could_stand_there(only_fault):
    """Where nothing is similar, the choice is shown."""
    fault = only_fault("admin: {§zzzzzz: 1}")
    fields = "bindAddress, allowedHosts, tokenFile, authorization and tls"
    assert fault.suggestion == f"the fields that could stand here are {fields}"


def test_labels_directly_in_a_selector_get_the_right_form(only_fault):
    """The commonest wrong selector is told how to be right."""
    fault = only_fault("resources: [{name: a, apiVersion: v1, kind: Pod, labelSelector: {§app: web}}]")
    assert fault.code == "DCL012"
    assert fault.suggestion == "put labels under matchLabels: {matchLabels: {app: …}}"


@pytest.mark.parametrize(
    ("fragment", "message", "suggestion"),
    [
        (
            "resources:\n  - §name: pods\n    kind: Pod",
            'spec.resources[0] needs the field "apiVersion"',
            "add apiVersion: v1",
        ),
        (
            "handlers: [§{name: a, entryPoint: m}]",
            'spec.handlers[0] needs the field "resourceRef"',
            "add resourceRef: {name: …}",
        ),
        (
            "lifecycle: {startup: [§{order: 1}]}",
            'spec.lifecycle.startup[0] needs the field "entryPoint"',
            "add entryPoint: handlers.boot:run",
        ),
        (
            "§apiVersion: declctl.dev/v1alpha1\nkind: Controller\nspec: {}",
            'the document needs the field "metadata"',
            "add metadata: {name: …}",
        ),
    ],
)
def test_missing_field_is_shown_where_its_siblings_begin(only_fault, fragment, message, suggestion):
    """A missing field is shown at the mapping that lacks it, with what to add."""
    fault = only_fault(fragment)
    assert (fault.code, fault.message, fault.suggestion) == ("DCL011", message, suggestion)


def test_two_missing_fields_are_two_faults(faults):
    """Everything that is missing is said at once."""
    found = faults("resources: [{name: pods}]")
    assert [fault.code for fault in found] == ["DCL011", "DCL011"]
    assert {fault.message.rpartition(" ")[2] for fault in found} == {'"apiVersion"', '"kind"'}


@pytest.mark.parametrize(
    ("fragment", "suggestion"),
    [
        ("resources: §{pods: {}}", 'begin each item with "- "'),
        ("namespaces: §default", "write [default]"),
        ("handlers: [{name: a, resourceRef: §pods, entryPoint: m}]", "write {name: pods}"),
        ("reload: §[1]", 'write fields without "- " before them'),
        ("lifecycle: {startup: [{entryPoint: a, order: §'1'}]}", "write a number, without quotes and unit"),
        ("leaderElection: {enabled: §'false'}", "write true or false"),
        ("§resources:", "give it a value, or remove it"),
        ("handlers:\n  -§", "give it a value, or remove it"),
    ],
)
def test_wrong_type_says_how_to_write_it(only_fault, fragment, suggestion):
    """A value of another type is shown where it stands, with the form that was meant."""
    fault = only_fault(fragment)
    assert fault.code == "DCL010"
    assert fault.suggestion == suggestion


@pytest.mark.parametrize(
    ("fragment", "suggestion"),
    [
        ("reload: {watch: §Autoo}", 'did you mean "Auto"? The choices are Auto, Poll and Off'),
        ("reload: {watch: §true}", "the choices are Auto, Poll and Off"),
        ("reload: {preflight: §enabled}", 'did you mean "On"? The choices are On and Off'),
        ("reload: {drainPolicy: §fence}", 'did you mean "Fence"? The choices are Fence and Handover'),
        ("plugins: [{name: a, onError: §zzz}]", "the choices are Fail and Disable"),
    ],
)
def test_wrong_choice_lists_the_choices(only_fault, fragment, suggestion):
    """A word that isn't allowed is shown with the nearest, and with all that are."""
    fault = only_fault(fragment)
    assert fault.code == "DCL013"
    assert fault.suggestion == suggestion


@pytest.mark.parametrize(
    ("event", "meant"),
    [
        ("added", "Added"),
        ("ADDED", "Added"),
        ("create", "Added"),
        ("Updated", "Modified"),
        ("delete", "Deleted"),
    ],
)
def test_events_of_other_systems_are_understood(only_fault, event, meant):
    """Who knows other controllers' words for changes is told ours."""
    fault = only_fault(
        f"""
        resources: [{{name: a, apiVersion: v1, kind: Pod}}]
        handlers: [{{name: a, resourceRef: {{name: a}}, entryPoint: m, events: [§{event}]}}]
        """
    )
    assert fault.code == "DCL013"
    assert fault.suggestion.startswith(f'did you mean "{meant}"?')


@pytest.mark.parametrize(
    ("fragment", "suggestion"),
    [
        ("plugins: [{name: §''}]", "give it a value, or remove it"),
        ("namespaces: §[]", 'write ["*"] for all namespaces, or remove it'),
        ("resources: [{name: a, apiVersion: v1, kind: Pod, names: §[]}]", "give it a value, or remove it"),
    ],
)
def test_emptiness_is_out_of_range(only_fault, fragment, suggestion):
    """An empty text or list where something is needed is a fault, not a default."""
    fault = only_fault(fragment)
    assert fault.code == "DCL014"
    assert fault.suggestion == suggestion


@pytest.mark.parametrize(
    ("field", "value"), [("queue: {concurrency: §0}", "0"), ("retry: {maxAttempts: §-1}", "-1")]
)
def test_numbers_have_a_least_value(only_fault, field, value):
    """A number that makes no sense is refused with the least one that does."""
    fault = only_fault(
        f"""
        resources: [{{name: a, apiVersion: v1, kind: Pod}}]
        handlers:
          - name: a
            resourceRef: {{name: a}}
            entryPoint: m
            {field}
        """
    )
    assert (fault.code, fault.suggestion) == ("DCL014", "write 1 or more")
    assert fault.message.endswith(f"can't be {value}")


def test_value_twice_in_a_list_names_both_places(only_fault):
    """The second one is shown, and the first is named."""
    fault = only_fault("namespaces: [a, b, §a]")
    assert (fault.code, fault.suggestion) == ("DCL022", "remove one of them")
    assert fault.message == "spec.namespaces holds a twice: first at line 5, column 16"


@pytest.mark.parametrize(
    ("head", "suggestion"),
    [
        ("apiVersion: §declctl.dev/v1\nkind: Controller", 'write "declctl.dev/v1alpha1"'),
        ("apiVersion: §declctl.de/v1alpha1\nkind: Controller", 'write "declctl.dev/v1alpha1"'),
        ("apiVersion: declctl.dev/v1alpha1\nkind: §Controler", 'write "Controller"'),
    ],
)
def test_another_version_or_kind_is_refused(only_fault, head, suggestion):
    """A document that was meant for declctl isn't passed over in silence."""
    text = f"{head}\nmetadata: {{name: c}}\nspec: {{}}\n# apiVersion: declctl"
    fault = only_fault(text)
    assert (fault.code, fault.suggestion) == ("DCL016", suggestion)


def test_everything_is_said_at_once_and_in_order(faults):
    """Faults of all kinds come together, sorted by position."""
    found = faults(
        """
        resources:
          - {name: pods, apiVersion: v1, kind: Pod, resyncPeriod: 10}
          - {name: pods, apiVersion: v1, kind: Pod}
        handlers:
          - {name: a, resourceRef: {name: pod}, entryPoint: "./a.py:b", evnts: []}
        """
    )
    assert [fault.code for fault in found] == ["DCL030", "DCL021", "DCL020", "DCL037", "DCL012"]
    assert [(fault.line, fault.column) for fault in found] == sorted((f.line, f.column) for f in found)
