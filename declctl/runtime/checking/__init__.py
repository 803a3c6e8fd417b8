"""From files to a plan and code that has been tried: read once, checked, imported in a child process.

It imports nothing, as `runtime` does: the process of the children imports `fork_server` alone.
"""
