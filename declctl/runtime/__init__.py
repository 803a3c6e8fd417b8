"""The only place where the rooms below meet: the process, its generations and their handlers.

`checking` reads a manifest and imports its handlers aside, `caching` keeps what is watched, `handling` is
what becomes of a change, `reloading` makes generations follow one another; `reporting` and `planning` say
what is and what would be; `runtime` is the process. What could be tested without two other rooms does not
belong here.

This front is empty on purpose: the process that pre-flights' children come from imports `checking.answering`,
and must not pay for the rest.
"""
