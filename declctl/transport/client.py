"""The client: finds a server, logs in, and sends requests.

Answers are values of `objects`, faults are errors of `declctl.errors`. Other rooms use this class alone.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import cache
from importlib import metadata
from types import MappingProxyType
from typing import Any

from declctl.decoding.decoders import Transform
from declctl.decoding.projection import Projection
from declctl.kit import Clock, SystemClock
from declctl.kit.hosts import ServerUrl
from declctl.kit.secret_values import secret_values
from declctl.objects import PARTIAL_OBJECT_METADATA, GroupVersionKind, KubeObject, Resource
from declctl.objects.api_path import is_about_secrets
from declctl.objects.managed_fields import CLIENT_MANAGER
from declctl.transport.config import Cluster, Identity, authority_of, cluster_of, find_cluster
from declctl.transport.credentials import Credentials
from declctl.transport.discovery import Discovery
from declctl.transport.health import ServerHealth
from declctl.transport.messages import (
    ApiRequest,
    TransportCounters,
    TransportStatistics,
    Wire,
    json_object,
)
from declctl.transport.official import ClientGate, ClientObserver, OfficialClients
from declctl.transport.source import ResourceSource
from declctl.transport.warnings import WarningHeaders

_NO_PARAMS: Mapping[str, str] = MappingProxyType({})


class Client:
    """A client of one cluster. Used on one loop, and closed by its owner.

    `connect`, `from_kubeconfig_dict` and `from_api_client` make it. The constructor takes a cluster that was
    found and logged in to; `clock` is the system's by default; `given` is an official ApiClient of the
    caller.

    Every request raises the ApiError family: Unreachable if no answer came, otherwise the StatusError of the
    answer.
    """

    def __init__(self, cluster: Cluster, *, clock: Clock | None = None, given: Any = None) -> None:
        # Late: the wire imports asyncio's TLS, and `import declctl.transport` has to be quick.
        from declctl.transport.wire import HttpWire

        self.identity: Identity = cluster.identity
        self._cluster = cluster
        clock = clock or SystemClock()
        user_agent = f"{CLIENT_MANAGER}/{_version()}"
        headers = {**(given.default_headers if given is not None else {}), "User-Agent": user_agent}
        self._counters = TransportCounters()
        self.warnings = WarningHeaders()  # of all requests, also of those of the official clients
        self._credentials = Credentials(cluster.configuration, login=cluster.login, clock=clock)
        self._wire = HttpWire(
            self._credentials,
            headers=headers,
            clock=clock,
            counters=self._counters,
            warnings=self.warnings,
            compresses=cluster.compresses,
        )
        self._discovery = Discovery(self._get, server=cluster.identity.server)
        self._health = ServerHealth(self.version, url=cluster.identity.server, clock=clock)
        self._official = OfficialClients(
            self._credentials,
            given=given,
            user_agent=user_agent,
            count=self._counters.sent,
            warned=self.warnings.read,
        )

    @classmethod
    async def connect(
        cls, *, kubeconfig: str | None = None, context: str | None = None, clock: Clock | None = None
    ) -> "Client":
        """A client of the configured cluster, logged in. No request is sent to the server yet.

        - `kubeconfig`: a file. By default, in the order of client-go: $KUBECONFIG, the service account of
          this pod, ~/.kube/config.
        - `context`: its context; by default the current one.
        - `clock`: the system's by default.

        Raises UsageError, with a sentence, if no cluster is configured, if the context is missing, if the
        kubeconfig is broken, or if the login fails.
        """
        return await cls._prepared(
            await find_cluster(kubeconfig=kubeconfig, context=context, clock=clock), clock
        )

    @classmethod
    async def from_kubeconfig_dict(cls, config: KubeObject, *, clock: Clock | None = None) -> "Client":
        """A client for a kubeconfig in a dictionary; raises UsageError as `connect` does."""
        return await cls._prepared(await cluster_of(config, clock=clock), clock)

    @classmethod
    def from_api_client(cls, api_client: Any) -> "Client":
        """A client with the configuration of an official asyncio ApiClient, which its owner closes."""
        configuration = api_client.configuration
        server = ServerUrl.of(str(configuration.host)).url
        identity = Identity(context=None, server=server, user=None, namespace=None, in_cluster=False)
        return cls(Cluster(identity, configuration, None), given=api_client)

    def authority(self) -> str:
        """A digest by which a later process knows this cluster again (`authority_of`). Reads a file."""
        return authority_of(self._cluster)

    @property
    def wire(self) -> Wire:
        """The connections to the server, for sources."""
        return self._wire

    @property
    def health(self) -> ServerHealth:
        """The monitor of the server, for all users of this client."""
        return self._health

    async def version(self) -> str:
        """The git version of the server, such as `v1.36.3`. Raises the ApiError family."""
        return str((await self._get("/version")).get("gitVersion") or "")

    async def server_time(self) -> datetime | None:
        """The time on the clock of the server, in whole seconds; None if its answer has no readable date.

        It is the `Date` header of the answer to GET /version. Raises the ApiError family.
        """
        headers, _ = await self._wire.fetch_with_headers(ApiRequest("GET", "/version"))
        try:
            moment = parsedate_to_datetime(headers.get("Date") or "")
        except (ValueError, OverflowError, TypeError):
            return None
        return moment if moment.tzinfo else moment.replace(tzinfo=UTC)

    async def discover(self, gvk: GroupVersionKind) -> Resource:
        """The resource of a kind, which is kept. Raises NotFound while the server does not serve it."""
        return await self._discovery.find(gvk)

    def known(self, gvk: GroupVersionKind) -> Resource | None:
        """The resource of a kind as it was discovered last; None if it is not known. Sends no request."""
        return self._discovery.known(gvk)

    def known_plural(self, group: str, version: str, plural: str) -> Resource | None:
        """As `known`, for the name of a resource in URL paths. From any thread."""
        return self._discovery.known_plural(group, version, plural)

    async def find_resource(self, name: str) -> Resource:
        """The resource of a name, as kubectl takes it.

        `name` is such as `pods`, `deployments.apps`, `deployments.v1.apps` or `apps/v1/deployments`, also
        singular or short. Without a version, the server's preferred version is used. Raises NotFound while
        the server does not serve it, and UsageError for a text that is no name.
        """
        return await self._discovery.find_resource(name)

    async def served(self) -> Sequence[Resource]:
        """All resources of the server, each in the version that the server prefers. Raises ApiError.

        Without those of groups that do not answer.
        """
        return await self._discovery.served()

    def forget(self, gvk: GroupVersionKind) -> None:
        """Request the kind again when it is discovered next."""
        self._discovery.forget(gvk)

    def source(
        self,
        gvk: GroupVersionKind,
        *,
        namespace: str | None = None,
        label_selector: str = "",
        field_selector: str = "",
        metadata_only: bool = False,
        projection: Projection,
    ) -> ResourceSource:
        """A source for a reflector. No request is sent before its first use.

        - `gvk`: the kind, which the server may serve later.
        - `namespace`: None, the default, for all namespaces.
        - `label_selector`, `field_selector`: as kubectl takes them.
        - `metadata_only`: request PartialObjectMetadata, which `projection` then has to decode.
        - `projection`: the decoder.
        """
        return ResourceSource(
            self,
            gvk,
            namespace=namespace,
            label_selector=label_selector,
            field_selector=field_selector,
            metadata_only=metadata_only,
            projection=projection,
        )

    def list_watch(
        self,
        api_version: str,
        kind: str,
        *,
        namespace: str | None = None,
        label_selector: str = "",
        field_selector: str = "",
        metadata_only: bool = False,
        transform: Transform | None = None,
    ) -> ResourceSource:
        """A source for programs without a cache, for RetryWatcher and `until` (client-go's ListWatch).

        - `api_version`, `kind`: such as `apps/v1` and `Deployment`.
        - `namespace`, `label_selector`, `field_selector`, `metadata_only`: as in `source`.
        - `transform`: a function of a dictionary that returns the one to use, or None to leave the object
          out.

        The version of a page that its `list` returns is where a watch can begin.
        """
        gvk = GroupVersionKind.of(api_version, kind)
        decoded = PARTIAL_OBJECT_METADATA if metadata_only else gvk
        return self.source(
            gvk,
            namespace=namespace,
            label_selector=label_selector,
            field_selector=field_selector,
            metadata_only=metadata_only,
            projection=Projection(api_version=decoded.api_version, kind=decoded.kind, transform=transform),
        )

    async def request_json(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] = _NO_PARAMS,
        body: KubeObject | Sequence[KubeObject] | None = None,
        content_type: str = "application/json",
        before_send: Callable[[], object] | None = None,
    ) -> KubeObject:
        """Send one request; returns the JSON object of the answer, `{}` for an empty one.

        - `method`, `path`: such as `PATCH` and `/api/v1/namespaces/a/pods/b`.
        - `params`: query parameters.
        - `body`: a JSON object, or a list for a JSON patch; None for no body.
        - `content_type`: of the body, such as `application/merge-patch+json`.
        - `before_send`: called right before the first byte; it may raise, and then nothing is sent.

        Raises the ApiError family; MalformedAnswer for an answer that is no JSON object; InvalidWrite for a
        body that can't be written as JSON.
        """
        self._official.live_on(asyncio.get_running_loop())
        method = method.upper()
        about_secrets = is_about_secrets(path)
        if about_secrets:
            secret_values.remember_request(body)  # a refusal may quote it
        request = ApiRequest(
            method,
            path,
            method=method,
            params=params,
            body=body,
            content_type=content_type,
            before_send=before_send,
        )
        answer = json_object(await self._wire.fetch(request), what=f"{method} {path}")
        if about_secrets:
            secret_values.remember_request(answer)
        return answer

    def api_client(self) -> Any:
        """The official asyncio ApiClient with these credentials, for the running loop. `close` closes it."""
        return self._official.asynchronous()

    def sync_api_client(self) -> Any:
        """The official synchronous ApiClient with these credentials, for any thread. `close` closes it."""
        return self._official.synchronous()

    def guard_writes(
        self, refusal: Callable[[], str], *, dry_run: bool, gate: ClientGate | None = None
    ) -> None:
        """Let writes of the official clients raise NotLeader for a `refusal()`, and have `dryRun=All`.

        `gate` limits their rate, and receives each write after its end. A client that the caller of
        `from_api_client` has given is not guarded.
        """
        self._official.guard.refusal = refusal
        self._official.guard.dry_run = dry_run
        self._official.guard.gate = gate

    def observe_requests(self, observer: ClientObserver) -> None:
        """Let an observer see the requests of the official clients, but not of one that was given."""
        self._official.guard.observer = observer

    async def close(self) -> None:
        """Close every connection and every official client that was made here. May be repeated."""
        await self._health.close()
        await self._official.close()
        await self._wire.close()

    def statistics(self) -> TransportStatistics:
        """The figures so far. From any thread."""
        return self._counters.frozen()

    @classmethod
    async def _prepared(cls, cluster: Cluster, clock: Clock | None) -> "Client":
        client = cls(cluster, clock=clock)
        client._official.live_on(asyncio.get_running_loop())
        await client._wire.prepare()
        return client

    async def _get(self, path: str) -> KubeObject:
        return await self.request_json("GET", path)


@cache
def _version() -> str:
    try:
        return metadata.version("declctl")
    except metadata.PackageNotFoundError:  # run from a checkout that is not installed
        return "0"
