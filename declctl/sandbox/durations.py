"""Times as kubectl shows them: `47s`, `5m12s`, `3d4h`."""

from datetime import UTC, datetime
from typing import Any, Final

_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400, "y": 365 * 86400}
_SCALE: Final = (  # below so many seconds: the unit, and the smaller one that still matters
    (2 * 60, "s", ""),
    (10 * 60, "m", "s"),
    (3 * 3600, "m", ""),
    (8 * 3600, "h", "m"),
    (48 * 3600, "h", ""),
    (8 * 86400, "d", "h"),
    (2 * 365 * 86400, "d", ""),
    (8 * 365 * 86400, "y", "d"),
)


def age(timestamp: Any, now: datetime) -> str:
    """How long ago an RFC 3339 timestamp was; `<unknown>` if it isn't one."""
    moment = parse(timestamp)
    return "<unknown>" if moment is None else human((now - moment).total_seconds())


def parse(timestamp: Any) -> datetime | None:
    """An RFC 3339 timestamp as an aware datetime."""
    if not isinstance(timestamp, str):
        return None
    try:
        moment = datetime.fromisoformat(timestamp)
    except ValueError:
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def human(seconds: float) -> str:
    """A duration, in the two units that matter (apimachinery's HumanDuration)."""
    whole = int(seconds)
    if whole < -1:
        return "<invalid>"
    for below, large, small in _SCALE:
        if whole < below:
            return _written(max(0, whole), large, small)
    return _written(whole, "y", "")


def _written(whole: int, large: str, small: str) -> str:
    text = f"{whole // _SECONDS[large]}{large}"
    rest = whole % _SECONDS[large] // _SECONDS[small] if small else 0
    return f"{text}{rest}{small}" if rest else text
