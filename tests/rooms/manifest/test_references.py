"""What parts of a manifest say about each other: names, references, alternatives, contradictions."""

import pytest

RESOURCES = (
    "resources: [{name: pods, apiVersion: v1, kind: Pod}, {name: settings, apiVersion: v1, kind: ConfigMap}]"
)


@pytest.mark.parametrize(
    ("fragment", "what"),
    [
        (
            "resources: [{name: a, apiVersion: v1, kind: Pod}, {name: §a, apiVersion: v1, kind: Node}]",
            "resource",
        ),
        ("plugins: [{name: a}, {name: §a}]", "plugin"),
        (
            (
                "resources: [{name: r, apiVersion: v1, kind: Pod, "
                "indexers: [{name: a, fieldPath: b}, {name: §a, fieldPath: c}]}]"
            ),
            "indexer",
        ),
        ("plugins: [{name: p, configFrom: [{name: a, env: A}, {name: §a, env: B}]}]", "config value"),
    ],
)
def test_name_twice_is_shown_at_the_second(only_fault, fragment, what):
    """A name that is taken is shown where it is used again, and the first place is named."""
    fault = only_fault(fragment)
    assert (fault.code, fault.suggestion) == ("DCL021", "give each a name of its own")
    assert fault.message.startswith(f"the {what} name a is taken: first at line 5, column ")


@pytest.mark.client_go("Controller")
def test_duplicate_handler_name(only_fault):
    """A handler's name is its identity, so two can't share one."""
    fault = only_fault(
        f"""
        {RESOURCES}
        handlers:
          - {{name: notify, resourceRef: {{name: pods}}, entryPoint: a}}
          - {{name: §notify, resourceRef: {{name: pods}}, entryPoint: b}}
        """
    )
    assert (fault.code, fault.message) == (
        "DCL021",
        "the handler name notify is taken: first at line 7, column 14",
    )


def test_same_index_name_in_two_resources_is_fine(faults):
    """An index belongs to its resource."""
    index = "indexers: [{name: byNode, fieldPath: spec.nodeName}]"
    resources = ", ".join(f"{{name: {name}, apiVersion: v1, kind: Pod, {index}}}" for name in "ab")
    assert faults(f"resources: [{resources}]") == ()


@pytest.mark.client_go(308)
@pytest.mark.parametrize(
    ("name", "suggestion"),
    [
        ("pod", 'did you mean "pods"? spec.resources has: pods and settings'),
        ("nodes-of-all", "spec.resources has: pods and settings"),
    ],
)
def test_wrong_resource_reference_lists_the_resources(only_fault, name, suggestion):
    """A reference to nothing is shown with the nearest name and all names."""
    fault = only_fault(
        f"""
        {RESOURCES}
        handlers: [{{name: a, resourceRef: {{name: §{name}}}, entryPoint: m}}]
        """
    )
    assert (fault.code, fault.suggestion) == ("DCL020", suggestion)


@pytest.mark.parametrize(
    ("name", "suggestion"),
    [
        ("slak", 'did you mean "slack"? spec.plugins has: slack'),
        ("pagerduty", "list it in spec.plugins, as {name: pagerduty}; there are: slack"),
    ],
)
def test_wrong_plugin_reference_says_to_list_it(only_fault, name, suggestion):
    """A plugin that is installed, perhaps, but not listed, is told to be listed."""
    fault = only_fault(
        f"""
        plugins: [{{name: slack}}]
        {RESOURCES}
        handlers: [{{name: a, resourceRef: {{name: pods}}, pluginRef: {{name: §{name}}}}}]
        """
    )
    assert (fault.code, fault.suggestion) == ("DCL020", suggestion)


@pytest.mark.parametrize(
    "resources",
    [
        "resorces: [{name: pods, apiVersion: v1, kind: Pod}]",
        "resources: [{nam: pods, apiVersion: v1, kind: Pod}]",
        "resources: {name: pods}",
        "resources: [{name: 1, apiVersion: v1, kind: Pod}]",
        "resources: [{name: 'Bad_name', apiVersion: v1, kind: Pod}]",
        "resources: [{name: '${env:MISSING}', apiVersion: v1, kind: Pod}]",
    ],
)
def test_a_broken_declaration_is_not_an_unknown_reference_too(faults, resources):
    """One cause gives one diagnostic: who can't know the names doesn't judge references to them."""
    found = faults(f"{resources}\nhandlers: [{{name: a, resourceRef: {{name: pods}}, entryPoint: m}}]")
    assert len(found) == 1


@pytest.mark.parametrize(
    ("fragment", "suggestion"),
    [
        (
            "resources: [{name: r, apiVersion: v1, kind: Pod, indexers: [§{name: a}]}]",
            "add fieldPath or entryPoint",
        ),
        ("plugins: [{name: p, configFrom: [§{name: a}]}]", "add env or file or secretKeyRef"),
        (
            (
                "resources: [{name: r, apiVersion: v1, kind: Pod, "
                "indexers: [{name: a, fieldPath: b, §entryPoint: 'm:f'}]}]"
            ),
            "remove entryPoint or fieldPath",
        ),
        ("plugins: [{name: p, configFrom: [{name: a, file: f, §env: A}]}]", "remove env or file"),
        (
            "plugins: [{name: p, configFrom: [{name: a, env: A, §secretKeyRef: {name: s, key: k}}]}]",
            "remove secretKeyRef or env",
        ),
    ],
)
def test_exactly_one_alternative_is_needed(only_fault, fragment, suggestion):
    """None is shown at the item, both at the second."""
    fault = only_fault(fragment)
    assert (fault.code, fault.suggestion) == ("DCL015", suggestion)


