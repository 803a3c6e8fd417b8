"""Informers for programs without a manifest: client-go's names, for any client."""

from typing import Any, Unpack

from declctl import informer
from declctl.informer.factory import FactoryOptions
from declctl.informer.source import SourceProvider
from declctl.transport import Client


class SharedInformerFactory(informer.SharedInformerFactory):
    """Shares one informer among all users of a watch (client-go's SharedInformerFactory).

    `client` is a `declctl.Client`, an object with its `source` method, or an official
    `kubernetes.aio.client.ApiClient`, whose configuration is used. `options` are those of `FactoryOptions`.
    """

    def __init__(self, client: SourceProvider | Any, **options: Unpack[FactoryOptions]) -> None:
        provider = client if hasattr(client, "source") else Client.from_api_client(client)
        super().__init__(provider, **options)
