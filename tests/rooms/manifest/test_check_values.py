"""Texts that are read further: each kind shown at its exact character, with what was probably meant."""

import pytest

POD = "name: pods, apiVersion: v1, kind: Pod"


def resource(field: str) -> str:
    """A fragment with one resource that has this field."""
    return f"resources: [{{{POD}, {field}}}]"


def handler(field: str) -> str:
    """A fragment with one handler that has this field."""
    target = "name: a, resourceRef: {name: pods}, entryPoint: m"
    return f"resources: [{{{POD}}}]\nhandlers: [{{{target}, {field}}}]"


@pytest.mark.parametrize(
    ("fragment", "suggestion"),
    [
        (resource("resyncPeriod: §10"), 'did you mean "10s" or "10m"?'),
        (resource("resyncPeriod: §1.5"), 'did you mean "1.5s" or "1.5m"?'),
        (resource("resyncPeriod: §'10'"), 'a unit is needed: did you mean "10s" or "10m"?'),
        (resource("resyncPeriod: §5min"), 'did you mean "5m"?'),
        (resource("resyncPeriod: §1d"), 'did you mean "24h"? Hours are the largest unit'),
        (resource("resyncPeriod: '1h§30'"), "write it like 500ms, 10s, 5m or 1h30m"),
        (resource("resyncPeriod: §-5s"), "write it like 500ms, 10s, 5m or 1h30m"),
        (resource("resyncPeriod: §500ms"), "write 1s or more, or 0s for none"),
        (resource("idleTimeout: §0s"), "write 1s or more"),
        (handler("timeout: §0s"), "write 1ms or more"),
        (handler("timeout: §9999999h"), "leave the field out for no limit"),
        (handler("retry: {initialBackoff: §soon}"), "write it like 500ms, 10s, 5m or 1h30m"),
        ("reload: {drainTimeout: §20 s}", 'did you mean "20s"?'),
    ],
)
def test_bad_duration(only_fault, fragment, suggestion):
    """A duration without a unit, of another unit or too short says what to write (client-go 133)."""
    fault = only_fault(fragment)
    assert (fault.code, fault.suggestion) == ("DCL030", suggestion)


@pytest.mark.parametrize(
    ("value", "suggestion"),
    [
        ("§64MB", 'did you mean "64Mi"?'),
        ("§64 mib", 'did you mean "64Mi"?'),
        ("§64m", 'did you mean "64Mi"?'),
        ("§lots", "write it like 64Mi, 1Gi or 65536"),
        ("§0", "write a size such as 64Mi"),
        ("§-1", "write it like 64Mi, 1Gi or 65536"),
        ("§900000Ei", "write a size such as 64Mi"),
    ],
)
def test_bad_byte_size(only_fault, value, suggestion):
    """Sizes are Kubernetes quantities: a near miss gets the binary unit."""
    fault = only_fault(handler(f"bufferBytes: {value}"))
    assert (fault.code, fault.suggestion) == ("DCL031", suggestion)


@pytest.mark.parametrize(
    ("selector", "message"),
    [
        ("{matchLabels: {app: §'not valid'}}", "'not valid' is no label value"),
        ("{matchLabels: {app: web, '-x': §a}}", "'-x' is no label key"),
        ("{matchExpressions: [§{key: app, operator: In}]}", "In for 'app' needs at least one value"),
        (
            "{matchExpressions: [§{key: app, operator: Exists, values: [a]}]}",
            "Exists for 'app' takes no values",
        ),
        ("§'app in (a'", "'app in (a' is no label key"),
    ],
)
def test_bad_label_selector(only_fault, selector, message):
    """Each condition is judged alone, so that the wrong one is shown."""
    fault = only_fault(resource(f"labelSelector: {selector}"))
    assert fault.code == "DCL032"
    assert fault.message.endswith(message)
    assert fault.suggestion == "write it like {matchLabels: {app: web}} or app=web,tier in (a,b)"


def test_bad_selector_operator_is_a_choice(only_fault):
    """An operator that isn't one gets the nearest."""
    fault = only_fault(resource("labelSelector: {matchExpressions: [{key: a, operator: §exists}]}"))
    assert fault.code == "DCL013"
    assert fault.suggestion.startswith('did you mean "Exists"?')


def test_a_label_value_that_is_no_text(only_fault):
    """`true` in a label must be quoted, as kubectl says too."""
    fault = only_fault(resource("labelSelector: {matchLabels: {app: §true}}"))
    assert (fault.code, fault.suggestion) == ("DCL009", 'put it in quotes: "true"')


