"""Traces of OpenTelemetry: an event, the calls of hooks for it, and their writes.

Spans are made if the program has a tracer provider: `opentelemetry-instrument declctl run …` makes one, and
so may a hook `declctl_startup`. declctl configures none. Without a provider it imports nothing of
OpenTelemetry: a provider exists only if other code has imported the API, so a call costs a look into
`sys.modules`.

The spans of one call:

- `process RESOURCE`, from the receipt of the change to the end of the call. A retry begins another trace.
- `HOOK HANDLER`, below it, while the function runs. It is the current span there: the spans of user code and
  of instrumented libraries are its children.
- `apply`, `apply_set`, `patch_status`, `get`, `delete`, `change_finalizer`, below that, from `ctx.apply` and
  its like to the answer of the server.

A retry has a link to the attempt before. An event that a write of this process has led to has a link to the
span of this write. From any thread.
"""

import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from importlib import metadata
from types import TracebackType
from typing import Any, NamedTuple, TypeVar

from declctl.hooks.calls import readable_traceback
from declctl.kit.text import exception_text

T = TypeVar("T")

_API = "opentelemetry.trace"
_SCHEMA = "https://opentelemetry.io/schemas/1.37.0"  # of the names of attributes
_REMEMBERED_WRITES = 1000  # whose events may still come
_LOOK_SECONDS = 1.0  # between two looks for a provider: the API reads the environment each time
# The kinds that the semantic conventions have names for (`k8s.pod.name`); others have declctl's names.
_KINDS = frozenset(
    {"Pod", "Node", "Namespace", "Deployment", "ReplicaSet", "StatefulSet", "DaemonSet", "Job", "CronJob"}
    | {"ReplicationController", "ResourceQuota", "HorizontalPodAutoscaler"}
)
_GROUPS = frozenset({"", "apps", "batch", "autoscaling"})  # of these kinds
_SHORT = {"HorizontalPodAutoscaler": "hpa"}


class TracedCall(NamedTuple):
    """What a span says of a call; `None` and empty texts are left out."""

    handler: str
    generation: int
    resource: str  # its name in the manifest
    event_id: str
    attempt: int
    kind: tuple[str, str] | None  # group and kind of the object
    namespace: str | None
    name: str
    uid: str
    type: str = ""  # of a change
    reason: str = ""  # of a change
    causes: tuple[str, ...] = ()  # of a reconciler, in words
    waited: float = 0.0  # seconds since the receipt of the change

    def attributes(self) -> dict[str, Any]:
        """The attributes of the span."""
        found: dict[str, Any] = {
            "declctl.handler.name": self.handler,
            "declctl.generation": self.generation,
            "declctl.resource.name": self.resource,
            "declctl.event.id": self.event_id,
            "declctl.event.type": self.type,
            "declctl.event.reason": self.reason,
            "declctl.request.causes": self.causes,
            "declctl.attempt": self.attempt,
            **_object_attributes(self.kind, self.namespace, self.name, self.uid),
        }
        return {name: value for name, value in found.items() if value not in (None, "", ())}


