"""Queues between a reflector and the store: in order, accumulated by key, newest only, by priority.

Each queue has synchronous methods that decide, and asynchronous ones that wait for them. A queue is used on
one loop and needs no lock.
"""
