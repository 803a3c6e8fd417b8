"""The table of all settings in README.md, from the schema. `python tests/settings_table.py` renews it."""

# The package is found beside the tests, whether it is installed or not.
# pyright: reportMissingImports=false

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

README = Path(__file__).parent.parent / "README.md"
BEGIN, END = "<!-- settings -->\n", "<!-- end of settings -->\n"


def table(schema: Mapping[str, Any]) -> str:
    """A row for each setting."""
    rows = [
        f"| `{name}` | {_default(field)} | {field['description']}{' Required.' if is_required else ''} |"
        for name, field, is_required in settings(schema)
        if "default" in field or not field.get("properties")
    ]
    return "\n".join(["| setting | default | meaning |", "|---|---|---|", *rows, ""])


def settings(schema: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Mapping[str, Any], bool]]:
    """All settings: full name (`[]` stands for each item of a list), schema, and whether it is required."""
    for name, field in schema["properties"].items():
        yield f"{prefix}{name}", field, name in schema.get("required", ())
        if "properties" in field:
            yield from settings(field, f"{prefix}{name}.")
        elif "properties" in field.get("items", {}):
            yield from settings(field["items"], f"{prefix}{name}[].")


def _default(field: Mapping[str, Any]) -> str:
    if "default" not in field or field["default"] in ("", [], {}):
        return ""
    value = field["default"]
    return f"`{value if isinstance(value, str) else json.dumps(value)}`"


def main() -> None:
    """Write the table into README.md."""
    sys.path.insert(0, str(Path(__file__).parent.parent / "src"))
    from declctl_webhook.settings import config_schema  # after the path is set

    text = README.read_text("utf-8")
    before, rest = text.split(BEGIN)
    README.write_text(before + BEGIN + table(config_schema()) + END + rest.split(END)[1], "utf-8")


if __name__ == "__main__":
    main()
