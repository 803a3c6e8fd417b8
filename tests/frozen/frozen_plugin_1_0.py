"""A plugin written against version 1.0 of the hook specification. NEVER EDIT THIS FILE.

It stands for all plugins of that time, which nobody edits any more: it has to go on working with each
version 1.x. If its test fails, a change of declctl is at fault: make the change compatible, or raise
HOOKSPEC_VERSION to 2.0. The formatter and the linter leave it alone.
"""

import declctl

declctl_hookspec_version = ">=1.0,<2"

seen = []


@declctl.hookimpl
def declctl_config_schema():
    return {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "prefix": {"type": "string", "description": "Stands before each line.", "default": ""}
        },
    }


@declctl.hookimpl
def declctl_startup(ctx):
    seen.append(("startup", ctx.generation, ctx.config["prefix"]))


@declctl.hookimpl
def declctl_prepare(ctx):
    seen.append(("prepare", ctx.generation))


@declctl.hookimpl
def declctl_export_state():
    return len(seen)


@declctl.hookimpl
def declctl_import_state(state, from_generation):
    seen.append(("import", state > 0, from_generation))


@declctl.hookimpl
def declctl_transform(obj, resource):
    obj.setdefault("metadata", {}).setdefault("labels", {})["frozen"] = resource
    return obj


@declctl.hookimpl
def declctl_indexers(resource):
    return {"byFrozen": lambda obj: [obj.labels.get("frozen", "")]}


@declctl.hookimpl
def declctl_event(change, obj, old, ctx):
    others = ctx.listers["maps"].by_index("byFrozen", "maps")
    seen.append(("event", str(change.type), str(change.key), old is None, len(others) > 0))
    ctx.memo["calls"] = ctx.memo.get("calls", 0) + 1
    ctx.log.info(f"{ctx.config['prefix']}{change.type}", name=obj.name, namespace=obj.namespace, uid=obj.uid)


@declctl.hookimpl(tryfirst=True)
def declctl_added(obj, change):
    seen.append(("added", obj["metadata"]["name"], change.initial, change.resource, change.reason.name))


@declctl.hookimpl
async def declctl_modified(obj, old, change, ctx):
    seen.append(("modified", old["data"]["x"], obj.to_dict()["data"]["x"], ctx.handler, ctx.dry_run))


@declctl.hookimpl
def declctl_deleted(obj, change):
    seen.append(("deleted", obj.key, change.final_state_unknown))


@declctl.hookimpl
def declctl_reconcile(request, ctx):
    first = request.attempt == 1 and request.obj is not None
    seen.append(
        ("reconcile", str(request.key), request.namespace, request.name, first, len(request.causes) > 0)
    )
    return declctl.Requeue(after=3600)


@declctl.hookimpl
def declctl_finalize(request):
    seen.append(("finalize", request.name, bool(request.id)))


@declctl.hookimpl
def declctl_reload(outcome):
    seen.append(("reload", str(outcome.result), outcome.generation, outcome.reason))


@declctl.hookimpl
def declctl_teardown(ctx):
    seen.append(("teardown", ctx.generation))


@declctl.hookimpl
def declctl_shutdown(ctx):
    seen.append(("shutdown", ctx.generation))
