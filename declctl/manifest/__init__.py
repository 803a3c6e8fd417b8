"""The manifest: YAML in, `Plan` out.

`load` reads a manifest and raises every fault at once, each with its place in the text; `plan`
resolves it into what is to run, as a value; `schema` and `explain` describe what may be written.
Nothing here touches a cluster, imports handlers, or knows which plugins are installed. Such faults are
found by other rooms, which locate them by `Loaded.document`.
"""

from declctl.manifest.diagnostics import Diagnostic, render_github, render_json, render_text
from declctl.manifest.load import Loaded, load
from declctl.manifest.plan import Plan, plan
from declctl.manifest.schema import Explanation, explain, schema
from declctl.manifest.sources import ManifestSource

__all__ = [
    "Diagnostic",
    "Explanation",
    "Loaded",
    "ManifestSource",
    "Plan",
    "explain",
    "load",
    "plan",
    "render_github",
    "render_json",
    "render_text",
    "schema",
]
