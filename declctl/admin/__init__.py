"""The admin address: probes, status, metrics, reads of the live cache, a page, and requests for reloads.

The metrics may have an address of their own, besides.

This room shows the figures of the runtime, and decides nothing. It runs on the machinery loop, so that it
answers exactly when the machinery runs. Long work is done in a thread.
"""

from declctl.admin.authorization import StaticToken, TokenFile, from_environment
from declctl.admin.server import front, serve, why_not_served

__all__ = ["StaticToken", "TokenFile", "from_environment", "front", "serve", "why_not_served"]
