"""The sockets: what a plugin may rely on, and how the host reaches it.

`specs` is the contract, `markers` what a plugin imports; `bundle` and `loading` bring handler files
into a private namespace, `plugins` finds installed ones, `registry` is the table of a generation,
`calling` and `awaiting` the one gate to foreign code. Threads, queues and informers do not belong
here.

Only what a plugin imports stands in this front; the host imports the modules that it needs, since a
process that checks a manifest pays for each of them.
"""

from declctl.hooks.markers import hookimpl, hookspec

__all__ = ["hookimpl", "hookspec"]