@pytest.mark.parametrize("selector", ["§status.phase", "§status.phase>1", "§a=b,,c=d", "§','"])
def test_bad_field_selector(only_fault, selector):
    """A field selector compares fields with values, and nothing else."""
    text = selector if "," not in selector or "'" in selector else f"§'{selector[1:]}'"
    fault = only_fault(resource(f"fieldSelector: {text}"))
    assert fault.code == "DCL033"
    assert fault.suggestion == "write it like status.phase=Running,spec.nodeName!=node-1"


@pytest.mark.parametrize(
    "path",
    ["spec§ nodeName", "'spec.§.nodeName'", "§'[0'", "'spec.containers§[x].image'", "spec.node§/x", "'.§'"],
)
def test_bad_field_path_is_shown_at_its_character(only_fault, path):
    """The character at which the path stops being one is shown, in quotes and without."""
    fault = only_fault(resource(f"indexers: [{{name: a, fieldPath: {path}}}]"))
    assert fault.code == "DCL034"
    assert fault.suggestion == "write it like spec.nodeName or spec.containers[*].image"


@pytest.mark.parametrize("path", ["metadata", "metadata.name", "metadata.resourceVersion", "kind"])
def test_fields_that_the_cache_needs_are_not_dropped(only_fault, path):
    """Dropping what identifies an object would break the cache, so it is refused."""
    fault = only_fault(resource(f"transform: {{dropFields: [§{path}]}}"))
    assert (fault.code, fault.suggestion) == ("DCL034", "remove it from the list")


@pytest.mark.parametrize(
    ("fragment", "suggestion"),
    [
        (
            "resources: [{name: §MyPods, apiVersion: v1, kind: Pod}]",
            'did you mean "my-pods"? Rule: use lower-case letters, digits and dashes, at most 63 of them',
        ),
        (
            "resources: [{name: pods, apiVersion: v1, kind: §pod}]",
            'did you mean "Pod"? Rule: kinds are written in CamelCase, such as ConfigMap',
        ),
        (
            "resources: [{name: pods, apiVersion: §v1/apps, kind: Pod}]",
            'did you mean "apps/v1"?',
        ),
        (
            "resources: [{name: pods, apiVersion: §apps, kind: Pod}]",
            'write "v1", or group and version such as "apps/v1"',
        ),
        (resource("names: [§a/b]"), "use the name that kubectl shows"),
        (r'plugins: [{name: a, configFrom: [{name: a, file: §"a\0b"}]}]', "remove the zero byte"),
        (
            "namespaces: [§Team_A]",
            'did you mean "team-a"? Rule: use lower-case letters, digits and dashes, at most 63 of them',
        ),
        ("namespaces: [§'${TEAM}']", "for an environment variable write ${env:NAME}"),
        (resource("indexers: [{name: §1st, fieldPath: a}]"), "use letters and digits, as in byNode"),
        ("plugins: [{name: §a b}]", "use the name that `declctl plugins list` shows"),
        (
            "plugins: [{name: a, configFrom: [{name: a, secretKeyRef: {name: §My_Pager, key: token}}]}]",
            'did you mean "my-pager"? Rule: use lower-case letters, digits, dashes and dots',
        ),
        (
            "plugins: [{name: a, configFrom: [{name: a, secretKeyRef: {name: pager, key: §a/b}}]}]",
            "use letters, digits, dashes, dots and underscores",
        ),
        (
            "plugins: [{name: a, configFrom: [{name: a, env: §$TOKEN}]}]",
            "use letters, digits and underscores, without $ and braces",
        ),
    ],
)
def test_bad_name(only_fault, fragment, suggestion):
    """A name that Kubernetes or declctl doesn't allow is shown with one that it does."""
    fault = only_fault(fragment)
    assert (fault.code, fault.suggestion) == ("DCL035", suggestion)


@pytest.mark.parametrize(
    ("address", "suggestion"),
    [
        ("§8081", 'did you mean "127.0.0.1:8081"?'),
        ("§'8081'", 'did you mean "127.0.0.1:8081"?'),
        ("§localhost", 'a port is needed, as in "localhost:8081"'),
        ("§http://localhost:8081/metrics", 'did you mean "localhost:8081"?'),
        ("§a:b:c", 'write host:port, as in "127.0.0.1:8081"'),
        ("localhost:§70000", "ports end at 65535"),
    ],
)
def test_bad_address(only_fault, address, suggestion):
    """An address is a host and a port."""
    fault = only_fault(f"admin: {{bindAddress: {address}}}")
    assert (fault.code, fault.suggestion) == ("DCL036", suggestion)


