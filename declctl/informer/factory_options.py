"""What may be said to a factory, and to each of its informers (client-go's SharedInformerOption)."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypedDict

from declctl.decoding import Projection, Transform
from declctl.informer.applying import UidChange
from declctl.informer.controller import QueueKind
from declctl.informer.indexing import AnyIndexFunc
from declctl.informer.reflector import ReflectorOptions
from declctl.informer.source import Source
from declctl.kit import Clock
from declctl.objects import GroupVersionKind, Resource


@dataclass(frozen=True, slots=True)
class Selection:
    """Which objects an informer watches, and how much of them.

    `namespace` None means all. The selectors are the server's work: every LIST and every WATCH
    carries them. `metadata_only` asks for PartialObjectMetadata instead of whole objects.
    """

    gvk: GroupVersionKind
    namespace: str | None = None
    label_selector: str = ""
    field_selector: str = ""
    metadata_only: bool = False

    def __str__(self) -> str:
        part = " metadata" if self.metadata_only else ""
        scope = f" in {self.namespace}" if self.namespace else ""
        selectors = " and ".join(text for text in (self.label_selector, self.field_selector) if text)
        return f"{self.gvk}{part}{scope}{f' with {selectors}' if selectors else ''}"


TweakSelection = Callable[[Selection], Selection]


class SourceProvider(Protocol):
    """What gives sources: a client."""

    def source(
        self,
        gvk: GroupVersionKind,
        *,
        namespace: str | None = None,
        label_selector: str = "",
        field_selector: str = "",
        metadata_only: bool = False,
        projection: Projection,
    ) -> Source:
        """Lists and watches one resource."""
        ...

    async def find_resource(self, name: str) -> Resource:
        """The resource that people call `deployments.apps`; raises NotFound while it is not served."""
        ...


class FactoryOptions(TypedDict, total=False):
    """What holds for every informer of a factory that does not say otherwise.

    - `namespace`: watch this one only; by default all.
    - `resync_period`: seconds between two replays of the cache to each handler; 0, the default, for
      none. `custom_resync` has other periods by kind: `{("v1", "Pod"): 60}`.
    - `tweak_list_options`: called with each `Selection` that was asked for; what it returns is
      listed and watched instead.
    - `transform`: changes each object before it is cached.
    - `options`: how reflectors ask: page size, time limits.
    - `uid_change`: how another uid under a key is told: `recreate`, the default, as a delete and an
      add, or `update`, as client-go does.
    - `queue`: `RealFIFO`, the default, or `DeltaFIFO`, which keeps together what is pending of a key.
    - `name`: stands before the names of the informers, in messages and of tasks.
    - `clock`: the time that they live by.
    """

    namespace: str | None
    resync_period: float
    custom_resync: Mapping[tuple[str, str], float]
    tweak_list_options: TweakSelection | None
    transform: Transform | None
    options: ReflectorOptions
    uid_change: UidChange
    queue: QueueKind
    name: str
    clock: Clock | None


class InformerOptions(TypedDict, total=False):
    """What one informer is asked for with. What is left out is as the factory has it.

    - `namespace`: "" means all, also where the factory has one.
    - `label_selector`, `field_selector`: as kubectl takes them.
    - `metadata_only`: objects are PartialObjectMetadata, which are much smaller.
    - `transform`: None for none, also where the factory has one.
    - `indexers`: indexes that are added unless they are there.
    - `resync_period`, `options`: as in `FactoryOptions`. Who asks first decides; other options than
      those of the informer that is there raise CacheError.
    - `exclusive`: an informer of one's own, which nobody else is given.
    """

    namespace: str | None
    label_selector: str
    field_selector: str
    metadata_only: bool
    transform: Transform | None
    indexers: Mapping[str, AnyIndexFunc]
    resync_period: float | None
    options: ReflectorOptions
    exclusive: bool
