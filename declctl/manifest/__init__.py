"""The manifest: YAML in, `Plan` out.

`load` reads a manifest. If it has faults, `load` raises all of them at once, each with its place in the text.
`plan` resolves a manifest into watches, caches and handlers. `schema` and `explain` describe the fields of a
manifest. This room contacts no cluster, imports no handler, and does not know the installed plugins. Other
rooms find faults in handlers and plugins, and locate them in the text with `LoadedManifest.document`.
"""

from declctl.manifest.diagnostics import Diagnostic, render_github, render_json, render_text
from declctl.manifest.load import LoadedManifest, load
from declctl.manifest.plan import Plan, plan
from declctl.manifest.schema import Explanation, explain, schema, schema_with_plugins
from declctl.manifest.sources import ManifestSource

__all__ = [
    "Diagnostic",
    "Explanation",
    "LoadedManifest",
    "ManifestSource",
    "Plan",
    "explain",
    "load",
    "plan",
    "render_github",
    "render_json",
    "render_text",
    "schema",
    "schema_with_plugins",
]
