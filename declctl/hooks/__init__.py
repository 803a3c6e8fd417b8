"""The sockets: what a plugin may rely on, and how the host reaches it.

`specs` is the contract, `markers` what a plugin imports; `bundle` and `loading` bring handler files
into a private namespace, `plugins` finds installed ones, `registry` is the table of a generation,
and `calling` the one gate to foreign code. Threads, queues and informers do not belong here.
"""

from declctl.hooks.bundle import Bundle, closure
from declctl.hooks.calling import EventTarget, Implementation, call, call_async, readable_traceback
from declctl.hooks.config import PluginConfigError, check_config
from declctl.hooks.faults import told
from declctl.hooks.loading import EntryPoint, GenerationNamespace
from declctl.hooks.markers import PROJECT, hookimpl, hookspec
from declctl.hooks.plugins import InstalledPlugin, find, installed, load
from declctl.hooks.registry import GenerationPlugins

__all__ = [
    "PROJECT",
    "Bundle",
    "EntryPoint",
    "EventTarget",
    "GenerationNamespace",
    "GenerationPlugins",
    "Implementation",
    "InstalledPlugin",
    "PluginConfigError",
    "call",
    "call_async",
    "check_config",
    "closure",
    "find",
    "hookimpl",
    "hookspec",
    "installed",
    "load",
    "readable_traceback",
    "told",
]
