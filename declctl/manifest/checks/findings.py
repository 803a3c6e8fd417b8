"""What the checks have found so far, and what they need not report again."""

from collections.abc import Sequence

from declctl.manifest.diagnostics import Diagnostic, Severity
from declctl.manifest.document import Document, Place
from declctl.manifest.json_values import Json, Path
from declctl.manifest.shape import Schema


class Findings:
    """The faults of one document. A blamed path is wrong for a reason that has been reported."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.data: Json = document.data
        self._diagnostics = list(document.faults)
        self._blamed = set(document.blamed)
        self._blamed_within = {path[:length] for path in self._blamed for length in range(len(path) + 1)}
        self._meant: set[Path] = set()
        self._walked: tuple[Schema, Sequence[tuple[Path, Json, Schema]]] | None = None  # the last walk

    @property
    def diagnostics(self) -> tuple[Diagnostic, ...]:
        """Everything found."""
        return tuple(self._diagnostics)

    def walk(self, shape: Schema) -> Sequence[tuple[Path, Json, Schema]]:
        """`walk` over the document. Each check needs it, and a manifest may have 100,000 values."""
        if self._walked is None or self._walked[0] is not shape:
            self._walked = (shape, walk(self.data, shape))
        return self._walked[1]

    def add(
        self,
        code: str,
        place: Place,
        message: str,
        *,
        suggestion: str | None = None,
        severity: Severity = "error",
    ) -> None:
        """Report a fault; an error blames its place."""
        self._diagnostics.append(
            self.document.fault(code, place, message, suggestion=suggestion, severity=severity)
        )
        if severity == "error":
            self._blamed.add(place.path)
            self._blamed_within.update(place.path[:length] for length in range(len(place.path) + 1))

    def is_blamed(self, path: Path) -> bool:
        """Whether this very value is known to be wrong."""
        return path in self._blamed

    def is_blamed_within(self, path: Path) -> bool:
        """Whether this value, or anything in it, is known to be wrong."""
        return path in self._blamed_within

    def mean(self, path: Path) -> None:
        """Remember that an unknown field stands where this one was meant: so it is not missing."""
        self._meant.add(path)

    def is_meant(self, path: Path) -> bool:
        """Whether a field of another name was probably meant to be this one."""
        return path in self._meant

    def quoted(self, path: Path, value: Json) -> str:
        """A value as a message may show it: as it is written, never what came out of the environment."""
        written = self.document.from_environment(path)
        if written is None:
            written = self.document.written(path)
        if written is None and isinstance(value, str):
            written = f'"{value}"'
        if written is None:
            return "a mapping" if isinstance(value, dict) else "a list"
        shown = written or "empty"
        return shown if len(shown) <= 60 else f"{shown[:57]}…"


def walk(data: Json, shape: Schema) -> Sequence[tuple[Path, Json, Schema]]:
    """Each value that the shape knows, with its path and its piece of the shape, parents first."""
    found: list[tuple[Path, Json, Schema]] = []
    _walk(found, (), data, shape)
    return found


def _walk(found: list[tuple[Path, Json, Schema]], path: Path, data: Json, shape: Schema) -> None:
    found.append((path, data, shape))
    if isinstance(data, dict):
        fields, others = shape.get("properties"), shape.get("additionalProperties")
        known: dict[str, Json] = fields if isinstance(fields, dict) else {}
        for key, value in data.items():
            piece = known.get(key, others)
            if isinstance(piece, dict):
                _walk(found, (*path, key), value, piece)
    elif isinstance(data, list):
        piece = shape.get("items")
        if isinstance(piece, dict):
            for index, item in enumerate(data):
                _walk(found, (*path, index), item, piece)
