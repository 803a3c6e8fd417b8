"""URL paths of an API server, read backwards: the resource and the object of a request."""

import re
from urllib.parse import unquote

import msgspec

from declctl.objects.resource import ObjectKey

# An address may have a path of its own before that of the API, as behind a proxy for several clusters.
_API = re.compile(r"/(?:api/(?P<core>v[0-9][^/]*)|apis/(?P<group>[^/]+)/(?P<version>[^/]+))/(?P<rest>.+)$")


class ApiPath(msgspec.Struct, frozen=True):
    """The parts of a path. `name` is empty for a collection, and `namespace` is None without one."""

    group: str
    version: str
    plural: str
    namespace: str | None
    name: str
    subresource: str

    @property
    def resource(self) -> str:
        """As `str(Resource)`: `deployments.apps`, or `pods`."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def key(self) -> ObjectKey:
        """The key of the object. The name is empty for a collection."""
        return ObjectKey.of(self.namespace, self.name)


def parse_api_path(path: str) -> ApiPath | None:
    """The parts of the path of a resource; None for any other path. The counterpart of `Resource.path`."""
    found = _API.search(path)
    if found is None:
        return None
    group, version = found["group"] or "", found["core"] or found["version"]
    parts = [unquote(part) for part in found["rest"].split("/")]
    namespace = None
    # Namespaces have the subresources `status` and `finalize`; any other third part is a resource.
    if parts[0] == "namespaces" and len(parts) > 2 and not (not group and parts[2] in ("status", "finalize")):
        namespace, parts = parts[1], parts[2:]
    plural, name, *below = [*parts, ""] if len(parts) == 1 else parts
    return ApiPath(group, version, plural, namespace, name, "/".join(below))


def is_about_secrets(path: str) -> bool:
    """Whether the path of a request is that of Secrets, or of one of them."""
    if "/secrets" not in path:
        return False
    found = parse_api_path(path)
    return found is not None and found.resource == "secrets"
