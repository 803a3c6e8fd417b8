"""What one generation makes of a handler."""

from dataclasses import dataclass, field
from typing import NamedTuple

from declctl.hooks.calling import EventTarget
from declctl.kit import LoopThread
from declctl.manifest.model import Delivery, InitialSync
from declctl.manifest.plan import HandlerPlan
from declctl.objects import ChangeType
from declctl.runtime.handling.context import HandlerEnvironment
from declctl.runtime.handling.figures import Tally
from declctl.runtime.handling.filtering import Filter
from declctl.workqueue import Backoff


class Intake(NamedTuple):
    """Which changes a slot takes: these types, perhaps none of the first sync.

    Beyond `limit` bytes, or always if it is `keyed`, changes of one object are merged. No more than
    `at_once` are delivered at the same time.
    """

    wanted: frozenset[ChangeType]
    skips_initial: bool
    limit: int
    keyed: bool
    at_once: int


@dataclass(frozen=True, slots=True)
class Binding:
    """Whom to call, under which policy, and with which context.

    Asynchronous hooks run on `loop`. `tally` counts what came of it; `backoff` says how long a change that
    has failed waits. `intake` says which changes are queued for it, and how.
    """

    generation: int
    plan: HandlerPlan
    target: EventTarget
    world: HandlerEnvironment
    loop: LoopThread
    filter: Filter | None = None
    tally: Tally = field(default_factory=Tally, compare=False)
    intake: "Intake" = field(init=False, compare=False)
    backoff: Backoff = field(init=False, compare=False)

    def __post_init__(self) -> None:
        """Made here, and not in a commit, which is short."""
        plan, retry = self.plan, self.plan.retry
        events = frozenset(ChangeType(name) for name in plan.events)
        intake = Intake(
            events if self.filter is None else self.filter.heeded,
            skips_initial=plan.initial_sync is InitialSync.SKIP,
            limit=plan.buffer_bytes,
            keyed=plan.delivery is Delivery.KEYED,
            at_once=plan.queue.concurrency,
        )
        object.__setattr__(self, "intake", intake)
        object.__setattr__(self, "backoff", Backoff(retry.initial_backoff, retry.max_backoff))
