"""What isn't YAML: shown where the parser stopped, with advice for the usual causes."""

import pytest


@pytest.mark.parametrize(
    ("fragment", "advice"),
    [
        ("plugins:\n  - name: a§: b", 'put the value in quotes if it holds ": "'),
        ("namespaces: [*§]", 'put the value in quotes if it begins with "*"'),
        ("namespaces: [a\nreload§: {}", 'close the list with "]"'),
        ("reload: {settle: 1s\nadmin§: {}", 'close the mapping with "}"'),
        ("reload:\n  settle: 1s\n §admin: {}", "indent this line like its siblings above"),
        ("admin: {bindAddress: §@x}", "put the value in quotes"),
        ('plugins: [{name: "a§\\d"}]', "use single quotes"),
        ("plugins: [§*missing]", 'write the anchor first, or put the text in quotes if it begins with "*"'),
    ],
)
def test_a_text_that_is_not_yaml(only_fault, fragment, advice):
    """The place and the usual remedy."""
    fault = only_fault(fragment)
    assert fault.code == "DCL001"
    assert fault.suggestion.startswith(advice)


def test_a_template_is_told_to_be_rendered(only_fault):
    """A Helm template isn't YAML yet."""
    fault = only_fault("namespaces: [{{ .Values.a }}§{{ .Values.b }}]")
    assert fault.code == "DCL001"
    assert fault.suggestion == "this looks like a template: render it first (for example with helm template)"


def test_a_tab_is_shown_at_the_tab(only_fault):
    """Tabs can't be seen, so the caret points at one."""
    fault = only_fault("resources:\n§\t- name: pods")
    assert (fault.code, fault.suggestion) == ("DCL002", "use spaces; most editors can convert tabs")


def test_a_key_twice_names_both_places(only_fault):
    """YAML readers differ in which wins, so it is an error."""
    fault = only_fault("reload:\n  settle: 1s\n  §settle: 2s")
    assert (fault.code, fault.suggestion) == ("DCL003", "remove one, or merge the two")
    assert fault.message == 'the key "settle" is here twice: first at line 6, column 5'


@pytest.mark.parametrize("tag", ["!!python/object:os.system", "!custom", "!!binary"])
def test_tags_have_no_meaning(only_fault, tag):
    """No tag makes objects of text."""
    fault = only_fault(f"plugins: [{{name: a, config: {{x: §{tag} y}}}}]")
    assert (fault.code, fault.suggestion) == ("DCL001", "remove the tag")


def test_merging_something_else_than_a_mapping(only_fault):
    """`<<` needs a mapping."""
    fault = only_fault("reload: {<<: §1}")
    assert (fault.code, fault.suggestion) == ("DCL001", "write *name of an anchored mapping")


def test_an_open_bracket_is_named(only_fault):
    """The fault shows where the parser gave up; the message says where the list began."""
    fault = only_fault("namespaces: [a,\n  b\nreload§: {}")
    assert fault.message.endswith("(while parsing a flow sequence that begins at line 5, column 15)")
