"""The room that joins the others: the process, its generations and their handlers.

`checking` reads a manifest and imports its handlers in a child process. `caching` has the informers,
`handling` delivers changes to handlers, and `reloading` replaces a generation by the next. `reporting` and
`planning` describe the present state and the next one. `runtime` is the process. Code that can be tested
without two other rooms does not belong here.

This file is empty on purpose: the fork server of pre-flights imports `checking.preflight_child`, and must not
import the rest.
"""
