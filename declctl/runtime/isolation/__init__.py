"""Handlers in processes of their own (`isolation: {mode: Process}`): calls, children, and their `ctx`.

parent: worker thread ── IsolatedHook ── HandlerChildren ── Template ═ fork ═▶ child: serve ── the hook
                              ▲                                                    │
                              └── questions of ctx, result or exception (protocol) ┘

`parent` and `child` are the two sides; `template` is the process between them.
"""
