"""Templates and conditions of a rule: Jinja, in its sandbox.

A template is written by an author of the manifest, who is trusted; the values that it shows are not. A field
that is missing is shown as missing. A value that is no text is shown as JSON.
"""

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final, cast

from jinja2 import ChainableUndefined, TemplateError, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment

from declctl_notify.text import plain_text

MOST_CHARACTERS: Final = 32_768
"""A text is rendered up to this length. It is the longest that apprise sends by itself."""


class TemplateFault(Exception):
    """A template or expression can't be compiled, or has failed for one change. Its text is for users."""


class Missing(ChainableUndefined):
    """A field that the object does not have; fields of it are missing, too."""

    def __getattr__(self, name: str) -> Any:
        # Python looks for special methods, which are no fields.
        if name.startswith("__"):
            raise AttributeError(name)
        return Missing(name=f"{self._undefined_name}.{name}")

    def __getitem__(self, name: Any) -> Any:
        return Missing(name=f"{self._undefined_name}.{name}")

    def __str__(self) -> str:
        return f"(missing: {self._undefined_name})"


class _Environment(ImmutableSandboxedEnvironment):
    """A sandbox in which `obj.spec.values` is the field `values`, and not the method of the dictionary."""

    def getattr(self, obj: Any, attribute: str) -> Any:
        if isinstance(obj, Mapping) and attribute in obj:
            return cast("Mapping[str, Any]", obj)[attribute]
        return super().getattr(obj, attribute)


def _final(value: Any) -> Any:
    """The value of `{{ … }}` as text. A method, as of `{{ obj.spec.keys }}`, is no field of the object."""
    if isinstance(value, Undefined):
        return value
    if callable(value):
        return f"(missing: {getattr(value, '__name__', 'field')})"
    return plain_text(value)


def _time(moment: datetime) -> str:
    """The filter `time`: a moment in UTC, to the second."""
    return moment.strftime("%Y-%m-%d %H:%M:%S UTC")


def _environment() -> _Environment:
    made = _Environment(undefined=Missing, finalize=_final, trim_blocks=True, lstrip_blocks=True)
    made.filters["time"] = _time
    return made


_ENVIRONMENT: Final = _environment()


class Template:
    """A text with `{{ … }}`. Raises TemplateFault if it can't be compiled. Rendered by any thread."""

    def __init__(self, text: str) -> None:
        self.text = text
        try:
            self._template = _ENVIRONMENT.from_string(text)
        except TemplateError as error:
            raise TemplateFault(_sentence(error)) from None

    def render(self, values: Mapping[str, Any]) -> str:
        """The text for these values, cut at `MOST_CHARACTERS`. Raises TemplateFault."""
        parts: list[str] = []
        length = 0
        try:
            for part in self._template.generate(values):
                parts.append(part)
                length += len(part)
                if length >= MOST_CHARACTERS:
                    break
        except Exception as error:  # noqa: BLE001 - of the template: a wrong type, a division by zero
            raise TemplateFault(f"{type(error).__name__} in {self.text!r:.80}") from None
        return "".join(parts)[:MOST_CHARACTERS]


class Expression:
    """An expression of Jinja, without braces. Raises TemplateFault if it can't be compiled."""

    def __init__(self, text: str) -> None:
        self.text = text
        try:
            self._evaluate: Callable[..., Any] = _ENVIRONMENT.compile_expression(
                text, undefined_to_none=False
            )
        except TemplateError as error:
            raise TemplateFault(_sentence(error)) from None

    def evaluate(self, values: Mapping[str, Any]) -> Any:
        """The value of the expression, a `Missing` for a missing field. Raises TemplateFault."""
        try:
            return self._evaluate(values)
        except Exception as error:  # noqa: BLE001 - of the expression, as in `Template.render`
            raise TemplateFault(f"{type(error).__name__} in {self.text!r:.80}") from None


def _sentence(error: TemplateError) -> str:
    line = getattr(error, "lineno", None)
    return f"{error.message or type(error).__name__}{f' (line {line})' if line else ''}"
