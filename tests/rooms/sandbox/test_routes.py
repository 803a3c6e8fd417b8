"""From URLs to verbs, and what is served where."""

import json

import pytest

from declctl.sandbox import kinds
from declctl.sandbox.discovery import static_answer
from declctl.sandbox.kinds import Registry
from declctl.sandbox.requests import resolve
from declctl.sandbox.status import Refusal
from tests.rooms.sandbox.shapes import definition

PODS = "/api/v1/namespaces/team/pods"


def call(method, path, **query):
    found = resolve(method, path, query, Registry())
    return found and (found.verb, found.resource, found.namespace, found.name)


@pytest.mark.parametrize(
    ("method", "path", "expected"),
    [
        ("GET", "/api/v1/pods", ("list", "pods", "", "")),
        ("GET", PODS, ("list", "pods", "team", "")),
        ("POST", PODS, ("create", "pods", "team", "")),
        ("DELETE", PODS, ("deletecollection", "pods", "team", "")),
        ("GET", f"{PODS}/web", ("get", "pods", "team", "web")),
        ("PUT", f"{PODS}/web/status", ("update", "pods/status", "team", "web")),
        ("PATCH", f"{PODS}/web", ("patch", "pods", "team", "web")),
        ("DELETE", f"{PODS}/web", ("delete", "pods", "team", "web")),
        ("GET", "/api/v1/namespaces", ("list", "namespaces", "", "")),
        ("GET", "/api/v1/namespaces/team", ("get", "namespaces", "", "team")),
        ("PUT", "/api/v1/namespaces/team/status", ("update", "namespaces/status", "", "team")),
        ("GET", "/apis/apps/v1/namespaces/a/deployments/d/scale", ("get", "deployments/scale", "a", "d")),
        ("GET", "/apis/rbac.authorization.k8s.io/v1/clusterroles/system%3Anode", ("get", "clusterroles", "",
         "system:node")),
        ("GET", "/metrics", None),
    ],
)  # fmt: skip
def test_urls_are_read_as_kubernetes_reads_them(method, path, expected):
    """Method and path give verb, resource, namespace and name."""
    assert call(method, path) == expected


def test_a_list_with_watch_is_a_watch():
    """watch=true or 1 makes a LIST a WATCH, watch=false doesn't."""
    assert call("GET", PODS, watch="true")[0] == "watch"
    assert call("GET", PODS, watch="1")[0] == "watch"
    assert call("GET", PODS, watch="false")[0] == "list"


@pytest.mark.parametrize(
    ("method", "path", "code"),
    [
        ("GET", "/api/v1/nopes", 404),
        ("GET", "/api/v1/namespaces/a/nodes", 404),
        ("GET", f"{PODS}/web/log", 404),
        ("GET", "/api/v1/namespaces/a/configmaps/x/status", 404),
        ("POST", "/api/v1/pods", 405),
        ("DELETE", "/api/v1/pods", 405),
        ("DELETE", "/api/v1/namespaces", 405),
        ("PUT", PODS, 405),
        ("POST", f"{PODS}/web", 405),
        ("DELETE", f"{PODS}/web/status", 405),
    ],
)
def test_what_is_not_served_is_refused(method, path, code):
    """Unknown resources are 404, verbs that they don't have are 405."""
    with pytest.raises(Refusal) as refused:
        call(method, path)
    assert refused.value.code == code


def page(path, registry=None):
    answer = static_answer("GET", path, registry or Registry())
    return answer and json.loads(answer.body)


def with_widgets():
    registry = Registry()
    registry.add(kinds.kinds_of(kinds.established(definition(), "")))
    return registry


def test_discovery_tells_every_kind():
    """Groups, versions and resources of built-in and custom kinds are listed, with their subresources."""
    assert page("/api")["versions"] == ["v1"]
    groups = {group["name"]: group for group in page("/apis", registry=with_widgets())["groups"]}
    assert {"apps", "batch", "example.com", "authorization.k8s.io"} <= groups.keys()
    assert groups["example.com"]["preferredVersion"]["version"] == "v1"
    assert page("/apis/apps")["kind"] == "APIGroup"
    names = {entry["name"]: entry for entry in page("/apis/apps/v1")["resources"]}
    assert names["deployments/scale"]["kind"] == "Scale"
    assert names["deployments"]["shortNames"] == ["deploy"]
    assert page("/apis/nope.example.com") is None


def test_openapi_allows_server_side_validation():
    """For kubectl, each PATCH has fieldValidation and dryRun, and custom kinds have their schema."""
    registry = with_widgets()
    assert "apis/example.com/v1" in page("/openapi/v3", registry=registry)["paths"]
    document = page("/openapi/v3/apis/example.com/v1", registry=registry)
    (operations,) = document["paths"].values()
    assert {"dryRun", "fieldValidation"} <= {p["name"] for p in operations["patch"]["parameters"]}
    (schema,) = document["components"]["schemas"].values()
    assert schema["properties"]["spec"]["properties"]["size"] == {"type": "integer"}


def test_openapi_changes_its_hash_with_the_kinds():
    """A cache of OpenAPI documents is not used for kinds that came later."""
    before, after = (page("/openapi/v3", registry=r)["paths"]["api/v1"] for r in (Registry(), with_widgets()))
    assert before != after


@pytest.mark.parametrize("path", ["/healthz", "/livez", "/readyz", "/readyz/ping"])
def test_probes_are_ok(path):
    assert static_answer("GET", path, Registry()).body == b"ok"
