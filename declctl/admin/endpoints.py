"""The endpoints: probes and status, reads of the live cache, and requests for reloads and rollbacks.

Their clients are kubelets, `declctl status`, and people with curl. Reads of the cache run in threads, because
a list of a large cache would block the machinery.
"""

import asyncio
import re
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from aiohttp import web

from declctl.admin.access import answer, redacted, refusal, type_name
from declctl.errors import ApiError, MalformedAnswer, NotFound, UsageError
from declctl.informer import Lister
from declctl.kit import Clock
from declctl.kit.documents import document_of
from declctl.kit.secret_values import is_secret, without_values
from declctl.kit.text import excerpt, one_line, to_json
from declctl.manifest.values import BadValue, parse_duration
from declctl.objects import FieldPathError, FieldSelector, ObjectKey, ObjectView
from declctl.runtime.handling.dead_letters import RequeueResult
from declctl.runtime.handling.queue_listing import DEFAULT_ITEMS, MOST_ITEMS
from declctl.runtime.log import LEVELS, Log, LogLevelControl
from declctl.runtime.reasons import READY
from declctl.runtime.reloading.changes import STOPPING, Outcome
from declctl.runtime.reporting.recent_figures import RecentFigures, marks
from declctl.runtime.reporting.status import ControllerStatus
from declctl.runtime.scheduling.schedules import TriggerResult

if TYPE_CHECKING:  # for annotations alone
    from declctl.runtime.runtime import Runtime

_NUMBER = re.compile(r"[0-9]{1,18}", re.ASCII)
_STATUS = {"Applied": 200, "Unchanged": 200, "Refused": 422}
_SHORTEST, _LONGEST = 1.0, 86_400.0  # seconds for which a level of the log is changed


class Probes:
    """The endpoints about the process itself."""

    def __init__(self, runtime: "Runtime") -> None:
        self._runtime = runtime

    async def alive(self, _request: web.Request) -> web.StreamResponse:
        """200: this runs on the machinery loop, so that an answer shows that the loop runs."""
        return web.Response(text="ok\n")

    def ready(self, _request: web.Request, texts: bool) -> web.StreamResponse:
        """200 if all resources have synced, else 503 with the reasons, one in each line."""
        status = self._runtime.status()
        if status.ready:
            return web.Response(text="ok\n")
        return web.Response(text="\n".join(["not ready", *reasons(status, texts=texts)]) + "\n", status=503)

    def status(self, _request: web.Request, texts: bool) -> web.StreamResponse:
        """The status document."""
        document = self._runtime.status().document()
        return answer(document if texts else redacted(document))

    async def plan(self, _request: web.Request) -> web.StreamResponse:
        """The running plan, for `declctl plan --against running`; 503 before the first generation."""
        running = self._runtime.running()
        if running is None:
            return refusal(503, "The process is starting, and nothing runs yet; ask again in a moment.")
        # The costs of thousands of objects take too long for the machinery loop.
        return answer(await asyncio.to_thread(running.document))


def reasons(status: ControllerStatus, *, texts: bool) -> list[str]:
    """The reasons why a controller is not ready: conditions, then resources. Without `texts`, only types."""
    lines = [f"{c.type}: {(texts and c.message) or c.reason}" for c in status.conditions if c.type == READY]
    for r in status.resources:
        if not r.synced:
            listed = f", {r.items_listed:,} objects so far" if r.items_listed else ""
            error = r.error if texts else type_name(r.error_type)
            lines.append(one_line(f"{r.name}: {error or f'not synced yet{listed}'}"))
    return lines