@pytest.mark.parametrize(
    ("entry_point", "suggestion"),
    [
        ("./handlers/pods.py:on_change", 'did you mean "handlers.pods:on_change"?'),
        ("handlers/pods.py", 'did you mean "handlers.pods"?'),
        ("handlers.pods.py:on_change", 'did you mean "handlers.pods:on_change"?'),
        ("handlers.pods:on-change", 'did you mean "handlers.pods:on_change"?'),
        ("handlers.pods:on_change()", 'did you mean "handlers.pods:on_change"?'),
        ("my-handlers.pods:run", 'did you mean "my_handlers.pods:run"?'),
        (
            "/srv/handlers.py:run",
            'write "package.module" or "package.module:attribute"; modules are found beside the manifest',
        ),
        (
            "handlers.class:run",
            'write "package.module" or "package.module:attribute", with names as Python has them',
        ),
        ("handlers.pods:", 'did you mean "handlers.pods"?'),
    ],
)
def test_bad_entry_point_gets_the_module_form(only_fault, entry_point, suggestion):
    """Who names a file is told the module."""
    fault = only_fault(
        f"resources: [{{{POD}}}]\n"
        f"handlers: [{{name: a, resourceRef: {{name: pods}}, entryPoint: §'{entry_point}'}}]"
    )
    assert (fault.code, fault.suggestion) == ("DCL037", suggestion)


@pytest.mark.parametrize(
    "field",
    ["indexers: [{name: a, entryPoint: §handlers.index}]", "transform: {entryPoint: §handlers.index}"],
)
def test_where_a_function_is_needed_a_module_is_not_enough(only_fault, field):
    """An index and a transform are functions."""
    fault = only_fault(resource(field))
    assert (fault.code, fault.suggestion) == ("DCL037", 'write "handlers.index:name_of_the_function"')


@pytest.mark.parametrize(
    ("version", "suggestion"),
    [
        ("§^1.2", 'write it like ">=1.2"'),
        ("§v2", 'write it like ">=2"'),
        ("§latest", 'write it like ">=1.2,<2"'),
    ],
)
def test_bad_version_range(only_fault, version, suggestion):
    """Ranges are Python's, not another system's."""
    fault = only_fault(f"plugins: [{{name: a, version: {version}}}]")
    assert (fault.code, fault.suggestion) == ("DCL039", suggestion)


@pytest.mark.parametrize("manager", [f"§{'x' * 129}", '§"a\\tb"'])
def test_a_field_manager_is_one_that_an_api_server_takes(only_fault, manager):
    """A longer one would be refused at the first write; this is told before."""
    fault = only_fault(handler(f"fieldManager: {manager}"))
    assert (fault.code, fault.suggestion) == ("DCL035", "use at most 128 printable characters")


def test_an_empty_list_of_kinds_declares_nothing_and_is_refused(only_fault):
    """`applies: []` could mean none or all."""
    assert only_fault(handler("applies: §[]")).code == "DCL014"


@pytest.mark.parametrize("way", ["label", "annotation"])
@pytest.mark.parametrize(
    ("key", "advice"),
    [
        ("a b/c", "before the slash, write a domain, as in example.dev/app"),
        ("a/b/c", "before the slash, write a domain, as in example.dev/app"),
        ("//", "before the slash, write a domain, as in example.dev/app"),
        ("/x", "before the slash, write a domain, as in example.dev/app"),
        ("x/", "write the key of a label or an annotation, as in example.dev/app"),
        ("-x", "write the key of a label or an annotation, as in example.dev/app"),
        ("!x", "write the key of a label or an annotation, as in example.dev/app"),
        ("x=y", "write the key of a label or an annotation, as in example.dev/app"),
    ],
)
def test_a_mapping_names_a_key_that_an_object_can_have(faults, way, key, advice):
    """A label that no object can have would lead nowhere: it is shown at its place, with what to write."""
    watch = f"{{resourceRef: {{name: pods}}, mapTo: {{{way}: '{key}'}}}}"
    (fault,) = faults(handler(f"mode: Reconcile, watches: [{watch}]"))
    assert (fault.code, fault.line, fault.suggestion) == ("DCL035", 6, advice)
    assert f"mapTo.{way}" in fault.message


@pytest.mark.parametrize("way", ["label", "annotation"])
def test_a_mapping_names_any_key_that_an_object_can_have(loaded, way):
    """With a domain or without."""
    for key in ("app", "example.dev/App_1.x", "a"):
        watch = f"{{resourceRef: {{name: pods}}, mapTo: {{{way}: {key}}}}}"
        (read,) = loaded(handler(f"mode: Reconcile, watches: [{watch}]")).controller.handlers
        assert getattr(read.watches[0].map_to, way) == key
