"""Leader election: one of several processes acts, the others wait (client-go's tools/leaderelection).

`LeaderElector` holds a Lease of coordination.k8s.io. Its `may_write` is the check before each write.
"""

from declctl.leadership.elector import (
    LeaderCallbacks,
    LeaderElector,
    LeadershipStatus,
    LeaseTimes,
    new_identity,
)
from declctl.leadership.lease import LeaderElectionRecord, LeaseLock

__all__ = [
    "LeaderCallbacks",
    "LeaderElectionRecord",
    "LeaderElector",
    "LeadershipStatus",
    "LeaseLock",
    "LeaseTimes",
    "new_identity",
]
