"""What listeners and handlers may be told, as a model: whoever folds it has the cache."""

from collections.abc import Mapping, Sequence

from declctl.informer import DeletedFinalStateUnknown, ProcessorListener, Registration, SharedIndexInformer
from declctl.kit import Clock
from declctl.objects import ChangeReason, ChangeType, Notification, ObjectView, Record

State = tuple[str, str]  # uid and resource version: what tells two states of a key apart


def states(records: Mapping[str, Record]) -> dict[str, State]:
    """Uid and version by key."""
    return {key: state_of(record) for key, record in records.items()}


def state_of(obj: Record | ObjectView) -> State:
    """Uid and version."""
    return obj.uid, obj.resource_version


def _as_told(held: Record | None, record: Record | None) -> bool:
    """Whether it is what was told last; an object that was decoded anew for another layout is."""
    if held is None or record is None:
        return False
    return held is record or (held.layout is not record.layout and state_of(held) == state_of(record))


class Folding:
    """A listener that keeps what it was told as a cache of its own, and notes what does not fit."""

    def __init__(self, informer: SharedIndexInformer) -> None:
        self.informer = informer
        self.registration: Registration | None = None
        self.view: dict[str, Record] = {}
        self.wrong: list[str] = []
        self.told: list[tuple[ChangeType, str, str]] = []
        self.resyncs = 0
        self.asked_for_resyncs = False

    def add_all(self, notifications: Sequence[Notification]) -> None:
        for each in notifications:
            self.told.append((each.type, each.record.key, each.record.resource_version))
            fault = self._fold(each)
            if fault:
                self.wrong.append(f"{fault}: {each.type} {each.record.key} {each.record.resource_version}")
        registration = self.registration
        if registration is not None and registration.removed:
            self.wrong.append("told after it was removed")
        if registration is not None and not registration.is_joining:
            stored = {record.key: record for record in self.informer.indexer.list()}
            if states(self.view) != states(stored):
                self.wrong.append(f"told {states(self.view)}, stored {states(stored)}")

    def _fold(self, each: Notification) -> str | None:
        key, record, held = each.record.key, each.record, self.view.get(each.record.key)
        match each.type:
            case ChangeType.ADDED:
                self.view[key] = record
                if each.initial is not (each.reason is ChangeReason.INITIAL):
                    return "initial and reason differ"
                return "it is there already" if held is not None else None
            case ChangeType.MODIFIED:
                self.view[key] = record
                if held is None or not _as_told(held, each.old):
                    return "the old state is not what was told last"
                if held.uid != record.uid:
                    return "another object"
                newer = int(record.resource_version) > int(held.resource_version)
                return None if newer else "not newer"
            case ChangeType.DELETED:
                self.view.pop(key, None)
                if held is None or held.uid != record.uid:
                    return "never told"
                known = not each.final_state_unknown or _as_told(held, record)
                return None if known else "not the last known state"
            case ChangeType.RESYNC:
                self.resyncs += 1
                return None if _as_told(held, record) else "not what was told last"


class Story:
    """What a library handler was told, folded into a cache of its own; what does not fit is noted."""

    def __init__(self) -> None:
        self.registration: Registration | None = None
        self.view: dict[str, State] = {}
        self.wrong: list[str] = []
        self.calls = self.resyncs = self.tombstones = 0

    def added(self, obj: ObjectView, initial: bool) -> str:
        """An add was told; returns the key."""
        key = self._begun(obj)
        if key in self.view:
            self._note("added twice", key)
        if initial and self.registration is not None and self.registration.has_synced:
            self._note("initial, after it was said to have synced", key)
        self.view[key] = state_of(obj)
        return key

    def updated(self, old: ObjectView, new: ObjectView) -> str:
        """An update was told; returns the key."""
        key = self._begun(new)
        held = self.view.get(key)
        if held is None:
            self._note("updated before it was added", key)
        elif held != state_of(old):
            self._note(f"the old state {state_of(old)} is not what was told last, {held}", key)
        if state_of(old) == state_of(new):
            self.resyncs += 1
        elif old.uid != new.uid or int(new.resource_version) <= int(old.resource_version):
            self._note(f"{state_of(new)} does not follow {state_of(old)}", key)
        self.view[key] = state_of(new)
        return key

    def deleted(self, obj: ObjectView | DeletedFinalStateUnknown) -> str:
        """A delete was told; returns the key."""
        last = obj
        if isinstance(last, DeletedFinalStateUnknown):
            self.tombstones += 1
            last = last.obj
        key = self._begun(last)
        held = self.view.pop(key, None)
        if held is None or held[0] != last.uid:
            self._note(f"deleted {state_of(last)}, told last was {held}", key)
        return key

    def _begun(self, obj: ObjectView) -> str:
        self.calls += 1
        key = str(obj.key)
        if self.registration is not None and self.registration.removed:
            self._note("called after it was removed", key)
        return key

    def _note(self, fault: str, key: str) -> None:
        self.wrong.append(f"{fault}: {key}")


class Handling(Story):
    """A library user's asynchronous handler: slow, and failing, if it is told to be."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.clock = clock
        self.seconds = 0.0  # that a call takes
        self.failing = False
        self.raised = 0
        self._busy = False

    @property
    def listener(self) -> ProcessorListener:
        """What stands between the informer and this handler."""
        assert self.registration is not None
        assert isinstance(self.registration.listener, ProcessorListener)
        return self.registration.listener

    async def on_add(self, obj: ObjectView, is_in_initial_list: bool) -> None:
        await self._work(self.added(obj, is_in_initial_list))

    async def on_update(self, old: ObjectView, new: ObjectView) -> None:
        await self._work(self.updated(old, new))

    async def on_delete(self, obj: ObjectView | DeletedFinalStateUnknown) -> None:
        await self._work(self.deleted(obj))

    async def _work(self, key: str) -> None:
        if self._busy:
            self._note("called while another call runs", key)
        self._busy = True
        try:
            if self.seconds:
                await self.clock.sleep(self.seconds)
        finally:
            self._busy = False
        if self.failing:
            self.raised += 1
            raise ValueError(f"the handler does not like {key}")
