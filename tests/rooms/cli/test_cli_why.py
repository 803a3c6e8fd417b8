"""`declctl why`: the table, the JSON, and what is refused."""

import json
from collections.abc import Callable

import pytest

from tests.rooms.cli.answering import Process

WRITE = {
    "time": "2026-01-02T02:00:00Z",
    "verb": "apply",
    "result": "succeeded",
    "manager": "declctl/guard/web",
    "handler": "web",
    "generation": 3,
    "calledFor": "team-a/shop",
    "requestId": "r1",
    "causes": ["Modified webapps team-a/shop (Watch)"],
    "resourceVersion": "7",
    "seconds": 0.01,
    "retries": 0,
    "error": "",
}
OWN = {
    "path": "data.a",
    "manager": "declctl/guard/web",
    "operation": "Apply",
    "subresource": "",
    "time": "2026-01-02T02:00:00Z",
    "handler": "web",
    "write": WRITE,
    "exact": True,
}
FORMER = {**OWN, "path": "data.b", "write": None}
OTHERS = {**OWN, "path": "data.c", "manager": "kubectl", "handler": None, "write": None}
FOUND = {
    "kind": "v1 ConfigMap",
    "resource": "configmaps",
    "key": "team-a/settings",
    "exists": True,
    "uid": "u",
    "resourceVersion": "9",
    "fields": [OWN, FORMER, OTHERS],
    "writes": [WRITE],
}


def test_each_field_has_its_handler_and_its_cause(declctl: Callable, process: Process):
    """Field, manager, handler, generation, cause; then the writes of the process."""
    process.answers(200, FOUND)
    ended = declctl("why", "configmaps/team-a/settings", "--admin", process.address)
    assert ended.status == 0, ended.err
    head, _, fields, own, former, others, *_ = ended.out.splitlines()
    assert head == "v1 ConfigMap team-a/settings (version 9)"
    assert fields.split() == ["FIELD", "MANAGER", "HANDLER", "GENERATION", "BECAUSE", "OF"]
    assert own.split() == ["data.a", "declctl/guard/web", "web", "3", *WRITE["causes"][0].split()]
    assert former.endswith("a write that this process does not remember")
    assert others.split() == ["data.c", "kubectl", "-", "-", "-"]
    assert "WRITE" in ended.out
    assert process.asked[-1][1] == "/why/configmaps/team-a/settings"


def test_one_field_is_asked_for(declctl: Callable, process: Process):
    """Only that is printed; its name is escaped."""
    process.answers(200, {**FOUND, "fields": [OWN]})
    ended = declctl("why", "configmaps/team-a/settings", 'data["a/b"]', "--admin", process.address)
    assert "WRITE" not in ended.out
    assert process.asked[-1][1] == "/why/configmaps/team-a/settings?field=data%5B%22a%2Fb%22%5D"


@pytest.mark.parametrize(
    ("what", "path"),
    [
        ("apps/v1/deployments/team-a/web", "/why/apps%2Fv1%2Fdeployments/team-a/web"),
        ("deployments.apps/team-a/web", "/why/deployments.apps/team-a/web"),
        ("namespaces/team-a", "/why/namespaces/team-a"),
    ],
)
def test_an_object_is_named_as_kubectl_does(declctl: Callable, process: Process, what: str, path: str):
    """With group and version, with the group, or with neither."""
    process.answers(200, FOUND)
    declctl("why", what, "--admin", process.address)
    assert process.asked[-1][1] == path


def test_json_is_the_document(declctl: Callable, process: Process):
    """For programs: all that the process says."""
    process.answers(200, FOUND)
    ended = declctl("why", "configmaps/team-a/settings", "-o", "json", "--admin", process.address)
    assert json.loads(ended.out) == FOUND


@pytest.mark.parametrize("what", ["configmaps", "/a", "configmaps/"])
def test_a_text_that_names_no_object_is_refused(declctl: Callable, process: Process, what: str):
    """Nothing is asked; the sentence has an example."""
    ended = declctl("why", what, "--admin", process.address)
    assert ended.status == 2
    assert "write RESOURCE/KEY, such as configmaps/default/settings" in ended.err
    assert not process.asked


def test_a_refusal_is_the_sentence_of_the_process(declctl: Callable, process: Process):
    """Such as an object that is not there."""
    process.answers(404, {"error": "The cluster has no v1 ConfigMap a/b"})
    ended = declctl("why", "configmaps/a/b", "--admin", process.address)
    assert (ended.status, "The cluster has no v1 ConfigMap a/b" in ended.err) == (2, True)


def test_a_field_of_nobody_is_told(declctl: Callable, process: Process):
    """An empty table would look as if something was wrong."""
    process.answers(200, {**FOUND, "fields": []})
    ended = declctl("why", "configmaps/team-a/settings", "spec", "--admin", process.address)
    assert "no manager owns spec" in ended.err


def test_a_write_that_is_only_the_newest_one_is_named_so(declctl: Callable, process: Process):
    """It may have changed another field: an answer that looks certain would lead to the wrong code."""
    process.answers(200, {**FOUND, "fields": [{**OWN, "exact": False}]})
    ended = declctl("why", "configmaps/team-a/settings", "data.a", "--admin", process.address)
    assert "Modified webapps team-a/shop (Watch) (newest write of this manager)" in ended.out


@pytest.mark.parametrize(
    ("suggestion", "ends"),
    [
        ("data.const", "has no field data.cosnt; did you mean data.const?\n"),
        ("", "has no field data.cosnt\n"),
    ],
)
def test_a_field_that_the_object_does_not_have_is_told_apart(
    declctl: Callable, process: Process, suggestion: str, ends: str
):
    """A typing error is no field without an owner: a script sees it by the exit status."""
    process.answers(200, {**FOUND, "fields": [], "hasField": False, "suggestion": suggestion})
    ended = declctl("why", "configmaps/team-a/settings", "data.cosnt", "--admin", process.address)
    assert ended.status == 1
    assert ended.err == f"v1 ConfigMap team-a/settings {ends}"
    as_json = declctl(
        "why", "configmaps/team-a/settings", "data.cosnt", "-o", "json", "--admin", process.address
    )
    assert as_json.status == 1
