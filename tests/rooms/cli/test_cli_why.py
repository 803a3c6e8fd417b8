"""`declctl why`: the table, the JSON, and what is refused."""

from typing import Any

import pytest
import yaml

SETTINGS = "configmaps/team-a/settings"
WRITE: dict[str, Any] = yaml.safe_load("""
{time: "2026-01-02T02:00:00Z", verb: apply, result: succeeded, manager: declctl/guard/web, handler: web,
 generation: 3, calledFor: team-a/shop, requestId: r1, causes: [Modified webapps team-a/shop (Watch)],
 resourceVersion: "7", seconds: 0.01, retries: 0, error: ""}
""")
OWN = yaml.safe_load("""
{path: data.a, manager: declctl/guard/web, operation: Apply, subresource: "", time: "2026-01-02T02:00:00Z",
 handler: web, exact: true}
""") | {"write": WRITE}


FORMER = {**OWN, "path": "data.b", "write": None}
OTHERS = {**FORMER, "path": "data.c", "manager": "kubectl", "operation": "Update", "handler": None}
FOUND = {
    "kind": "v1 ConfigMap",
    "resource": "configmaps",
    "key": "team-a/settings",
    "exists": True,
    "uid": "u",
}
FOUND |= {"resourceVersion": "9", "fields": [OWN, FORMER, OTHERS], "writes": [WRITE]}
FOUND |= {"writeLoops": ["web team-a/shop: its writes come back"]}


def test_each_field_has_its_handler_and_its_cause(ask, process):
    """Field, manager, handler, generation, cause; then the writes of the process. JSON has all it says."""
    process.answers(200, FOUND)
    ended = ask.done("why", SETTINGS)
    head, _, fields, own, former, others, *_ = ended.lines
    assert head == "v1 ConfigMap team-a/settings (version 9)"
    assert fields.split() == ["FIELD", "MANAGER", "HANDLER", "GENERATION", "BECAUSE", "OF"]
    assert own.split() == ["data.a", "declctl/guard/web", "web", "3", *WRITE["causes"][0].split()]
    assert former.endswith("a write that this process does not remember")
    assert others.split() == ["data.c", "kubectl", "(Update)", "-", "-", "-"]
    assert "write loop: web team-a/shop: its writes come back" in ended.lines
    assert "WRITE" in ended.out
    assert process.asked[-1][1] == "/why/configmaps/team-a/settings"
    assert ask("why", SETTINGS, "-o", "json").document == FOUND


def test_one_field_is_asked_for(ask, process):
    """Only that is printed; its name is escaped; one of nobody would be an empty table."""
    process.answers(200, {**FOUND, "fields": [OWN]})
    assert "WRITE" not in ask("why", SETTINGS, 'data["a/b"]').out
    assert process.asked[-1][1] == "/why/configmaps/team-a/settings?field=data%5B%22a%2Fb%22%5D"
    process.answers(200, {**FOUND, "fields": []})
    assert ask("why", SETTINGS, "spec").err == "no manager owns spec\n"
    process.answers(200, {**FOUND, "fields": [], "hasManagers": False})
    assert "no manager owns a field: it has no metadata.managedFields" in ask("why", SETTINGS).err


@pytest.mark.parametrize(
    ("what", "path"),
    [
        ("apps/v1/deployments/team-a/web", "/why/apps%2Fv1%2Fdeployments/team-a/web"),
        ("deployments.apps/team-a/web", "/why/deployments.apps/team-a/web"),
        ("namespaces/team-a", "/why/namespaces/team-a"),
    ],
)
def test_an_object_is_named_as_kubectl_does(ask, process, what, path):
    """With group and version, with the group, or with neither."""
    process.answers(200, FOUND)
    ask("why", what)
    assert process.asked[-1][1] == path


@pytest.mark.parametrize("what", ["configmaps", "/a", "configmaps/"])
def test_a_text_that_names_no_object_is_refused(ask, process, what):
    """Nothing is asked; the sentence has an example."""
    assert "write RESOURCE/KEY, such as configmaps/default/settings" in ask.refused("why", what)
    assert not process.asked


def test_a_write_that_is_only_the_newest_one_is_named_so(ask, process):
    """It may have changed another field: an answer that looks certain would lead to the wrong code."""
    process.answers(200, {**FOUND, "fields": [{**OWN, "exact": False}]})
    said = "Modified webapps team-a/shop (Watch) (newest write of this manager)"
    assert said in ask("why", SETTINGS, "data.a").out


@pytest.mark.parametrize(
    ("suggestion", "ends"), [("data.const", "; did you mean data.const?\n"), ("", "\n")], ids=["near", "far"]
)
def test_a_field_that_the_object_does_not_have_is_told_apart(ask, process, suggestion, ends):
    """A typing error is no field without an owner: a script sees it by the exit status."""
    process.answers(200, {**FOUND, "fields": [], "hasField": False, "suggestion": suggestion})
    ended = ask("why", SETTINGS, "data.cosnt")
    assert ended.status == ask("why", SETTINGS, "data.cosnt", "-o", "json").status == 1
    assert ended.err == f"v1 ConfigMap team-a/settings has no field data.cosnt{ends}"
