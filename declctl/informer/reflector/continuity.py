"""Continuity: the proof that the server still has the history from which the cache was filled.

An etcd that is restored from an older backup uses the same resource versions for other changes. It accepts a
watch from a version of the old history and sends none of the differences, so that the cache stays wrong for
ever, in client-go as well. After a lost connection, one small LIST proves that the history is the same. The
reasons for this proof are in docs/decisions/0005-is-it-the-same-history.md.
"""

from collections.abc import Mapping, Sequence

import msgspec
from msgspec.structs import replace

from declctl.decoding.projection import Projection, nothing_known
from declctl.errors import Expired, InvalidRequest, ServerError, TooLargeResourceVersion
from declctl.informer.scope import ShardScope
from declctl.informer.source import Source, has_selector
from declctl.objects import (
    NO_ORDER,
    Delta,
    DeltaType,
    ListOptions,
    ListPage,
    ObjectKey,
    Record,
    version_order,
)

# A cache of at most so many objects is compared as a whole: one read of the storage, some 100 kB of an
# answer.
MOST_COMPARED = 100
_LOOKED_AT = 10_000  # objects of a list among which the newest is searched: more would block the loop
_GONE = DeltaType.DELETED  # a member of an enum is looked up in 150 ns on Python 3.11


class Witness(msgspec.Struct, frozen=True):
    """The object of the newest change that was seen. No other history has it in the same state."""

    key: str
    revision: str | None  # of its record; None if the object was deleted


class Sample(msgspec.Struct, frozen=True):
    """The cached objects that a proof compares with those of the server."""

    witness: Witness | None  # None if no object was ever seen
    everything: Mapping[str, str] | None = None  # all revisions by key; None if there are too many to compare
    # The transform was replaced since, and may leave out objects that are cached; or the scope has changed.
    may_drop: bool = False


class Continuity(msgspec.Struct, frozen=True):
    """The result of a proof."""

    holds: bool | None  # the server has the same history; None if that is not known
    why: str  # the reason, as a sentence


class SeenObjects:
    """The newest change and the revisions that a reflector keeps for the proof. Used on one loop.

    A scope is as a selector. If it changed after the last list, a missing object proves nothing.
    """

    def __init__(self, scope: ShardScope | None = None) -> None:
        self._scope = scope
        self._changes = 0  # of the scope until the last list
        self._newest: Witness | Delta | None = None  # a Delta is converted to a Witness only for a proof
        self._revisions: dict[str, str] | None = None  # of all objects, by key; None if there are too many
        self._projection: Projection | None = None  # of the last list: another one may drop other objects

    def replace(self, records: Sequence[Record], projection: Projection) -> None:
        """Note the objects of a complete list."""
        self._newest = newest(records)
        few = len(records) <= MOST_COMPARED
        self._revisions = {record.key: record.revision for record in records} if few else None
        self._projection = projection
        self._changes = 0 if self._scope is None else self._scope.changes

    def change(self, deltas: Sequence[Delta]) -> None:
        """Note the changes of a watch, at least one."""
        self._newest = deltas[-1]
        revisions = self._revisions
        if revisions is None:
            return
        for delta in deltas:
            record = delta.record
            if delta.type is _GONE or record is None:
                revisions.pop(delta.key, None)
            else:
                # A revision contains the uid: an object that was deleted and created again differs.
                revisions[delta.key] = record.revision
        if len(revisions) > MOST_COMPARED:
            self._revisions = None

    def sample(self, source: Source) -> Sample:
        """The sample for a proof: all objects, where these are few and the server can read them cheaply."""
        last = self._newest
        witness = witness_of(last) if isinstance(last, Delta) else last
        # Another transform may leave out cached objects. Their absence is no sign of another history.
        may_drop = source.projection is not self._projection
        if self._scope is not None:
            may_drop |= self._scope.changes != self._changes
        all_of_them = not may_drop and self._scope is None and not has_selector(source)
        return Sample(witness, self._revisions if all_of_them else None, may_drop)


