"""The diagnostic codes: what a person may search for, and what an exit status of 1 was about.

A code is never used again for something else. The families:

    DCL00x  the text and the documents in it
    DCL01x  the shape: fields, types, choices
    DCL02x  references and duplicates
    DCL03x  values written as text
    DCL04x  entry points and handler files
    DCL05x  what the cluster says (`validate --cluster`)
    DCL06x  documented, and not done yet by this version
    DCL07x  the same, continued
    DCL08x  installed plugins
    DCL09x  handler files: what no reload undoes

`docs/errors.md` explains each with an example; a test says that it is complete. The package contains that
page, and `declctl explain DCL012` prints one section of it. Who finds a fault is not this module's business:
the runtime uses DCL04x, DCL05x, DCL08x and DCL09x.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

from declctl.errors import UsageError

UNREADABLE: Final = "DCL000"
SYNTAX: Final = "DCL001"
TAB: Final = "DCL002"
DUPLICATE_KEY: Final = "DCL003"
UNREADABLE_TEXT: Final = "DCL004"
NOT_A_MAPPING: Final = "DCL005"
NO_CONTROLLER: Final = "DCL006"
SECOND_CONTROLLER: Final = "DCL007"
TRAP_KEY: Final = "DCL008"
TRAP_VALUE: Final = "DCL009"

WRONG_TYPE: Final = "DCL010"
MISSING_FIELD: Final = "DCL011"
UNKNOWN_FIELD: Final = "DCL012"
NOT_A_CHOICE: Final = "DCL013"
OUT_OF_RANGE: Final = "DCL014"
EXACTLY_ONE: Final = "DCL015"
WRONG_VERSION_OR_KIND: Final = "DCL016"
CONTRADICTION: Final = "DCL017"

UNKNOWN_REFERENCE: Final = "DCL020"
DUPLICATE_NAME: Final = "DCL021"
DUPLICATE_VALUE: Final = "DCL022"

BAD_DURATION: Final = "DCL030"
BAD_QUANTITY: Final = "DCL031"
BAD_LABEL_SELECTOR: Final = "DCL032"
BAD_FIELD_SELECTOR: Final = "DCL033"
BAD_FIELD_PATH: Final = "DCL034"
BAD_NAME: Final = "DCL035"
BAD_ADDRESS: Final = "DCL036"
BAD_ENTRY_POINT: Final = "DCL037"
BAD_ENVIRONMENT_REFERENCE: Final = "DCL038"
BAD_VERSION_RANGE: Final = "DCL039"

MODULE_NOT_FOUND: Final = "DCL040"
ATTRIBUTE_NOT_FOUND: Final = "DCL041"
HANDLER_SYNTAX: Final = "DCL042"
IMPORT_RAISED: Final = "DCL043"
IMPORT_ENDED_PROCESS: Final = "DCL044"
IMPORT_TOO_LONG: Final = "DCL045"
UNKNOWN_PARAMETER: Final = "DCL046"
NO_HOOK: Final = "DCL047"
WRONG_KIND_OF_THING: Final = "DCL048"
BAD_INDEX_DECLARATION: Final = "DCL049"

UNKNOWN_KIND: Final = "DCL050"
FORBIDDEN: Final = "DCL051"
CLUSTER_UNREACHABLE: Final = "DCL052"
UNKNOWN_NAMESPACE: Final = "DCL053"

MODE_RECONCILE: Final = "DCL060"
FILTER: Final = "DCL061"
INCLUDE_SNAPSHOTS: Final = "DCL062"
DEBOUNCE: Final = "DCL063"
NAMED_QUEUE: Final = "DCL064"
DEAD_LETTER: Final = "DCL065"
SCHEDULES: Final = "DCL067"
LEADER_ELECTION: Final = "DCL068"
METRICS_ADDRESS: Final = "DCL069"
NAMESPACE_SELECTOR: Final = "DCL071"
SECRET_REFERENCE: Final = "DCL072"
SHARDING: Final = "DCL074"
HOOK_NOT_YET: Final = "DCL075"

PLUGIN_NOT_INSTALLED: Final = "DCL080"
PLUGIN_VERSION: Final = "DCL081"
PLUGIN_CONFIG: Final = "DCL082"
PLUGIN_LOAD_FAILED: Final = "DCL083"
UNKNOWN_HOOK: Final = "DCL084"
PLUGIN_HOOKSPEC_VERSION: Final = "DCL085"
NO_CHILD_PROCESS: Final = "DCL086"
PLUGIN_NEEDS_RESTART: Final = "DCL087"

METRIC_AT_IMPORT: Final = "DCL090"
PORT_AT_IMPORT: Final = "DCL091"
ACTIVITY_AT_IMPORT: Final = "DCL092"
PROCESS_STATE_AT_IMPORT: Final = "DCL093"
ORDINARY_MODULE: Final = "DCL094"
NAME_IN_TEXT: Final = "DCL095"

CODES: Final[Mapping[str, str]] = MappingProxyType(
    {
        UNREADABLE: "The manifest can't be read: no such file, no permission, or no YAML file in the folder.",
        SYNTAX: "The text is not YAML.",
        TAB: "A tab is used for indentation, which YAML forbids.",
        DUPLICATE_KEY: "A key stands twice in one mapping.",
        UNREADABLE_TEXT: "The text is not UTF-8, holds control characters, or nests too deep.",
        NOT_A_MAPPING: "The document is empty or not a mapping of fields.",
        NO_CONTROLLER: "No document here is a Controller.",
        SECOND_CONTROLLER: "There is more than one Controller, and one process runs one.",
        TRAP_KEY: "YAML 1.1 reads a key as something else than text, such as `on` as true.",
        TRAP_VALUE: "YAML 1.1 reads a value as something else than what is written, such as `10:00` as 600.",
        WRONG_TYPE: "A field has a value of the wrong type.",
        MISSING_FIELD: "A field that is needed is missing.",
        UNKNOWN_FIELD: "A field is not known at this place.",
        NOT_A_CHOICE: "A value is not one of those that the field allows.",
        OUT_OF_RANGE: "A number is too small or too large, or a list or text is empty.",
        EXACTLY_ONE: "Of two fields exactly one is needed, and there is none or there are both.",
        WRONG_VERSION_OR_KIND: "The apiVersion or kind is not one that this version reads.",
        CONTRADICTION: "Two fields contradict each other.",
        UNKNOWN_REFERENCE: "A reference names something that is not declared.",
        DUPLICATE_NAME: "Two things of the same kind have the same name.",
        DUPLICATE_VALUE: "A list holds the same value twice.",
        BAD_DURATION: "A duration is not written like 500ms, 10s, 5m or 1h30m, or is too short.",
        BAD_QUANTITY: "A byte size is not a Kubernetes quantity such as 64Mi.",
        BAD_LABEL_SELECTOR: "A label selector is wrong.",
        BAD_FIELD_SELECTOR: "A field selector is wrong.",
        BAD_FIELD_PATH: "A field path is wrong, or names a field that the cache can't do without.",
        BAD_NAME: "A name, namespace, kind or apiVersion is not written as Kubernetes wants it.",
        BAD_ADDRESS: "An address is not written as host:port.",
        BAD_ENTRY_POINT: "An entry point is not written as module or module:attribute.",
        BAD_ENVIRONMENT_REFERENCE: "A ${env:NAME} reference is malformed, or the variable is not set.",
        BAD_VERSION_RANGE: "A version range is not written like >=1.2,<2.",
        MODULE_NOT_FOUND: "The module of an entry point is neither beside the manifest nor installed.",
        ATTRIBUTE_NOT_FOUND: "The module of an entry point has no such attribute.",
        HANDLER_SYNTAX: "A handler file is not valid Python.",
        IMPORT_RAISED: "A handler file raised an exception while it was imported.",
        IMPORT_ENDED_PROCESS: "A handler file ended the process while it was imported.",
        IMPORT_TOO_LONG: "Importing the handlers took longer than reload.preflightTimeout.",
        UNKNOWN_PARAMETER: "A hook takes a parameter that it isn't offered.",
        NO_HOOK: "An entry point is no hook, or a module or class has no hook in it.",
        WRONG_KIND_OF_THING: "An entry point names something that can't be used at this place.",
        BAD_INDEX_DECLARATION: "An index is declared without a function that returns texts, or twice.",
        UNKNOWN_KIND: "The cluster doesn't serve this kind.",
        FORBIDDEN: "The cluster doesn't allow to list and watch this resource.",
        CLUSTER_UNREACHABLE: "The cluster didn't answer, so that kinds and permissions could not be checked.",
        UNKNOWN_NAMESPACE: "A namespace of the manifest is not in the cluster (a warning).",
        MODE_RECONCILE: "`mode: Reconcile` is not done yet by this version.",
        FILTER: "`filter.expression` (CEL) is not done yet by this version.",
        INCLUDE_SNAPSHOTS: "`includeSnapshotsFrom` is not done yet by this version.",
        DEBOUNCE: "`debounce` is not done yet by this version.",
        NAMED_QUEUE: "Queues other than `default` are not done yet by this version.",
        DEAD_LETTER: "`onFailure: DeadLetter` is not done yet by this version.",
        SCHEDULES: "`schedules` are not done yet by this version.",
        LEADER_ELECTION: "`leaderElection` is not done yet by this version.",
        METRICS_ADDRESS: "A metrics address of its own is not done yet by this version.",
        NAMESPACE_SELECTOR: "Namespaces by label selector are not done yet by this version.",
        SECRET_REFERENCE: "`secretKeyRef` is not done yet by this version.",
        SHARDING: "`sharding` is not done yet by this version.",
        HOOK_NOT_YET: "A function implements a hook that is not called yet by this version.",
        PLUGIN_NOT_INSTALLED: "A plugin that the manifest lists is not installed.",
        PLUGIN_VERSION: "The installed version of a plugin is outside the range that the manifest allows.",
        PLUGIN_CONFIG: "A plugin's config doesn't match its schema, or a source of it can't be read.",
        PLUGIN_LOAD_FAILED: "A plugin could not be loaded.",
        UNKNOWN_HOOK: "A function is marked as a hook, and no hook has its name.",
        PLUGIN_HOOKSPEC_VERSION: "A plugin is written for another version of the hooks.",
        NO_CHILD_PROCESS: "The handlers could not be imported in a child process first (a warning).",
        PLUGIN_NEEDS_RESTART: "A plugin was upgraded, but the process has loaded one that is out of range.",
        METRIC_AT_IMPORT: "A handler file registers a metric with the process at import (a warning).",
        PORT_AT_IMPORT: "A handler file opens a port at import (a warning).",
        ACTIVITY_AT_IMPORT: "A handler file starts a thread, a process or a loop at import (a warning).",
        PROCESS_STATE_AT_IMPORT: "A handler file changes the whole process at import (a warning).",
        ORDINARY_MODULE: "A file beside the manifest is imported as an ordinary module (a warning).",
        NAME_IN_TEXT: "A text names a module of the bundle, which has a private name (a warning).",
    }
)
"""Each code with its meaning in one sentence."""

CODE_PATTERN: Final = re.compile(r"DCL\d{3}", re.IGNORECASE)
"""What a code looks like; `explain` tells codes from field paths by it."""

_PACKAGE = Path(__file__).parents[1]
_PAGES = (_PACKAGE / "errors.md", _PACKAGE.parent / "docs" / "errors.md")  # installed; in a checkout
_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")


def explain_code(code: str) -> str:
    """The section of `docs/errors.md` about a code, as plain text that ends with a line end.

    Upper and lower case are the same. Raises UsageError for a code that does not exist; the message names
    the codes of the same family, or the first and the last of all.
    """
    wanted = code.upper()
    if wanted not in CODES:
        family = [known for known in sorted(CODES) if known[:5] == wanted[:5]]
        known = f"the codes near it are {', '.join(family)}" if family else _range_of_codes()
        raise UsageError(f"There is no code {wanted}; {known}.")
    page = next(page for page in _PAGES if page.is_file()).read_text(encoding="utf-8")
    section = page.split(f"\n### {wanted}\n", 1)[1]
    section = re.split(r"^##", section, maxsplit=1, flags=re.MULTILINE)[0].strip()
    return f"{wanted}\n\n{_as_text(section)}\n"


def how_to_explain(code: str) -> str:
    """Where a person reads more about a code."""
    return f"`declctl explain {code}`"


def _range_of_codes() -> str:
    codes = sorted(CODES)
    return f"codes are {codes[0]} to {codes[-1]}, and each fault shows its own"


def _as_text(markdown: str) -> str:
    """Markdown as a terminal shows it: examples are indented, the rest has no marks."""
    lines: list[str] = []
    in_example = False
    for line in markdown.splitlines():
        if line.startswith("```"):
            in_example = not in_example
        elif in_example:
            lines.append(f"    {line}".rstrip())
        else:
            lines.append(_LINK.sub(r"\1", line).replace("**", ""))
    return "\n".join(lines)
