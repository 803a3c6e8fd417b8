"""Cron lines that can't be read, or never fire, are told where they are written."""

import pytest

SCHEDULE = "schedules: [{name: nightly, entryPoint: 'm:f', cron: §'%s'}]"


@pytest.mark.parametrize(
    ("line", "why", "advice"),
    [
        ("0 0 30 2 *", "it never fires: none of its months has a day 30", "name days and months that go"),
        ("0 0 31 4,6 *", "it never fires: none of its months has a day 31", "name days and months that go"),
        ("61 0 * * *", "'61' is no minute", "write minute, hour, day of the month"),
        ("@every 5m", "", 'write every: "5m" instead of cron'),
        ("0 0 2 * * *", "", "seconds are not possible"),
        ("TZ=UTC 0 2 * * *", "", "name the zone in the field timeZone"),
    ],
)
def test_a_cron_line_that_never_fires_or_is_none_is_told(only_fault, line, why, advice):
    """With the reason, and what to write instead."""
    fault = only_fault(SCHEDULE % line)
    assert (fault.code, fault.severity) == ("DCL101", "error")
    assert why in fault.message
    assert ("is not a cron line" in fault.message) == ("never fires" not in fault.message)
    assert fault.suggestion.startswith(advice)


@pytest.mark.parametrize("line", ["0 0 29 2 *", "0 0 31 * *", "@daily"])
def test_a_line_that_fires_some_day_is_fine(faults, line):
    """The 29th of February comes every four years."""
    assert faults(SCHEDULE.replace("§", "") % line) == ()


@pytest.mark.parametrize(
    ("zone", "advice"),
    [
        ("localtime", "write an IANA name such as Europe/Berlin, or UTC"),
        ("Factory", "write an IANA name such as Europe/Berlin, or UTC"),
        ("Berlin", 'did you mean "Europe/Berlin"?'),
    ],
)
def test_what_a_zone_that_there_is_not_may_mean(only_fault, zone, advice):
    """A name that is refused is never suggested."""
    fault = only_fault(
        f"schedules: [{{name: nightly, entryPoint: 'm:f', cron: '@daily', timeZone: §{zone}}}]"
    )
    assert fault.suggestion == advice
