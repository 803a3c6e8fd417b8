"""The machinery without a manifest: client-go's names over any client."""

from typing import Any, Unpack

from declctl import informer
from declctl.informer.factory import FactoryOptions
from declctl.informer.source import SourceProvider
from declctl.transport import Client


class SharedInformerFactory(informer.SharedInformerFactory):
    """Informers shared by what they watch.

    `client` is a `declctl.Client`, anything with its `source` method, or an official
    `kubernetes.aio.client.ApiClient`, whose configuration is used. `options` are those of
    `FactoryOptions`.
    """

    def __init__(self, client: SourceProvider | Any, **options: Unpack[FactoryOptions]) -> None:
        provider = client if hasattr(client, "source") else Client.from_api_client(client)
        super().__init__(provider, **options)
