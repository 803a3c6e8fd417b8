"""What a scalar without quotes is taken for, and where YAML 1.1 takes it for something that nobody meant.

Types are guessed as YAML 1.1 does (and with it kubectl, kustomize and Helm), so that a manifest
means the same everywhere. The traps are known by name, so that whoever falls into one is told how
it happened.
"""

import math
import re

from declctl.manifest.json_values import Json

_NULL = frozenset({"", "~", "null", "Null", "NULL"})
_TRUE = frozenset({"yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON"})
_FALSE = frozenset({"no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF"})
_INTEGER = re.compile(r"[-+]?(0b[01_]+|0x[0-9a-fA-F_]+|0[0-7_]+|0|[1-9][0-9_]*)", re.ASCII)
_SEXAGESIMAL = re.compile(r"[-+]?[1-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?", re.ASCII)
_FLOAT = re.compile(r"[-+]?([0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*)([eE][-+][0-9]+)?", re.ASCII)
_SPECIAL_FLOAT = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_OCTAL = re.compile(r"[-+]?0[0-7_]+", re.ASCII)
_MAX_DIGITS = 300  # longer numbers stay text: nobody writes them, and Python refuses to convert the longest


def resolve(text: str) -> Json:
    """The value of a scalar that stands without quotes."""
    if text in _NULL:
        return None
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    if len(text) > _MAX_DIGITS or not text.isascii():
        return text
    return _number(text)


def trap(text: str) -> str | None:
    """How YAML 1.1 reads the text, if not as what is written; None for everything harmless.

    A phrase that completes the sentence "YAML reads `10:00` as …".
    """
    if text.lower() in {"yes", "no", "on", "off"}:
        value = resolve(text)
        return None if isinstance(value, str) else f"the boolean {str(value).lower()}"
    if _SEXAGESIMAL.fullmatch(text):
        return f"the number {resolve(text)} (base 60)"
    if _OCTAL.fullmatch(text) and isinstance(resolve(text), int):
        return f"the number {resolve(text)} (octal)"
    return None


def _number(text: str) -> Json:
    digits = text.replace("_", "")
    try:
        if _INTEGER.fullmatch(text):
            return _integer(digits)
        if _SEXAGESIMAL.fullmatch(text):
            return _base_60(digits)
        if _FLOAT.fullmatch(text):
            return float(digits)
    except ValueError:
        return text  # only underscores after the prefix, such as "0x_"
    if _SPECIAL_FLOAT.fullmatch(text):
        return math.nan if "n" in text.lower().replace("inf", "") else float(text.replace(".", ""))
    return text


def _integer(digits: str) -> int:
    sign = -1 if digits.startswith("-") else 1
    body = digits.lstrip("+-")
    if body.startswith(("0b", "0x")):
        return sign * int(body, 0)
    return sign * int(body, 8 if body.startswith("0") else 10)


def _base_60(digits: str) -> int | float:
    sign = -1 if digits.startswith("-") else 1
    whole, _, fraction = digits.lstrip("+-").partition(".")
    total = 0
    for part in whole.split(":"):
        total = total * 60 + int(part)
    return sign * (total + float(f"0.{fraction}")) if fraction else sign * total
