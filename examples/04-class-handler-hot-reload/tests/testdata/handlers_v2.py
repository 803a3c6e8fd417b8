"""A class as a handler: its methods are hooks, and what it must not forget is in ctx.memo."""

import declctl

GREETING = "met"


class Counter:
    """Made anew for each generation: attributes start afresh, ctx.memo does not."""

    def __init__(self):
        self.since_reload = 0

    @declctl.hookimpl
    def declctl_event(self, change, ctx):
        self.since_reload += 1
        ctx.memo["times"] = times = ctx.memo.get("times", 0) + 1
        print(
            f"generation {ctx.generation}: {change.type} {change.key}, {GREETING} {times} times, "
            f"{self.since_reload} calls since the reload",
        )

    @declctl.hookimpl
    def declctl_teardown(self, ctx):
        print(f"generation {ctx.generation}: {self.since_reload} calls, good bye")
