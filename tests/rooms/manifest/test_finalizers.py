"""`finalizer` of a handler: what it means, and what is wrong with one."""

import pytest

MANIFEST = (
    "resources: [{name: apps, apiVersion: example.dev/v1, kind: App%s}, "
    "{name: new-apps, apiVersion: example.dev/v2, kind: App}]\n"
    "handlers: [{name: a, resourceRef: {name: apps}, entryPoint: m%s}%s]"
)


def test_a_finalizer_is_read(loaded):
    """With mode Reconcile; without the field there is none."""
    text = ", mode: Reconcile, finalizer: example.dev/App_1.x"
    (handler,) = loaded(MANIFEST % ("", text, "")).controller.handlers
    assert handler.finalizer == "example.dev/App_1.x"
    (handler,) = loaded(MANIFEST % ("", ", mode: Reconcile", "")).controller.handlers
    assert handler.finalizer == ""


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("mode: Reconcile, finalizer: §webapp", "DCL035"),
        ("mode: Reconcile, finalizer: §Example.dev/webapp", "DCL035"),
        ("mode: Reconcile, finalizer: §example.dev/-webapp", "DCL035"),
        ("mode: Reconcile, finalizer: §example.dev/", "DCL035"),
        ("mode: Reconcile, finalizer: §example.dev/a/b", "DCL035"),
        (f"mode: Reconcile, finalizer: §example.dev/{64 * 'a'}", "DCL035"),
        ("mode: Reconcile, finalizer: §[example.dev/a]", "DCL010"),
        ("mode: Reconcile, finalizer: §''", "DCL014"),
        ("mode: Reconcile, §finalizers: [example.dev/a]", "DCL012"),
        ("§finalizer: example.dev/a", "DCL017"),
    ],
)
def test_what_is_wrong_with_a_finalizer_is_shown_where_it_stands(only_fault, text, code):
    """The names are those that the API server takes; an event handler has none."""
    assert only_fault(MANIFEST % ("", f", {text}", "")).code == code


def test_two_handlers_of_a_kind_do_not_share_one(only_fault):
    """Also of two versions of the kind: the first of them that succeeds would remove it for both."""
    other = ", {name: b, resourceRef: {name: %s}, entryPoint: m, mode: Reconcile, finalizer: §example.dev/a}"
    for resource in ("apps", "new-apps"):
        fault = only_fault(MANIFEST % ("", ", mode: Reconcile, finalizer: example.dev/a", other % resource))
        assert fault.code == "DCL021"
        assert "another handler of App has the finalizer" in fault.message


@pytest.mark.parametrize("field", ["metadata.finalizers", "metadata.deletionTimestamp"])
def test_a_finalizer_needs_fields_of_the_metadata(only_fault, field):
    """A cache without them would show no object as deleted."""
    dropped = f", transform: {{dropFields: [{field}]}}"
    fault = only_fault(MANIFEST % (dropped, ", mode: Reconcile, finalizer: §example.dev/a", ""))
    assert (fault.code, field in fault.message) == ("DCL017", True)
