"""The custom resource. `declctl generate crd models:Backup -o crd.yaml` makes the definition."""

from msgspec import Struct

import declctl


class BackupSpec(Struct):
    target: str
    every: declctl.Duration


@declctl.custom_resource("example.com/v1", plural="backups")
class Backup(declctl.Object[BackupSpec]):
    """A plan: what is saved, and how often."""
