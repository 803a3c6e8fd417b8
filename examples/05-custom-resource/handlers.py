"""A custom kind is like any other; its objects have the type that its definition is made from."""

from models import Backup

import declctl


def on_backup(change: declctl.Change[Backup], obj: Backup, ctx: declctl.Context) -> None:
    same = len(ctx.lister(Backup).by_index("byTarget", obj.spec.target))
    what = f"{obj.spec.target} every {obj.spec.every}"
    print(f"{change.type} {change.key}: {what} ({same} of this target)")
