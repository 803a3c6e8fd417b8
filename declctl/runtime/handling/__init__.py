"""Handlers: their slots with the queues, the calls of their hooks, and their moves between caches."""
