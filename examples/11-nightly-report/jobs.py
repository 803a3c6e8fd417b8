"""Reports about the cache. No request is sent to the API server."""


def nightly(schedule, ctx):
    pods = ctx.listers["pods"]
    phases = {phase: len(pods.by_index("byPhase", phase)) for phase in sorted(pods.index_values("byPhase"))}
    print(f"pods on {schedule.time:%Y-%m-%d}, by phase: {phases}")


async def pulse(ctx):
    running = len(ctx.listers["pods"].by_index("byPhase", "Running"))
    print(f"{running} pods run")
