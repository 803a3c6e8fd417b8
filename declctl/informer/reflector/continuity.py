"""Does the server go on from what we hold? One small LIST that proves it, after a connection that failed.

An etcd that was put back to an older backup gives the same resource versions to other changes. A watch from
a version of the old history is accepted, and brings nothing of what is different: the cache stays wrong for
ever (in client-go as well). Why it is found out like this: docs/decisions/0005-is-it-the-same-history.md.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from declctl.decoding.projection import Projection, nothing_known
from declctl.errors import Expired, InvalidRequest, ServerError, TooLargeResourceVersion
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

MOST_COMPARED = (
    100  # objects, all of which are compared: one read of the storage, and 100 kB or so of an answer
)
_LOOKED_AT = 10_000  # objects of a list, of which the newest is taken: all of them would hold up the loop
_GONE = DeltaType.DELETED  # a member of an enum is looked up in 150 ns on Python 3.11


@dataclass(frozen=True, slots=True)
class Witness:
    """The object of the newest change that was seen. Its state shows from which history the cache is.

    `revision` is that of its record; None if the object was deleted.
    """

    key: str
    revision: str | None


@dataclass(frozen=True, slots=True)
class Sample:
    """What is held at a version, or the part of it that a proof compares with what the server has.

    `witness` is None if there was nothing. `everything` has the revision of each object that is held, by key;
    None if they are too many, or can't be compared. `may_drop` says that the transform is another one by now,
    which may leave out objects that were held.
    """

    witness: Witness | None
    everything: Mapping[str, str] | None = None
    may_drop: bool = False


@dataclass(frozen=True, slots=True)
class Continuity:
    """Whether a server goes on from a version. `holds` is None if that is not known; `why` is the reason."""

    holds: bool | None
    why: str


class SeenObjects:
    """What a reflector remembers of the objects that it has seen, for the proof. Used on the loop."""

    def __init__(self) -> None:
        self._newest: Witness | Delta | None = None  # a Delta becomes a Witness when it is asked for
        self._revisions: dict[str, str] | None = None  # of all objects, by key; None if they are too many
        self._projection: Projection | None = None  # which decoded them: another one may drop other objects

    def replace(self, records: Sequence[Record], projection: Projection) -> None:
        """A list brought these objects, and there are no others."""
        self._newest = newest(records)
        few = len(records) <= MOST_COMPARED
        self._revisions = {record.key: record.revision for record in records} if few else None
        self._projection = projection

    def change(self, deltas: Sequence[Delta]) -> None:
        """A watch brought these changes, at least one."""
        self._newest = deltas[-1]
        revisions = self._revisions
        if revisions is None:
            return
        for delta in deltas:
            record = delta.record
            if delta.type is _GONE or record is None:
                revisions.pop(delta.key, None)
            else:
                # The revision has the uid, too: an object that was deleted and made again is another one.
                revisions[delta.key] = record.revision
        if len(revisions) > MOST_COMPARED:
            self._revisions = None

    def sample(self, source: Source) -> Sample:
        """What a proof compares. All objects, where that costs the server one small read."""
        last = self._newest
        witness = witness_of(last) if isinstance(last, Delta) else last
        # Another transform may leave objects out that this one has kept: they are no sign of another history.
        may_drop = source.projection is not self._projection
        all_of_them = not may_drop and not has_selector(source)
        return Sample(witness, self._revisions if all_of_them else None, may_drop)


def newest(records: Sequence[Record]) -> Witness | None:
    """The newest object of a list; None if the list is empty. Of 20,000 objects and more, of a sample."""
    step = max(1, len(records) // _LOOKED_AT)
    found = max(records[::step], key=lambda record: version_order(record.resource_version), default=None)
    return None if found is None else Witness(found.key, found.revision)


def witness_of(delta: Delta) -> Witness:
    """The witness that a change makes."""
    held = None if delta.type is _GONE else delta.record
    return Witness(delta.key, None if held is None else held.revision)


async def continuity(source: Source, version: str, sample: Sample) -> Continuity:
    """Whether the history of the server has `version`, with the sample as it is held.

    It costs one LIST at exactly `version`: of everything, up to one object more than is held, or of the
    witness. Where the server can't or does not answer that, it costs a second LIST, of the witness as it is
    now. Raises the ApiError family.

    - `holds` True: the history is the same until the version of the witness. If everything was compared, it
      is the same until `version`.
    - `holds` False: the history is another one. That is certain where resource versions are numbers that one
      storage gives.
    """
    if version_order(version) == NO_ORDER:
        return Continuity(None, f"the version {version!r} is no number")
    everything, witness = sample.everything, sample.witness
    options = _of_witness(witness) if everything is None else ListOptions(limit=len(everything) + 1)
    exactly = replace(options, resource_version=version, resource_version_match="Exact")
    try:
        page = await source.list(exactly, known=nothing_known)
    except (Expired, TooLargeResourceVersion, InvalidRequest, ServerError):
        # The version is compacted; or the server has not reached it, or only its watch cache has not, which
        # lags behind; or the server does not know `Exact`.
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
    """What the version of an answer says by itself; None if the objects have to be compared."""
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
    if page.records:
        return _judged_by_witness(page.records[0], version, witness)
    if page.resource_version != version or page.continue_token or page.skipped or sample.may_drop:
        return Continuity(None, "what was held may have gone since")
    if witness is not None and witness.revision is not None:
        return Continuity(False, f"{witness.key} was there at version {version}, and is not")
    return Continuity(True, "nothing is there, as it was")


def _judged_by_witness(record: Record, version: str, witness: Witness | None) -> Continuity:
    """What the state in which the server has the witness says of the server's history."""
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
