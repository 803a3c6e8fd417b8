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