class CacheReads:
    """`/cache` and `/index`."""

    def __init__(self, runtime: "Runtime") -> None:
        self._runtime = runtime

    async def keys(self, request: web.Request) -> web.StreamResponse:
        """The keys of a resource, limited by `?namespace=`, `?labelSelector=` and `?fieldSelector=`.

        Field selectors read the object as it is cached.
        """
        name = request.match_info["resource"]
        lister = self._runtime.lister(name)
        if lister is None:
            return self._no_resource(name)
        namespace, labels = request.query.get("namespace"), request.query.get("labelSelector")
        try:
            fields = FieldSelector.parse(request.query.get("fieldSelector", ""))
        except ValueError as error:
            return refusal(400, f"fieldSelector: {error}")
        try:
            # In a thread: the list of a large cache takes too long for the machinery loop.
            found = await asyncio.to_thread(matching_keys, lister, namespace, labels, fields)
        except ValueError as error:  # an invalid selector
            return refusal(400, f"labelSelector: {error}")
        return answer({"resource": name, "count": len(found), "keys": found})

    async def one(self, request: web.Request) -> web.StreamResponse:
        """One cached object, by its key; a Secret without its values."""
        name, key = request.match_info["resource"], request.match_info["key"]
        lister = self._runtime.lister(name)
        if lister is None:
            return self._no_resource(name)
        found = await asyncio.to_thread(lister.get, key)
        if found is None:
            return refusal(404, f"The cache of {name} has no {key}; a key is namespace/name, or name.")
        return answer(await asyncio.to_thread(lambda: without_values(found.to_dict())))

    async def index(self, request: web.Request) -> web.StreamResponse:
        """The keys under a value of an index; without a value, all values of the index."""
        name, index, value = (request.match_info[part] for part in ("resource", "index", "value"))
        lister = self._runtime.lister(name)
        if lister is None:
            return self._no_resource(name)
        head = {"resource": name, "index": index}
        if not value and self._is_of_secrets(name):
            # An index may be by any field. Who knows a value may ask for it.
            return refusal(403, f"The values of an index of Secrets are not listed; ask for {index}/VALUE.")
        if not value:
            values = await asyncio.to_thread(lambda: sorted(lister.index_values(index)))
            return answer({**head, "values": values})
        found = await asyncio.to_thread(lambda: _sorted(v.key for v in lister.by_index(index, value)))
        return answer({**head, "value": value, "count": len(found), "keys": found})

    def _is_of_secrets(self, name: str) -> bool:
        found = next((each for each in self._runtime.plan.resources if each.name == name), None)
        return found is not None and any(is_secret(each.api_version, each.kind) for each in found.watches)

    def _no_resource(self, name: str) -> web.Response:
        known = ", ".join(resource.name for resource in self._runtime.status().resources)
        return refusal(404, f"No resource is named {name}; the manifest declares {known or 'none'}.")


def matching_keys(
    lister: Lister, namespace: str | None, labels: str | None, fields: FieldSelector
) -> list[str]:
    """The keys of the cached objects in a namespace that match both selectors, in order."""
    if namespace is None and labels is None and not fields.conditions:
        return _sorted(lister.keys())
    views = lister.list(namespace=namespace, selector=labels)
    return _sorted(view.key for view in views if _has(view, fields))


def _has(view: ObjectView, fields: FieldSelector) -> bool:
    if not fields.conditions:
        return True  # neither selector needs a decoded object
    try:
        return fields.matches(view)
    except MalformedAnswer:  # an object that can't be decoded matches no field selector
        return False


def _sorted(keys: Iterable[ObjectKey]) -> list[str]:
    return sorted(str(key) for key in keys)


class RecentReads:
    """`/figures`."""

    def __init__(self, runtime: "Runtime", recent: RecentFigures) -> None:
        self._runtime = runtime
        self._recent = recent
        self._made: tuple[int, str] = 0, ""  # the document of a sample is the same for all who ask

    async def figures(self, _request: web.Request, _texts: bool) -> web.StreamResponse:
        """The figures of the last 15 minutes, with reloads and conditions as marks; no text is in them."""
        number, text = self._made
        if number != self._recent.number:
            found = marks(self._runtime.status(), self._runtime.history()["attempts"])

            def written() -> tuple[int, str]:
                document = self._recent.document(found)
                return document["sample"], to_json(document)

            # Those of dozens of handlers take too long for the machinery loop.
            self._made = _, text = await asyncio.to_thread(written)
        shown = web.Response(text=text, content_type="application/json")
        shown.enable_compression()
        return shown


class DeadLetterOffice:
    """`/deadletters` and `/-/requeue`."""

    def __init__(self, runtime: "Runtime") -> None:
        self._runtime = runtime

    async def letters(self, request: web.Request) -> web.StreamResponse:
        """The dead letters of all handlers; with `?handler=`, those of one. 404 for an unknown handler."""
        name = request.query.get("handler")
        if name is not None and name not in _handlers(self._runtime):
            return _no_handler(self._runtime, name)
        letters = [each for each in self._runtime.dead_letters() if name in (None, each.handler)]
        return answer({"count": len(letters), "deadLetters": [document_of(each) for each in letters]})

    async def requeue(self, request: web.Request) -> web.StreamResponse:
        """Queue dead letters again: `?handler=notify&key=default/web`, `?handler=notify` or `?all=true`.

        200 with the number; 404 for an unknown handler, and for a key or a handler without letters; 409 if a
        newer change of the key waits or runs; 400 if neither a handler nor `all` is named; 503 while the
        process starts or ends.
        """
        handler, key = request.query.get("handler"), request.query.get("key")
        if handler is None and not _flag(request, "all", default=False):
            return refusal(400, "Name a handler, or a handler and a key, or write all=true.")
        if not self._runtime.status().generation:
            return _starting()
        if handler is not None and handler not in _handlers(self._runtime):
            return _no_handler(self._runtime, handler)
        results = self._runtime.requeue(handler, key)
        if results is None:
            return refusal(503, "The process ends, and calls no handler any more.")
        requeued, pending = (results.get(each, 0) for each in (RequeueResult.REQUEUED, RequeueResult.PENDING))
        if handler is not None and key is not None and pending:
            return refusal(
                409,
                f"A newer change of {excerpt(key, most=200)} waits or runs, and goes first; if it succeeds, "
                "the letter is not needed any more.",
            )
        if handler is not None and not requeued and not pending:
            of = f" of {excerpt(key, most=200)}" if key is not None else ""
            return refusal(404, f"{handler} has no dead letter{of}; `declctl get deadletters` lists them.")
        message = f"{requeued} requeued"
        if pending:
            message += f"; {pending} not, as newer changes of their keys wait or run"
        return answer({"message": message, "requeued": requeued, "pending": pending})