@pytest.mark.parametrize(
    ("target", "suggestion"),
    [
        ("", "add entryPoint or pluginRef"),
        ("entryPoint: m, §pluginRef: {name: slack}", "remove pluginRef or entryPoint"),
    ],
)
def test_a_handler_has_one_target(only_fault, target, suggestion):
    """A handler calls either its own code or a plugin."""
    mark = "" if target else "§"
    fault = only_fault(
        f"""
        plugins: [{{name: slack}}]
        {RESOURCES}
        handlers: [{mark}{{name: a, resourceRef: {{name: pods}}, {target}}}]
        """
    )
    assert (fault.code, fault.suggestion) == ("DCL015", suggestion)


def test_a_misspelt_target_is_not_a_missing_one_too(only_fault):
    """`entrypoint` is an unknown field, and nothing else."""
    fault = only_fault(
        f"""
        {RESOURCES}
        handlers: [{{name: a, resourceRef: {{name: pods}}, §entrypoint: m}}]
        """
    )
    assert (fault.code, fault.suggestion) == ("DCL012", 'did you mean "entryPoint"?')


@pytest.mark.parametrize(
    ("fragment", "suggestion"),
    [
        (
            "resources: [{name: r, apiVersion: v1, kind: Pod, names: [a], fieldSelector: §metadata.name=b}]",
            "keep names, and drop the condition",
        ),
        ("namespaces: [a, §'*']", 'write ["*"] alone, or remove it'),
        (
            "plugins: [{name: p, config: {token: x}, configFrom: [{name: §token, env: A}]}]",
            "remove one of them",
        ),
    ],
)
def test_fields_that_contradict_each_other(only_fault, fragment, suggestion):
    """What can't both be true is refused, rather than one of them silently winning."""
    fault = only_fault(fragment)
    assert (fault.code, fault.suggestion) == ("DCL017", suggestion)


@pytest.mark.parametrize(
    "retry", ["{initialBackoff: 10s, maxBackoff: §5s}", "{initialBackoff: §10m}", "{maxBackoff: §500ms}"]
)
def test_the_longest_wait_is_not_shorter_than_the_first(only_fault, retry):
    """Also against the default of the other field."""
    fault = only_fault(
        f"""
        {RESOURCES}
        handlers: [{{name: a, resourceRef: {{name: pods}}, entryPoint: m, retry: {retry}}}]
        """
    )
    assert fault.code == "DCL017"
    assert fault.suggestion == "maxBackoff (5m if absent) can't be shorter than initialBackoff (1s if absent)"


@pytest.mark.parametrize(
    ("breaker", "advice"),
    [
        ("onError: Disable, circuitBreaker: {maxBackoff: §5s}", "maxBackoff (10m if absent)"),
        ("onError: Disable, circuitBreaker: {initialBackoff: §1h}", "initialBackoff (30s if absent)"),
        ("§circuitBreaker: {failures: 3}", "write onError: Disable, or remove it"),
        ("onError: Fail, §circuitBreaker: {}", "write onError: Disable, or remove it"),
    ],
)
def test_a_circuit_breaker_is_for_a_plugin_that_may_be_left_out(only_fault, breaker, advice):
    """Its waits are checked as those of a retry, with defaults of its own."""
    fault = only_fault(f"plugins: [{{name: a, {breaker}}}]")
    assert fault.code == "DCL017"
    assert advice in fault.suggestion


WRITER = "resourceRef: {name: pods}, entryPoint: m"


@pytest.mark.parametrize(
    "second",
    ["name: b, fieldManager: §shared", "name: b, fieldManager: §declctl/c/a"],
)
def test_two_handlers_never_have_one_field_manager(only_fault, second):
    """Each apply of one would remove the fields of the other; the default of another handler counts."""
    first = "fieldManager: shared" if "shared" in second else "timeout: 1s"
    handlers = f"[{{name: a, {first}, {WRITER}}}, {{{second}, {WRITER}}}]"
    fault = only_fault(f"resources: [{{name: pods, apiVersion: v1, kind: Pod}}]\nhandlers: {handlers}")
    assert (fault.code, "the field manager of another handler" in fault.message) == ("DCL017", True)
    assert fault.suggestion == "give each handler a field manager of its own"


SHARING = """
handlers:
  - {{name: a, resourceRef: {{name: pods}}, entryPoint: h, queue: {{name: slow, concurrency: 2}}}}
  - {{name: b, resourceRef: {{name: pods}}, entryPoint: h, queue: {{name: slow{0}}}}}
  - {{name: c, resourceRef: {{name: pods}}, entryPoint: h, queue: {{concurrency: 3}}}}
  - {{name: d, resourceRef: {{name: pods}}, entryPoint: h, queue: {{name: default, concurrency: 4}}}}
"""


def test_handlers_that_share_a_queue_agree_on_its_workers(only_fault, faults):
    """The second number is shown, with the place of the first; one that names none is fine."""
    fault = only_fault(f"{RESOURCES}{SHARING.format(', concurrency: §3')}")
    assert fault.code == "DCL017"
    assert fault.message.startswith(
        "spec.handlers[1].queue.concurrency is 3, and another handler has 2 for the same queue slow: line "
    )
    assert fault.suggestion == "write the same number, or name it for one of the handlers"
    for fine in ("", ", concurrency: 2"):
        assert faults(f"{RESOURCES}{SHARING.format(fine)}") == ()
