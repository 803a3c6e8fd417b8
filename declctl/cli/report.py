"""Texts for people: located faults, and the documents of `GET /status` and `GET /history`."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import typer

from declctl.cli.terminal import has_colour, line, painted, print_table
from declctl.codes import how_to_explain
from declctl.errors import LocatedFault
from declctl.kit import figures
from declctl.manifest import Diagnostic, render_text
from declctl.runtime.reasons import FILES_FOLLOWED, HANDLERS_HEALTHY, READY, RELOADED

if TYPE_CHECKING:  # commands that only show a status check no manifest
    from declctl.runtime.checking.check import CheckResult
    from declctl.runtime.checking.inputs import Inputs

Document = Mapping[str, Any]
_ROLLED_BACK = "RolledBack"
_NOTED = {"RollbackRefused": "ROLLBACK REFUSED", "RestartRequired": "RESTART REQUIRED"}
_UNWANTED = ("dropped", "zombies", "expressionErrors", "deadLetters")
_COUNTS = (
    *("delivered", "succeeded", "failed", "retried", "merged", "filtered", "replayed", "queued", "running"),
    *_UNWANTED,
)
_NOTABLE = ("queued", "skipped", "slow", "mutations")
_QUEUE_COUNTS = (
    ("running", "running"),
    ("waiting", "waiting"),
    ("backingOff", "backing off"),
    ("unmapped", "not mapped to keys yet"),
)
_WARNINGS = 10  # of the newest ones of the server, in the table; the document has all
_DISABLED = "disabled: its plugin could not be loaded"
_UNEXPECTED = (("unexpected", "fully decoded"), ("unread", "not decodable"))


def show_faults(faults: Sequence[LocatedFault]) -> None:
    """Write faults to stderr, each with its source line, a caret and the help."""
    located = [fault for fault in faults if isinstance(fault, Diagnostic)]
    others = [fault for fault in faults if not isinstance(fault, Diagnostic)]
    painted(render_text(located, color=has_colour(sys.stderr)), err=True)
    for fault in others:
        line(str(fault), err=True)


def inputs_of(checked: "CheckResult") -> "Inputs":
    """The inputs of a manifest without errors; otherwise prints its faults, and raises typer.Exit."""
    if checked.errors or checked.inputs is None:
        show_faults(checked.diagnostics)
        line(count(checked.diagnostics), err=True)
        raise typer.Exit(1)
    return checked.inputs


def count(faults: Sequence[Diagnostic]) -> str:
    """How many errors and warnings there are, and how to read more about them."""
    errors = sum(fault.severity == "error" for fault in faults)
    parts = [_number(errors, "error"), _number(len(faults) - errors, "warning")]
    counted = " and ".join(part for part in parts if part)
    if not counted:
        return "no faults"
    codes = list(dict.fromkeys(fault.code for fault in faults))
    what = "tells more about it" if len(codes) == 1 else "tells more about the first code"
    return f"{counted}; {how_to_explain(codes[0])} {what}"


def _number(number: int, word: str) -> str:
    return f"{number} {word}{'s' * (number > 1)}" if number else ""


def print_status(document: Document, *, now: datetime) -> None:
    """Print the document of `GET /status` on stdout; ages are counted from `now`."""
    line(headline(document, now=now))
    if process := document.get("process"):
        line(f"process {process}")
    _section("CONDITION", ("STATUS", "REASON", "AGE", "MESSAGE"), _conditions(document, now))
    if level := document.get("logLevel"):
        until = f"in {_until(level['until'], now=now)}" if level["until"] else None
        _section("LOG LEVEL", ("START", "RESET"), [(level["level"], level["start"], until)])
    election = document.get("leaderElection")
    rows = [] if not election else [_election(election, now)]
    _section("LEASE", ("STATE", "LEADER", "SINCE", "TRANSITIONS", "REFUSED WRITES", "ERROR"), rows)
    sharding = document.get("sharding")
    _section(
        "SLOTS",
        ("HANDLED", "HELD", "QUOTA", "TOTAL", "FREE", "MEMBERS", "MOVED", "LOST", "REFUSED WRITES", "ERROR"),
        [] if not sharding else [_sharding(sharding)],
    )
    _section(
        "RESOURCE",
        ("SYNCED", "OBJECTS", "BYTES", "LISTS", "WATCHES", "RELISTS", "LAST EVENT", "STATE"),
        _resources(document),
    )
    counts = _counts(document["handlers"])
    headers = ("SYNCED", *(_header(count) for count in counts), "P95", "LAST ERROR")
    _section("HANDLER", headers, _handlers(document, counts, now))
    problems = [
        (
            h["name"],
            *(each[name] for name in ("reason", "count", "key")),
            age(each["since"], now=now) if each["since"] else None,
            each["error"] or each["errorType"],
        )
        for h in document["handlers"]
        for each in h.get("problems") or ()
    ]
    _section("UNHEALTHY HANDLER", ("REASON", "COUNT", "WORST KEY", "FOR", "ERROR"), problems)
    _section(
        "PROCESS OF",
        PROCESS_HEADERS,
        process_rows((h["name"], h.get("isolation")) for h in document["handlers"]),
    )
    _section(
        "SCHEDULE",
        ("NEXT", "LAST", "OUTCOME", "SUCCEEDED", "FAILED", "SKIPPED", "RUNNING", "LAST ERROR"),
        _schedules(document),
    )
    writes = [(w["handler"], w["verb"], w["result"], w["count"]) for w in document.get("writes") or ()]
    _section("WRITES OF", ("VERB", "RESULT", "COUNT"), writes)
    waiting = [
        (w["handler"], w["waiting"], figures.age(w["oldestSeconds"]))
        for w in document.get("waitingWrites") or ()
    ]
    _section("RATE-LIMITED HANDLER", ("WAITING WRITES", "FOR"), waiting)
    warnings: Sequence[Document] = document.get("warnings") or ()
    rows = [
        (w["kind"], w["handler"], w["count"], f"{age(w['last'], now=now)} ago", w["text"])
        for w in warnings[:_WARNINGS]
    ]
    _section("API SERVER WARNING FOR", ("HANDLER", "COUNT", "LAST", "TEXT"), rows)
    watches = [
        (h["name"], w["resource"], w["mapTo"], w["led"], w["keys"], w["ledNowhere"], w["noKeys"])
        for h in document["handlers"]
        for w in h.get("watches") or ()
    ]
    headers = ("RESOURCE", "MAP TO", "EVENTS MAPPED", "KEYS ENQUEUED", "EVENTS IGNORED", "INVALID KEYS")
    _section("WATCH OF", headers, watches)
    finalizers = [
        (h["name"], h["finalizer"], h["finalized"], h["leftovers"])
        for h in document["handlers"]
        if h.get("finalizer")
    ]
    _section("FINALIZER OF", ("NAME", "FINALIZED", "OUT OF SCOPE"), finalizers)
    # Sections of what is rare appear when there is any.
    removed = [(r["name"], r["dropped"]) for r in document.get("removedHandlers") or ()]
    _section("REMOVED HANDLER", ("DROPPED",), removed)
    old = [(_numbered(o), ", ".join(o["heldBy"])) for o in document.get("oldGenerations") or ()]
    _section("OLD GENERATION", ("HELD BY",), old)
    recorded = document.get("recordedEvents") or {}
    if recorded.get("failed") or recorded.get("dropped"):
        row = ("recorded", *(recorded[name] for name in ("posted", "failed", "dropped")))
        _section("KUBERNETES EVENTS", ("POSTED", "FAILED", "DROPPED"), [row])
    abandoned = [
        (c["name"], figures.age(c["seconds"]), c["place"]) for c in document.get("abandonedCalls") or ()
    ]
    _section("ABANDONED CALL", ("FOR", "AT"), abandoned)
    plugins = [(p["name"], p["version"], p["state"], _why(p)) for p in document["plugins"]]
    _section("PLUGIN", ("VERSION", "STATE", "REASON"), plugins)


def _why(plugin: Document) -> str | None:
    """Why a plugin is not Ready, and when a call of a suspended one is tried."""
    left = (plugin.get("circuitBreaker") or {}).get("nextTrialSeconds")
    reason = plugin["reason"]
    return reason if left is None else f"{reason}; next trial call in {figures.age(round(left))}"


def _numbered(old: Document) -> str:
    """The number of an old generation. A refused generation and the next one have the same number."""
    return f"{old['generation']} (refused)" if old.get("refused") else f"{old['generation']}"


def print_history(document: Document) -> None:
    """The attempts of `GET /history` as a table; what runs, and what is kept for a rollback, is marked."""
    rows = [
        (
            f"{each['generation']}{_comes_back(each, document)}",
            each["time"],
            each["result"],
            each["bundleHash"][:12],
            each["reason"],
            _what(each),
        )
        for each in document["attempts"]
    ]
    print_table(("GENERATION", "TIME", "RESULT", "BUNDLE", "REASON", "WHAT"), rows)


def print_dead_letters(document: Document, *, now: datetime) -> None:
    """The letters of `GET /deadletters` as a table; ages are counted from `now`."""
    if not document["deadLetters"]:
        line("no dead letters", err=True)
        return
    rows = [
        (
            each["handler"],
            each["key"],
            each["type"],
            each["attempts"],
            each["changes"],
            f"{age(each['failedAt'], now=now)} ago",
            each["generation"],
            each["error"],
        )
        for each in document["deadLetters"]
    ]
    headers = ("HANDLER", "KEY", "TYPE", "ATTEMPTS", "CHANGES", "FAILED", "GENERATION", "ERROR")
    print_table(headers, rows)


def print_queue(document: Document, *, now: datetime) -> None:
    """The items of `GET /queue/{handler}` as a table, and how many there are."""
    has_types = any(each["type"] is not None for each in document["items"])
    rows = [
        (
            each["key"],
            each["state"] + (", again" if each["again"] else ""),
            each["type"] if has_types else each["priority"],
            f"{age(each['since'], now=now)} ago" if each["since"] else None,
            each["attempts"],
            f"in {_until(each['due'], now=now)}" if each["due"] else None,
            each["generation"],
            each["lastErrorType"],
        )
        for each in document["items"]
    ]
    if rows:
        kind = "TYPE" if has_types else "PRIORITY"
        headers = ("KEY", "STATE", kind, "SINCE", "ATTEMPTS", "DUE", "GENERATION", "LAST ERROR")
        print_table(headers, rows)
    for loop in document.get("writeLoops", ()):
        line(f"write loop: {loop}")
    counts = [f"{document[name]:,} {word}" for name, word in _QUEUE_COUNTS if document.get(name)]
    left_out = f"; {document['leftOut']:,} are not shown" if document["leftOut"] else ""
    said = f"{', '.join(counts)}{left_out}" if counts else "nothing waits"
    line(f"{document['handler']}: {said}")


def _what(attempt: Document) -> str:
    """The changes of an attempt, or why it was refused."""
    said = str(attempt["message"] or " ".join(attempt["changes"]))
    return f"rollback: {said}" if attempt.get("rollback") and attempt["result"] == "Refused" else said


def _comes_back(attempt: Document, document: Document) -> str:
    is_made = attempt["result"] in ("Applied", "RolledBack")
    if is_made and attempt["generation"] == document["generation"]:
        return " (runs)"
    return " (kept)" if is_made and attempt["generation"] in document["kept"] else ""


def headline(document: Document, *, now: datetime) -> str:
    """`pod-guard generation 6`, and its faults: files or a ConfigMap that do not run, caches not filled."""
    doubts: list[str] = []
    reloaded = _condition(document, RELOADED)
    if reloaded is not None and reloaded["status"] == "False":
        # The condition tells since when the files do not run; several attempts may have failed since then.
        last = document.get("lastReload") or {"time": reloaded["lastTransitionTime"]}
        stale = _stale(reloaded, since=age(last["time"], now=now))
        doubts.append(f"{stale}{_retried(document.get('reloadRetry'))}")
    elif reloaded is not None and reloaded["reason"] in _NOTED:
        doubts.append(f"{_NOTED[reloaded['reason']]}: {reloaded['message']}")
    followed = _condition(document, FILES_FOLLOWED)
    if followed is not None and followed["status"] == "False":
        since = age(followed["lastTransitionTime"], now=now)
        doubts.append(f"FILES NOT FOLLOWED for {since}: {followed['message'] or followed['reason']}")
    if not document["ready"]:
        ready = _condition(document, READY)
        why = f": {ready['message'] or ready['reason']}" if ready is not None else ""
        doubts.append(f"NOT READY{why}")
    healthy = _condition(document, HANDLERS_HEALTHY)
    if healthy is not None and healthy["status"] == "False":
        # The message goes on with further handlers, and with what to do: the condition has it whole.
        why = healthy["message"].partition("; ")[0] or healthy["reason"]
        doubts.append(f"HANDLERS FAIL: {why}")
    line = f"{document['name']} generation {document['generation']}"
    return f"{line} ({'; '.join(doubts)})" if doubts else line


def _stale(reloaded: Document, *, since: str) -> str:
    """Why the running code differs from the files: a refused reload, or a rollback."""
    if reloaded["reason"] == _ROLLED_BACK:
        back = str(reloaded["message"]).removeprefix("rolled back ")
        return f"ROLLED BACK {since} ago {back}; the files are tried again when they change"
    return f"STALE: reload failed {since} ago: {reloaded['reason']}: {reloaded['message']}"


def _retried(retry: Document | None) -> str:
    """When a refused reload is tried again, and how often it has been tried."""
    if not retry:
        return ""
    so_far = f", {retry['retries']} so far" if retry["retries"] else ""
    return f"; it is tried again in {figures.age(round(retry['nextInSeconds']))}{so_far}"


def age(moment: str, *, now: datetime) -> str:
    """How long ago a moment of a document was, as `kit.figures` writes ages."""
    try:
        then = datetime.fromisoformat(moment)
    except ValueError:
        return "an unknown time"
    return figures.age((now - then.astimezone(UTC)).total_seconds())


def _until(moment: str, *, now: datetime) -> str:
    """In how much time a moment of a document is; `0s` if it is past."""
    return figures.age(max(0.0, (datetime.fromisoformat(moment).astimezone(UTC) - now).total_seconds()))


def last_event(seconds: float | None) -> str | None:
    """The age of the last event of a watch; None if it has had none."""
    return None if seconds is None else f"{figures.age(seconds)} ago"


def _condition(document: Document, kind: str) -> Document | None:
    return next((c for c in document["conditions"] if c["type"] == kind), None)


def _section(name: str, headers: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    rows = list(rows)
    if rows:
        line()
        print_table((name, *headers), rows)


def _election(election: Document, now: datetime) -> tuple[object, ...]:
    holder, since = election["holder"], election["since"]
    leader = f"{holder} (this process)" if holder == election["identity"] else holder or "-"
    shown = age(since, now=now) if since else "-"
    counts = election["transitions"], election["refusedWrites"]
    return election["lease"], election["state"], leader, shown, *counts, election["error"]


def _sharding(sharding: Document) -> tuple[object, ...]:
    names = ("handled", "held", "quota", "total", "free", "members")
    moved = sharding["gained"] + sharding["givenBack"]
    counts = (*(sharding[name] for name in names), moved, sharding["lost"], sharding["refusedWrites"])
    return sharding["leases"], *counts, sharding["fault"] or sharding["error"]


def slots_in_words(sharding: Document) -> str:
    """The slots of a process, such as `6 of 16 slots, 2 free`."""
    free = f", {sharding['free']} free" if sharding["free"] else ""
    return f"{sharding['handled']} of {sharding['total']} slots{free}"


def _conditions(document: Document, now: datetime) -> list[tuple[object, ...]]:
    return [
        (c["type"], c["status"], c["reason"], age(c["lastTransitionTime"], now=now), c["message"])
        for c in document["conditions"]
    ]


def _resources(document: Document) -> list[tuple[object, ...]]:
    return [
        (
            r["name"],
            r["synced"],
            r["objects"],
            figures.byte_size(r["bytes"]),
            r["lists"],
            r["watches"],
            r["relists"],
            last_event(r["lastEventAge"]),
            _how(r),
        )
        for r in document["resources"]
    ]


def _how(resource: Document) -> str:
    """The fault or the state of a resource, and its notable figures that are not zero."""
    notable = [f"{resource[name]} {name}" for name in _NOTABLE if resource.get(name)]
    notable += _selected(resource.get("namespaces"))
    notable += _relisted(resource.get("relistDifferences") or {})
    notable += _undecoded(resource.get("decoding") or {})
    notable += _unindexed(resource.get("informers") or ())
    state = resource["error"] or resource.get("state")
    return ", ".join([str(state), *notable] if state else notable)


def _selected(namespaces: Document | None) -> list[str]:
    """How many namespaces a selector matches, and of how many the first list is not complete."""
    if not namespaces:
        return []
    number, unlisted = namespaces["matched"], namespaces["unlisted"]
    count = f"{number:,} namespace{'' if number == 1 else 's'} with {namespaces['selector']}"
    return [f"{count} ({unlisted:,} not listed yet)" if unlisted else count]


def _relisted(differences: Document) -> list[str]:
    """Differences that relists have found: changes that no watch has reported."""
    found = [f"{count} {kind}" for kind, count in differences.items() if count]
    return [f"relists found {', '.join(found)} (missed by the watch)"] if found else []


def _undecoded(decoding: Document) -> list[str]:
    """Objects that the decoder could not read as usual."""
    notable = [f"{decoding[name]} {words}" for name, words in _UNEXPECTED if decoding.get(name)]
    if decoding.get("failed"):
        notable.append(f"{decoding['failed']} failed in the transform (the last: {decoding['lastFault']})")
    return notable


def _unindexed(informers: Sequence[Document]) -> list[str]:
    """Which index functions have failed, how often, and on what."""
    return [
        f"index {name.partition('@')[0]} failed {fault['count']} times (the last: {fault['last']})"
        for informer in informers
        for name, fault in informer["indexFaults"].items()
    ]


def blocking(document: Document) -> str:
    """What handlers of a running process keep from the others, in words; empty if that is nothing."""
    found = [
        f"{handler['name']}: {problem['count']:,} calls do not return"
        for handler in document.get("handlers", ())
        for problem in handler.get("problems") or ()
        if problem["reason"] in ("HandlerSuspended", "CallHangs") and handler.get("isolation") is None
    ]
    found += [
        each.get("message") or "the loop of asynchronous hooks is blocked"
        for each in document.get("conditions", ())
        if each.get("reason") == "LoopBlocked"
    ]
    return "; ".join(found)


BLOCKING_ADVICE = "with `isolation: {mode: Process}`, a call ends at its timeout and blocks no other handler"
"""What to do about `blocking`."""

PROCESS_HEADERS = ("PID", "MEMORY", "CALLS", "AGE", "ENDED", "LAST END")


def process_rows(handlers: Iterable[tuple[str, Document | None]]) -> list[tuple[object, ...]]:
    """A row for each process of an isolated handler, and one for a handler that has none now.

    `handlers` has their names, and the field `isolation` of the status.
    """
    rows: list[tuple[object, ...]] = []
    for name, isolation in handlers:
        if isolation is None:
            continue
        ends = (sum(isolation["ends"].values()), isolation["lastEnd"] or isolation["lastEndType"])
        rows += [
            (
                name,
                each["pid"],
                figures.byte_size(each["bytes"]),
                each["calls"],
                figures.age(each["seconds"]),
                *ends,
            )
            for each in isolation["processes"]
        ] or [(name, None, None, None, None, *ends)]
    return rows


def _schedules(document: Document) -> list[tuple[object, ...]]:
    return [
        (
            s["name"],
            s["nextRun"],
            s["lastRun"],
            s["lastOutcome"],
            *(s[name] for name in ("succeeded", "failed", "skipped", "running")),
            s["lastError"],
        )
        for s in document.get("schedules") or ()
    ]


def _counts(handlers: Sequence[Document]) -> list[str]:
    """The figures that are shown of each handler; those of failures only if one is not zero."""
    return [name for name in _COUNTS if name not in _UNWANTED or any(h.get(name) for h in handlers)]


def _header(figure: str) -> str:
    """A figure's name as a header: EXPRESSION ERRORS for expressionErrors."""
    return "".join(f" {letter}" if letter.isupper() else letter for letter in figure).upper()


def _last_error(handler: Document, now: datetime) -> str | None:
    """The newest error with its age: it may be mended since."""
    error, moment = handler.get("lastError"), handler.get("lastErrorTime")
    return f"{age(moment, now=now)} ago: {error}" if error and moment else error


def _handlers(document: Document, counts: Sequence[str], now: datetime) -> list[tuple[object, ...]]:
    return [
        (
            h["name"],
            h["synced"],
            *(h.get(name, 0) for name in counts),
            figures.duration(h["p95Seconds"]),
            _DISABLED if h.get("disabled") else _last_error(h, now),
        )
        for h in document["handlers"]
    ]