class QueueReads:
    """`/queue`."""

    def __init__(self, runtime: "Runtime") -> None:
        self._runtime = runtime

    async def waiting(self, request: web.Request) -> web.StreamResponse:
        """What waits for a handler, in the order of the turns; `?limit=` is the number of items.

        404 for an unknown handler, 400 for a limit that is none, 503 before the first generation.
        """
        name, limit = request.match_info["handler"], request.query.get("limit", str(DEFAULT_ITEMS))
        if not _NUMBER.fullmatch(limit) or not 1 <= int(limit) <= MOST_ITEMS:
            return refusal(400, f"limit: {excerpt(limit, most=40)!r} is no number from 1 to {MOST_ITEMS:,}.")
        if not self._runtime.status().generation:
            return _starting()
        listing = await self._runtime.queue(name, int(limit))
        if listing is None:
            return _no_handler(self._runtime, name)
        # A thousand items take too long for the machinery loop.
        return answer(await asyncio.to_thread(document_of, listing))


def _handlers(runtime: "Runtime") -> list[str]:
    return [handler.name for handler in runtime.status().handlers]


def _no_handler(runtime: "Runtime", name: str) -> web.Response:
    known = ", ".join(_handlers(runtime)) or "none"
    return refusal(404, f"No handler is named {excerpt(name, most=80)}; the manifest declares {known}.")


class LogLevels:
    """`/-/loglevel`: changes the level of the process's log, for a time if that is asked for."""

    def __init__(self, runtime: "Runtime", *, clock: Clock, log: Log | None) -> None:
        self._runtime = runtime
        self._clock = clock
        self._log = log
        self._timer: asyncio.Task[None] | None = None  # sets the level back

    async def change(self, request: web.Request) -> web.StreamResponse:
        """Change the level: `?level=debug`; `?for=10m` sets that of the start again after that time.

        200 with the level before and the new one; 400 for a level or a duration that is none; 409 if the log
        is not that of `declctl run`.
        """
        level, given = request.query.get("level", "").lower(), request.query.get("for")
        if level not in LEVELS:
            said = excerpt(request.query.get("level", ""), most=40)
            return refusal(400, f"level: {said!r} is none of {', '.join(LEVELS)}.")
        try:
            seconds = None if given is None else parse_duration(given)
        except BadValue as error:
            return refusal(400, f"for: {excerpt(str(error), most=200)}; {error.suggestion}.")
        if seconds is not None and not _SHORTEST <= seconds <= _LONGEST:
            return refusal(400, "for: write a duration from 1s to 24h.")
        control = self._runtime.log_level
        if control is None:
            return refusal(409, "The log of this process is not that of `declctl run`, which has the level.")
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        before, until, then = control.level, None, ""
        # The level of the start needs no end.
        if seconds is not None and level != control.start:
            until = self._clock.now() + timedelta(seconds=seconds)
            then = f"; {control.start} again in {given}"
            self._timer = asyncio.create_task(self._set_back(control, seconds), name="log level")
        self._change(control, level, f"{request.remote} asked for it{then}", until=until)
        message = f"the log level is {level}, and was {before}{then}"
        return answer({"message": message, "before": before, "level": level, "until": document_of(until)})

    async def close(self) -> None:
        """Stop the timer: the process ends."""
        if self._timer is not None:
            self._timer.cancel()
            await asyncio.gather(self._timer, return_exceptions=True)

    async def _set_back(self, control: LogLevelControl, seconds: float) -> None:
        await self._clock.sleep(seconds)
        self._change(control, control.start, "its time is over")

    def _change(
        self, control: LogLevelControl, level: str, why: str, *, until: datetime | None = None
    ) -> None:
        before = control.level
        line = f"the log level is {level} from now on, and was {before}: {why}"
        # A warning, under the level of the two that shows more: the log says why its lines change.
        shows_less = LEVELS.index(level) > LEVELS.index(before)
        if self._log is not None and shows_less:
            self._log.warning(line)
        control.change(level, until=until)
        if self._log is not None and not shows_less:
            self._log.warning(line)


