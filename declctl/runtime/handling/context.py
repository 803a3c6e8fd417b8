"""`ctx`, which a hook receives beside the change, and its access to the cluster.

The requests of `ctx.apply`, `ctx.get` and their like run on the machinery loop, where the connections are.
The arguments are checked and copied in the thread of the hook.
"""

import asyncio
import json
from abc import abstractmethod
from collections.abc import (
    Callable,
    Coroutine,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    MutableMapping,
    Sequence,
)
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from contextvars import copy_context
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar, cast

import msgspec

from declctl.errors import WriteError
from declctl.informer.stores.lister import CacheSnapshot, Lister, snapshots_of
from declctl.kit import LoopCalls, running_loop
from declctl.kit.callbacks import CodeLine, caller
from declctl.kit.text import exception_text
from declctl.objects import GroupVersionKind, ObjectView
from declctl.runtime.tracing import tracing
from declctl.transport import Client
from declctl.writes import (
    AppliedSet,
    CallScope,
    DeclaredWrites,
    EventRecorder,
    EventText,
    FinalizerCarrier,
    HandlerWriter,
    Propagation,
    Typed,
    Writable,
    WriteOrigin,
    WriterFactory,
    Written,
    document_of,
    documents_of,
    event_text,
    find_carriers_of,
    object_of,
    origin_of,
    propagation_of,
    reference_to,
    status_arguments,
    status_change,
)

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

P = ParamSpec("P")
T = TypeVar("T")
V = TypeVar("V")
O = TypeVar("O", bound=ObjectView)  # noqa: E741 - a class of objects

Json = None | bool | int | float | str | list[Any] | dict[str, Any]


class Memo(MutableMapping[str, Json]):
    """The memory of a handler: JSON-like values that survive reloads.

    A value is copied when it is set, so that no object of a class of an old generation remains. Raises
    TypeError for a value that JSON can't write.
    """

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, Json] | None = None) -> None:
        self._values: dict[str, Json] = dict(values or {})

    def __getitem__(self, name: str) -> Json:
        return self._values[name]

    def __setitem__(self, name: str, value: Json) -> None:
        try:
            self._values[name] = json.loads(json.dumps(value))
        except (TypeError, ValueError) as fault:
            raise TypeError(
                f"ctx.memo[{name!r}] can't hold a {type(value).__name__}: a memo outlives the code that "
                f"wrote it, so it keeps None, booleans, numbers, strings, lists and dicts only ({fault})"
            ) from fault

    def __delitem__(self, name: str) -> None:
        del self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"Memo({self._values!r})"


class _ByName(Mapping[str, V]):
    """Values by the names of resources, with an error that names them all."""

    def __init__(self, values: Mapping[str, V]) -> None:
        self._values = values

    def __getitem__(self, name: str) -> V:
        try:
            return self._values[name]
        except KeyError:
            raise KeyError(self._unknown(name)) from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    @abstractmethod
    def _unknown(self, name: str) -> str:
        """What is wrong with a name that none of them has."""


class Listers(_ByName[Lister]):
    """`ctx.listers["pods"]`: the caches by the names of the manifest's resources."""

    def of_class(self, kind: type[O]) -> Lister[O]:
        """The one lister whose objects are of a class. Raises LookupError."""
        found = [name for name, lister in self.items() if lister.view is kind]
        if len(found) == 1:
            return cast("Lister[O]", self[found[0]])
        if found:
            names = ", ".join(found)
            raise LookupError(
                f"several resources have the type {kind.__name__}: write ctx.listers[…] for one of {names}"
            )
        typed = {name: lister.view.__name__ for name, lister in self.items() if lister.view is not ObjectView}
        known = ", ".join(f"{name} ({of})" for name, of in sorted(typed.items())) or "none"
        raise LookupError(
            f"no resource of the manifest has the type {kind.__name__}; those with a type are: {known}"
        )

    def _unknown(self, name: str) -> str:
        known = ", ".join(sorted(self)) or "none"
        return f"no resource is named {name!r}; the manifest declares: {known}"


class Snapshots(_ByName[CacheSnapshot]):
    """`ctx.snapshots["settings"]`: the caches of `includeSnapshotsFrom`, all as they were at one moment."""

    def _unknown(self, name: str) -> str:
        known = ", ".join(self) or "none"
        return f"there is no snapshot of {name!r}: name it in includeSnapshotsFrom, which has: {known}"


