"""Lint rules for handler files: effects of an import on the process that no reload undoes.

A generation is imported while the previous one still runs, and again after each edit. An import that only
defines things can be repeated. These rules read the sources, and find common effects that can't be repeated,
or that remain after their generation. The body of a module runs at its import, with the bodies of its classes
and of functions of the same file that it calls. Two rules concern the whole file: modules that are looked up
outside of the bundle, by a path or by a name in a text. Names are followed through import statements and
plain assignments, but not into other modules of the bundle.

A source does not show the effects of its imports: a helper in another module, or a library, may open a port,
start a thread or register a metric. `ImportAudit` notices these effects when they happen, in the child
process of a pre-flight.

The rules for writes in hooks, and for `request.previous`, are in `write_calls`.
"""

import ast
import inspect
import os
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from types import FrameType, MappingProxyType
from typing import Any, Final, Literal

import msgspec

from declctl.codes import (
    ACTIVITY_AT_IMPORT,
    METRIC_AT_IMPORT,
    NAME_IN_TEXT,
    ORDINARY_MODULE,
    PORT_AT_IMPORT,
    PROCESS_STATE_AT_IMPORT,
    WRONG_FORM,
)
from declctl.hooks.bundle import Bundle
from declctl.hooks.calls import NAMESPACE
from declctl.hooks.parser import LARGE_BYTES
from declctl.hooks.syntax import parsed
from declctl.hooks.write_calls import previous_rules, write_rules

_OWN_REGISTRY = (
    "add it in declctl_metrics(registry), with registry=registry, or make it with registry=None and register "
    "it there: then it is in /metrics of declctl"
)
_LISTEN_ONCE = (
    "open it in declctl_startup, which is called once in the life of the process, in a thread that serves it "
    "on over edits"
)
_PREPARE = "begin it in declctl_prepare and end it in declctl_teardown"
_STARTUP = "do it in declctl_startup, which is called once in the life of the process"

ADVICE: Final[Mapping[str, str]] = {
    METRIC_AT_IMPORT: _OWN_REGISTRY,
    PORT_AT_IMPORT: _LISTEN_ONCE,
    ACTIVITY_AT_IMPORT: _PREPARE,
    PROCESS_STATE_AT_IMPORT: _STARTUP,
}

_PATH_ADVICE = (
    "put helpers beside the manifest or into a package there, and import them by that name: then edits are "
    "noticed"
)
_ENVIRON_ADVICE = "set it for the process, or in declctl_startup"
_PATCH_ADVICE = "wrap it in a function of your own, or patch it once, in declctl_startup"

_AGAIN_METRIC = (
    "registers a metric with the process ({}): the import of the next edit would register it again, and fail"
)
_AGAIN_PORT = "opens a port ({}): the import of the next edit would find it in use, and fail"

_METRICS = ("Counter", "Gauge", "Histogram", "Summary", "Info", "Enum")
_METRIC_MODULES = ("prometheus_client", "prometheus_client.metrics", "prometheus_client.core")
_REGISTRIES = tuple(f"prometheus_client{module}.REGISTRY" for module in ("", ".registry", ".core"))

_PORTS = frozenset(
    {
        "prometheus_client.start_http_server",
        "prometheus_client.start_wsgi_server",
        "http.server.HTTPServer",
        "http.server.ThreadingHTTPServer",
        "socketserver.TCPServer",
        "socketserver.ThreadingTCPServer",
        "socketserver.UDPServer",
        "socketserver.ThreadingUDPServer",
        "wsgiref.simple_server.make_server",
        "xmlrpc.server.SimpleXMLRPCServer",
        "socket.create_server",
        "socket.socket().bind",
    }
)

