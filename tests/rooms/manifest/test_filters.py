"""`filter` of a handler: what it means, and what is wrong with one."""

import pytest

from declctl.manifest import plan
from declctl.manifest.model import FilterSpec
from declctl.manifest.values import EntryPoint

HANDLER = (
    "resources: [{name: pods, apiVersion: v1, kind: Pod%s}]\n"
    "handlers: [{name: a, resourceRef: {name: pods}, entryPoint: m, filter: %s}]"
)


def _filter(loaded, text):
    controller = loaded(HANDLER % ("", text)).controller
    (handler,) = controller.handlers
    (planned,) = plan(controller).handlers
    assert planned.filter == handler.filter
    return handler.filter


def test_every_part_of_a_filter_is_read(loaded):
    """Selectors and paths are canonical, so that filters that say the same are equal."""
    wanted = FilterSpec(
        "app=web,tier in (a,b)", ("metadata.labels", "spec"), EntryPoint("m.f", "interesting")
    )
    parts = 'changedPaths: [spec, ".metadata.labels"], entryPoint: "m.f:interesting"'
    assert _filter(loaded, f'{{labelSelector: "tier in (b,a),app=web", {parts}}}') == wanted
    selector = "{matchLabels: {app: web}, matchExpressions: [{key: tier, operator: In, values: [a, b]}]}"
    assert _filter(loaded, f"{{labelSelector: {selector}, {parts}}}") == wanted


@pytest.mark.parametrize("text", ["{}", "{labelSelector: {}}", "{labelSelector: {matchLabels: {}}}"])
def test_a_filter_that_lets_everything_pass_is_none(loaded, text):
    """It costs nothing."""
    assert _filter(loaded, text) is None


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("{changedPaths: [spec, 'spec.§']}", "DCL034"),
        ("{changedPaths: §[]}", "DCL014"),
        ("{changedPaths: [spec, §spec]}", "DCL022"),
        ("{changedPaths: §spec}", "DCL010"),
        ("{labelSelector: {matchLabels: {app: §'a b'}}}", "DCL032"),
        ("{labelSelector: §'app=web,'}", "DCL032"),
        ("{entryPoint: §handlers.filters}", "DCL037"),
        ("{§paths: [spec]}", "DCL012"),
        ("{expression: §foo == 1}", "DCL023"),
        ("{expression: \"obj.status.phase §= 'Running'\"}", "DCL023"),
        ("{expression: 'obj.a == 1 + obj.b &&§ '}", "DCL023"),
        ("{expression: §'1'}", "DCL023"),
        ("{expression: §1}", "DCL009"),
        ("{expression: §''}", "DCL014"),
        ("§[spec]", "DCL010"),
    ],
)
def test_what_is_wrong_with_a_filter_is_shown_where_it_stands(only_fault, text, code):
    """Each fault once, at its place."""
    assert only_fault(HANDLER % ("", text)).code == code


@pytest.mark.parametrize("path", ["spec.nodeName", "status", "kind"])
def test_a_path_that_a_cache_of_metadata_does_not_have_is_refused(only_fault, path):
    """The handler would never hear a Modified, and nobody would know why."""
    fault = only_fault(HANDLER % (", cache: {mode: MetadataOnly}", f"{{changedPaths: [metadata, §{path}]}}"))
    assert (fault.code, fault.severity) == ("DCL017", "error")
    assert fault.message == (
        f"spec.handlers[0].filter.changedPaths[1] is {path}, and with cache.mode MetadataOnly objects have "
        "nothing but metadata"
    )


@pytest.mark.parametrize(
    ("resource", "path"),
    [
        ("", "metadata.managedFields[0].manager"),
        (", transform: {dropFields: [status]}", "status.phase"),
        (", transform: {dropFields: [status]}", "status"),
    ],
)
def test_a_path_that_is_dropped_is_a_warning(only_fault, resource, path):
    """Nothing ever changes there; the other paths of the filter go on to work."""
    fault = only_fault(HANDLER % (resource, f"{{changedPaths: [spec, §'{path}']}}"))
    assert (fault.code, fault.severity) == ("DCL017", "warning")
    assert fault.message.endswith("nothing ever changes there")


def test_a_path_around_what_is_dropped_is_fine(faults):
    """The rest of it may change; and with an empty list nothing is dropped."""
    assert faults(HANDLER % ("", "{changedPaths: [metadata]}")) == ()
    kept = ", transform: {dropFields: []}"
    assert faults(HANDLER % (kept, "{changedPaths: [metadata.managedFields]}")) == ()


def test_a_fault_of_an_expression_says_what_to_write(only_fault):
    """CEL's own message, at its own place."""
    fault = only_fault(HANDLER % ("", "{expression: \"obj.a == 1 && obj.b.startswith§('x')\"}"))
    assert fault.message == ("spec.handlers[0].filter.expression: undeclared reference to 'startswith'")
    assert fault.suggestion.startswith("the functions are size, has, startsWith")


EXPRESSION = (
    "resources: [{name: pods, apiVersion: v1, kind: Pod}]\n"
    "handlers:\n"
    "  - name: a\n"
    "    resourceRef: {name: pods}\n"
    "    entryPoint: m\n"
    "    filter:\n"
    "      expression: "
)


