"""The sandbox: an API server in memory behind real HTTP, for first runs, tests and plugin authors.

kubectl and every client can talk to it: discovery, LIST in pages, WATCH with bookmarks and initial events,
writes, all four patches, custom kinds. It keeps a ledger of requests and has faults on demand. It runs no
controllers and checks no schemas.
"""

from declctl.sandbox.faults import Faults, Ledger, LedgerEntry, Match
from declctl.sandbox.sandbox import Sandbox, SandboxThread

__all__ = ["Faults", "Ledger", "LedgerEntry", "Match", "Sandbox", "SandboxThread"]