_ACTIVITIES: Final[Mapping[str, str]] = {
    "threading.Thread().start": "starts a thread, one more at each edit",
    "threading.Timer().start": "starts a timer, one more at each edit",
    "_thread.start_new_thread": "starts a thread, one more at each edit",
    "concurrent.futures.ThreadPoolExecutor().submit": "starts threads, more at each edit",
    "concurrent.futures.ThreadPoolExecutor().map": "starts threads, more at each edit",
    "concurrent.futures.ProcessPoolExecutor().submit": "starts processes, more at each edit",
    "concurrent.futures.ProcessPoolExecutor().map": "starts processes, more at each edit",
    "multiprocessing.Process().start": "starts a process, one more at each edit",
    "multiprocessing.Pool": "starts processes, more at each edit",
    "multiprocessing.pool.ThreadPool": "starts threads, more at each edit",
    "subprocess.Popen": "starts a process, one more at each edit",
    "asyncio.run": "runs an event loop, and so does the pre-flight",
    "asyncio.new_event_loop().run_until_complete": "runs an event loop, and so does the pre-flight",
    "asyncio.get_event_loop().run_until_complete": "runs an event loop, and so does the pre-flight",
    "asyncio.new_event_loop().run_forever": "runs an event loop, and so does the pre-flight",
    "apscheduler.schedulers.background.BackgroundScheduler().start": "starts a thread, one more at each edit",
    "watchdog.observers.Observer().start": "starts a thread, one more at each edit",
}

_PROCESS: Final[Mapping[str, str]] = {
    "atexit.register": "registers an exit function",
    "signal.signal": "replaces a signal handler",
    "signal.setitimer": "sets a timer of the process",
    "signal.alarm": "sets a timer of the process",
    "os.chdir": "changes the current folder of the process",
    "os.fchdir": "changes the current folder of the process",
    "os.umask": "changes the umask of the process",
    "os.putenv": "changes the environment of the process",
    "os.unsetenv": "changes the environment of the process",
    "dotenv.load_dotenv": "changes the environment of the process",
    "site.addsitedir": "changes sys.path",
    "sys.settrace": "traces the process",
    "sys.setprofile": "traces the process",
    "sys.setrecursionlimit": "changes the recursion limit of the process",
    "sys.setswitchinterval": "changes the thread switching of the process",
    "gc.disable": "changes the garbage collection of the process",
    "gc.freeze": "changes the garbage collection of the process",
    "gc.set_threshold": "changes the garbage collection of the process",
    "resource.setrlimit": "changes limits of the process",
    "locale.setlocale": "changes the locale of the process",
    "socket.setdefaulttimeout": "changes the timeout of all sockets",
    "logging.basicConfig": "configures the logging of the process",
    "logging.config.dictConfig": "configures the logging of the process",
    "logging.config.fileConfig": "configures the logging of the process",
    "logging.captureWarnings": "configures the logging of the process",
    "logging.disable": "configures the logging of the process",
    "logging.setLoggerClass": "configures the logging of the process",
    "logging.setLogRecordFactory": "configures the logging of the process",
    "logging.getLogger().addHandler": "adds a handler to a logger of the process",
    "logging.getLogger().addFilter": "adds a filter to a logger of the process",
    "structlog.configure": "configures the logging of the process",
    "copyreg.pickle": "registers a function with the process",
    "codecs.register": "registers a function with the process",
    "codecs.register_error": "registers a function with the process",
    "yaml.add_constructor": "registers a function with the process",
    "yaml.add_representer": "registers a function with the process",
    "multiprocessing.set_start_method": "sets what a process can set once",
    "asyncio.set_event_loop": "replaces the event loop of its thread",
    "asyncio.set_event_loop_policy": "replaces the event loop of the process",
    "uvloop.install": "replaces the event loop of the process",
    "nest_asyncio.apply": "patches asyncio for the process",
    "gevent.monkey.patch_all": "patches the whole process",
}

_ADVICE_OF: Final[Mapping[str, str]] = {
    "site.addsitedir": _PATH_ADVICE,
    "dotenv.load_dotenv": _ENVIRON_ADVICE,
    "os.putenv": _ENVIRON_ADVICE,
    "os.unsetenv": _ENVIRON_ADVICE,
    "multiprocessing.set_start_method": "use multiprocessing.get_context(…), which sets nothing",
}

