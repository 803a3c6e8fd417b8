"""The diagnostic codes: each fault of a manifest, a handler file or a plugin has one.

A code never gets another meaning. The families:

    DCL00x  the text and the documents in it
    DCL01x  the shape: fields, types, choices
    DCL02x  references and duplicates
    DCL03x  values written as text
    DCL04x  entry points and handler files
    DCL05x  answers of the cluster (`validate --cluster`)
    DCL06x  were features that were documented and not done; these numbers are not used again
    DCL07x  the same, continued
    DCL08x  installed plugins
    DCL09x  handler files: effects of an import that no reload undoes, and bodies of hooks
    DCL10x  values written as text, continued
    DCL11x  what code adds to the host
    DCL12x  classes of typed objects
    DCL13x  documents of kind ControllerTest

`docs/reference/errors.md` explains each code with an example; a test checks that no code is missing. The
package contains that page, and `declctl explain DCL012` prints one section of it. `manifest` reports the
faults of the text, `hooks` and `runtime` those of code, plugins and the cluster. No other file writes a code
as text.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

from declctl.errors import UsageError

_meanings: dict[str, str] = {}
CODES: Final[Mapping[str, str]] = MappingProxyType(_meanings)
"""Each code with its meaning in one sentence."""


def _code(code: str, meaning: str) -> str:
    """Adds a code to the table. A code that is declared twice fails the import of this module."""
    assert code not in _meanings, f"{code} is taken"
    _meanings[code] = meaning
    return code


UNREADABLE: Final = _code(
    "DCL000", "The manifest can't be read: no such file, no permission, or no YAML file in the folder."
)
SYNTAX: Final = _code("DCL001", "The text is not YAML.")
TAB: Final = _code("DCL002", "A tab is used for indentation, which YAML forbids.")
DUPLICATE_KEY: Final = _code("DCL003", "A key stands twice in one mapping.")
UNREADABLE_TEXT: Final = _code(
    "DCL004", "The text is not UTF-8, holds control characters, or nests too deep."
)
NOT_A_MAPPING: Final = _code("DCL005", "The document is empty or not a mapping of fields.")
NO_CONTROLLER: Final = _code("DCL006", "No document here is a Controller.")
SECOND_CONTROLLER: Final = _code("DCL007", "There is more than one Controller, and one process runs one.")
TRAP_KEY: Final = _code("DCL008", "YAML 1.1 reads a key as something else than text, such as `on` as true.")
TRAP_VALUE: Final = _code(
    "DCL009", "YAML 1.1 reads a value as something else than what is written, such as `10:00` as 600."
)

WRONG_TYPE: Final = _code("DCL010", "A field has a value of the wrong type.")
MISSING_FIELD: Final = _code("DCL011", "A required field is missing.")
UNKNOWN_FIELD: Final = _code("DCL012", "A field is not known at this place.")
NOT_A_CHOICE: Final = _code("DCL013", "A value is not one of those that the field allows.")
OUT_OF_RANGE: Final = _code("DCL014", "A number is too small or too large, or a list or text is empty.")
EXACTLY_ONE: Final = _code(
    "DCL015", "Exactly one of several fields is required, and none or more than one is present."
)
WRONG_VERSION_OR_KIND: Final = _code("DCL016", "The apiVersion or kind is not one that this version reads.")
CONTRADICTION: Final = _code("DCL017", "Two fields contradict each other.")

UNKNOWN_REFERENCE: Final = _code("DCL020", "A reference names something that is not declared.")
DUPLICATE_NAME: Final = _code("DCL021", "Two things of the same kind have the same name.")
DUPLICATE_VALUE: Final = _code("DCL022", "A list holds the same value twice.")
BAD_EXPRESSION: Final = _code(
    "DCL023", "A CEL expression does not compile, or its result is neither true nor false."
)
WRITE_CYCLE: Final = _code("DCL024", "Handlers write objects whose changes call each other (a warning).")

BAD_DURATION: Final = _code(
    "DCL030", "A duration is not written like 500ms, 10s, 5m or 1h30m, or is too short."
)
BAD_QUANTITY: Final = _code("DCL031", "A byte size is not a Kubernetes quantity such as 64Mi.")
BAD_LABEL_SELECTOR: Final = _code("DCL032", "A label selector is wrong.")
BAD_FIELD_SELECTOR: Final = _code("DCL033", "A field selector is wrong.")
BAD_FIELD_PATH: Final = _code(
    "DCL034", "A field path is wrong, or names a field that the cache can't do without."
)
BAD_NAME: Final = _code(
    "DCL035", "A name, namespace, kind or apiVersion is not written as Kubernetes wants it."
)
BAD_ADDRESS: Final = _code("DCL036", "An address is not written as host:port.")
BAD_ENTRY_POINT: Final = _code("DCL037", "An entry point is not written as module or module:attribute.")
BAD_ENVIRONMENT_REFERENCE: Final = _code(
    "DCL038", "A ${env:NAME} reference is malformed, or the variable is not set."
)
BAD_VERSION_RANGE: Final = _code("DCL039", "A version range is not written like >=1.2,<2.")

MODULE_NOT_FOUND: Final = _code(
    "DCL040", "The module of an entry point is neither beside the manifest nor installed."
)
ATTRIBUTE_NOT_FOUND: Final = _code("DCL041", "The module of an entry point has no such attribute.")
HANDLER_SYNTAX: Final = _code("DCL042", "A handler file is not valid Python.")
IMPORT_RAISED: Final = _code("DCL043", "A handler file raised an exception while it was imported.")
IMPORT_EXITED: Final = _code("DCL044", "A handler file ended the process while it was imported.")
IMPORT_TOO_LONG: Final = _code("DCL045", "Importing the handlers took longer than reload.preflightTimeout.")
UNKNOWN_PARAMETER: Final = _code("DCL046", "A hook has a parameter that declctl does not offer to it.")
NO_HOOK: Final = _code("DCL047", "An entry point is not a hook, or is a module or class without hooks.")
UNUSABLE: Final = _code("DCL048", "An entry point names something that can't be used at this place.")
BAD_INDEX_DECLARATION: Final = _code(
    "DCL049", "An index is declared without a function that returns texts, or twice."
)

UNKNOWN_KIND: Final = _code("DCL050", "The cluster doesn't serve this kind.")
FORBIDDEN: Final = _code(
    "DCL051",
    "The cluster doesn't allow declctl to list and watch this resource, to write this kind, or to get this "
    "Secret.",
)
CLUSTER_UNREACHABLE: Final = _code(
    "DCL052", "The cluster didn't answer, so that kinds and permissions could not be checked."
)
UNKNOWN_NAMESPACE: Final = _code(
    "DCL053", "A namespace of the manifest is not in the cluster, or a selector matches none (a warning)."
)
UNKNOWN_OBJECT_FIELD: Final = _code(
    "DCL054",
    "An expression reads a field that the kind doesn't have, or code writes one to a status (a warning).",
)
NO_STATUS: Final = _code("DCL055", "A handler writes a status, and its kind has no status subresource.")
FINALIZER_LEFT: Final = _code(
    "DCL056", "A finalizer is not in the manifest any more, and objects of the cluster have it."
)
SECRET_VALUE: Final = _code(
    "DCL057", "The value of a `secretKeyRef` can't be read: the cluster lacks the Secret or the key."
)

PLUGIN_NOT_INSTALLED: Final = _code("DCL080", "A plugin that the manifest lists is not installed.")
PLUGIN_VERSION: Final = _code(
    "DCL081", "The installed version of a plugin is outside the range that the manifest allows."
)
PLUGIN_CONFIG: Final = _code(
    "DCL082", "A plugin's config doesn't match its schema, or a source of it can't be read."
)
PLUGIN_LOAD_FAILED: Final = _code("DCL083", "A plugin could not be loaded.")
UNKNOWN_HOOK: Final = _code("DCL084", "A function is marked as a hook, and no hook has its name.")
PLUGIN_HOOKSPEC_VERSION: Final = _code("DCL085", "A plugin is written for another version of the hooks.")
NO_CHILD_PROCESS: Final = _code(
    "DCL086", "The handlers could not be imported in a child process first (a warning)."
)
PLUGIN_NEEDS_RESTART: Final = _code(
    "DCL087", "A plugin was upgraded, but the process has loaded a version that is out of range."
)
BAD_RULE: Final = _code("DCL088", "A hook declctl_rbac returned something that is no RBAC rule.")

PLUGIN_LEFT_OUT: Final = _code(
    "DCL089", "A plugin is left out, as --no-plugins or DECLCTL_LOAD_PLUGINS asks for (a warning)."
)

METRIC_AT_IMPORT: Final = _code(
    "DCL090", "A handler file registers a metric with the process at import (a warning)."
)
PORT_AT_IMPORT: Final = _code("DCL091", "A handler file opens a port at import (a warning).")
ACTIVITY_AT_IMPORT: Final = _code(
    "DCL092", "A handler file starts a thread, a process or a loop at import (a warning)."
)
PROCESS_STATE_AT_IMPORT: Final = _code(
    "DCL093", "A handler file changes the whole process at import (a warning)."
)
ORDINARY_MODULE: Final = _code(
    "DCL094", "A file beside the manifest is imported as an ordinary module (a warning)."
)
NAME_IN_TEXT: Final = _code(
    "DCL095", "A text names a module of the bundle, which has a private name (a warning)."
)
NOT_AWAITED: Final = _code("DCL096", "A hook does not await a write (a warning).")
WRONG_FORM: Final = _code(
    "DCL097", "A hook calls a method of ctx in the form of the other kind of function, which raises."
)
UNDECLARED_WRITE: Final = _code(
    "DCL098", "The code writes, or uses ctx.client, and nothing declares what (a warning)."
)
NO_PREVIOUS: Final = _code(
    "DCL099", "A reconciler reads request.previous, and its handler has no keepPrevious (a warning)."
)

BAD_CRON: Final = _code("DCL101", "A cron line can't be read, or never fires.")
BAD_TIME_ZONE: Final = _code("DCL102", "There is no time zone of this name.")

BAD_METRICS: Final = _code(
    "DCL110", "`declctl_metrics` raised, or adds a metric whose name belongs to declctl or to other code."
)
OUTSIDE_OF_CHILDREN: Final = _code(
    "DCL111", "An isolated handler also has hooks that are called in the main process (a warning)."
)

TYPE_WITHOUT_KIND: Final = _code(
    "DCL120", "The source of a resource's `type` does not show its apiVersion and kind."
)
UNREADABLE_TYPE: Final = _code("DCL121", "A class of typed objects has a type that JSON can't be read into.")
NO_DEFINITION: Final = _code("DCL122", "No CustomResourceDefinition can be made of a class.")
OTHER_DEFINITION: Final = _code(
    "DCL123", "The CustomResourceDefinition of a file or of the cluster is not that of the class."
)
INCOMPATIBLE_DEFINITION: Final = _code(
    "DCL124", "Objects that are stored may not fit the CustomResourceDefinition of a class (a warning)."
)
REFUSED_RULE: Final = _code("DCL125", "No API server takes a rule of a CustomResourceDefinition in a file.")
UNCHECKED_RULES: Final = _code(
    "DCL126", "Rules in CEL are not checked, as declctl[cel] is not installed (a warning)."
)

UNREADABLE_TEST_FILE: Final = _code(
    "DCL130", "A file that a ControllerTest names can't be read, or has no object."
)
TEST_WITHOUT_CONTROLLER: Final = _code("DCL131", "A ControllerTest has no Controller to test.")


CODE_PATTERN: Final = re.compile(r"DCL-?\d{1,6}", re.IGNORECASE | re.ASCII)
"""A code, also a mistyped one; `declctl explain` uses it to distinguish codes from field paths."""

_PACKAGE = Path(__file__).parent
_INSTALLED, _IN_A_CHECKOUT = _PACKAGE / "errors.md", _PACKAGE.parent / "docs" / "reference" / "errors.md"
_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")


def explain_code(code: str) -> str:
    """The section of `docs/reference/errors.md` about a code, as plain text that ends with a line end.

    Upper and lower case are the same. Raises UsageError for a code that does not exist; the message names
    the nearest code, and those of the same family. If there is no such family, it names the first and the
    last code.
    """
    wanted = code.upper()
    if wanted not in CODES:
        family = [known for known in sorted(CODES) if known[:5] == wanted[:5]]
        known = f"the codes near it are {', '.join(family)}" if family else _range_of_codes()
        raise UsageError(f"There is no code {wanted}; did you mean {nearest_code(wanted)}? Else, {known}.")
    page = (_INSTALLED if _INSTALLED.is_file() else _IN_A_CHECKOUT).read_text(encoding="utf-8")
    section = page.split(f"\n### {wanted}\n", 1)[1]
    section = re.split(r"^##", section, maxsplit=1, flags=re.MULTILINE)[0].strip()
    return f"{wanted}\n\n{_as_text(section)}\n"


def nearest_code(wanted: str) -> str:
    """The code that a user who wrote `wanted` has probably meant.

    It is the one with that number, written in another way (`DCL12`); else the one with the fewest other
    digits, as after a slip of the finger, and of those the one with the nearest number.
    """
    number = int(wanted.upper().removeprefix("DCL").removeprefix("-"))
    digits = f"{number:03d}"

    def distance(known: str) -> tuple[bool, int, int]:
        theirs = known.removeprefix("DCL")
        others = sum(one != other for one, other in zip(digits, theirs, strict=False))
        return int(theirs) != number, others + abs(len(digits) - len(theirs)), abs(int(theirs) - number)

    return min(sorted(CODES), key=distance)


def how_to_explain(code: str) -> str:
    """The command that explains a code, for messages."""
    return f"`declctl explain {code}`"


def _range_of_codes() -> str:
    codes = sorted(CODES)
    return f"codes are {codes[0]} to {codes[-1]}, and each fault shows its own"


def _as_text(markdown: str) -> str:
    """Markdown as plain text: examples are indented; links and bold text lose their marks."""
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
