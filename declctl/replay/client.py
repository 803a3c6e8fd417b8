"""The client of a replay: its sources are those of the recording, all else goes to a sandbox."""

from typing import Any

from declctl.decoding.projection import Projection
from declctl.objects import GroupVersionKind, Resource
from declctl.replay.server import TapeServer, TapeSource
from declctl.sandbox import Sandbox
from declctl.transport import Client


class TapeClient(Client):
    """A client of a sandbox that watches a recording."""

    # Both are set before the first use.
    tape: TapeServer
    sandbox: Sandbox

    async def close(self) -> None:
        """As of any client; the sandbox ends with it."""
        await super().close()
        await self.sandbox.stop()

    async def discover(self, gvk: GroupVersionKind) -> Resource:
        """The resource of a kind, as the recording or the sandbox has it."""
        return self.tape.resources.get(gvk) or await super().discover(gvk)

    def known(self, gvk: GroupVersionKind) -> Resource | None:
        """As `discover`, without a request."""
        return self.tape.resources.get(gvk) or super().known(gvk)

    def known_plural(self, group: str, version: str, plural: str) -> Resource | None:
        """As `known`, for the name of a resource in URL paths."""
        for gvk, resource in self.tape.resources.items():
            if (gvk.group, gvk.version, resource.plural) == (group, version, plural):
                return resource
        return super().known_plural(group, version, plural)

    def source(  # type: ignore[override]
        self,
        gvk: GroupVersionKind,
        *,
        namespace: str | None = None,
        label_selector: str = "",
        field_selector: str = "",
        metadata_only: bool = False,
        projection: Projection,
    ) -> Any:
        """A source of the recording."""
        found: TapeSource = self.tape.source(
            gvk, namespace, label_selector, field_selector, metadata_only, projection
        )
        return found