# Collections of the process. A rule reports each change of them, by these methods or by an item.
_COLLECTIONS: Final[Mapping[str, tuple[str, str]]] = {
    "os.environ": ("changes the environment of the process", _ENVIRON_ADVICE),
    "sys.path": ("changes sys.path", _PATH_ADVICE),
    "sys.modules": ("changes sys.modules", _PATCH_ADVICE),
    "sys.meta_path": ("changes how the process imports", _STARTUP),
    "sys.path_hooks": ("changes how the process imports", _STARTUP),
}
# Functions that take the name of a module as a text, and know no generation.
_BY_NAME = frozenset(
    {
        "importlib.import_module",
        "importlib.util.find_spec",
        "importlib.resources.files",
        "importlib.resources.read_text",
        "importlib.resources.read_binary",
        "importlib.resources.open_text",
        "importlib.resources.open_binary",
        "importlib.resources.path",
        "pkgutil.get_data",
        "pkgutil.resolve_name",
        "runpy.run_module",
        "unittest.mock.patch",
    }
)
# Functions that load a file by its path.
_FILES = frozenset(
    {
        "importlib.util.spec_from_file_location",
        "importlib.machinery.SourceFileLoader",
        "runpy.run_path",
    }
)
_UNNOTICED = "edits of it are not noticed"
_NAME_ADVICE = (
    "import the module and take that (resources.files(module), mock.patch.object(module, …)), or its name "
    "(module.__name__); import_module has a relative form, with __package__"
)
_CHANGES = frozenset(
    {"append", "insert", "extend", "remove", "pop", "clear", "update", "setdefault", "sort", "reverse"}
)


_INSTALLED = frozenset({"site-packages", "dist-packages"})
_Rule = tuple[ast.expr | ast.stmt, str, str, str]  # place; code; the effect; what to do instead
_Scope = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
_EVENTS = {
    "socket.bind": (PORT_AT_IMPORT, "socket.bind"),
    "os.chdir": (PROCESS_STATE_AT_IMPORT, "changes the current folder of the process"),
    "os.putenv": (PROCESS_STATE_AT_IMPORT, "changes the environment of the process"),
    "os.unsetenv": (PROCESS_STATE_AT_IMPORT, "changes the environment of the process"),
}


class Finding(msgspec.Struct, frozen=True):
    """A fault of a source, at a line and a column (counted from 1, in characters) of a file."""

    code: str
    message: str
    suggestion: str
    file: str
    line: int
    column: int
    last: int = 0  # the last line of the statement; 0 if it is `line`
    severity: Literal["error", "warning"] = "warning"

    def covers(self, other: "Finding") -> bool:
        """Whether the other finding is about the same statement."""
        same = (self.code, self.file) == (other.code, other.file)
        return same and self.line <= other.line <= max(self.line, self.last)


def lint(
    bundle: Bundle, entry_points: Iterable[str] = (), reconcilers: Mapping[str, bool] = MappingProxyType({})
) -> list[Finding]:
    """The effects of importing modules of a bundle that no reload undoes, and faulty writes of its hooks.

    `entry_points` name the hooks, as `module:attribute` or `module`. `reconcilers` has those of reconcilers,
    and whether `request.previous` is kept for a handler of each. A line that ends in `# noqa: DCL093`,
    with the code of the rule, is left out. Invalid sources, and sources that are too large to be parsed here
    (64 KiB), have no findings.
    """
    found, own = list[Finding](), bundle.names
    hooks: dict[str | None, list[str]] = {}  # the attributes of entry points, by the file of their module
    for entry_point in entry_points:
        module, _, attribute = entry_point.partition(":")
        hooks.setdefault(bundle.path_of(module), []).append(attribute)
    previous: dict[str | None, dict[str, bool]] = {}  # as `reconcilers`, by the file of their module
    for entry_point, is_kept in reconcilers.items():
        module, _, attribute = entry_point.partition(":")
        previous.setdefault(bundle.path_of(module), {})[attribute] = is_kept
    for path, source in bundle.files.items():
        if len(source) > LARGE_BYTES:
            continue
        tree = parsed(source)
        display = bundle.display(path)
        lines = (bundle.source(display) or "").split("\n")
        for node, code, what, advice in (
            *_ModuleRules(own).of(tree),
            *write_rules(tree, hooks.get(path, ())),
            *previous_rules(tree, previous.get(path, {})),
        ):
            text = lines[node.lineno - 1] if node.lineno <= len(lines) else ""
            if not _is_meant(text, code):
                column = len(text.encode()[: node.col_offset].decode("utf-8", "replace")) + 1
                last = node.end_lineno or 0
                severity = "error" if code == WRONG_FORM else "warning"
                found.append(Finding(code, what, advice, display, node.lineno, column, last, severity))
    return found


