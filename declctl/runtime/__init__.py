"""The roof: rooms meet here and nowhere else.

`check` reads a manifest and imports its handlers aside; `assembly` wires a generation; `reload`
makes generations follow one another; `runtime` is the process. What could be tested without two
other rooms does not belong here.

This front is empty on purpose: a child process imports `runtime.preflight` and must not pay for the
rest.
"""