class Tracing:
    """Makes the spans of one tracer provider. `api` is the module `opentelemetry.trace`."""

    def __init__(self, provider: Any, api: Any) -> None:
        self._api = api
        self._tracer = provider.get_tracer("declctl", _version(), schema_url=_SCHEMA)
        self._lock = threading.Lock()  # guards `_written`
        # By the id of the event that a write leads to: the context of its span. The newest are last.
        self._written: OrderedDict[str, Any] = OrderedDict()

    def begin(self, call: TracedCall, *, before: Any = None, events: Iterable[str] = ()) -> "CallTrace":
        """The span of a call, which begins at the receipt of its change.

        `before` is the context of the span of the attempt before. `events` are the ids of the events that
        have led to the call.
        """
        api = self._api
        links = [api.Link(before, {"declctl.link.reason": "retry"})] if before is not None else []
        with self._lock:
            found = [self._written.get(event) for event in events]
        links += [api.Link(context, {"declctl.link.reason": "cause"}) for context in found if context]
        span = self._tracer.start_span(
            f"process {call.resource}",
            context=_no_parent(),
            kind=api.SpanKind.CONSUMER,
            attributes=call.attributes(),
            links=links,
            start_time=time.time_ns() - int(call.waited * 1e9),
        )
        return CallTrace(span, call, self._tracer, api)

    async def write(self, verb: str, work: Coroutine[Any, Any, T], attributes: Mapping[str, Any]) -> T:
        """Await a write, in a span below that of the hook. In a task with the context of the hook.

        Results that have a uid and a version are remembered: an event with them gets a link to this span.
        """
        api = self._api
        scope = self._tracer.start_as_current_span(
            verb,
            kind=api.SpanKind.CLIENT,
            attributes={"declctl.write.verb": verb, **attributes},
            record_exception=False,  # as the SDK would record the text as it is
            set_status_on_exception=False,
        )
        with scope as span:
            try:
                result = await work
            except Exception as error:
                _fail(span, error, api, with_event=True)
                raise
            written = _written(result)
            context = span.get_span_context()
            for each in written:
                self._remember(f"{each.uid}@{each.resource_version}", context)
            if len(written) == 1:
                (one,) = written
                kind = (one.kind.group, one.kind.kind)
                span.set_attributes(_object_attributes(kind, one.key.namespace, one.key.name, one.uid))
                span.set_attribute("declctl.write.changed", one.changed)
            else:
                span.set_attribute("declctl.write.objects", len(written))
            return result

    def _remember(self, event: str, context: Any) -> None:
        with self._lock:
            self._written[event] = context
            self._written.move_to_end(event)
            if len(self._written) > _REMEMBERED_WRITES:
                self._written.popitem(last=False)


class CallTrace:
    """The span of one call, and the spans of its hooks."""

    __slots__ = ("_api", "_call", "_span", "_tracer")

    def __init__(self, span: Any, call: TracedCall, tracer: Any, api: Any) -> None:
        self._span = span
        self._call = call
        self._tracer = tracer
        self._api = api

    @property
    def context(self) -> Any:
        """The context of the span, for a link."""
        return self._span.get_span_context()

    def ids(self) -> dict[str, str]:
        """The fields of a log line that belongs to the call."""
        return _ids(self.context)

    def hook(self, hook: str) -> AbstractContextManager[None]:
        """A scope in which the span of a hook is the current one, in this thread or task.

        An exception that leaves the scope is recorded, and raised.
        """
        return _HookScope(self._span, f"{hook} {self._call.handler}", hook, self._tracer, self._api)

    def end(self, failures: Sequence[BaseException]) -> None:
        """End the span; it has failed if there are failures."""
        if failures:
            _fail(self._span, _raised(failures[0]), self._api, with_event=False)
        self._span.end()


class _HookScope(AbstractContextManager[None]):
    """A class, as the generator of `contextlib.contextmanager` would not survive a `StopIteration`."""

    def __init__(self, parent: Any, name: str, hook: str, tracer: Any, api: Any) -> None:
        self._parent = parent
        self._name = name
        self._hook = hook
        self._tracer = tracer
        self._api = api

    def __enter__(self) -> None:
        from opentelemetry import context  # the API is there: there is a provider

        within = self._api.set_span_in_context(self._parent, context.get_current())
        self._span = self._tracer.start_span(
            self._name, context=within, attributes={"declctl.hook.name": self._hook}
        )
        self._token = context.attach(self._api.set_span_in_context(self._span, within))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        from opentelemetry import context

        context.detach(self._token)
        if error is not None:
            _fail(self._span, _raised(error), self._api, with_event=True)
        self._span.end()