def finding_at(bundle: Bundle, file: str, line: int, code: str, what: str) -> Finding | None:
    """The finding for an effect that was seen at a line of a bundle; None if it is intended (`# noqa`)."""
    lines = (bundle.source(file) or "").split("\n")
    text = lines[line - 1] if line <= len(lines) else ""
    if _is_meant(text, code):
        return None
    again = {METRIC_AT_IMPORT: _AGAIN_METRIC, PORT_AT_IMPORT: _AGAIN_PORT}.get(code, "{}").format(what)
    column = len(text) - len(text.lstrip()) + 1
    return Finding(code, f"at import, this {again}", ADVICE[code], file, line, column)


def _is_meant(text: str, code: str) -> bool:
    return code in text.partition("# noqa:")[2]


def ordinary_modules(bundle: Bundle, known: Collection[str]) -> list[Finding]:
    """Findings for modules below the folder of a bundle that were imported outside of the bundle.

    `sys.path`, `PYTHONPATH` or a `.pth` file leads to them. They belong to the process, not to a generation,
    and their changes are not noticed. `known` are the names of modules that were imported before. Installed
    packages in an environment below the folder are left out.
    """
    folder, found = os.path.realpath(bundle.place), list[Finding]()
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if name in known or not isinstance(file, str) or name.partition(".")[0] == NAMESPACE:
            continue
        inner = os.path.relpath(os.path.realpath(file), folder)
        if inner.startswith(os.pardir) or not _INSTALLED.isdisjoint(Path(inner).parts):
            continue
        message = f"{bundle.display(inner)} is imported past the bundle, as {name}: {_UNNOTICED}"
        place = _import_of(name, bundle) or (bundle.display(inner), 1, 1)
        found.append(Finding(ORDINARY_MODULE, message, _PATH_ADVICE, *place))
    return found


def _import_of(name: str, bundle: Bundle) -> tuple[str, int, int] | None:
    """File, line and column of the first statement in a bundle that imports a module, or a name of it."""
    for path, source in bundle.files.items():
        if name.partition(".")[0].encode() not in source or len(source) > LARGE_BYTES:
            continue
        for node in ast.walk(parsed(source)):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level and node.module:
                names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            if isinstance(node, ast.Import | ast.ImportFrom) and name in names:
                return bundle.display(path), node.lineno, node.col_offset + 1
    return None


