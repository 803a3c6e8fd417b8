"""Times as kubectl shows them: `47s`, `5m12s`, `3d4h`."""

from datetime import UTC, datetime
from typing import Any


def age(timestamp: Any, now: datetime) -> str:
    """How long ago an RFC 3339 timestamp was; `<unknown>` if it isn't one."""
    moment = parse(timestamp)
    return "<unknown>" if moment is None else human((now - moment).total_seconds())


def parse(timestamp: Any) -> datetime | None:
    """An RFC 3339 timestamp as an aware datetime."""
    if not isinstance(timestamp, str):
        return None
    try:
        moment = datetime.fromisoformat(timestamp.replace("Z", "+00:00"))
    except ValueError:
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def human(seconds: float) -> str:
    """A duration, in the two units that matter (apimachinery's HumanDuration)."""
    whole = int(seconds)
    if whole < -1:
        return "<invalid>"
    if whole < 0:
        return "0s"
    minutes, hours, days = whole // 60, whole // 3600, whole // 86400
    if minutes < 2:
        return f"{whole}s"
    if minutes < 10:
        return _pair(minutes, "m", whole % 60, "s")
    if hours < 3:
        return f"{minutes}m"
    if hours < 8:
        return _pair(hours, "h", minutes % 60, "m")
    if hours < 48:
        return f"{hours}h"
    if days < 8:
        return _pair(days, "d", hours % 24, "h")
    if days < 365 * 2:
        return f"{days}d"
    if days < 365 * 8:
        return _pair(days // 365, "y", days % 365, "d")
    return f"{days // 365}y"


def _pair(large: int, large_unit: str, small: int, small_unit: str) -> str:
    return f"{large}{large_unit}{small}{small_unit}" if small else f"{large}{large_unit}"
