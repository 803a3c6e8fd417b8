"""Paths of an API server, read backwards."""

import pytest

from declctl.objects.api_path import parse_api_path


@pytest.mark.parametrize(
    ("path", "resource", "key", "subresource"),
    [
        ("/api/v1/namespaces/a/pods/b", "pods", "a/b", ""),
        ("/api/v1/namespaces/a/pods/b/status", "pods", "a/b", "status"),
        ("/api/v1/namespaces/a/pods", "pods", "a/", ""),
        ("/api/v1/namespaces", "namespaces", "", ""),
        ("/api/v1/namespaces/a", "namespaces", "a", ""),
        ("/api/v1/namespaces/a/status", "namespaces", "a", "status"),
        ("/api/v1/namespaces/a/finalize", "namespaces", "a", "finalize"),
        ("/api/v1/nodes/n", "nodes", "n", ""),
        ("/apis/apps/v1/namespaces/a/deployments/b/scale", "deployments.apps", "a/b", "scale"),
        ("/apis/rbac.authorization.k8s.io/v1/clusterroles/a%3Ab", "clusterroles.rbac.authorization.k8s.io",
         "a:b", ""),
        ("/k8s/clusters/c-1/api/v1/nodes/n", "nodes", "n", ""),
        ("/api/v1/namespaces/a/services/b/proxy/x/y", "services", "a/b", "proxy/x/y"),
    ],
)  # fmt: skip
def test_a_path_names_a_resource_and_an_object(path: str, resource: str, key: str, subresource: str) -> None:
    """What an official client has written is shown by its key, as any other write."""
    found = parse_api_path(path)
    assert found is not None
    assert (found.resource, found.key, found.subresource) == (resource, key, subresource)


@pytest.mark.parametrize("path", ["/version", "/apis", "/api/v1", "/apis/apps/v1", "/healthz/api"])
def test_another_path_names_none(path: str) -> None:
    """It is shown as it is."""
    assert parse_api_path(path) is None
