"""The times of a cron line: monotonic, once for each day, and across changes of the clock in any zone."""

from contextlib import suppress
from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from declctl.kit.timetable import CronTimes, check_line, check_zone, zone_names, zone_of

ZONES = ["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Beirut", "Pacific/Apia"]
MINUTES = ["*", "*/15", "0", "30", "0,30", "5-10", "59"]
HOURS = ["*", "*/6", "0", "2", "1-3", "2,3", "23"]
DAYS = ["*", "1", "L", "15,29"]
WEEKDAYS = ["*", "0", "MON-FRI", "SUN#1"]
lines = st.builds(
    "{} {} {} * {}".format,
    st.sampled_from(MINUTES),
    st.sampled_from(HOURS),
    st.sampled_from(DAYS),
    st.sampled_from(WEEKDAYS),
)
moments = st.datetimes(datetime(2020, 1, 1), datetime(2035, 1, 1), timezones=st.just(UTC))


def at(text: str) -> datetime:
    return datetime.fromisoformat(text)


def listed(line: str, zone: str, first: str, last: str) -> list[str]:
    """The local times of a line between two moments in UTC."""
    found = CronTimes(line, zone).between(at(first), at(last))
    return [time.astimezone(zone_of(zone)).strftime("%d %H:%M %z") for time in found]


def test_an_hour_that_is_skipped_or_comes_twice_fires_once():
    """No nightly job is left out or runs twice because of summer time.

    A process that starts between the two does not run it again.
    """
    nights = listed("30 2 * * *", "Europe/Berlin", "2026-03-28T00:00Z", "2026-03-30T12:00Z")
    assert nights == ["28 02:30 +0100", "29 03:00 +0200", "30 02:30 +0200"]
    nights = listed("30 2 * * *", "Europe/Berlin", "2026-10-24T00:00Z", "2026-10-26T12:00Z")
    assert nights == ["24 02:30 +0200", "25 02:30 +0200", "26 02:30 +0100"]
    second = at("2026-10-25T01:10Z")  # 02:10 for the second time
    assert CronTimes("30 2 * * *", "Europe/Berlin").after(second) == at("2026-10-26T01:30Z")


def test_a_line_with_a_star_follows_real_time():
    """Every half hour is every half hour, also in the hour that comes twice, and a rare time comes in both.

    In Beirut a day in spring begins at one: its first time is six, from whichever moment one asks.
    """
    found = listed("*/30 * * * *", "Europe/Berlin", "2026-10-24T23:59Z", "2026-10-25T02:00Z")
    assert found == ["25 02:00 +0200", "25 02:30 +0200", "25 02:00 +0100", "25 02:30 +0100", "25 03:00 +0100"]
    line, zone = "*/30 2 25 10 *", "Europe/Berlin"
    found = listed(line, zone, "2026-10-25T00:30Z", "2026-10-26T00:00Z")
    assert found == ["25 02:00 +0100", "25 02:30 +0100"]
    times = CronTimes("* */6 * * 0", "Asia/Beirut")
    for moment in ("2020-03-23T00:00Z", "2020-03-28T21:59Z", "2020-03-28T22:00Z"):
        assert times.after(at(moment)) == at("2020-03-29T03:00Z")


def test_clocks_that_move_by_half_an_hour_hide_no_time():
    """Lord Howe Island does that: the quarters are those of its clocks, wherever one begins."""
    times = CronTimes("*/15 */6 * * 0", "Australia/Lord_Howe")
    for moment in ("2020-04-04T13:50Z", "2020-04-04T14:59Z", "2020-04-04T15:00Z", "2020-04-04T15:20Z"):
        assert times.after(at(moment)) == at("2020-04-04T19:30Z")  # 06:00 +1030
    found = listed("*/15 1,2 * * *", "Australia/Lord_Howe", "2020-04-04T14:20Z", "2020-04-04T15:40Z")
    assert found == ["05 01:30 +1100", "05 01:45 +1100", "05 01:30 +1030", "05 01:45 +1030", "05 02:00 +1030"]


