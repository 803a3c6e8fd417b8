"""Namespaces in a manifest: a list, a selector of their labels, or all; of the spec, or of a resource."""

import pytest

from declctl.manifest import ManifestSource, load

HEAD = "apiVersion: declctl.dev/v1alpha1\nkind: Controller\nmetadata: {name: guard}\nspec:\n"
PODS = "  resources: [{name: pods, apiVersion: v1, kind: Pod%s}]\n"
RESOURCE = "resources: [{name: pods, apiVersion: v1, kind: Pod, namespaces: %s}]"


def namespaces(text: str) -> tuple[tuple[str, ...] | None, str, bool]:
    """The names, the selector, and whether they come from the spec, of the only resource."""
    [resource] = load(
        ManifestSource("manifest.yaml", (HEAD + text).encode()), environ={}
    ).controller.resources
    return resource.namespaces, resource.namespace_selector, resource.namespaces_inherited


@pytest.mark.parametrize(
    ("text", "selector"),
    [
        ("{labelSelector: {matchLabels: {team: web}}}", "team=web"),
        ("{labelSelector: 'tier in (b,a),team=web'}", "team=web,tier in (a,b)"),
        ("{labelSelector: {matchExpressions: [{key: team, operator: Exists}]}}", "team"),
        ("{labelSelector: '!team'}", "!team"),
    ],
)
def test_a_selector_is_read_in_both_forms(text, selector):
    """As one text, by which equal selectors share one watch of namespaces."""
    assert namespaces(PODS % f", namespaces: {text}") == (None, selector, False)
    assert namespaces(PODS % "" + f"  namespaces: {text}\n") == (None, selector, True)


@pytest.mark.client_go(329)
def test_what_a_resource_names_goes_before_the_spec():
    """A list in the place of a selector, a selector in the place of a list, and all in the place of both."""
    selector = "  namespaces: {labelSelector: team=web}\n"
    assert namespaces(PODS % ", namespaces: [a]" + selector) == (("a",), "", False)
    assert namespaces(PODS % ', namespaces: ["*"]' + selector) == (None, "", False)
    own = PODS % ", namespaces: {labelSelector: team=api}"
    assert namespaces(f"{own}  namespaces: [a]\n") == (None, "team=api", False)


@pytest.mark.parametrize("selector", ["{}", "''", "{matchLabels: {}}"])
def test_an_empty_selector_is_all_namespaces(selector):
    """It matches every namespace: one watch of all of them has the same objects."""
    assert namespaces(PODS % f", namespaces: {{labelSelector: {selector}}}") == (None, "", False)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("{labelSelector: §'team in (a,,'}", "DCL032"),
        ("{labelSelector: {matchLabels: {team: §'not a value'}}}", "DCL032"),
        ("{labelSelector: {matchExpressions: [{key: team, operator: §Near}]}}", "DCL013"),
        ("{labelSelector: §[a]}", "DCL010"),
        ("§{}", "DCL011"),
        ("§web", "DCL010"),
    ],
)
def test_a_selector_that_can_not_be_read_is_located(only_fault, text, code):
    """In the spec and at a resource, at the place of the fault."""
    for fragment in (f"namespaces: {text}", RESOURCE % text):
        assert only_fault(fragment).code == code
