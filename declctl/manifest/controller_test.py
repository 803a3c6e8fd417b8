"""Documents of kind ControllerTest: objects, steps, and what must be there after each of them.

`load_tests` reads the documents of a source, and raises all faults at once, each at its place. A document can
also be made in Python: `load_test` takes it as plain data (`yaml.safe_load` of a file), and checks the same.

Kinds, handlers and files are known to the caller alone: `NamedParts` says what the Controller under test has.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Final, Protocol, TypeAlias

import msgspec

from declctl import codes
from declctl.errors import DeclctlError, ManifestErrors
from declctl.kit.files import OBJECTS_BYTES, folder_of, read_file
from declctl.kit.text import to_json
from declctl.manifest.checks.rules import check_alternatives
from declctl.manifest.checks.structure import check_structure
from declctl.manifest.checks.values import check_values
from declctl.manifest.diagnostics import (
    Diagnostic,
    bounded_suggestions,
    closest,
    did_you_mean,
    in_order,
    listed,
)
from declctl.manifest.document import (
    Document,
    Findings,
    Location,
    Node,
    UnreadableYaml,
    meant_kind,
    parse_documents,
    read_document,
)
from declctl.manifest.fields import (
    API_VERSION,
    LocatedSpec,
    Schema,
    about,
    build,
    choice,
    document_schema,
    duration,
    field,
    listing,
    mapping,
    nested_list,
    nested_record,
    schema_of,
    set_fields,
    text,
    walk,
    whole,
)
from declctl.manifest.sources import ManifestSource, decode
from declctl.manifest.values import Json, Path, dotted, entries_at, items_at, mapping_at, value_at
from declctl.objects import GroupVersionKind, KubeObject

KIND: Final = "ControllerTest"
JsonObject: TypeAlias = dict[str, Json]
DEFAULT_NAMESPACE: Final = "default"
_ACTIONS: Final = ("apply", "patch", "delete", "advance", "wait", "fault", "reload", "restart")
_NUMBERS: Final = ("count", "min", "max")
# What each fault of the sandbox needs besides its name.
_FAULTS: Final[Mapping[str, str]] = {
    "refuse": "status",
    "lose": "",
    "delay": "seconds",
    "trickle": "seconds",
    "cut": "",
    "cutMidLine": "",
    "malformedLine": "",
    "hugeLine": "size",
    "silence": "",
    "speak": "",
    "compact": "",
    "bookmark": "",
    "withholdInitialEventsEnd": "",
    "watchList": "mode",
    "expiredWatch": "mode",
    "outage": "seconds",
    "clear": "",
}
_PATTERN_HINTS: Final = {"name": "metadata", "namespace": "metadata", "labels": "metadata"}
_WRITTEN_KINDS: Final = re.compile(rb"kind[\"']?:\s*[\"']?([A-Za-z]+)")
_USUAL_FIELDS: Final = ("apiVersion", "kind", "metadata", "spec", "status", "data")
_METADATA_FIELDS: Final = (
    "name", "generateName", "namespace", "selfLink", "uid", "resourceVersion", "generation",
    "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "labels", "annotations",
    "ownerReferences", "finalizers", "managedFields",
)  # fmt: skip
_REFERENCE_FIELDS: Final = ("apiVersion", "kind", "namespace", "name", "uid", "resourceVersion", "fieldPath")


def _pattern(description: str) -> Schema:
    return mapping(
        description,
        examples=[{"kind": "Deployment", "metadata": {"name": "web"}, "spec": {"replicas": 2}}],
    )


def _object_or_file(description: str) -> Schema:
    return mapping(
        f"{description} A whole object, or {{file: PATH}} for all documents of a file; a relative path "
        "begins at the folder of this document.",
        examples=[{"file": "../sandbox/sample.yaml"}],
    )


@dataclass(frozen=True, slots=True)
class ObjectTarget(LocatedSpec):
    """One object of the server. `api_version` is empty where the kind alone says it."""

    ABOUT = about("One object.")
    kind: str = field(text("Its kind.", value="kind", examples=["Deployment"]), required=True)
    name: str = field(text("Its name.", value="objectName", examples=["web"]), required=True)
    api_version: str = field(
        text("Needed if several kinds have this name.", value="apiVersion", examples=["apps/v1"]), absent=""
    )
    namespace: str = field(
        text("Its namespace, for a kind that has one.", value="label", default=DEFAULT_NAMESPACE)
    )


@dataclass(frozen=True, slots=True)
class PatchAction(LocatedSpec):
    """A merge patch of one object."""

    ABOUT = about(
        "A merge patch. A part `status` goes to the subresource of the status where the kind has one.",
        hints={"merge": "patch", "object": "patch"},
    )
    kind: str = field(text("The kind of the object.", value="kind", examples=["Deployment"]), required=True)
    name: str = field(text("The name of the object.", value="objectName", examples=["web"]), required=True)
    patch: JsonObject = field(
        mapping("What changes; null removes a field.", examples=[{"status": {"readyReplicas": 2}}]),
        required=True,
    )
    api_version: str = field(
        text("Needed if several kinds have this name.", value="apiVersion", examples=["apps/v1"]), absent=""
    )
    namespace: str = field(text("The namespace of the object.", value="label", default=DEFAULT_NAMESPACE))


@dataclass(frozen=True, slots=True)
class FaultAction(LocatedSpec):
    """A fault of the sandbox, as `POST /sandbox/faults` takes it. `order` is its body."""

    ABOUT = about(
        "A fault of the API server in memory, which holds until `times` is used up, or until a fault clear. "
        "With --cluster, the document is skipped."
    )
    fault: str = field(choice("What goes wrong.", list(_FAULTS)), required=True)
    status: int | None = field(
        whole("With refuse: the status of the answer.", minimum=400, maximum=599, examples=[409])
    )
    verb: str | None = field(
        choice(
            "Only requests with this verb; write stands for all that change objects but Events and Leases.",
            ["list", "watch", "get", "create", "update", "patch", "delete", "deletecollection", "write"],
        )
    )
    resource: str | None = field(
        text("Only requests for this resource.", examples=["deployments", "pods/status"])
    )
    namespace: str | None = field(text("Only requests in this namespace.", value="label"))
    times: int | None = field(whole("For so many requests; by default for all.", minimum=1))
    skip: int | None = field(whole("With refuse and lose: so many requests are left alone first.", minimum=1))
    retry_after: int | None = field(whole("With refuse: seconds until the client may retry.", minimum=0))
    reason: str | None = field(text("With refuse: the reason of the Status.", examples=["Conflict"]))
    message: str | None = field(text("With refuse: the message of the Status."))
    seconds: int | None = field(whole("With delay, trickle and outage: for how long.", minimum=0))
    size: int | None = field(whole("With hugeLine: the bytes of the line.", minimum=1, maximum=1 << 26))
    mode: str | None = field(text("With watchList (on, invalid, ignored) and expiredWatch (event, status)."))

    @property
    def order(self) -> JsonObject:
        """The body of the request for it."""
        return set_fields(self)


@dataclass(frozen=True, slots=True)
class ReloadAction(LocatedSpec):
    """A reload, with some files replaced: `files` are paths, by the file whose place they take."""

    ABOUT = about("The controller reloads its files, as `declctl reload`; a refusal fails the test.")
    files: dict[str, str] | None = field(
        mapping(
            "Files, by their paths in the folder of the manifest, each with the file that takes its place. "
            "The folder is copied before: no file of yours is changed.",
            values=text("A file; a relative path begins at the folder of this document.", value="fileName"),
            examples=[{"handlers.py": "testdata/handlers_v2.py"}],
        )
    )


@dataclass(frozen=True, slots=True)
class RestartAction(LocatedSpec):
    """The controller ends, and starts again over the same objects."""

    ABOUT = about("The controller ends, and starts again over the same objects.")


@dataclass(frozen=True, slots=True)
class ConditionExpectation(LocatedSpec):
    """A condition in the status of an object. `message` and `reason` are globs; empty for any."""

    ABOUT = about("A condition in the status of an object.")
    kind: str = field(text("The kind of the object.", value="kind", examples=["Preview"]), required=True)
    name: str = field(text("The name of the object.", value="objectName"), required=True)
    type: str = field(text("The type of the condition.", examples=["Ready"]), required=True)
    status: str = field(
        choice("Its status.", ["True", "False", "Unknown"]),
        absent="",
    )
    reason: str = field(text("Its reason; * stands for any characters."), absent="")
    message: str = field(text("Its message; * stands for any characters.", examples=["2 of 2*"]), absent="")
    api_version: str = field(
        text("Needed if several kinds have this name.", value="apiVersion", examples=["acme.dev/v1"]),
        absent="",
    )
    namespace: str = field(text("The namespace of the object.", value="label", default=DEFAULT_NAMESPACE))


@dataclass(frozen=True, slots=True)
class EventExpectation(LocatedSpec):
    """Events of the cluster that came or were counted up in this step. Texts are globs; empty for any."""

    ABOUT = about("A Kubernetes Event that came, or was counted up, in this step.")
    reason: str = field(text("Its reason; * stands for any characters.", examples=["Deleted"]), absent="")
    type: str = field(choice("Its type.", ["Normal", "Warning"]), absent="")
    message: str = field(text("Its message; * stands for any characters.", examples=["*sample*"]), absent="")
    regarding: JsonObject | None = field(
        mapping("The reference to its object.", examples=[{"kind": "Preview", "name": "sample"}])
    )
    count: int | None = field(
        whole("So many Events; 0 for none. By default one at least.", minimum=0, examples=[1])
    )


@dataclass(frozen=True, slots=True)
class CallsExpectation(LocatedSpec):
    """The calls of a handler that ended in this step."""

    ABOUT = about(
        "The calls of a handler or a schedule that ended in this step, each attempt on its own.",
        any_of=(("count",), ("min",), ("max",), ("failed",)),
    )
    handler: str = field(
        text("The name of the handler or the schedule.", value="label", examples=["notify"]), required=True
    )
    count: int | None = field(whole("So many calls.", minimum=0, examples=[1]))
    min: int | None = field(whole("So many calls at least.", minimum=0))
    max: int | None = field(whole("So many calls at most.", minimum=0))
    failed: int | None = field(whole("So many of them have failed.", minimum=0, examples=[0]))


@dataclass(frozen=True, slots=True)
class WritesExpectation(LocatedSpec):
    """The writes of handlers in this step that the server has taken, and that changed something."""

    ABOUT = about(
        "The writes of handlers in this step that have changed objects.",
        any_of=(("count",), ("min",), ("max",)),
    )
    kind: str = field(
        text("Only writes of objects of this kind.", value="kind", examples=["ConfigMap"]), absent=""
    )
    verb: str = field(
        choice("Only these writes.", ["apply", "create", "update", "patch", "patch_status", "delete"]),
        absent="",
    )
    name: str = field(text("Only writes of this object.", value="objectName"), absent="")
    handler: str = field(text("Only writes of this handler.", value="label"), absent="")
    count: int | None = field(whole("So many writes.", minimum=0, examples=[1]))
    min: int | None = field(whole("So many writes at least.", minimum=0))
    max: int | None = field(whole("So many writes at most.", minimum=0))
    api_version: str = field(
        text("Needed if several kinds have this name.", value="apiVersion", examples=["v1"]), absent=""
    )


@dataclass(frozen=True, slots=True)
class Expectation(LocatedSpec):
    """One thing that must be true after a step; exactly one of the fields but `count` is set."""

    ABOUT = about(
        "One thing that must be true after the step.",
        one_of=("match", "absent", "condition", "event", "calls", "writes", "quiet"),
        hints={"object": "match", "exists": "match", "resource": "match", "conditions": "condition"},
    )
    match: JsonObject | None = field(
        _pattern(
            "Fields that an object has; it may have others. The elements of a list are found in any order, "
            'among others. null: the field is not there; "?*": it has any value, and is not empty. Without '
            "metadata.name, one object at least has them."
        )
    )
    count: int | None = field(
        whole("With match: exactly so many objects have these fields.", minimum=0, examples=[3])
    )
    absent: JsonObject | None = field(_pattern("Fields that no object has."))
    condition: ConditionExpectation | None = nested_record(ConditionExpectation)
    event: EventExpectation | None = nested_record(EventExpectation)
    calls: CallsExpectation | None = nested_record(CallsExpectation)
    writes: WritesExpectation | None = nested_record(WritesExpectation)
    quiet: float | None = field(
        duration("For this time nothing is called and nothing is written. The clock is advanced by it.")
    )


@dataclass(frozen=True, slots=True)
class TestingStep(LocatedSpec):
    """At most one action, and what must be true after it. `apply` has objects, or a file with them."""

    ABOUT = about(
        "At most one action, and what must be true when the controller has done what follows from it.",
        hints={
            "create": "apply",
            "update": "apply",
            "modify": "patch",
            "assert": "expect",
            "sleep": "advance",
            "error": "fault",
            "then": "expect",
        },
    )
    apply: JsonObject | None = field(
        _object_or_file("An object to apply, with the field manager declctl-test.")
    )
    patch: PatchAction | None = nested_record(PatchAction)
    delete: ObjectTarget | None = nested_record(ObjectTarget)
    advance: float | None = field(duration("The clock of the controller is moved ahead by this time."))
    wait: float | None = field(
        duration("The clock is moved ahead until `expect` is true, by this time at most.")
    )
    fault: FaultAction | None = nested_record(FaultAction)
    reload: ReloadAction | None = nested_record(ReloadAction)
    restart: RestartAction | None = nested_record(RestartAction)
    expect: tuple[Expectation, ...] = nested_list(Expectation, "What must be true after it.")

    @property
    def has_action(self) -> bool:
        """Whether it does something, and does not only expect."""
        return any(getattr(self, name) is not None for name in _ACTIONS)


@dataclass(frozen=True, slots=True)
class ControllerTestSpec(LocatedSpec):
    """A whole document: its name, the objects at the beginning, and the steps."""

    ABOUT = about(
        "The objects at the beginning, and the steps.",
        hints={"given": "objects", "controllerRef": "manifest", "controller": "manifest"},
    )
    name: str
    manifest: str = field(
        text(
            "The manifest: a file or a folder; a relative path begins at the folder of this document. By "
            "default the Controller in the folder of this document, or in the nearest one above.",
            value="fileName",
            examples=["../manifest.yaml"],
        ),
        absent="",
    )
    objects: tuple[JsonObject, ...] = field(
        listing(
            "What is there before the controller starts, besides the CustomResourceDefinitions beside the "
            "manifest.",
            _object_or_file("Objects."),
        ),
        read=tuple,
        absent=(),
    )
    steps: tuple[TestingStep, ...] = nested_list(TestingStep, "The steps, in order.", kw_only=True)


CONTROLLER_TEST = document_schema(
    KIND,
    "A test of a Controller: objects, steps, and what must be there after each.",
    {**schema_of(ControllerTestSpec), "required": ["steps"]},
)
"""The schema of a document of kind ControllerTest."""


class NamedParts(Protocol):
    """The Controller under test, as far as a document names parts of it."""

    @property
    def kinds(self) -> Iterable[GroupVersionKind]:
        """The kinds that the server of the test has: built-in ones, those of definitions and the manifest."""
        ...

    @property
    def handlers(self) -> Iterable[str]:
        """The names of handlers and schedules."""
        ...

    @property
    def definitions(self) -> Iterable[KubeObject]:
        """The CustomResourceDefinitions that the server of the test has from the beginning."""
        ...

    @property
    def plurals(self) -> Iterable[str]:
        """The resources of built-in kinds, as URLs have them."""
        ...

    @property
    def path(self) -> FilePath:
        """The manifest: a file or a folder."""
        ...

    def unknown_fields(
        self, kind: GroupVersionKind, schema: Json, part: JsonObject
    ) -> Sequence[tuple[Path, Sequence[str]]] | None:
        """The fields of a part of an object that its kind does not have, each with those that it has there.

        `schema` is that of the definition of the kind, None for one without. The result is None if no schema
        is known.
        """
        ...


class Surroundings(Protocol):
    """What is beside a document. Both raise DeclctlError or OSError, whose text says what is wrong."""

    def bundle(self, place: FilePath, *, nearest: bool) -> NamedParts:
        """The Controller of a manifest; with `nearest`, that of the nearest folder at or above `place`."""
        ...

    def objects(self, file: FilePath) -> Sequence[KubeObject]:
        """All documents of a file of objects."""
        ...


class LoadedTest(msgspec.Struct, frozen=True):
    """A document without faults. `kinds` has the kinds that it names without apiVersion."""

    spec: ControllerTestSpec
    document: Document
    folder: FilePath  # of the document, from which its paths begin
    bundle: NamedParts
    kinds: Mapping[str, GroupVersionKind]
    files: Mapping[str, Sequence[KubeObject]]  # the objects of files, by their paths in the document

    @property
    def name(self) -> str:
        """The name of the document."""
        return self.spec.name

    def kind_of(self, api_version: str, kind: str) -> GroupVersionKind:
        """The kind that a part of the document names."""
        return GroupVersionKind.of(api_version, kind) if api_version else self.kinds[kind]

    def objects_of(self, entry: JsonObject) -> Sequence[KubeObject]:
        """The objects of an entry: itself, or those of its file."""
        return self.files[str(entry["file"])] if _names_file(entry) else [entry]

    def place(self, path: Path) -> str:
        """`file:line:column` of a part of the document."""
        position = self.document.locate(path)
        return f"{self.document.path}:{position.line}:{position.column}"


def names_test(file: FilePath) -> bool:
    """Whether a file has the name of the kind in it, or a kind like it; False if it can't be read."""
    try:
        content = read_file(file, most=OBJECTS_BYTES)
    except OSError:
        return False
    kinds = {found.decode("ascii") for found in _WRITTEN_KINDS.findall(content)}
    return KIND.encode() in content or any(meant_kind(each) == KIND for each in kinds)


