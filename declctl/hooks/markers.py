"""The two markers of the plugin contract. Importing them costs pluggy and nothing else."""

from typing import Final

import pluggy

PROJECT: Final = "declctl"

hookspec = pluggy.HookspecMarker(PROJECT)
"""Marks what the host calls; used in `specs` only."""

hookimpl = pluggy.HookimplMarker(PROJECT)
"""Marks a function of a plugin that implements a hook of the same name."""