class WriteReasons:
    """`/why`."""

    def __init__(self, runtime: "Runtime") -> None:
        self._runtime = runtime

    async def why(self, request: web.Request) -> web.StreamResponse:
        """Who wrote the fields of an object, and which call did it; `?field=` limits it to a field.

        404 for a kind that the cluster does not serve, and for an object that it does not have and that
        nothing is known of; 400 for a text that is no name or no field; 502 if the API server refuses.
        """
        resource, key = request.match_info["resource"], request.match_info["key"]
        if not self._runtime.status().generation:
            return _starting()
        try:
            found = await self._runtime.why(resource, key, request.query.get("field", ""))
        except (FieldPathError, UsageError) as error:
            return refusal(400, str(error))
        except NotFound as error:
            return refusal(404, str(error))
        except ApiError as error:
            return refusal(502, f"The API server was asked for {key}: {error}")
        if not found.exists and not found.writes:
            return refusal(404, f"The cluster has no {found.kind} {key}; a key is namespace/name, or name.")
        return answer(document_of(found))


class ReloadOrders:
    """Requests reloads. Keeps their tasks, because a reload goes on when its client disconnects."""

    def __init__(self, runtime: "Runtime") -> None:
        self._runtime = runtime
        self._running: set[asyncio.Task[object]] = set()  # the loop itself has only weak references to tasks

    async def reload(self, request: web.Request) -> web.StreamResponse:
        """Reload. `?wait=false` does not wait for the outcome; `?force=true` loads all code anew.

        200 with the outcome, 422 if it was refused, 202 without a wait. 503 before the first generation, and
        while the process ends. A client that disconnects does not stop the reload.
        """
        if not self._runtime.status().generation:
            return _starting()
        wait, force = _flag(request, "wait", default=True), _flag(request, "force", default=False)
        # A task, so that the reload goes on when the client disconnects.
        task = asyncio.create_task(self._runtime.reload(asked=True, force=force), name="reload asked for")
        self._keep(task)
        if not wait:
            return answer({"message": "reloading; `declctl status` will say what became of it"}, status=202)
        return _outcome(await asyncio.shield(task))

    async def rollback(self, request: web.Request) -> web.StreamResponse:
        """Commit the generation that was live before; with `?generation=N` the one of that number.

        200 with the outcome; 422 if that generation is not kept, or can't be committed.
        """
        if not self._runtime.status().generation:
            return _starting()
        named = request.query.get("generation")
        if named is not None and not _NUMBER.fullmatch(named):
            return refusal(400, f"{named[:40]!r} is not the number of a generation; GET /history has them.")
        number = None if named is None else int(named)
        task = asyncio.create_task(self._runtime.rollback(number), name="rollback asked for")
        self._keep(task)
        return _outcome(await asyncio.shield(task))

    async def trigger(self, request: web.Request) -> web.StreamResponse:
        """Call the function of a schedule now: `?schedule=nightly`. Does not wait for its end.

        202 if the call has begun, 404 for an unknown schedule, 409 while its last call runs. 503 while caches
        are being filled, while another process acts, and while this one ends.
        """
        name = request.query.get("schedule", "")
        if not self._runtime.status().generation:
            return _starting()
        match self._runtime.trigger(name):
            case TriggerResult.BEGUN:
                message = f"{name} is called; `declctl status` will say what became of it"
                return answer({"message": message}, status=202)
            case TriggerResult.BUSY:
                return refusal(409, f"The last call of {name} has not returned, and there is one at a time.")
            case TriggerResult.NOT_STARTED:
                return refusal(503, "Schedules are not called now: caches are being filled, or it ends.")
            case TriggerResult.UNKNOWN:
                known = ", ".join(each.name for each in self._runtime.status().schedules) or "none"
                return refusal(
                    404, f"No schedule is named {excerpt(name, most=80)}; the manifest declares {known}."
                )

    def history(self, _: web.Request, texts: bool) -> web.StreamResponse:
        """The outcomes of the newest attempts."""
        document = self._runtime.history()
        return answer(document if texts else redacted(document))

    def _keep(self, task: asyncio.Task[Any]) -> None:
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def close(self) -> None:
        """Cancel the running requests: the process ends."""
        running = tuple(self._running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


def _flag(request: web.Request, name: str, *, default: bool) -> bool:
    """A true or false parameter; any other value is the default."""
    said = request.query.get(name, "").lower()
    return said in ("true", "1", "yes") or (default and said not in ("false", "0", "no"))


def _outcome(outcome: Outcome) -> web.Response:
    document = {**outcome.document(), "line": outcome.line}
    status = 503 if document.get("reason") == STOPPING else _STATUS.get(str(outcome.result), 200)
    return answer(document, status=status)


def _starting() -> web.Response:
    return refusal(503, "The process is starting and reads its files by itself; ask again in a moment.")