class SnapshotSource:
    """Takes the snapshots of one handler or schedule, by the names of `includeSnapshotsFrom`."""

    def __init__(self, names: Iterable[str], listers: Mapping[str, Lister]) -> None:
        self.listers = {name: listers[name] for name in names}

    def take(self) -> Snapshots:
        """Snapshots of one moment. Raises NotSynced for a cache that can't be read now. From any thread."""
        taken = snapshots_of(tuple(self.listers.values()))
        return Snapshots(dict(zip(self.listers, taken, strict=True)))


_NO_SCOPE = CallScope()  # of a life-cycle hook
_NOTHING_DECLARED = DeclaredWrites()
_NO_SNAPSHOTS = Snapshots({})


class HandlerEnvironment(msgspec.Struct, frozen=True):
    """The values that all contexts of one handler of one generation share. `log` is a structlog logger."""

    handler: str
    generation: int
    listers: Listers
    config: Mapping[str, Any]
    cluster: "ClusterAccess"
    log: Any
    now: Callable[[], datetime]
    dry_run: bool = False
    declared: DeclaredWrites = _NOTHING_DECLARED  # what the manifest says of its writes
    field_manager: str = ""  # empty for `declctl/<controller>/<handler>`
    not_awaited: set[str] = msgspec.field(default_factory=set[str])  # writes that the log has named


