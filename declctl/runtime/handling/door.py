"""What hooks see of the cluster."""

from collections.abc import Mapping
from typing import Any

from declctl.objects import ObjectView
from declctl.runtime.handling.recorder import EventRecorder
from declctl.transport import Client


class ClusterDoor:
    """What contexts see of the cluster: official clients and a recorder."""

    def __init__(self, client: Client, recorder: EventRecorder) -> None:
        self._client = client
        self._recorder = recorder

    @property
    def client(self) -> Any:
        """The official asynchronous ApiClient of the calling loop."""
        return self._client.api_client()

    @property
    def sync_client(self) -> Any:
        """The official synchronous ApiClient."""
        return self._client.sync_api_client()

    def record_event(self, obj: ObjectView, event: Mapping[str, str]) -> None:
        """Post an event in the background."""
        self._recorder.record(obj, event)