def load_test(data: JsonObject, surroundings: Surroundings, *, folder: FilePath) -> LoadedTest:
    """A document that a program has made, as plain data. Paths in it begin at `folder`.

    Raises ManifestErrors as `load_tests`; places are those of the data as YAML.
    """
    # JSON is YAML, and a text like `on` stays a text in it.
    written = to_json(data, indent=1).replace("${", "$${").encode()
    source = ManifestSource(f"<{value_at(data, 'metadata', 'name')}>", written)
    (found,) = load_tests(source, surroundings, folder=folder)
    return found


def load_tests(
    source: ManifestSource,
    surroundings: Surroundings,
    *,
    folder: FilePath,
    environ: Mapping[str, str] | None = None,
) -> Sequence[LoadedTest]:
    """The documents of one file, in order; empty if it has none of this kind.

    `folder` is where relative paths begin; `environ` has the values of `${env:NAME}`, by default none.
    Raises ManifestErrors with every fault of all documents, sorted by position.
    """
    found: list[LoadedTest] = []
    faults: list[Diagnostic] = []
    names: dict[str, Document] = {}
    text = decode(source)
    try:
        documents = [
            read_document(text, root, environ or {}) for root in parse_documents(text) if _is_test(root)
        ]
    except UnreadableYaml as error:
        raise ManifestErrors([error.diagnostic]) from error
    with bounded_suggestions():
        for document in documents:
            check = _Check(document, surroundings, folder)
            loaded, wrong = check.run()
            faults += wrong
            faults += _same_name(document, names)
            if loaded is not None:
                found.append(loaded)
    if any(fault.severity == "error" for fault in faults):
        raise ManifestErrors(in_order(faults))
    return found