class Context:
    """`ctx` of one call, which a hook receives: `async def hook(obj: ObjectView, ctx: declctl.Context)`.

    It is valid for the length of the call, in the thread or on the loop that the hook runs on. In a process
    of an isolated handler it is the same, and the main process answers.
    """

    # It is cheap: each part is made at its first use. `remember` returns the memo; each use of `memo` calls
    # it. `scope` is the object of the call.

    __slots__ = ("_environment", "_log", "_remember", "_scope", "_snapshots", "_writes")

    def __init__(
        self,
        environment: HandlerEnvironment,
        remember: Callable[[], Memo],
        scope: CallScope = _NO_SCOPE,
        snapshots: Snapshots | None = None,
    ) -> None:
        self._snapshots = _NO_SNAPSHOTS if snapshots is None else snapshots
        self._remember = remember
        self._environment = environment
        self._scope = scope
        self._log: FilteringBoundLogger | None = None
        self._writes: HandlerWrites | None = None

    @property
    def handler(self) -> str:
        """The handler's name in the manifest; in a life-cycle hook the plugin or entry point."""
        return self._environment.handler

    @property
    def generation(self) -> int:
        """The generation whose code is running."""
        return self._environment.generation

    @property
    def origin(self) -> WriteOrigin:
        """The call, as the ledger of writes has it."""
        return origin_of(self.handler, self.generation, self._scope)

    def now(self) -> datetime:
        """The present time, as an aware datetime in UTC, by the clock that a test advances."""
        return self._environment.now()

    @property
    def memo(self) -> Memo:
        """The memo of the object, or of the handler in a life-cycle hook; it survives reloads."""
        return self._remember()

    @property
    def listers(self) -> Listers:
        """The caches, by the names of the manifest's resources."""
        return self._environment.listers

    def lister(self, kind: type[O]) -> Lister[O]:
        """The cache of the resource whose `type` is a class: `ctx.lister(Preview).get(key)` is a Preview.

        Raises LookupError, which names the types of resources, if none has this class, or several have.
        """
        return self._environment.listers.of_class(kind)

    @property
    def config(self) -> Mapping[str, Any]:
        """The plugin's config, validated; empty for a handler without a config."""
        return self._environment.config

    @property
    def dry_run(self) -> bool:
        """True if the hook shall change nothing in the cluster."""
        return self._environment.dry_run

    @property
    def log(self) -> "FilteringBoundLogger":
        """A structlog logger, bound with handler, generation, and key and `event_id` of the call, if any."""
        log = self._log
        if log is None:
            call = {"key": self._scope.key, "event_id": self._scope.event_id}
            known = {name: value for name, value in call.items() if value}
            log = self._environment.log.bind(handler=self.handler, generation=self.generation, **known)
            self._log = log
        return log

    @property
    def snapshots(self) -> Snapshots:
        """The resources of `includeSnapshotsFrom`, as they were when the call began."""
        return self._snapshots

    @property
    def client(self) -> Any:
        """The official ApiClient (`kubernetes.aio.client`), configured; for `async def` hooks."""
        return self._environment.cluster.client

    @property
    def sync_client(self) -> Any:
        """The official synchronous ApiClient (`kubernetes.client`), configured; for `def` hooks."""
        return self._environment.cluster.sync_client

    def apply(self, obj: Writable, *, force: bool | None = None) -> Coroutine[Any, Any, Written]:
        """Server-side apply of an object; await it. For `async def` hooks.

        `obj` has apiVersion, kind, metadata.name, and the fields to set: a mapping, or a Struct or dataclass,
        which may also be parts of it. Without metadata.namespace it is that of the object of the call. Fields
        that the last apply of this handler has set, and this one does not, are removed. Returns the kind,
        key, uid and resource version that were written. With `force` False, fields of other managers are not
        changed: a Conflict has their names. By default it is True, or what `fieldConflicts` says.
        Raises InvalidWrite, UndeclaredWrite, NotLeader, and ApiError.
        """
        return self._awaited("apply", lambda writes: writes.apply(obj, force=force))

    def apply_set(self, objects: Iterable[Writable]) -> Coroutine[Any, Any, AppliedSet]:
        """Apply the children of the object of the call, and delete former ones; await it.

        For `async def` hooks. Each child gets an owner reference to the object. A child of an earlier call
        that is not in `objects` is deleted. Raises what `apply` raises, CrossNamespaceOwner, AlreadyOwned and
        AlreadyExists.
        """
        return self._awaited("apply_set", lambda writes: writes.apply_set(objects))

    def patch_status(
        self,
        status: Typed | Iterable[Writable] = (),
        /,
        *,
        conditions: Iterable[Writable] | None = None,
        **fields: Any,
    ) -> Coroutine[Any, Any, Written]:
        """Write the status of the object of the call; await it. For `async def` hooks.

        - `status`: the whole status, as a Struct or a dataclass; or the conditions.
        - `conditions`: Conditions, or dicts with type, status, reason and maybe message; merged by type.
        - `fields`: other fields of the status, in the names that JSON has. None removes one.

        Observed generations and times of transitions are filled in. Nothing is sent if nothing would
        change. Raises InvalidWrite, UndeclaredWrite, NoStatusSubresource, NotLeader, and ApiError.
        """
        given = status_arguments(status, conditions, fields)
        return self._awaited("patch_status", lambda writes: writes.patch_status(*given))

    def get(
        self, kind: str, name: str, namespace: str | None = None
    ) -> Coroutine[Any, Any, ObjectView | None]:
        """Read an object from the server, as it is now; await it. For `async def` hooks.

        `kind` is as `apps/v1/Deployment` or `v1/ConfigMap`. Without a namespace it is that of the object of
        the call. Returns None if the object is not there. A lister costs no request, but may be behind.
        Raises InvalidWrite, and ApiError: NotFound if the server does not serve the kind.
        """
        return self._awaited("get", lambda writes: writes.get(kind, name, namespace))

    def delete(
        self,
        obj: Writable | str,
        name: str | None = None,
        namespace: str | None = None,
        *,
        propagation: Propagation | None = None,
        uid: str | None = None,
    ) -> Coroutine[Any, Any, bool]:
        """Delete an object; await it. For `async def` hooks.

        It is an object, which is deleted only if it still has its uid, or a kind with a name, as for `get`.

        - `propagation`: what becomes of the objects that it owns; None is the default of the server.
        - `uid`: delete no other object of that name.

        Returns False if it is gone, and if an object with another uid has its name; True if the server has
        deleted it, or lets it end by its finalizers and grace period.
        Raises InvalidWrite, UndeclaredWrite, NotLeader, and ApiError.
        """
        return self._awaited(
            "delete", lambda writes: writes.delete(obj, name, namespace, propagation=propagation, uid=uid)
        )

    @property
    def sync(self) -> "SyncWrites":
        """`apply`, `get` and their like for `def` hooks: they block until the server answers."""
        return SyncWrites(self._prepared())

    def record_event(
        self,
        obj: Mapping[str, Any],
        reason: str,
        message: str,
        type: str = "Normal",  # noqa: A002
        action: str = "Handle",
    ) -> None:
        """Post a Kubernetes Event about `obj`: an object of the cache, or the `obj` of a `Written`.

        Equal events become a series. `action` is what was done, or has failed, in one CamelCase word.
        Returns at once. A refusal of the server is logged, and never raised. Raises ValueError for another
        `type` and for an empty `reason` or `action`, and TypeError for an `obj` that is no object, and for a
        `reason`, `message` or `action` that is no text.
        """
        text = event_text(reason, message, type, action)
        self._environment.cluster.record_event(obj, text, self.origin)

    def _awaited(
        self, name: str, work: Callable[["HandlerWrites"], "WriteWork[T]"]
    ) -> Coroutine[Any, Any, T]:
        if running_loop() is None:
            raise RuntimeError(
                f"ctx.{name} has to be awaited, so it is for `async def` hooks; a `def` hook has "
                f"ctx.sync.{name}"
            )
        writes = self._prepared()
        return writes.begin(work(writes), self._not_awaited, caller())

    def _not_awaited(self, verb: str, line: CodeLine | None, error: BaseException | None) -> None:
        """Log a write that a hook has forgotten, once for each line."""
        call = f"ctx.{verb} ({line})" if line is not None else f"ctx.{verb}"
        told = self._environment.not_awaited
        if call in told:
            return
        told.add(call)
        text = "" if error is None else exception_text(error) or type(error).__name__
        failed = f", and it has failed: {text}" if text else ""
        self.log.warning(
            f"{call} was not awaited, so the call of the handler did not wait for it{failed}. "
            "Await it; further times are not logged"
        )

    def for_other_process(self) -> "CallElsewhere":
        """The context for a call that another process makes. For declctl; hooks have no use for it."""
        return CallElsewhere(self, self._environment, self._prepared)

    def _prepared(self) -> "HandlerWrites":
        if self._writes is None:
            self._writes = self._environment.cluster.writes(self._environment, self._scope)
        return self._writes


