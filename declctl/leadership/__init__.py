"""Leader election: one of several processes acts, the others wait (client-go's tools/leaderelection).

`LeaderElector` holds a Lease of coordination.k8s.io. Its `may_write` is the check before each write.
`ShardElector` holds a share of several Leases, one for each part of the objects of a controller.
"""

from declctl.leadership.elector import (
    LeaderCallbacks,
    LeaderElector,
    LeadershipStatus,
    LeaseTimes,
    new_identity,
)
from declctl.leadership.lease import LeaderElectionRecord, LeaseLock, SharingLeases
from declctl.leadership.shard_elector import ShardCallbacks, ShardElector
from declctl.leadership.sharing import ShardState, ShardStatus, SharingStatus

__all__ = [
    "LeaderCallbacks",
    "LeaderElectionRecord",
    "LeaderElector",
    "LeadershipStatus",
    "LeaseLock",
    "LeaseTimes",
    "ShardCallbacks",
    "ShardElector",
    "ShardState",
    "ShardStatus",
    "SharingLeases",
    "SharingStatus",
    "new_identity",
]