class _ModuleRules:
    """Applies the rules to one module."""

    def __init__(self, own: frozenset[str]) -> None:
        self._own = own  # the top-level names of the bundle
        self._names: dict[str, str] = {}  # the dotted name for which a name of the module stands
        self._bases: dict[str, str | None] = {}  # the first known base of each class of the module
        self._functions: dict[str, ast.FunctionDef] = {}
        self._called: set[str] = set()

    def of(self, tree: ast.Module) -> Iterator[_Rule]:
        """All findings of the module."""
        for node in ast.walk(tree):  # a function may use a name that is bound later
            self._bind_import(node)
        self._functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
        for statement in tree.body:
            for node, code, what, advice in self._run(statement):
                yield node, code, f"at import, this {what}", advice
        for node in ast.walk(tree):
            yield from self._look_up(node)

    def _look_up(self, node: ast.AST) -> Iterator[_Rule]:
        """Report modules that are looked up outside of the bundle, at any time."""
        if isinstance(node, ast.Call):
            name = self._dotted(node.func)
            written = node.args[0] if node.args else None
            if name in _FILES:
                yield (
                    node,
                    ORDINARY_MODULE,
                    f"{name} loads a file past the bundle: {_UNNOTICED}",
                    _PATH_ADVICE,
                )
            elif name not in _BY_NAME:
                return
        elif isinstance(node, ast.Subscript) and self._dotted(node.value) == "sys.modules":
            name, written = "sys.modules", node.slice
        else:
            return
        if isinstance(written, ast.Constant) and isinstance(written.value, str):
            module = written.value
            if module.partition(".")[0] in self._own:
                message = (
                    f"{name} does not find {module}, which is of the bundle: its modules have private names"
                )
                yield node, NAME_IN_TEXT, message, _NAME_ADVICE

    def _bind_import(self, node: ast.AST) -> None:
        if isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.partition(".")[0]
                if top not in self._own:
                    self._names[alias.asname or top] = alias.name if alias.asname else top
        elif isinstance(node, ast.ImportFrom) and not node.level:
            module = node.module or ""
            for alias in node.names if module.partition(".")[0] not in self._own else ():
                self._names[alias.asname or alias.name] = f"{module}.{alias.name}"

    def _run(self, node: ast.AST) -> Iterator[_Rule]:
        """Report the effects of a statement or an expression; definitions have none."""
        if isinstance(node, _Scope):
            for each in (*getattr(node, "decorator_list", ()), *node.args.defaults, *node.args.kw_defaults):
                if each is not None:
                    yield from self._run(each)
                    if isinstance(each, ast.Name | ast.Attribute) and self._dotted(each) == "atexit.register":
                        yield each, PROCESS_STATE_AT_IMPORT, _PROCESS["atexit.register"], _STARTUP
            return
        if isinstance(node, ast.If) and _is_never(node.test):
            for each in node.orelse:
                yield from self._run(each)
            return
        if isinstance(node, ast.ClassDef):
            self._bases[node.name] = next(filter(None, map(self._dotted, node.bases)), None)
            self._names.pop(node.name, None)
        if isinstance(node, ast.Call):
            yield from self._call(node)
        yield from self._assign(node)
        for child in ast.iter_child_nodes(node):
            yield from self._run(child)

    def _call(self, call: ast.Call) -> Iterator[_Rule]:
        if isinstance(call.func, ast.Name) and call.func.id in self._functions:
            if call.func.id not in self._called:
                self._called.add(call.func.id)
                for statement in self._functions[call.func.id].body:
                    yield from self._run(statement)
            return
        name = self._dotted(call.func)
        if name is None:
            return
        module, _, last = name.rpartition(".")
        if self._registers(call, module, last):
            yield call, METRIC_AT_IMPORT, _AGAIN_METRIC.format(last), _OWN_REGISTRY
        elif name in _PORTS:
            yield call, PORT_AT_IMPORT, _AGAIN_PORT.format(name.replace("()", "")), _LISTEN_ONCE
        elif name in _ACTIVITIES:
            yield call, ACTIVITY_AT_IMPORT, _ACTIVITIES[name], _PREPARE
        elif name in _PROCESS:
            yield call, PROCESS_STATE_AT_IMPORT, _PROCESS[name], _ADVICE_OF.get(name, _STARTUP)
        elif module in _COLLECTIONS and last in _CHANGES:
            what, advice = _COLLECTIONS[module]
            yield call, PROCESS_STATE_AT_IMPORT, what, advice
        elif name == "setattr":
            yield from self._set_attribute(call)

    def _registers(self, call: ast.Call, module: str, last: str) -> bool:
        if module in _REGISTRIES and last == "register":
            return True
        if module not in _METRIC_MODULES or last not in _METRICS:
            return False
        registry = next((keyword.value for keyword in call.keywords if keyword.arg == "registry"), None)
        return registry is None or self._dotted(registry) in _REGISTRIES

    def _assign(self, node: ast.AST) -> Iterator[_Rule]:
        targets: Iterable[ast.expr] = ()
        if isinstance(node, ast.Assign | ast.Delete):
            targets = node.targets
        elif isinstance(node, ast.AugAssign) or (isinstance(node, ast.AnnAssign) and node.value is not None):
            targets = [node.target]
        for target in targets:
            if isinstance(target, ast.Name) and isinstance(node, ast.Assign):
                self._bind(target.id, node.value)
            elif isinstance(target, ast.Subscript):
                if (name := self._dotted(target.value)) in _COLLECTIONS:
                    what, advice = _COLLECTIONS[name]
                    yield target, PROCESS_STATE_AT_IMPORT, what, advice
            elif isinstance(target, ast.Attribute):
                if (name := self._dotted(target)) in _COLLECTIONS:
                    what, advice = _COLLECTIONS[name]
                    yield target, PROCESS_STATE_AT_IMPORT, what, advice
                else:
                    yield from self._patch(target.value, target.attr, target)

    def _bind(self, name: str, value: ast.expr) -> None:
        """Note a plain assignment: the name stands for the value, if that is known."""
        dotted = self._dotted(value)
        if dotted is None:
            self._names.pop(name, None)
        else:
            self._names[name] = dotted

    def _set_attribute(self, call: ast.Call) -> Iterator[_Rule]:
        if len(call.args) > 1:
            written = call.args[1]
            attribute = str(written.value) if isinstance(written, ast.Constant) else "…"
            yield from self._patch(call.args[0], attribute, call)

    def _patch(self, base: ast.expr, attribute: str, where: ast.expr) -> Iterator[_Rule]:
        """Report an attribute that is set on a foreign module or class; instances are left out."""
        name = self._dotted(base)
        if name is not None and "(" not in name and name != "builtins":
            what = f"sets {name}.{attribute} for the whole process"
            yield where, PROCESS_STATE_AT_IMPORT, what, _PATCH_ADVICE

    def _dotted(self, node: ast.expr) -> str | None:
        """The dotted name of an expression, such as `os.environ`, under any import; `f()` for a call of f."""
        if isinstance(node, ast.Name):
            return self._names.get(node.id, "setattr" if node.id == "setattr" else None)
        if isinstance(node, ast.Attribute):
            base = self._dotted(node.value)
            return None if base is None else f"{base}.{node.attr}"
        if isinstance(node, ast.Call):
            called = self._dotted(node.func)
            if called is None and isinstance(node.func, ast.Name):
                called = self._bases.get(node.func.id)
            # `logging.getLogger(__name__)` belongs to the generation, and is forgotten with it.
            first = node.args[0] if node.args else None
            is_of_module = isinstance(first, ast.Name) and first.id == "__name__"
            return None if called is None or is_of_module else f"{called}()"
        return None