class CallElsewhere:
    """What a call in another process has of its context here, beside what hooks use."""

    def __init__(
        self, context: Context, environment: HandlerEnvironment, writes: Callable[[], "HandlerWrites"]
    ) -> None:
        self.context = context
        self._environment = environment
        self._writes = writes

    @property
    def log_level(self) -> int:
        """The lowest level of the log that is written, by its number in `logging`; 0 if it is not known."""
        level = getattr(self._environment.log, "get_effective_level", None)
        return 0 if level is None else level()

    def submit(self, work: Callable[["HandlerWrites"], "WriteWork[T]"]) -> Future[T]:
        """Make a write of the call."""
        writes = self._writes()
        return writes.submit(work(writes))

    def request(self, method: str, path: str, headers: Any, body: Any, timeout: float | None) -> Future[Any]:
        """Send a request of an official client; see `ClusterAccess.request`."""
        return self._environment.cluster.request(method, path, headers, body, timeout)


Forgotten = Callable[[str, CodeLine | None, BaseException | None], None]
"""Called for a write that a call has not waited for: its verb, the line of the hook, and its error."""


class WriteWork(msgspec.Struct, Generic[T], frozen=True):
    """A write, or a `get`, that was checked, and is sent by its coroutine on the machinery loop."""

    verb: str
    coroutine: Coroutine[Any, Any, T]


class WriteFuture(asyncio.Future[Any], Coroutine[Any, Any, Any]):
    """The future of a write or a `get`. One that a hook forgets is told to `forgotten`.

    It is a coroutine, too: type checkers report a coroutine that is not awaited, and `asyncio.create_task`
    takes it.

    Made on the loop of the hook. `line` is that of the hook.
    """

    def __init__(self, verb: str, forgotten: Forgotten, line: CodeLine | None) -> None:
        super().__init__()
        self._verb = verb
        self._forgotten = forgotten
        self._line = line
        self._used = False  # a hook has awaited it, or has asked for its result
        self._steps: Generator[Any, None, Any] | None = None  # of the task that it is the coroutine of

    def __await__(self) -> Generator[Any, None, Any]:
        """As of any future."""
        self._used = True
        return super().__await__()

    def send(self, value: Any, /) -> Any:
        """As of any coroutine."""
        if self._steps is None:
            self._steps = self.__await__()
        return self._steps.send(value)

    def throw(self, kind: Any, value: Any = None, traceback: Any = None, /) -> Any:
        """As of any coroutine."""
        if self._steps is None:
            self._steps = self.__await__()
        return self._steps.throw(kind, value, traceback)

    def close(self) -> None:
        """As of any coroutine."""
        if self._steps is not None:
            self._steps.close()

    def result(self) -> Any:
        """As of any future."""
        self._used = True
        return super().result()

    def exception(self) -> BaseException | None:
        """As of any future."""
        self._used = True
        return super().exception()

    def __del__(self) -> None:
        if self._used or self.cancelled() or not self.done():
            return
        self.forget(super().exception())

    def forget(self, error: BaseException | None = None) -> None:
        """Tell that the call has not waited for it."""
        self._used = True
        self._forgotten(self._verb, self._line, error)


