"""Cron lines: the times at which one fires, in a time zone, across changes between summer and winter time.

`cronsim` reads and follows the lines, as Debian's cron does. It and the zones are imported at the first use,
so that a process without a cron line loads neither.
"""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from types import MappingProxyType
from typing import Final

import msgspec

SHORTHANDS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "@yearly": "0 0 1 1 *",
        "@annually": "0 0 1 1 *",
        "@monthly": "0 0 1 * *",
        "@weekly": "0 0 * * 0",
        "@daily": "0 0 * * *",
        "@midnight": "0 0 * * *",
        "@hourly": "0 * * * *",
    }
)
"""The words of crontab(5) and of a CronJob, each with the line that it stands for."""

_FIELDS = 5  # minute, hour, day of month, month, day of week
_BEGIN = datetime(2000, 1, 1, tzinfo=UTC)  # leap years and weekdays repeat within 40 years of it
_LAST = datetime.max.replace(tzinfo=UTC)
_SHORTEST_STRETCH = timedelta(hours=12)  # between two changes of the clocks of a zone
# Files of the time zone data that are no zones with the same meaning on each machine.
_LOCAL = frozenset({"localtime", "posixrules", "Factory"})


class CronTimes(msgspec.Struct, frozen=True):
    """The times of a cron line. `line` has five fields, or is one of SHORTHANDS; `zone` is an IANA name.

    Raises ValueError for a line or a zone that `check_line` and `check_zone` refuse.
    """

    line: str
    zone: str = "UTC"

    def after(self, moment: datetime) -> datetime:
        """The first time after an aware moment, in UTC.

        A line with a fixed hour and minute fires once on each of its days. An hour that is skipped in spring
        fires at its end, and an hour that comes twice in autumn fires the first time. A line with a star as
        hour or minute fires as real time passes.
        """
        return next(self._from(moment))

    def between(self, first: datetime, last: datetime) -> Iterator[datetime]:
        """The times after `first` up to and including `last`, the oldest first."""
        for time in self._from(first):
            if time > last:
                return
            yield time

    def _from(self, moment: datetime) -> Iterator[datetime]:
        from cronsim import CronSim  # late: a process without schedules does not load it

        line, zone = _spelled_out(self.line), zone_of(self.zone)
        if any(field.startswith("*") for field in line.split()[:2]):
            yield from _clock_times(line, zone, moment)
        else:
            for time in CronSim(line, moment.astimezone(zone)):
                found = time.astimezone(UTC)
                # In the hour that comes twice, cronsim begins with the first one, which may be over.
                if found > moment:
                    yield found
        yield _LAST  # cronsim found none within 50 years; `check_line` refuses such lines


def _clock_times(line: str, zone: tzinfo, moment: datetime) -> Iterator[datetime]:
    """The moments after another one at which a clock of the zone shows a time of the line.

    cronsim counts whole hours for such lines, and Lord Howe Island moves its clocks by half an hour. So
    cronsim gets times without a zone here, for each stretch of time with one offset to UTC.
    """
    from cronsim import CronSim  # late: as above

    moment = moment.astimezone(UTC)
    begin = moment  # of the times without a zone; they come after it
    while True:
        offset = _offset(zone, moment)
        for time in CronSim(line, begin.replace(tzinfo=None) + offset):
            found = (time - offset).replace(tzinfo=UTC)
            change = _next_change(zone, moment, found)
            if change is not None:
                break
            yield found
            moment = found
        else:
            return  # none within 50 years
        moment, begin = (
            change,
            change - timedelta(minutes=1),
        )  # the clock may show a time at the change itself


def _next_change(zone: tzinfo, first: datetime, last: datetime) -> datetime | None:
    """The first moment after `first` with another offset, `last` at the latest; None if there is none."""
    while first < last:
        late = min(first + _SHORTEST_STRETCH, last)
        offset = _offset(zone, first)
        if _offset(zone, late) != offset:
            while late - first > timedelta(seconds=1):
                middle = first + (late - first) / 2
                first, late = (middle, late) if _offset(zone, middle) == offset else (first, middle)
            return late.replace(microsecond=0)
        first = late
    return None


def _offset(zone: tzinfo, moment: datetime) -> timedelta:
    return moment.astimezone(zone).utcoffset() or timedelta(0)


def check_line(line: str) -> str:
    """Return a cron line; raises ValueError with the reason if it is wrong, or never fires."""
    from cronsim import CronSim, CronSimError  # late: as above

    text = _spelled_out(line)
    fields = len(text.split())
    if fields != _FIELDS:
        raise ValueError(f"it has {fields} fields, and a cron line has five" if fields else "it is empty")
    try:
        times = CronSim(text, _BEGIN)
    except CronSimError as error:
        raise ValueError(_reason(text, str(error))) from error
    except (ValueError, AssertionError) as error:  # a number of thousands of digits; steps of no numbers
        raise ValueError("a field of it can't be read") from error
    if next(times, None) is None:
        raise ValueError("it never fires: no day has this date and this day of the week")
    return line


def _reason(line: str, error: str) -> str:
    """The reason of a CronSimError, such as `Bad day-of-month`, in words."""
    names = ("minute", "hour", "day-of-month", "month", "day-of-week")
    name = error.removeprefix("Bad ")
    if name not in names:
        return error
    fields = line.split()
    field = fields[names.index(name)]
    # cronsim refuses a day that none of the months has in the same words as a day that can't be read.
    if name == "day-of-month" and _is_readable(" ".join([*fields[:3], "*", "*"])):
        return f"it never fires: none of its months has a day {field}"
    return f"{field!r} is no {name.replace('-', ' ')}"


def _is_readable(line: str) -> bool:
    from cronsim import CronSim, CronSimError  # late: as above

    try:
        CronSim(line, _BEGIN)
    except (CronSimError, ValueError, AssertionError):
        return False
    return True


def check_zone(name: str) -> str:
    """Return the name of a time zone; raises ValueError if there is no such zone."""
    zone_of(name)
    return name


@lru_cache(maxsize=64)
def zone_of(name: str) -> tzinfo:
    """The time zone of an IANA name; raises ValueError if there is no such zone."""
    if name == "UTC":
        return UTC
    from zoneinfo import ZoneInfo  # late: as above

    try:
        # A file system without upper and lower case would accept any spelling.
        if name not in _LOCAL and (zone := ZoneInfo(name)).key == name:
            return zone
    except (LookupError, OSError, ValueError) as error:
        raise ValueError(f'there is no time zone "{name}"') from error
    raise ValueError(f'there is no time zone "{name}"')


def zone_names() -> frozenset[str]:
    """The time zones of this machine and of `tzdata`. Reads hundreds of files: for suggestions alone."""
    from zoneinfo import available_timezones  # late: as above

    return frozenset(available_timezones()) - _LOCAL


def _spelled_out(line: str) -> str:
    return SHORTHANDS.get(line.strip().lower(), line)
