"""From files to a plan and code that has been tried: read once, checked, imported aside in a child process.

This front is empty on purpose, as the one above: children's process imports `answering` alone.
"""