class PendingWrite(WriteFuture):
    """The future of a write that this process makes, on the machinery loop.

    A cancellation cancels the request, too. `calls` is that of the machinery loop. Raises WriteError if that
    has ended.
    """

    def __init__(
        self, work: WriteWork[Any], calls: LoopCalls, forgotten: Forgotten, line: CodeLine | None
    ) -> None:
        super().__init__(work.verb, forgotten, line)
        self._work = work
        self._machinery = calls
        self._hook = LoopCalls.of(self.get_loop())
        self._task: asyncio.Task[Any] | None = None  # on the machinery loop
        # The task has the context of the hook, and with it its span.
        self._context = copy_context()
        try:
            calls.call(self._start)
        except RuntimeError as error:  # the loop is closed
            self._used = True
            work.coroutine.close()
            raise WriteError(_NOT_SENT) from error

    def cancel(self, msg: Any | None = None) -> bool:
        """Cancel the request, too."""
        if not self.done():
            with suppress(RuntimeError):  # the machinery has ended, and the request with it
                self._machinery.call(self._cancel_task)
        return super().cancel(msg)

    def _start(self) -> None:
        """Begin the task. On the machinery loop, as the two methods below."""
        loop = asyncio.get_running_loop()
        self._task = loop.create_task(self._work.coroutine, context=self._context)
        self._task.add_done_callback(self._ended)

    def _cancel_task(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _ended(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled():
            task.exception()  # it is told on the loop of the hook, if that still runs
        with suppress(RuntimeError):
            self._hook.call(self._answered)

    def _answered(self) -> None:
        """Take the result of the task. On the loop of the hook."""
        task = self._task
        if self.done() or task is None:
            return  # cancelled
        if task.cancelled():
            super().cancel()
        elif (error := task.exception()) is not None:
            self.set_exception(error)
        else:
            self.set_result(task.result())


_NOT_SENT = "the write was not sent: the process ends"


class HandlerWrites:
    """The writes of one call. Arguments are checked here, in any thread; requests run on `loop`."""

    def __init__(self, writer: HandlerWriter, scope: CallScope, loop: asyncio.AbstractEventLoop) -> None:
        self._calls = LoopCalls.of(loop)
        self._writer = writer
        self._scope = scope
        self._loop = loop

    def apply(self, obj: object, *, force: bool | None = None) -> WriteWork[Written]:
        """See `Context.apply`."""
        return self._work("apply", self._writer.apply(document_of(obj), self._scope, force=force))

    def apply_set(self, objects: Iterable[object]) -> WriteWork[AppliedSet]:
        """See `Context.apply_set`."""
        parent = object_of(self._scope, "apply_set")
        return self._work("apply_set", self._writer.apply_set(parent, documents_of(objects), self._scope))

    def patch_status(
        self, conditions: Iterable[Writable], fields: Mapping[str, Any], is_whole: bool
    ) -> WriteWork[Written]:
        """See `status_arguments`."""
        change = status_change(self._scope, conditions, fields, is_whole=is_whole)
        return self._work("patch_status", self._writer.patch_status(change, self._scope))

    def get(self, kind: object, name: object, namespace: object) -> WriteWork[ObjectView | None]:
        """See `Context.get`."""
        return self._work("get", self._writer.get(reference_to(kind, name, namespace), self._scope))

    def delete(
        self, given: object, name: object, namespace: object, *, propagation: object, uid: object
    ) -> WriteWork[bool]:
        """See `Context.delete`."""
        reference, how = reference_to(given, name, namespace, uid), propagation_of(propagation)
        return self._work("delete", self._writer.delete(reference, self._scope, propagation=how))

    def change_finalizer(
        self, kind: GroupVersionKind, finalizer: str, *, adds: bool, reads_first: bool
    ) -> Future[Written | None]:
        """Add the finalizer of the handler to the object of the call, or remove it."""
        return self.submit(
            self._work(
                "change_finalizer",
                self._writer.change_finalizer(
                    kind, finalizer, self._scope, adds=adds, reads_first=reads_first
                ),
            )
        )

    def begin(
        self, work: WriteWork[T], forgotten: Forgotten, line: CodeLine | None
    ) -> Coroutine[Any, Any, T]:
        """Send a write; see `PendingWrite`. On the loop of a hook."""
        return PendingWrite(work, self._calls, forgotten, line)

    def wait(self, work: WriteWork[T]) -> T:
        """Send a write, and return its result. Blocks. Raises WriteError if the loop is closed."""
        try:
            return self.submit(work).result()
        except CancelledError:
            raise WriteError("the write was cancelled, because the process ends") from None

    def submit(self, work: WriteWork[T]) -> Future[T]:
        """Send a write; the future is for another thread. Raises WriteError if the loop is closed."""
        try:
            return asyncio.run_coroutine_threadsafe(work.coroutine, self._loop)
        except RuntimeError as error:
            work.coroutine.close()
            raise WriteError(_NOT_SENT) from error

    def _work(self, verb: str, work: Coroutine[Any, Any, T]) -> WriteWork[T]:
        traces = tracing()
        if traces is not None:
            # The task has the context of this thread or task, and with it the span of the hook.
            work = traces.write(verb, work, {"declctl.event.id": self._scope.event_id})
        return WriteWork(verb, work)


class _Blocking(Generic[P, T]):
    """A method of `Context` for `def` hooks: it has the same parameters, and returns what the other awaits.

    Of its `self` the method uses `_awaited` alone, which blocks in `SyncWrites`.
    """

    def __init__(self, method: Callable[Concatenate[Context, P], Coroutine[Any, Any, T]]) -> None:
        self._method = method

    def __get__(self, writes: "SyncWrites", owner: type | None = None) -> Callable[P, T]:
        return cast("Callable[P, T]", partial(cast("Any", self._method), writes))


class SyncWrites:
    """`ctx.sync`: each method blocks until the server has answered. From any thread without a loop."""

    apply = _Blocking(Context.apply)
    apply_set = _Blocking(Context.apply_set)
    patch_status = _Blocking(Context.patch_status)
    get = _Blocking(Context.get)
    delete = _Blocking(Context.delete)

    def __init__(self, writes: HandlerWrites) -> None:
        self._writes = writes

    def _awaited(self, name: str, work: Callable[[HandlerWrites], WriteWork[T]]) -> T:
        if running_loop() is not None:
            raise RuntimeError(
                f"ctx.sync.{name} would block the loop of all `async def` hooks: write `await ctx.{name}(…)`"
            )
        return self._writes.wait(work(self._writes))


class ClusterAccess(msgspec.Struct, frozen=True):
    """The access of contexts to the cluster: the official clients, the writes, and the recorder of events."""

    _client: Client
    _recorder: EventRecorder
    _writers: WriterFactory
    _loop: asyncio.AbstractEventLoop  # the machinery's, on which all requests of `_writers` run

    @property
    def client(self) -> Any:
        """The official asynchronous ApiClient of the calling loop."""
        return self._client.api_client()

    @property
    def sync_client(self) -> Any:
        """The official synchronous ApiClient."""
        return self._client.sync_api_client()

    def request(self, method: str, path: str, headers: Any, body: Any, timeout: float | None) -> Future[Any]:
        """Send a request as `client` does, on the machinery loop; returns status, reason, headers and body.

        `path` begins with a slash, and may have a query. `timeout` is in seconds; None: the client's own.
        """
        import kubernetes.aio.client  # noqa: F401 # pyright: ignore[reportUnusedImport] - slow: not on the loop

        async def send() -> Any:
            client = self._client.api_client()
            request = await client.param_serialize(
                method, path, header_params=headers, body=body, auth_settings=["BearerToken"]
            )
            response = await client.call_api(*request, _request_timeout=timeout)
            await response.read()
            return response.status, response.reason, dict(response.getheaders()), response.data

        return asyncio.run_coroutine_threadsafe(send(), self._loop)

    def writes(self, environment: HandlerEnvironment, scope: CallScope) -> HandlerWrites:
        """The writes of one call."""
        writer = self._writers.writer(
            environment.handler,
            environment.generation,
            manager=environment.field_manager,
            declared=environment.declared,
        )
        return HandlerWrites(writer, scope, self._loop)

    async def carriers(
        self, kind: GroupVersionKind, finalizer: str, namespaces: Sequence[str] | None
    ) -> list[FinalizerCarrier]:
        """The objects with a finalizer, in the whole cluster or, without the right, in `namespaces`.

        On the machinery loop. Raises ApiError.
        """
        return await find_carriers_of(self._client, kind, finalizer, namespaces)

    def record_event(self, obj: Mapping[str, Any], text: EventText, origin: WriteOrigin) -> None:
        """Post an event in the background."""
        self._recorder.record(obj, text, origin)
