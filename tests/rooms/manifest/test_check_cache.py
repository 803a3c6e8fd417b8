"""`cache: {mode: MetadataOnly}`: what needs more than metadata is refused where it stands."""

import pytest

RESOURCE = "resources: [{name: pods, apiVersion: v1, kind: Pod, cache: {mode: %s}, %s}]"


@pytest.mark.parametrize("path", ["spec.nodeName", "status", "kind"])
def test_an_index_by_another_field_than_metadata_is_refused(only_fault, path):
    """It would be empty for ever, and nobody would know why."""
    fault = only_fault(RESOURCE % ("MetadataOnly", f"indexers: [{{name: it, fieldPath: §{path}}}]"))
    assert (fault.code, fault.severity) == ("DCL017", "error")
    assert fault.message == (
        f"spec.resources[0].indexers[0].fieldPath is {path}, and with cache.mode MetadataOnly objects have "
        "nothing but metadata"
    )
    assert fault.suggestion == "index by a field of metadata, or write cache: {mode: Frames}"


def test_a_dropped_field_that_is_never_there_is_a_warning(only_fault):
    """It does no harm, and somebody thinks that it does something."""
    dropped = "transform: {dropFields: [metadata.managedFields, §status]}"
    fault = only_fault(RESOURCE % ("MetadataOnly", dropped))
    assert (fault.code, fault.severity, fault.suggestion) == ("DCL017", "warning", "remove it")


@pytest.mark.parametrize(
    ("mode", "rest"),
    [
        ("MetadataOnly", "indexers: [{name: a, fieldPath: metadata.annotations.x}]"),
        ("MetadataOnly", "indexers: [{name: b, entryPoint: 'm:f'}]"),
        ("MetadataOnly", "transform: {dropFields: [metadata.annotations]}"),
        ("Frames", "indexers: [{name: it, fieldPath: spec.nodeName}]"),
        ("Objects", "indexers: [{name: it, fieldPath: spec.nodeName}], transform: {dropFields: [status]}"),
    ],
)
def test_what_can_be_done_is_fine(faults, mode, rest):
    """Fields of metadata, functions, and every field where whole objects are asked for."""
    assert faults(RESOURCE % (mode, rest)) == ()


def test_a_path_that_is_wrong_is_not_blamed_twice(only_fault):
    """One cause, one diagnostic."""
    fault = only_fault(RESOURCE % ("MetadataOnly", "indexers: [{name: it, fieldPath: 'spec.§-'}]"))
    assert fault.code == "DCL034"


WATCH = """
resources:
  - {name: apps, apiVersion: apps/v1, kind: Deployment}
  - {name: pods, apiVersion: v1, kind: Pod, %s}
handlers:
  - name: a
    mode: Reconcile
    resourceRef: {name: apps}
    entryPoint: m
    watches: [{resourceRef: {name: pods}, %s}]
"""
BARE = "cache: {mode: MetadataOnly}"
DROPPED = "transform: {dropFields: [status, metadata.ownerReferences, metadata.annotations]}"


@pytest.mark.parametrize(
    "rest",
    [
        "mapTo: {owner: Any}, filter: {expression: \"obj.status.§phase == 'Failed'\"}",
        "mapTo: {owner: Any}, filter: {changedPaths: [§status]}",
        "mapTo: {fieldPath: §spec.nodeName}",
    ],
)
def test_a_watch_that_reads_more_than_the_cache_has_is_refused(only_fault, rest):
    """As in a handler: its changes would never lead to a key, and nobody would know why."""
    fault = only_fault(WATCH % (BARE, rest))
    assert (fault.code, fault.severity) == ("DCL017", "error")
    assert "spec.handlers[0].watches[0]." in fault.message
    assert "with cache.mode MetadataOnly objects have nothing but metadata" in fault.message


@pytest.mark.parametrize(
    ("rest", "field"),
    [
        ("mapTo: {label: x}, filter: {expression: \"obj.status.§phase == 'Failed'\"}", "status"),
        ("mapTo: {label: x}, filter: {changedPaths: [§status.phase]}", "status"),
        ("mapTo: {fieldPath: §status.nominatedNodeName}", "status"),
        ("mapTo: {owner: §Controller}", "metadata.ownerReferences"),
        ("mapTo: {annotation: §example.dev/app}", "metadata.annotations"),
    ],
)
def test_a_watch_that_reads_a_dropped_field_is_a_warning(only_fault, rest, field):
    """The resource itself takes away what the watch looks for."""
    fault = only_fault(WATCH % (DROPPED, rest))
    assert (fault.code, fault.severity) == ("DCL017", "warning")
    assert f"the resource drops {field}" in fault.message
    assert fault.suggestion.endswith(f"take {field} out of transform.dropFields")


@pytest.mark.parametrize(
    ("resource", "rest"),
    [
        (BARE, "mapTo: {owner: Any}, filter: {changedPaths: [metadata.labels]}"),
        (BARE, 'mapTo: {annotation: x}, filter: {expression: "has(obj.metadata.labels.a)"}'),
        (BARE, "mapTo: {fieldPath: metadata.annotations.x}"),
        (DROPPED, "mapTo: {label: x}, filter: {labelSelector: a=b}"),
        (DROPPED, "mapTo: {fieldPath: spec.nodeName}, filter: {entryPoint: 'm:f'}"),
        ("cache: {mode: Frames}", "mapTo: {fieldPath: status.phase}"),
    ],
)
def test_a_watch_that_reads_what_is_cached_is_fine(faults, resource, rest):
    """Nothing is said about it."""
    assert faults(WATCH % (resource, rest)) == ()
