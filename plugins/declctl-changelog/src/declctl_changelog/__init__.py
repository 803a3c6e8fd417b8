"""A declctl plugin: one line on stdout for each change, with what changed.

Its hooks are what declctl calls; `lines` says the line of a change, `differences` what changed. It imports
nothing of declctl but public names, as any third-party plugin should.
"""

import sys
from collections.abc import Mapping
from typing import Any, Protocol

from declctl import Change, hookimpl

from declctl_changelog.lines import Settings, line_of

__all__ = ["declctl_config_schema", "declctl_event", "declctl_hookspec_version"]

declctl_hookspec_version = ">=1.0,<2"
"""The versions of declctl's hooks that this plugin supports."""


class Context(Protocol):
    """What is needed of a hook's `ctx`."""

    @property
    def config(self) -> Mapping[str, Any]:
        """The plugin's `config` in the manifest, valid by `declctl_config_schema`."""
        ...


@hookimpl
def declctl_config_schema() -> dict[str, Any]:
    """What `config` may hold."""
    default = Settings()
    return {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "ignore": {
                "description": "Field paths that are not shown, with all below them; replaces the default.",
                "type": "array",
                "items": {"type": "string", "minLength": 1},
                "default": list(default.ignore),
            },
            "maxChanges": {
                "description": "How many changed fields are shown for one change; the others are counted.",
                "type": "integer",
                "minimum": 1,
                "default": default.max_changes,
            },
            "format": {
                "description": "text: a line for people; json: an object a line.",
                "enum": ["text", "json"],
                "default": default.format,
            },
        },
    }


@hookimpl
def declctl_event(change: Change, ctx: Context) -> None:
    """Tell of one change."""
    line = line_of(change, Settings.of(ctx.config))
    if line is not None:
        # One write with its line end, so that the lines of several workers do not mix.
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
