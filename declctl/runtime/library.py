"""The machinery without a manifest: client-go's names over any client."""

from typing import Any

from declctl import informer
from declctl.informer import SourceProvider
from declctl.kit import Clock
from declctl.transport import Client


class SharedInformerFactory(informer.SharedInformerFactory):
    """Informers shared by what they watch.

    `client` is a `declctl.Client`, anything with its `source` method, or an official
    `kubernetes.aio.client.ApiClient`, whose configuration is used.
    """

    def __init__(
        self,
        client: SourceProvider | Any,
        *,
        resync_period: float = 0.0,
        namespace: str | None = None,
        clock: Clock | None = None,
    ) -> None:
        provider = client if hasattr(client, "source") else Client.from_api_client(client)
        super().__init__(provider, resync_period=resync_period, namespace=namespace, clock=clock)
