"""Figures for people: durations, ages, bytes, counts and rates, each in one form in commands and on the page.

A figure has few digits, no exponent, and its unit without a space before it. The script of the page writes
counts and rates by itself, by the same rules; tests compare both with the same examples.
"""

import math

_KIBI = 1024
_AGES = (("d", 86_400), ("h", 3_600), ("m", 60))
_LONG_SECONDS = 100  # from which on a duration is written as an age


def duration(seconds: float) -> str:
    """How long something took, or takes: `0.34ms`, `12.5ms`, `2.5s`, `5m`, `3h`, `2d`."""
    if seconds >= _LONG_SECONDS:
        return age(seconds)
    milliseconds = seconds * 1000
    if milliseconds < 999.5:  # otherwise it would be written as 1000ms
        return f"{_digits(milliseconds)}ms"
    return f"{_digits(seconds)}s"


def age(seconds: float) -> str:
    """How long ago something was, or when it is due, in one unit as kubectl writes it: `42s`, `5m`, `2d`."""
    whole = max(0, int(seconds))
    for unit, length in _AGES:
        if whole >= 2 * length or (unit == "d" and whole >= length):
            return f"{count(whole // length)}{unit}"
    return f"{whole}s"


def byte_size(number: int) -> str:
    """A number of bytes as Kubernetes writes quantities: `812B`, `12.5Ki`, `793Mi`, `1.5Gi`."""
    value, unit = float(number), "B"
    for larger in ("Ki", "Mi", "Gi"):
        if value < _KIBI:
            break
        value, unit = value / _KIBI, larger
    return f"{_digits(value)}{unit}"


def count(number: int) -> str:
    """A number of things: `1,234`."""
    return f"{number:,}"


def rate(per_second: float) -> str:
    """A number of things in a second, with one decimal if it is small: `0`, `<0.1`, `0.4`, `12`, `1,234`."""
    # Halves are rounded up by hand, because Python and JavaScript format them differently.
    tenths = math.floor(per_second * 10 + 0.5)
    if per_second > 0 and not tenths:
        return "<0.1"
    if 0 < tenths < 100:
        return f"{tenths / 10:.1f}"
    return count(math.floor(per_second + 0.5))


def number(value: float) -> str:
    """A figure whose unit is in its name: at most six decimals, and no exponent."""
    return f"{value:,.6f}".rstrip("0").rstrip(".")


def _digits(value: float) -> str:
    """Three digits that tell something, without zeros at the end."""
    decimals = next((places for places, least in enumerate((100, 10, 1)) if value >= least), 3)
    shown = f"{value:,.{decimals}f}"
    return shown.rstrip("0").rstrip(".") if "." in shown else shown
