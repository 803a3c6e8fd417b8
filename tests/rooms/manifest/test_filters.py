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