def _same_name(document: Document, names: dict[str, Document]) -> Sequence[Diagnostic]:
    name = value_at(document.data, "metadata", "name")
    if not isinstance(name, str):
        return ()
    first = names.setdefault(name, document)
    if first is document:
        return ()
    path: Path = ("metadata", "name")
    message = f'the test "{name}" is here twice: first at line {first.locate(path).line}'
    fault = document.fault(codes.DUPLICATE_NAME, Location(path), message, suggestion="rename one of them")
    return [fault]


def _is_test(root: Node) -> bool:
    fields = {key.text: value for key, value in root.pairs if key.kind == "scalar"}
    kind, version = fields.get("kind"), fields.get("apiVersion")
    if kind is None or meant_kind(kind.text) != KIND:
        return False
    # A misspelt kind or group is a fault of it, and not the document of somebody else.
    ours, group = API_VERSION.partition("/")[0], "" if version is None else version.text.partition("/")[0]
    return version is None or closest(group, [ours]) is not None


def _names_file(entry: Mapping[str, Json]) -> bool:
    return "file" in entry and "kind" not in entry


class _Check:
    """The checks of one document: first its shape, then what it names."""

    def __init__(self, document: Document, surroundings: Surroundings, folder: FilePath) -> None:
        self._findings = Findings(document, walk(document.data, CONTROLLER_TEST))
        self._document = document
        self._surroundings = surroundings
        self._folder = folder
        self._kinds: dict[str, list[GroupVersionKind]] = {}  # by name
        self._meant: dict[str, GroupVersionKind] = {}  # of the names that stand without apiVersion
        self._files: dict[str, Sequence[KubeObject]] = {}
        self._plurals: set[str] = set()  # of the server
        self._schemas: dict[GroupVersionKind, Json] = {}  # of definitions

    def run(self) -> tuple[LoadedTest | None, Sequence[Diagnostic]]:
        """The document, None if it has faults; and these."""
        findings, data = self._findings, self._document.data
        check_structure(findings, CONTROLLER_TEST)
        check_values(findings)
        check_alternatives(findings)
        self._check_steps()
        bundle = self._bundle()
        if bundle is not None:
            for path, entry in entries_at(data, "spec", "objects"):
                self._read_objects(path, entry)
            for path, step in entries_at(data, "spec", "steps"):
                if isinstance(step.get("apply"), dict):
                    self._read_objects((*path, "apply"), mapping_at(step, "apply"))
            self._learn(bundle)
            self._check_names(bundle)
        self._check_purpose()
        faults = findings.diagnostics
        if bundle is None or any(fault.severity == "error" for fault in faults):
            return None, faults
        name = str(value_at(data, "metadata", "name"))
        spec = build(ControllerTestSpec, value_at(data, "spec"), ("spec",), name=name)
        test = LoadedTest(spec, self._document, self._folder, bundle, self._meant, self._files)
        return test, faults

    def _add(self, code: str, path: Path, message: str, suggestion: str, *, key: bool = False) -> None:
        self._findings.add(code, Location(path, key=key), message, suggestion=suggestion)

    def _check_steps(self) -> None:
        steps = list(entries_at(self._document.data, "spec", "steps"))
        if value_at(self._document.data, "spec", "steps") == []:
            self._add(codes.OUT_OF_RANGE, ("spec", "steps"), "spec.steps is empty", "add a step")
        for path, step in steps:
            present = [name for name in step if name in _ACTIONS]
            for extra in present[1:]:
                message = f"{dotted(path)} has {extra} beside {present[0]}, and a step has one action"
                self._add(
                    codes.CONTRADICTION,
                    (*path, extra),
                    message,
                    f"write {extra} as a step of its own",
                    key=True,
                )
            if "wait" in step and not items_at(step, "expect"):
                message = f"{dotted(path)} waits for nothing"
                advice = "add expect beside it, or write advance"
                self._add(codes.CONTRADICTION, (*path, "wait"), message, advice, key=True)
            if not step or (step.keys() == {"expect"} and not items_at(step, "expect")):
                self._add(
                    codes.MISSING_FIELD, path, f"{dotted(path)} does nothing", "add an action or expect"
                )
            self._check_fault((*path, "fault"))
            for where, _ in entries_at(step, "expect"):
                self._check_expectation((*path, *where))

    def _check_purpose(self) -> None:
        """Report a document that no operator can fail. Last: a misspelt `expect` is told alone."""
        steps = [step for _, step in entries_at(self._document.data, "spec", "steps")]
        if steps and not any(items_at(step, "expect") for step in steps) and not self._findings.diagnostics:
            message = "no step expects anything: this test can't fail"
            self._add(codes.MISSING_FIELD, ("spec", "steps"), message, "add expect to a step")

    def _check_fault(self, path: Path) -> None:
        fault = mapping_at(self._document.data, *path)
        name = fault.get("fault")
        needed = _FAULTS.get(name, "") if isinstance(name, str) else ""
        if needed and needed not in fault and not self._findings.is_meant((*path, needed)):
            message = f'{dotted(path)} needs the field "{needed}" with fault: {name}'
            self._add(codes.MISSING_FIELD, path, message, f"add {needed}")

    def _check_expectation(self, path: Path) -> None:
        given = mapping_at(self._document.data, *path)
        if "count" in given and "match" not in given:
            message = f"{dotted((*path, 'count'))} has no meaning without match"
            self._add(codes.CONTRADICTION, (*path, "count"), message, "write it beside match", key=True)
        writes = mapping_at(given, "writes")
        if "apiVersion" in writes and "kind" not in writes:
            where = (*path, "writes", "apiVersion")
            message = f"{dotted(where)} has no meaning without kind"
            self._add(codes.CONTRADICTION, where, message, "add kind", key=True)
        for part in ("calls", "writes"):
            if isinstance(given.get(part), dict):
                self._check_numbers((*path, part), mapping_at(given, part), part)

    def _check_numbers(self, path: Path, given: JsonObject, part: str) -> None:
        names = (*_NUMBERS, "failed") if part == "calls" else _NUMBERS
        if not any(name in given or self._findings.is_meant((*path, name)) for name in names):
            message = f"{dotted(path)} needs one of the fields {' and '.join(names)}"
            self._add(codes.EXACTLY_ONE, path, message, "add count: 1, or min: 1")
        low, high = given.get("min"), given.get("max")
        if isinstance(low, int) and isinstance(high, int) and low > high:
            message = f"{dotted(path)} is {low} at least and {high} at most, which no number is"
            self._add(codes.CONTRADICTION, (*path, "max"), message, "exchange min and max")

    def _bundle(self) -> NamedParts | None:
        path: Path = ("spec", "manifest")
        given = value_at(self._document.data, *path)
        if (given is not None and not isinstance(given, str)) or self._findings.is_blamed(path):
            return None
        try:
            place = self._folder / given if given else self._folder
            return self._surroundings.bundle(place, nearest=not given)
        except ManifestErrors as error:
            # Their places are in the manifest, which the caller may not know.
            first = str(error.diagnostics[0]) if error.diagnostics else str(error)
            message, advice = f"the manifest has faults: {first}", "run declctl validate on it"
        except (DeclctlError, OSError) as error:
            message = f"no Controller was found: {_reason(error)}"
            advice = "name the manifest in spec.manifest, or put the document beside it"
        where = path if given else ("spec",)
        self._add(codes.TEST_WITHOUT_CONTROLLER, where, message, advice, key=not given)
        return None

    def _read_objects(self, path: Path, entry: JsonObject) -> None:
        """Read the file of an entry, or check that it is an object."""
        if not _names_file(entry):
            for name in ("kind", "apiVersion"):
                if not isinstance(entry.get(name), str):
                    message = f'{dotted(path)} needs the field "{name}", as an object or {{file: PATH}}'
                    self._add(codes.MISSING_FIELD, path, message, f"add {name}")
                    return
            return
        where, name = (*path, "file"), entry["file"]
        if not isinstance(name, str) or len(entry) > 1:
            message = f"{dotted(path)} is neither an object nor {{file: PATH}}"
            self._add(codes.WRONG_TYPE, path, message, "write {file: PATH} alone, or a whole object")
            return
        try:
            found = self._surroundings.objects(self._folder / name)
        except (DeclctlError, OSError) as error:
            advice = f"paths begin at the folder of this document, {self._folder}"
            self._add(codes.UNREADABLE_TEST_FILE, where, f"{name}: {_reason(error)}", advice)
            return
        if not found:
            self._add(codes.UNREADABLE_TEST_FILE, where, f"{name}: the file has no object", "fill it")
        self._files[name] = found

    def _learn(self, bundle: NamedParts) -> None:
        """Collect the kinds of the bundle and of definitions among the objects."""
        data = self._document.data
        given: list[Mapping[str, Json]] = [entry for _, entry in entries_at(data, "spec", "objects")]
        given += [mapping_at(step, "apply") for _, step in entries_at(data, "spec", "steps")]
        given += [each for objects in self._files.values() for each in objects]
        given += bundle.definitions
        self._plurals.update(bundle.plurals)
        for each in given:
            if isinstance(plural := value_at(each.get("spec"), "names", "plural"), str):
                self._plurals.add(plural)
            self._schemas.update(_defined(dict(each)))
        for kind in (*bundle.kinds, *self._schemas):
            known = self._kinds.setdefault(kind.kind, [])
            if kind not in known:
                known.append(kind)

    def _check_names(self, bundle: NamedParts) -> None:
        data = self._document.data
        for path, entry in entries_at(data, "spec", "objects"):
            if not _names_file(entry):
                self._check_kind(path, entry)
                self._check_fields(path, self._kind_of(entry), entry, bundle)
        for path, step in entries_at(data, "spec", "steps"):
            for action in ("apply", "patch", "delete"):
                entry = mapping_at(step, action)
                if entry and not _names_file(entry):
                    self._check_kind((*path, action), entry)
            if (applied := mapping_at(step, "apply")) and not _names_file(applied):
                self._check_fields((*path, "apply"), self._kind_of(applied), applied, bundle)
            patched = mapping_at(step, "patch")
            where = (*path, "patch", "patch")
            self._check_fields(where, self._kind_of(patched), mapping_at(patched, "patch"), bundle)
            for replaced, file in mapping_at(step, "reload", "files").items():
                self._check_replaced((*path, "reload", "files", replaced), file, bundle.path)
            self._check_resource((*path, "fault", "resource"), value_at(step, "fault", "resource"))
            for where, given in entries_at(step, "expect"):
                self._check_expected((*path, *where), given, bundle)

    def _check_expected(self, path: Path, given: JsonObject, bundle: NamedParts) -> None:
        handlers = tuple(bundle.handlers)
        for part in ("match", "absent"):
            if isinstance(given.get(part), dict):
                self._check_pattern((*path, part), mapping_at(given, part), bundle)
        for name in mapping_at(given, "event", "regarding"):
            if name not in _REFERENCE_FIELDS:
                self._add_unknown((*path, "event", "regarding", name), _REFERENCE_FIELDS)
        for part in ("condition", "writes"):
            if isinstance(given.get(part), dict):
                self._check_kind((*path, part), mapping_at(given, part))
        for part in ("calls", "writes"):
            where, name = (*path, part, "handler"), value_at(given, part, "handler")
            if isinstance(name, str) and name not in handlers and not self._findings.is_blamed(where):
                advice = did_you_mean(name, handlers) or f"the names are {listed(handlers)}"
                message = f'{dotted(where)}: the manifest has no handler and no schedule "{name}"'
                self._add(codes.UNKNOWN_REFERENCE, where, message, advice)

    def _check_pattern(self, path: Path, pattern: JsonObject, bundle: NamedParts) -> None:
        if "kind" not in pattern:
            message = f'{dotted(path)} needs the field "kind"'
            self._add(codes.MISSING_FIELD, path, message, "add kind: and the kind of the objects")
        for name in pattern:
            if name in _PATTERN_HINTS:
                message = f'unknown field "{name}" in {dotted(path)}'
                advice = f"an object has it in metadata: write metadata: {{{name}: …}}"
                self._add(codes.UNKNOWN_FIELD, (*path, name), message, advice, key=True)
        metadata = pattern.get("metadata")
        if "metadata" in pattern and not isinstance(metadata, dict):
            where = (*path, "metadata")
            self._add(codes.WRONG_TYPE, where, f"{dotted(where)} must be a mapping", "write {name: …}")
        for name in ("name", "namespace"):
            value = value_at(metadata, name)
            if value is not None and not isinstance(value, str):
                where = (*path, "metadata", name)
                self._add(codes.WRONG_TYPE, where, f"{dotted(where)} must be text", "put it in quotes")
        self._check_kind(path, pattern)
        self._check_fields(path, self._kind_of(pattern), pattern, bundle)

    def _kind_of(self, given: JsonObject) -> GroupVersionKind | None:
        """The kind that a part of the document names; None if this is not known."""
        name, version = given.get("kind"), given.get("apiVersion")
        known = self._kinds.get(name, []) if isinstance(name, str) else []
        meant = [each for each in known if version in (None, each.api_version)]
        return meant[0] if len(meant) == 1 else None

    def _check_fields(
        self, path: Path, kind: GroupVersionKind | None, part: JsonObject, bundle: NamedParts
    ) -> None:
        """Report the fields of a part of an object that its kind does not have.

        Of a kind without a schema, these are fields of metadata, and those that are like usual ones.
        """
        unknown = None if kind is None else bundle.unknown_fields(kind, self._schemas.get(kind), part)
        if unknown is None:
            top = [name for name in part if name not in _USUAL_FIELDS and did_you_mean(name, _USUAL_FIELDS)]
            metadata = [name for name in mapping_at(part, "metadata") if name not in _METADATA_FIELDS]
            unknown = [
                *(((name,), _USUAL_FIELDS) for name in top),
                *((("metadata", name), _METADATA_FIELDS) for name in metadata),
            ]
        for steps, names in unknown:
            if not self._findings.is_blamed((*path, *steps)):
                self._add_unknown((*path, *steps), names)

    def _add_unknown(self, path: Path, names: Sequence[str]) -> None:
        name = str(path[-1])
        known = f"it has {listed(names)}" if names else "leave it out: there are no fields there"
        message = f'unknown field "{name}" in {dotted(path[:-1])}'
        self._add(codes.UNKNOWN_FIELD, path, message, did_you_mean(name, names) or known, key=True)

    def _check_resource(self, path: Path, resource: Json) -> None:
        """Report a resource that no kind has, if it is like one: a fault of it would never come."""
        if not isinstance(resource, str) or (plural := resource.partition("/")[0]) in self._plurals:
            return
        if advice := did_you_mean(plural, self._plurals):
            message = f'{dotted(path)}: the API server of the test has no resource "{plural}"'
            self._add(codes.UNKNOWN_REFERENCE, path, message, advice)

    def _check_kind(self, path: Path, given: JsonObject) -> None:
        """Report a kind that the server of the test lacks, or that is not the only one of its name."""
        kind, version = given.get("kind"), given.get("apiVersion")
        where = (*path, "kind")
        if "kind" in given and (not isinstance(kind, str) or not kind):
            if not self._findings.is_blamed(where):
                self._add(codes.WRONG_TYPE, where, f"{dotted(where)} must be text", "write a kind")
            return
        if not isinstance(kind, str) or self._findings.is_blamed(where):
            return
        known = self._kinds.get(kind, [])
        if not known:
            message = f'{dotted(where)}: the API server of the test has no kind "{kind}"'
            advice = did_you_mean(kind, self._kinds) or (
                "add its CustomResourceDefinition to spec.objects, or put it beside the manifest"
            )
            self._add(codes.UNKNOWN_REFERENCE, where, message, advice)
        elif version is not None:
            self._check_version((*path, "apiVersion"), version, known)
        elif len(known) == 1:
            self._meant[kind] = known[0]
        else:
            versions = listed(each.api_version for each in known)
            message = f'{dotted(where)}: several kinds are called "{kind}"'
            self._add(codes.UNKNOWN_REFERENCE, where, message, f"add apiVersion: one of {versions}")

    def _check_version(self, path: Path, version: Json, known: Sequence[GroupVersionKind]) -> None:
        versions = [each.api_version for each in known]
        if isinstance(version, str) and version not in versions and not self._findings.is_blamed(path):
            message = (
                f"{dotted(path)}: the server of the test has {known[0].kind} in {listed(versions)} alone"
            )
            self._add(codes.UNKNOWN_REFERENCE, path, message, f"write {versions[0]}")

    def _check_replaced(self, path: Path, file: Json, manifest: FilePath) -> None:
        name = str(path[-1])
        if FilePath(name).is_absolute() or ".." in FilePath(name).parts:
            message = f"{name} is not in the folder of the manifest"
            self._add(codes.UNREADABLE_TEST_FILE, path, message, "write a path within it", key=True)
            return
        if isinstance(file, str) and not (self._folder / file).is_file():
            advice = f"paths begin at the folder of this document, {self._folder}"
            self._add(codes.UNREADABLE_TEST_FILE, path, f"{file}: no such file", advice)
            return
        target = folder_of(manifest) / name
        # A new file has the name of the one that it is a copy of: a typo would be in both.
        if target.exists() or not target.parent.is_dir() or FilePath(str(file)).name == target.name:
            return
        if advice := did_you_mean(target.name, sorted(each.name for each in target.parent.iterdir())):
            message = f"{name}: the folder of the manifest has no such file"
            advice = f"{advice} A new file is copied from one of its name"
            self._add(codes.UNREADABLE_TEST_FILE, path, message, advice, key=True)


def _reason(error: Exception) -> str:
    text = error.strerror if isinstance(error, OSError) else None
    return (text or str(error) or type(error).__name__).rstrip(".")


def _defined(obj: JsonObject) -> Iterable[tuple[GroupVersionKind, Json]]:
    """The kinds of a CustomResourceDefinition, each with its schema; none of another object."""
    if obj.get("kind") != "CustomResourceDefinition":
        return
    spec = value_at(obj, "spec")
    group, kind = value_at(spec, "group"), value_at(spec, "names", "kind")
    for _, version in entries_at(spec, "versions"):
        if isinstance(group, str) and isinstance(kind, str) and isinstance(version.get("name"), str):
            schema = value_at(version, "schema", "openAPIV3Schema")
            yield GroupVersionKind(group, str(version["name"]), kind), schema


def defined_kinds(definitions: Iterable[KubeObject]) -> Sequence[GroupVersionKind]:
    """The kinds of CustomResourceDefinitions, in all their versions."""
    return [kind for each in definitions for kind, _ in _defined(each)]
