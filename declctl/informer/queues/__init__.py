"""Queues between a reflector and the store: in order, accumulated by key, newest only, by priority.

All are synchronous cores that decide, under a thin shell that waits; the loop is the lock.
"""