@settings(max_examples=120, deadline=None)
@given(line=lines, zone=st.sampled_from(ZONES), moment=moments)
def test_times_come_in_order_and_do_not_depend_on_where_one_begins(line: str, zone: str, moment: datetime):
    """After each moment between two times comes the later one: nothing comes twice or is left out."""
    times = CronTimes(line, zone)
    found = [moment]
    for _ in range(6):
        found.append(times.after(found[-1]))
    assert all(before < after for before, after in pairwise(found))
    for before, after in pairwise(found):
        middle = before + (after - before) / 2
        assert times.after(middle) == after
        assert times.after(after - timedelta(microseconds=1)) == after


@settings(max_examples=100, deadline=None)
@given(hour=st.integers(0, 23), minute=st.integers(0, 59), zone=st.sampled_from(ZONES[:-1]), moment=moments)
def test_a_daily_line_fires_once_on_each_local_day(hour: int, minute: int, zone: str, moment: datetime):
    """Whatever the zone does with its clocks. Apia is left out: it has skipped a whole day, in 2011."""
    found = CronTimes(f"{minute} {hour} * * *", zone).between(moment, moment + timedelta(days=400))
    days = [time.astimezone(zone_of(zone)).date() for time in found]
    assert all(after - before == timedelta(days=1) for before, after in pairwise(days))
    assert len(days) in (399, 400, 401)


@pytest.mark.parametrize(
    ("line", "days"),
    [
        ("0 9 L * *", ["31 Sat", "28 Sat", "31 Tue"]),
        ("0 9 LW * *", ["30 Fri", "27 Fri", "31 Tue"]),
        ("0 9 1,L * *", ["01 Thu", "31 Sat", "01 Sun"]),
        ("0 9 * * 5#2", ["09 Fri", "13 Fri", "13 Fri"]),
        ("0 9 * * FRI#2", ["09 Fri", "13 Fri", "13 Fri"]),
        ("0 9 * * 5L", ["30 Fri", "27 Fri", "27 Fri"]),
    ],
)
def test_a_line_names_the_last_days_of_a_month_and_its_weekdays_by_number(line: str, days: list[str]):
    """As docs/schedules.md says; crontab(5) does not have these forms."""
    times = islice(CronTimes(line).between(at("2026-01-01T00:00Z"), at("2027-01-01T00:00Z")), 3)
    assert [time.strftime("%d %a") for time in times] == days


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("0 0 30 2 *", "never fires: none of its months has a day 30"),
        ("0 0 31 4,6,9,11 *", "never fires: none of its months has a day 31"),
        ("0 0 */31 2 MON#5", "never fires: no day has this date and this day of the week"),
        ("61 * * * *", "'61' is no minute"),
        ("0 0 x * *", "'x' is no day of month"),
        ("* * * * MON#2/3", "'MON#2/3' is no day of week"),
        ("0 0 * *", "has 4 fields"),
        ("* * * * * *", "has 6 fields"),
        ("  ", "is empty"),
        ("0 0 " + "9" * 5000 + " * *", "can't be read"),
        ("@reboot", "has 1 fields"),
    ],
)
def test_a_line_that_can_not_fire_is_refused_with_the_reason(line: str, reason: str):
    """Without that, its schedule would be silent for ever."""
    with pytest.raises(ValueError, match=reason):
        check_line(line)


@pytest.mark.parametrize(
    "line", ["0 2 * * *", "@daily", "@Hourly", "0 0 29 2 *", "0 0 * 2 MON#5", "0 0 L * *"]
)
def test_a_line_that_fires_some_day_is_accepted(line: str):
    """Also if that is a leap day, or decades away."""
    assert check_line(line) == line
    assert CronTimes(line).after(at("2026-01-01T00:00Z")).year < 2060


@settings(max_examples=120, deadline=None)
@given(st.text(alphabet="0123456789*/,-#L MONSUWA@", max_size=20))
def test_no_text_raises_anything_else(line: str):
    """Whatever is written is accepted, or refused with a reason."""
    with suppress(ValueError):
        assert CronTimes(check_line(line)).after(at("2026-01-01T00:00Z")).year < 2080


@pytest.mark.parametrize("name", ["Berlin", "europe/berlin", "Europe", "../UTC", "localtime", "\0", "é"])
def test_an_unknown_zone_is_refused(name: str):
    """So is one whose meaning depends on the machine."""
    with pytest.raises(ValueError, match="there is no time zone"):
        check_zone(name)
    assert name not in zone_names()
