"""The ledger of writes: what handlers have sent to the cluster, why, and what became of it.

It remembers the newest writes, and counts all of them. `declctl why` looks up an object; status and metrics
read the totals.
"""

import threading
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

import msgspec

from declctl.objects import GroupVersionKind, KubeObject, ObjectKey
from declctl.objects.managed_fields import AppliedFields

REMEMBERED_WRITES = 5000
_DRY_RUNS = 200  # answers to dry runs that are remembered: they are whole objects


class WriteVerb(StrEnum):
    """What a write does."""

    APPLY = "apply"  # server-side apply of an object
    PATCH = "patch"  # merge patch of metadata
    PATCH_STATUS = "patch_status"
    CREATE = "create"
    DELETE = "delete"
    UPDATE = "update"  # of a whole object: only by official clients, as all that follow
    DELETE_COLLECTION = "delete_collection"
    CLIENT_APPLY = "client_apply"  # server-side apply, with a field manager of the caller's choice

    @property
    def operation(self) -> str:
        """The operation of an entry of `metadata.managedFields` that such a write makes."""
        return "Apply" if self in (WriteVerb.APPLY, WriteVerb.CLIENT_APPLY) else "Update"


class WriteResult(StrEnum):
    """What became of a write."""

    SUCCEEDED = "succeeded"
    DRY_RUN = "dry_run"  # the server has checked it, and stored nothing
    SKIPPED = "skipped"  # nothing was sent, as nothing would change
    NOT_LEADER = "not_leader"  # not sent, or cut off when the lease was lost: the server may have done it
    CONFLICT = "conflict"  # 409
    THROTTLED = "throttled"  # 429, for longer than a write waits
    REFUSED = "refused"  # any other 4xx
    FAILED = "failed"  # 5xx, or no answer: the server may have done it
    CANCELLED = "cancelled"  # the call that waited for it ended: the server may have done it


class RetryReason(StrEnum):
    """Why a request of a write was repeated."""

    TOO_MANY_REQUESTS = "too_many_requests"
    CONFLICT = "conflict"


class WriteOrigin(msgspec.Struct, frozen=True):
    """The call that writes. `causes` are opaque here."""

    handler: str
    generation: int
    request_id: str = ""  # of a reconciler, or the id of the change; empty in a life-cycle hook
    causes: tuple[object, ...] = ()
    key: str = ""  # that the call is about; empty in a life-cycle hook
    # The uid and the version of the object of a handler of changes; None for a reconciler.
    reads: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Written:
    """The result of a write: the object that was written, and its version.

    `uid` and `resource_version` are empty if the answer has none, as for a delete of some kinds. `obj` is the
    answer of the server. With `changed` False nothing was sent, or the object has a version that this process
    knew before: the server had all of it. It is True for the first write of an object that is in no cache,
    and where another manager has changed the object meanwhile. With `dry_run` the server has stored nothing.
    `manager` is the field manager. `based_on` is the version that the write was conditional on; empty for
    none, and for a write whose event has to lead to a call. `digest` is equal for writes that sent the same.
    """

    verb: WriteVerb
    kind: GroupVersionKind
    key: ObjectKey
    uid: str
    resource_version: str
    obj: KubeObject = field(default_factory=dict[str, Any], compare=False, repr=False)
    changed: bool = True
    dry_run: bool = False
    manager: str = field(default="", compare=False)
    based_on: str = field(default="", compare=False, repr=False)
    digest: int = field(default=0, compare=False, repr=False)


class WriteRecord(msgspec.Struct, frozen=True):
    """One entry of the ledger. `error` is empty unless the write failed."""

    time: datetime
    verb: WriteVerb
    kind: GroupVersionKind
    resource: str  # such as `deployments.apps`
    key: ObjectKey
    uid: str
    resource_version: str  # that the server returned
    manager: str  # field manager
    origin: WriteOrigin
    result: WriteResult
    seconds: float  # with its waits
    retries: int = 0  # requests after the first
    error: str = ""
    fields: AppliedFields | None = None  # of its manager after it; None if they are not known
    changed: bool = True  # see `Written`; True for writes of official clients


class WriteTotal(msgspec.Struct, frozen=True):
    """The number of writes of one handler with one verb and one result."""

    handler: str
    verb: str
    result: str
    count: int


class KindWrites(msgspec.Struct, frozen=True):
    """The number of writes of one handler to one kind with one verb that the server has taken."""

    handler: str
    kind: GroupVersionKind
    verb: str
    count: int


class WriteLedger:
    """Remembers the newest writes and counts all. From any thread."""

    def __init__(self, remembered: int = REMEMBERED_WRITES) -> None:
        self._lock = threading.Lock()  # guards all of the following
        self._records: deque[WriteRecord] = deque(maxlen=remembered)  # the oldest first
        self._dry_runs: deque[Written] = deque(maxlen=min(remembered, _DRY_RUNS))
        self._totals: Counter[tuple[str, WriteVerb, WriteResult]] = Counter()
        # Of the writes that have succeeded.
        self._kinds: Counter[tuple[str, GroupVersionKind, WriteVerb]] = Counter()
        self._retries: Counter[RetryReason] = Counter()

    def add(self, record: WriteRecord, written: Written | None = None) -> None:
        """Count and remember a write. `written` is its result; that of a dry run is kept."""
        with self._lock:
            self._records.append(record)
            self._totals[record.origin.handler, record.verb, record.result] += 1
            if record.result is WriteResult.SUCCEEDED:
                self._kinds[record.origin.handler, record.kind, record.verb] += 1
            if written is not None and written.dry_run:
                self._dry_runs.append(written)

    def retried(self, reason: RetryReason) -> None:
        """Count a request that is repeated."""
        with self._lock:
            self._retries[reason] += 1

    def of_object(
        self, key: str, *, kind: GroupVersionKind | None = None, uid: str = ""
    ) -> tuple[WriteRecord, ...]:
        """The remembered writes of an object, the oldest first; `kind` and `uid` limit them."""
        return tuple(
            record
            for record in self.newest()
            if record.key == key and kind in (None, record.kind) and uid in ("", record.uid)
        )

    def newest(self, count: int | None = None) -> Sequence[WriteRecord]:
        """The newest writes, the oldest of them first; by default all that are remembered."""
        with self._lock:
            records = tuple(self._records)
        return records if count is None else records[max(0, len(records) - count) :]

    def dry_runs(self) -> Sequence[Written]:
        """The answers to the newest dry runs, the oldest first."""
        with self._lock:
            return tuple(self._dry_runs)

    def totals(self) -> Sequence[WriteTotal]:
        """The counts since the start, in the order of handlers, verbs and results."""
        with self._lock:
            totals = sorted(self._totals.items())
        return [WriteTotal(handler, str(v), str(r), count) for (handler, v, r), count in totals]

    def kinds(self) -> Sequence[KindWrites]:
        """The counts since the start of the writes that have succeeded, in the order of their first ones."""
        with self._lock:
            kinds = list(self._kinds.items())
        return [KindWrites(handler, kind, str(verb), count) for (handler, kind, verb), count in kinds]

    def applied_by(self) -> frozenset[str]:
        """The handlers that have applied something under their field manager, or have found it applied."""
        there = (WriteResult.SUCCEEDED, WriteResult.SKIPPED)
        with self._lock:
            return frozenset(
                handler
                for handler, verb, result in self._totals
                if verb is WriteVerb.APPLY and result in there
            )

    def retries(self) -> Mapping[str, int]:
        """The number of repeated requests by reason, since the start; all reasons are named."""
        with self._lock:
            return {str(reason): self._retries[reason] for reason in RetryReason}