def _is_never(test: ast.expr) -> bool:
    """Whether the body of an `if` never runs in a bundle: `__name__ == "__main__"` and `TYPE_CHECKING`."""
    if isinstance(test, ast.Compare):
        is_name = isinstance(test.left, ast.Name) and test.left.id == "__name__"
        return is_name and isinstance(test.ops[0], ast.Eq)
    return "TYPE_CHECKING" in (getattr(test, "id", ""), getattr(test, "attr", ""))


class ImportAudit:
    """Records the effects of the bundle's modules from now until `end`. One for each process."""

    def __init__(self, bundle: Bundle) -> None:
        self._bundle = bundle
        self._found: list[Finding] = []
        self._listens = True
        sys.addaudithook(self._hear)
        self._hear_of_threads()
        if any(b"prometheus" in source for source in bundle.files.values()):
            self._hear_of_metrics()

    def end(self, known: list[Finding]) -> list[Finding]:
        """The findings that are not in `known`; later effects are not recorded."""
        self._listens = False
        return [one for one in self._found if not any(each.covers(one) for each in known)]

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self._listens and event in _EVENTS and not (event == "socket.bind" and _takes_nothing(*arguments)):
            code, what = _EVENTS[event]
            self._note_finding(code, what, inspect.currentframe())

    def _hear_of_threads(self) -> None:
        start = threading.Thread.start

        def noting_start(thread: threading.Thread) -> None:
            start(thread)
            if self._listens:
                what = "starts a thread, one more at each edit"
                self._note_finding(ACTIVITY_AT_IMPORT, what, inspect.currentframe())

        setattr(threading.Thread, "start", noting_start)  # noqa: B010 - only here is it meant to be another one

    def _hear_of_metrics(self) -> None:
        if find_spec("prometheus_client") is None:
            return
        from prometheus_client.registry import REGISTRY, CollectorRegistry

        register: Callable[[CollectorRegistry, Any], None] = CollectorRegistry.register

        def noting_register(registry: CollectorRegistry, collector: Any) -> None:
            register(registry, collector)
            if self._listens and registry is REGISTRY:
                self._note_finding(METRIC_AT_IMPORT, type(collector).__name__, inspect.currentframe())

        setattr(CollectorRegistry, "register", noting_register)  # noqa: B010 - as above

    def _note_finding(self, code: str, what: str, frame: FrameType | None) -> None:
        """Record an effect at the innermost line of the bundle, but none of a library's own import."""
        while frame is not None and "importlib._bootstrap" not in frame.f_code.co_filename:
            if str(frame.f_globals.get("__name__")).startswith(f"{NAMESPACE}."):
                file, line = frame.f_code.co_filename, frame.f_lineno
                found = finding_at(self._bundle, file, line, code, what)
                if found is not None and found not in self._found:
                    self._found.append(found)
                return
            frame = frame.f_back


def _takes_nothing(_: object, address: object) -> bool:
    """Whether an address takes nothing from others: a free port of the system, or another family."""
    if isinstance(address, tuple):
        return len(address) < 2 or not isinstance(address[0], str) or address[1] == 0
    return not address
