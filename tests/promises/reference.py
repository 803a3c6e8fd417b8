"""The generated parts of the documentation, made from what the program itself says.

`python tests/promises/reference.py` writes them into docs/reference/; a test says that they are current.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import typer.main

from declctl.admin.metrics import catalog
from declctl.cli.app import app
from declctl.manifest import Explanation, explain
from declctl.runtime.reasons import ATTEMPT, CONDITIONS, REASONS

DOCS = Path(__file__).parents[2] / "docs" / "reference"


def fields() -> str:
    """Every field of a Controller, one table for each part of the spec."""
    parts = [_table("spec", [explain(f"spec.{name}") for name, _, _ in explain("spec").fields])]
    for name, _, _ in explain("spec").fields:
        below = list(_below(f"spec.{name}"))
        if below:
            parts.append(_table(f"spec.{name}", below))
    return "\n\n".join(parts)


def commands() -> str:
    """Every command that is shown in the help, with its arguments and options."""
    group: Any = typer.main.get_command(app)
    return "\n\n".join(_command(name, command) for name, command in _commands("declctl", group))


def metrics() -> str:
    """Every metric, in the order of a scrape."""
    lines = ["| metric | type | labels | |", "|---|---|---|---|"]
    for info in catalog():
        labels = ", ".join(f"`{label}`" for label in info.labels)
        only = f" Only {info.only}." if info.only else ""
        lines.append(f"| `{info.name}` | {info.type} | {labels} | {_cell(info.help)}{only} |")
    return "\n".join(lines)


def reasons() -> str:
    """Every condition with its reasons."""
    parts: list[str] = []
    for condition, meaning in {**CONDITIONS, ATTEMPT: ""}.items():
        head = f"### `{condition}`" if condition else "### Reasons of attempts alone"
        what = meaning or "These stand in the history, in the log and in answers, and at no condition."
        lines = [head, "", what, "", "| reason | status | meaning | what to do |", "|---|---|---|---|"]
        for each in REASONS:
            if each.condition == condition:
                both = "True or False" if condition else "-"
                status = both if each.holds is None else str(each.holds)
                lines.append(f"| `{each.name}` | {status} | {_cell(each.meaning)} | {_cell(each.advice)} |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


PARTS: Mapping[str, Callable[[], str]] = MappingProxyType(
    {"fields.md": fields, "cli.md": commands, "metrics.md": metrics, "errors.md": reasons}
)


def rendered(page: str) -> str:
    """The text of a page of docs/reference/ with its generated part as it should be."""
    text = (DOCS / page).read_text("utf-8")
    mark = re.compile(r"(<!-- generated -->\n).*?(\n<!-- end of what is generated -->)", re.DOTALL)
    assert mark.search(text), f"docs/reference/{page} has no generated part"
    return mark.sub(lambda found: f"{found[1]}\n{PARTS[page]()}\n{found[2]}", text)


def _below(path: str) -> Iterator[Explanation]:
    for name, _, _ in explain(path).fields:
        found = explain(f"{path}.{name}")
        yield found
        yield from _below(found.path)


def _table(title: str, rows: list[Explanation]) -> str:
    lines = [f"### `{title}`", "", "| field | type | default | |", "|---|---|---|---|"]
    return "\n".join([*lines, *(_row(row, title) for row in rows)])


def _row(found: Explanation, title: str) -> str:
    name = found.path.removeprefix(f"{title}.")
    notes = [found.description]
    if found.enum:
        notes.append(f"One of {', '.join(f'`{choice}`' for choice in found.enum)}.")
    if found.required:
        notes.append("Required.")
    if found.live == "restart":
        notes.append("Takes effect at the next start.")
    default = "" if found.default is None else f"`{_written(found.default)}`"
    return f"| `{name}` | {found.type} | {default} | {_cell(' '.join(notes))} |"


def _written(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(str, value))}]"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _commands(prefix: str, group: Any) -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        if command.hidden:
            continue
        if hasattr(command, "commands"):
            yield from _commands(f"{prefix} {name}", command)
        else:
            yield f"{prefix} {name}", command


def _command(name: str, command: Any) -> str:
    arguments = [parameter for parameter in command.params if parameter.param_type_name == "argument"]
    options = [parameter for parameter in command.params if parameter.param_type_name == "option"]
    usage = " ".join([name, *(_argument(one) for one in arguments), *(["[options]"] if options else [])])
    lines = [f"### `{usage}`", "", " ".join(command.help.split())]
    if command.epilog:
        lines += ["", command.epilog.replace("Example: ", "Example: `") + "`"]
    if arguments or options:
        lines += ["", "| | |", "|---|---|"]
        lines += [f"| `{_cell(one.metavar or one.name)}` | {_cell(one.help or '')} |" for one in arguments]
        lines += [f"| {_option(one)} | {_cell(_help(one))} |" for one in options]
    return "\n".join(lines)


def _argument(one: Any) -> str:
    name = one.metavar or one.name.upper()
    return name if one.required else f"[{name}]"


def _option(one: Any) -> str:
    names = ", ".join(f"`{name}`" for name in (*one.opts, *one.secondary_opts))
    return names if one.is_flag else f"{names} `{_cell(one.metavar or _values(one))}`"


def _values(one: Any) -> str:
    choices = getattr(one.type, "choices", None)
    return "|".join(str(getattr(c, "value", c)) for c in choices) if choices else "N"


def _help(one: Any) -> str:
    default = one.opts[0] if one.default is True else getattr(one.default, "value", one.default)
    shown = default not in (None, False, 0, 0.0, "") and not callable(default)
    return f"{one.help} Default: `{default}`." if shown else str(one.help or "")


if __name__ == "__main__":
    for page in PARTS:
        (DOCS / page).write_text(rendered(page), "utf-8")
