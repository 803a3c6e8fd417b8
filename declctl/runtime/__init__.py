"""The roof: rooms meet here and nowhere else.

`check` reads a manifest and imports its handlers aside; `assembly` wires a generation; `reload`
makes generations follow one another; `runtime` is the process. What could be tested without two
other rooms does not belong here.

This front is empty on purpose: the process that pre-flights' children come from imports `runtime.answering`,
and must not pay for the rest.
"""