def newest(records: Sequence[Record]) -> Witness | None:
    """The newest object of a list; None for an empty list. Beyond 20,000 objects, the newest of a sample."""
    step = max(1, len(records) // _LOOKED_AT)
    found = max(records[::step], key=lambda record: version_order(record.resource_version), default=None)
    return None if found is None else Witness(found.key, found.revision)


def witness_of(delta: Delta) -> Witness:
    """The witness that a change makes."""
    held = None if delta.type is _GONE else delta.record
    return Witness(delta.key, None if held is None else held.revision)


async def continuity(source: Source, version: str, sample: Sample) -> Continuity:
    """Whether the server's history has `version`, with the objects of the sample in the same states.

    The proof is one LIST at exactly `version`: of all objects, with a limit of one more than are cached, or
    of the witness. If the server does not answer that, a second LIST reads the present state of the witness.

    - `holds` True: the history is the same until the version of the witness; if all objects were compared,
      until `version`.
    - `holds` False: the history is another one. That is certain where resource versions are numbers that one
      storage counts.

    Raises the ApiError family.
    """
    if version_order(version) == NO_ORDER:
        return Continuity(None, f"the version {version!r} is no number")
    everything, witness = sample.everything, sample.witness
    options = _of_witness(witness) if everything is None else ListOptions(limit=len(everything) + 1)
    exactly = replace(options, resource_version=version, resource_version_match="Exact")
    try:
        page = await source.list(exactly, known=nothing_known)
    except (Expired, TooLargeResourceVersion, InvalidRequest, ServerError):
        # The version was compacted; or the server, or its watch cache alone, has not reached it; or the
        # server does not know `Exact`.
        return _judged(await source.list(_of_witness(witness), known=nothing_known), version, sample)
    if everything is None:
        return _judged(page, version, sample)
    return _judged_as_a_whole(page, version, everything)


def _of_witness(witness: Witness | None) -> ListOptions:
    if witness is None:
        return ListOptions(limit=1)
    key = ObjectKey(witness.key)
    return ListOptions(limit=1, namespace=key.namespace, field_selector=f"metadata.name={key.name}")


def _judged_by_version(page: ListPage, version: str) -> Continuity | None:
    """The result by the version of an answer alone; None if the objects have to be compared."""
    at = version_order(page.resource_version)
    if at == NO_ORDER:
        return Continuity(None, f"the server is at version {page.resource_version!r}, which is no number")
    if at < version_order(version):
        return Continuity(False, f"the server is at version {page.resource_version}, and {version} was seen")
    return None


def _judged_as_a_whole(page: ListPage, version: str, held: Mapping[str, str]) -> Continuity:
    if judged := _judged_by_version(page, version):
        return judged
    for record in page.records:
        if record.revision != held.get(record.key) and _is_of(record, version):
            return _another_state(record, version, is_seen=record.key in held)
    if page.resource_version != version or page.skipped or page.continue_token:
        return Continuity(None, "the server did not list everything at exactly that version")
    if missing := held.keys() - {record.key for record in page.records}:
        return Continuity(False, f"{min(missing)} was there at version {version}, and is not")
    return Continuity(True, f"all objects ({len(held)}) are what they were")


def _judged(page: ListPage, version: str, sample: Sample) -> Continuity:
    if judged := _judged_by_version(page, version):
        return judged
    witness = sample.witness
    if page.records and witness is None and sample.may_drop:
        return Continuity(None, "what is there may have been left out before")
    if page.records:
        return _judged_by_witness(page.records[0], version, witness)
    if page.resource_version != version or page.continue_token or page.skipped or sample.may_drop:
        return Continuity(None, "what was held may have gone since")
    if witness is not None and witness.revision is not None:
        return Continuity(False, f"{witness.key} was there at version {version}, and is not")
    return Continuity(True, "nothing is there, as it was")


def _judged_by_witness(record: Record, version: str, witness: Witness | None) -> Continuity:
    """The result by the state that the server has of the witness."""
    if witness is not None and record.key != witness.key:
        return Continuity(None, "the server does not select by name")
    if witness is not None and record.revision == witness.revision:
        return Continuity(True, f"{record.key} is what it was")
    if not _is_of(record, version):
        return Continuity(None, f"{record.key} has changed since")
    return _another_state(record, version, is_seen=witness is not None and witness.revision is not None)


def _is_of(record: Record, version: str) -> bool:
    """Whether the record was written at that version or before."""
    return NO_ORDER < version_order(record.resource_version) <= version_order(version)


def _another_state(record: Record, version: str, *, is_seen: bool) -> Continuity:
    seen = "another state of it" if is_seen else "nothing"
    return Continuity(
        False, f"{record.key} is of version {record.resource_version}, and {seen} was seen until {version}"
    )
