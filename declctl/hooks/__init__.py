"""Hooks: the interface of plugins and handler files, and how the process finds and calls them.

Here are the two markers, which a plugin imports; `specs` is the contract. `bundle` reads handler files into
memory, `parser` finds their imports, and `loader` imports them under private names. `plugins` finds installed
plugins, `registry` has the plugins of a generation, `calls` is the one gate to user code, `faults`
locates its errors, and `lint` finds what no reload can undo. Threads, queues and informers do not belong
here.

Nothing else is imported here, because a process that checks a manifest pays for each module.
"""

from typing import Final

import pluggy

__all__ = ["hookimpl", "hookspec"]

PROJECT: Final = "declctl"
"""The name of the project for pluggy, and the entry-point group of installed plugins."""

hookspec = pluggy.HookspecMarker(PROJECT)
"""Marks a hook that the host calls; used in `specs` only."""

hookimpl = pluggy.HookimplMarker(PROJECT)
"""Marks a function of a plugin that implements the hook of the same name, or that of `specname=`."""
