"""A queue's transformer: what it does to objects on their way in (client-go's TransformFunc).

The transform of a manifest works on the decoded object, before there is a record; this one is for
programs that build a line of their own. It has to give the same for its own result: a relist brings
objects again that went through it before.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from declctl.errors import CacheError
from declctl.objects import Delta, DeltaType, Record

Transformer = Callable[[Record], Record]

_SYNC = DeltaType.SYNC


def _every(_: Delta) -> bool:
    return True


def transformed(
    transformer: Transformer, deltas: Iterable[Delta], wanted: Callable[[Delta], bool] = _every
) -> Iterator[Delta]:
    """The deltas with their live objects transformed: no tombstones, no resyncs, nothing out of scope.

    Nor those that are not `wanted`, which whoever queues them will drop. A delta on which the
    transformer raises is left out; the first fault is raised after the last delta, so that one
    object does not keep the others out.
    """
    faults: list[Exception] = []
    for delta in deltas:
        record = delta.record
        if record is None or not (_is_live(delta) and wanted(delta)):
            yield delta
            continue
        try:
            record = _transformed(transformer, record)
        except Exception as fault:  # noqa: BLE001 - the caller's function; it is raised below
            faults.append(fault)
        else:
            yield msgspec.structs.replace(delta, record=record)
    if faults:
        if len(faults) > 1:
            faults[0].add_note(f"the transformer raised on {len(faults) - 1} more")
        raise faults[0]


def all_transformed(transformer: Transformer, records: Iterable[Record]) -> Sequence[Record]:
    """All objects of a list; raises the first fault, because a list that lacks one would delete it."""
    return [_transformed(transformer, record) for record in records]


def _is_live(delta: Delta) -> bool:
    return not (delta.final_state_unknown or delta.out_of_scope or delta.type is _SYNC)


def _transformed(transformer: Transformer, record: Record) -> Record:
    made = transformer(record)
    if made.key != record.key:
        raise CacheError(f"the transformer made {made.key} of {record.key}: an object has to keep its key")
    return made
