"""What somebody should know of a resource that works: told when it begins, and each time it has doubled."""

from collections.abc import Iterator

from declctl.informer import InformerStatistics
from declctl.runtime.reporting.status import ResourceStatus


class Notes:
    """Remembers what was told, so that what goes on all the time is a few lines and not a flood."""

    def __init__(self) -> None:
        self._told: dict[tuple[str, str, str], int] = {}

    def of(self, resource: ResourceStatus) -> Iterator[str]:
        """What is new and worth a line, each with its resource, what happened, how often and why."""
        if self._is_news((resource.name, "", "mutations"), resource.mutations):
            yield f"{resource.name}: {_mutated(resource)}"
        decoding = resource.decoding
        if self._is_news((resource.name, "", "transform"), decoding.failed):
            left_out = f"{_objects(decoding.failed)} left out of the cache"
            yield f"{resource.name}: {left_out}; the last: {decoding.last_fault}"
        for part in resource.informers:
            for subject, times, text in _notable(part):
                if self._is_news((resource.name, part.name, subject), times):
                    yield f"{resource.name}: {text}"

    def _is_news(self, key: tuple[str, str, str], times: int) -> bool:
        if not times or times < 2 * self._told.get(key, 0):
            return False
        self._told[key] = times
        return True


def not_synced(resource: ResourceStatus) -> str:
    """That a resource can't be read yet, why, and what to do."""
    so_far = f"{resource.items_listed:,} objects so far"
    return f"has not synced, and reads of it raise NotSynced: {resource.error or so_far}; {_advice(resource)}"


def _advice(resource: ResourceStatus) -> str:
    waiting = [part for part in resource.informers if not part.synced]
    if any(part.forbidden for part in waiting):
        return (
            "grant list and watch on it (`declctl validate --cluster` says what is missing), and it goes on "
            "by itself"
        )
    if any(part.missing for part in waiting):
        return "mend its apiVersion and kind, or install its definition, and it goes on by itself"
    return "it goes on by itself"


def _mutated(resource: ResourceStatus) -> str:
    return (
        f"{_objects(resource.mutations)} changed in the cache by a reader, and put right; the last: "
        f"{resource.last_mutation}. With cache.mode Objects all readers share an object: change what "
        "obj.to_dict() gives"
    )


def _notable(part: InformerStatistics) -> Iterator[tuple[str, int, str]]:
    """What is counted, how often it was, and how to say it."""
    reflector, slow = part.reflector, part.controller.slow
    last = f"the last: {reflector.last_oddity}"
    yield "skipped", reflector.skipped, f"{_objects(reflector.skipped)} skipped; {last}"
    yield "raw", reflector.kept_raw, f"{_objects(reflector.kept_raw)} kept unread; {last}"
    longest = f"for {part.controller.longest:.2f} s at most"
    why = "an index function or a transform is slow"
    yield "slow", slow, f"processing held up other changes {_times(slow)}, {longest}: {why}"
    for index, (times, fault) in part.index_faults.items():
        name = index.partition("@")[0]
        yield f"index {index}", times, f"index {name} failed {_times(times)}; the last: {fault}"


def _objects(number: int) -> str:
    return "1 object was" if number == 1 else f"{number:,} objects were"


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number:,} times"