def tracing() -> Tracing | None:
    """The traces of the tracer provider that is configured; None without one.

    A provider that is configured while handlers run is found within a second.
    """
    global _known, _idle_until  # noqa: PLW0603 - OpenTelemetry has one provider in a process
    api = sys.modules.get(_API)
    if api is None:
        return None  # no code has imported it, so there is no provider
    now = time.monotonic()
    if now < _idle_until:
        return None
    try:
        provider = api.get_tracer_provider()
        if provider is not _known[0]:
            # Two threads that see it first get one object: it remembers the writes, for links to them.
            with _lock:
                if provider is not _known[0]:
                    # Without a provider, the API has one that waits for another, or one that does nothing.
                    idle = isinstance(provider, (api.ProxyTracerProvider, api.NoOpTracerProvider))
                    _known = (provider, None if idle else Tracing(provider, api))
    except AttributeError:  # another thread imports it at this moment
        return None
    found = _known[1]
    if found is None:
        _idle_until = now + _LOOK_SECONDS
    return found


def look_for_provider() -> None:
    """Let the next call of `tracing` look for a provider, as code has run that may have configured one."""
    global _idle_until  # noqa: PLW0603 - as above
    _idle_until = 0.0


_known: tuple[Any, Tracing | None] = (None, None)  # the newest provider, and its traces
_lock = threading.Lock()  # guards changes of `_known`
_idle_until = 0.0  # monotonic seconds until which no provider is looked for


def current_ids() -> dict[str, str]:
    """`trace_id` and `span_id` of the current span, as a log line has them; empty without one."""
    api = sys.modules.get(_API)
    if api is None:
        return {}
    try:
        return _ids(api.get_current_span().get_span_context())
    except AttributeError:  # as above
        return {}


def _version() -> str:
    try:
        return metadata.version("declctl")
    except metadata.PackageNotFoundError:  # run from a checkout that is not installed
        return "0"


def _ids(context: Any) -> dict[str, str]:
    if not context.is_valid:
        return {}
    return {"trace_id": f"{context.trace_id:032x}", "span_id": f"{context.span_id:016x}"}


def _no_parent() -> Any:
    """An empty context: an event begins a trace, whatever span a worker's thread has."""
    from opentelemetry.context import Context

    return Context()


def _object_attributes(
    kind: tuple[str, str] | None, namespace: str | None, name: str, uid: str
) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if namespace:
        found["k8s.namespace.name"] = namespace
    if kind is not None and kind[1] in _KINDS and kind[0] in _GROUPS:
        prefix = f"k8s.{_SHORT.get(kind[1], kind[1].lower())}"
    else:
        prefix = "declctl.object"
        if kind is not None:
            found["declctl.object.kind"] = f"{kind[1]}.{kind[0]}" if kind[0] else kind[1]
    found |= {f"{prefix}.{part}": value for part, value in (("name", name), ("uid", uid)) if value}
    return found


def _written(result: Any) -> Sequence[Any]:
    """The objects that a write has stored: a `Written`, those of an `AppliedSet`, or none."""
    if (applied := getattr(result, "applied", None)) is not None:
        return applied
    return (result,) if hasattr(result, "verb") else ()  # neither what was read, nor whether it was there


def _raised(error: BaseException) -> BaseException:
    """The exception of user code, which is the cause of ours."""
    return error if error.__cause__ is None else error.__cause__


def _fail(span: Any, raised: BaseException, api: Any, *, with_event: bool) -> None:
    """Give a span the status ERROR, and the exception if `with_event` is set.

    Spans go to other systems, so their texts have no values of Secrets.
    """
    try:
        text = exception_text(raised)
        if with_event:
            texts = {"exception.message": text, "exception.stacktrace": readable_traceback(raised)}
            span.record_exception(raised, attributes=texts)
        span.set_attribute("error.type", type(raised).__qualname__)
        span.set_status(api.Status(api.StatusCode.ERROR, text))
    except Exception:  # noqa: BLE001 - user code: an exception may raise where it is read
        span.set_status(api.Status(api.StatusCode.ERROR))
