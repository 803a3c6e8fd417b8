"""From files to a plan and tried code: files are read, checked, and imported in a child process.

This package imports nothing, as `runtime` does, because the fork server of the child processes imports
`fork_server` alone.
"""
