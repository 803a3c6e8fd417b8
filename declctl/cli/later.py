"""Commands that are documented and that this version does not do: they say so, instead of being unknown."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

import typer

from declctl.errors import UsageError

_INSTEAD: Mapping[str, str] = MappingProxyType(
    {
        "test": "`declctl run --sandbox --once --objects FILE` runs a manifest without a cluster",
        "tap": "the log of `declctl run --log-level debug` and `declctl status` show what happens",
        "top": "`declctl status` and GET /metrics have the figures",
        "get": "GET /cache/{resource} and /index/{resource}/{index}/{value} read the cache",
        "graph": "`declctl status` lists resources and handlers",
        "trigger": "an edit of the object, such as a label, calls its handlers",
        "requeue": "a resyncPeriod calls handlers again",
        "record": "the log of `declctl run --log-format json` can be kept",
        "replay": "`declctl run --sandbox --objects FILE` runs handlers without a cluster",
        "new": "the folders in examples/ are meant to be copied",
        "generate": "examples/07-in-cluster has a Deployment and a Role to start from",
        "fmt": "any YAML formatter will do",
        "lint": "`declctl validate` reports what is wrong, and warns of traps",
        "migrate": "there is only one version of the manifest",
        "set": "start `declctl run` with --log-level",
        "doctor": "`declctl validate --cluster` checks kinds and permissions",
    }
)
_PLUGINS_INSTEAD: Mapping[str, str] = MappingProxyType(
    {
        "show": "`declctl plugins list -o json` has what is known of each",
        "doctor": "`declctl plugins list` says what is wrong with each",
        "docs": "`declctl plugins list` names the hooks of each",
        "install": "plugins are installed with pip",
        "freeze": "`pip freeze` writes versions down",
    }
)
_ANYTHING = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": list[str]()}


def add_to(app: typer.Typer, plugins: typer.Typer) -> None:
    """Add every one of them, hidden from the help."""
    for name, instead in _INSTEAD.items():
        app.command(name, hidden=True, context_settings=_ANYTHING)(_refusal(name, instead))
    for name, instead in _PLUGINS_INSTEAD.items():
        plugins.command(name, hidden=True, context_settings=_ANYTHING)(_refusal(f"plugins {name}", instead))


def _refusal(name: str, instead: str) -> Callable[[], None]:
    def refuse() -> None:
        raise UsageError(f"This version does not do `declctl {name}` yet; {instead}.")

    return refuse
