"""Handlers: the slots that changes wait in, the calls of their hooks, and the moves between caches."""
