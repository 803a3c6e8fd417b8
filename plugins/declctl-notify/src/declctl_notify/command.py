"""`declctl notify test MANIFEST`: a test message to the targets of a manifest, without a cluster.

`declctl-notify` is the same, where declctl is not installed for the shell.
"""

from pathlib import Path
from typing import Annotated, Any, cast

import jsonschema
import typer
import yaml

from declctl_notify.groups import Entry, GroupKey, Message
from declctl_notify.outbox import Delivery, Suppressed
from declctl_notify.sending import SendFailed, send_by_apprise
from declctl_notify.settings import SCHEMA, Settings, SettingsFault
from declctl_notify.text import one_line, plain_text

_PLUGIN = "notify"

Manifest = Annotated[Path, typer.Argument(help="The manifest, or the folder that has manifest.yaml.")]
Targets = Annotated[list[str] | None, typer.Option(help="Only this target. May be repeated.")]


def send_test(
    manifest: Manifest,
    target: Targets = None,
) -> None:
    """Send a test message to each target, and say for each whether it was taken.

    The exit status is 1 if one was not, and 2 if the manifest can't be used. URLs are read as `declctl run`
    reads them, so the environment has to be the same.
    """
    try:
        settings = _settings(manifest / "manifest.yaml" if manifest.is_dir() else manifest)
        wanted = target or list(settings.targets)
        if unknown := [name for name in wanted if name not in settings.targets]:
            raise SettingsFault(f"there is no target {unknown[0]}; known: {', '.join(settings.targets)}")
    except SettingsFault as fault:
        typer.echo(f"{manifest}: {fault}", err=True)
        raise typer.Exit(2) from None
    failed = False
    for name in wanted:
        entry = Entry((name, ""), "Test of declctl-notify", f"The target {name} gets messages.")
        delivery = Delivery(Message(GroupKey("test"), "info", [entry]), Suppressed())
        try:
            send_by_apprise(settings.targets[name], delivery, 0.0)
        except SendFailed as fault:
            failed = True
            typer.echo(f"{name}: failed: {fault}")
        else:
            typer.echo(f"{name}: sent")
    raise typer.Exit(1 if failed else 0)


def _settings(path: Path) -> Settings:
    """The settings of the first notify plugin in a file. Raises SettingsFault."""
    try:
        documents = list(yaml.safe_load_all(path.read_text("utf-8")))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise SettingsFault(one_line(plain_text(str(error)))) from None
    for document in documents:
        for plugin in _plugins(document):
            if plugin.get("name") == _PLUGIN:
                config: Any = plugin.get("config")
                # Whether, and not where: `declctl validate` says it with the line.
                if not jsonschema.Draft202012Validator(SCHEMA).is_valid(config):
                    raise SettingsFault("the config is not valid: `declctl validate` says where")
                return Settings.of(config)
    raise SettingsFault(f"no plugin {_PLUGIN} is in spec.plugins")


def _plugins(document: Any) -> list[dict[str, Any]]:
    spec = document.get("spec") if isinstance(document, dict) else None
    plugins = spec.get("plugins") if isinstance(spec, dict) else None
    listed = cast("list[Any]", plugins) if isinstance(plugins, list) else []
    return [one for one in listed if isinstance(one, dict)]


def add_commands(app: typer.Typer) -> None:
    """Add the commands to an application."""

    # With it, `test` stays a subcommand; typer would leave its name out if it is the only one.
    @app.callback()
    def notify() -> None:  # pyright: ignore[reportUnusedFunction] - typer calls it
        """Try the targets of declctl-notify."""

    app.command("test")(send_test)


app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
add_commands(app)
