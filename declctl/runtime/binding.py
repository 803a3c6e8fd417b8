"""What one generation makes of a handler."""

from dataclasses import dataclass, field

from declctl.hooks.calling import EventTarget
from declctl.manifest.plan import HandlerPlan
from declctl.objects import ChangeType
from declctl.runtime.context import World
from declctl.runtime.figures import Tally
from declctl.runtime.filtering import Filter
from declctl.work import Backoff


@dataclass(frozen=True, slots=True)
class Binding:
    """Whom to call, under which policy, and with which context.

    `tally` counts what came of it; `wanted` are the changes that have to be queued for it, and `backoff`
    says how long one that has failed waits.
    """

    generation: int
    plan: HandlerPlan
    target: EventTarget
    world: World
    filter: Filter | None = None
    tally: Tally = field(default_factory=Tally, compare=False)
    wanted: frozenset[ChangeType] = field(init=False, compare=False)
    backoff: Backoff = field(init=False, compare=False)

    def __post_init__(self) -> None:
        """Made here, and not in a commit, which is short."""
        events = frozenset(ChangeType(name) for name in self.plan.events)
        object.__setattr__(self, "wanted", events if self.filter is None else self.filter.heeded)
        retry = self.plan.retry
        object.__setattr__(self, "backoff", Backoff(retry.initial_backoff, retry.max_backoff))
