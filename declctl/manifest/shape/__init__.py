"""The shape of a manifest as JSON Schema, put together from one module for each part of it.

This is the single place where fields, their types, choices, descriptions and documented defaults
are written: the published schema, `explain`, the checks and the refusals are all read out of it.
What only declctl knows stands under the keyword `x-declctl`, which other readers of JSON Schema
skip. Nothing here checks anything.
"""

from declctl.manifest.shape.controller import controller
from declctl.manifest.shape.controller_test import controller_test
from declctl.manifest.shape.handlers import Schema, notes_of

__all__ = ["Schema", "controller", "controller_test", "notes_of"]