@pytest.mark.parametrize(
    "written",
    [
        "|\n        has(obj.status.phase) &&\n        §phase == 'Running'\n",
        "|-  # why\n\n        has(obj.a) &&\n\n          §phase == 'Running'\n",
        ">-\n        has(obj.a) &&\n        §phase == 'Running'\n",
        "!!str |2-\n            has(obj.a) && §phase == 'Running'\n",
        "|-\n        has(obj.a) && §phase == 'Running'\n",
        "has(obj.a) &&\n        §phase == 'Running'\n",
        "\"has(obj.a) &&\n        §phase == 'Running'\"\n",
        "\"has(obj.a) && §phase == 'a\\tb'\"\n",
        "§'obj.a == ''x'' && phase == 1'\n",
        "§\"'a\\tb' == obj.a && phase == 1\"\n",
    ],
)
def test_a_fault_of_an_expression_is_at_its_line_and_column(only_fault, written):
    """In blocks and on several lines, too; behind an escape it is at the beginning of the value."""
    assert "undeclared reference to 'phase'" in only_fault(EXPRESSION + written).message


def test_an_expression_of_several_lines_names_the_line(only_fault):
    """The message has the place within the expression, which other tools show."""
    fault = only_fault(EXPRESSION + "|\n        has(obj.status.phase) &&\n        §phase == 'Running'\n")
    assert "undeclared reference to 'phase' (line 2, column 1 of the expression)" in fault.message


@pytest.mark.parametrize(
    ("expression", "says", "advice"),
    [
        (
            "change.type == §'Foo'",
            'change.type with "Foo", which it never is',
            "the values are Added, Modified",
        ),
        ("has(obj.a) && §'added' != change.type", "change.type with", 'did you mean "Added"?'),
        ("change.type in ['Added', §'Removed']", 'change.type with "Removed"', "the values are Added"),
        ("change.reason == §'Resyncs'", "change.reason with", 'did you mean "Resync"?'),
        ("[1].all(x, change.type != §'' || x == 1)", 'change.type with ""', "the values are Added"),
    ],
)
def test_a_change_that_there_is_not_is_a_warning(only_fault, expression, says, advice):
    """The expression is valid, and the handler would never be called, or always."""
    fault = only_fault(HANDLER % ("", f'{{expression: "{expression}"}}'))
    assert (fault.code, fault.severity) == ("DCL017", "warning")
    assert says in fault.message
    assert fault.suggestion.startswith(advice)


@pytest.mark.parametrize(
    "expression",
    [
        "change.type in ['Added', 'Deleted'] || change.reason == 'OutOfScope'",
        "obj.type == 'Foo' && change.initial",
        "change.type == obj.data.type",
    ],
)
def test_a_change_that_there_is_and_any_other_field_may_have_the_value(faults, expression):
    """Nothing is said of values that only the objects know."""
    assert faults(HANDLER % ("", f'{{expression: "{expression}"}}')) == ()


def test_a_watch_is_warned_of_a_change_that_there_is_not(faults):
    """As a handler."""
    watch = "{resourceRef: {name: pods}, mapTo: {owner: Any}, filter: {expression: \"change.type == 'Foo'\"}}"
    found = faults(
        "resources: [{name: pods, apiVersion: v1, kind: Pod}, {name: sets, apiVersion: v1, kind: Set}]\n"
        "handlers: [{name: a, mode: Reconcile, resourceRef: {name: sets}, entryPoint: m, "
        f"watches: [{watch}]}}]"
    )
    assert [fault.message for fault in found] == [
        'spec.handlers[0].watches[0].filter.expression compares change.type with "Foo", which it never is'
    ]


def test_an_expression_from_the_environment_is_not_shown(faults):
    """A variable may be a secret."""
    fragment = HANDLER % ("", "{expression: '${env:SECRET}'}")
    (fault,) = faults(fragment, environ={"SECRET": "hunter2 =="})
    assert fault.code == "DCL023"
    assert "hunter2" not in str(fault)
    assert faults(fragment, environ={"SECRET": "change.type == 'hunter2'"}) == ()


@pytest.mark.parametrize(
    ("expression", "objects", "changes"),
    [
        ("obj.status.phase == 'x'", True, False),
        ("change.type == 'Added'", False, True),
        ("old == null || obj.spec != old.spec", False, True),
    ],
)
def test_an_expression_judges_objects_or_changes(loaded, expression, objects, changes):
    """A reload judges cached objects again only for the first kind."""
    found = _filter(loaded, f'{{expression: "{expression}", changedPaths: [spec]}}')
    assert found.expression == expression
    assert (found.object_part != FilterSpec(), found.judges_changes) == (objects, changes)


@pytest.mark.parametrize("read", ["obj.status.§phase == 'x'", "obj.metadata.name == old.spec.§x"])
def test_a_field_that_a_cache_of_metadata_does_not_have_is_refused(only_fault, read):
    """The expression would fail on every object."""
    fault = only_fault(HANDLER % (", cache: {mode: MetadataOnly}", f'{{expression: "{read}"}}'))
    assert (fault.code, fault.severity) == ("DCL017", "error")
    assert fault.message.endswith("and with cache.mode MetadataOnly objects have nothing but metadata")


def test_a_dropped_field_in_an_expression_is_a_warning(only_fault):
    resource = ", transform: {dropFields: [status]}"
    fault = only_fault(HANDLER % (resource, '{expression: "obj.spec.a == 1 && has(§obj.status.phase)"}'))
    assert (fault.code, fault.severity) == ("DCL017", "warning")
    assert "reads obj.status.phase, and the resource drops status: it is always missing" in fault.message
