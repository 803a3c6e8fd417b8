"""Handlers: the slots that changes wait in, who works on them, and what becomes of each change."""
