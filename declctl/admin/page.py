"""`GET /`: the status as a page.

It has no script and loads nothing from other hosts. It reloads itself every few seconds.
"""

from collections.abc import Callable, Iterable, Sequence
from html import escape

from aiohttp import web

from declctl.admin.access import type_name
from declctl.runtime.reporting.status import ControllerStatus

_EVERY_SECONDS = 2
_HEADERS = {
    "Refresh": str(_EVERY_SECONDS),
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
}
_STYLE = """
:root { color-scheme: light dark; --line: #8884; --bad: #c22; --good: #283; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.4rem; margin: 0; } h2 { font-size: 1rem; margin: 2rem 0 .3rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: left; vertical-align: top; padding: .25rem .9rem .25rem 0; }
th, td { border-bottom: 1px solid var(--line); }
th { font-weight: 600; white-space: nowrap; }
.bad { color: var(--bad); } .good { color: var(--good); } small { opacity: .7; }
"""

Row = Sequence[object]


def page(read_status: Callable[[], ControllerStatus]) -> Callable[[web.Request, bool], web.StreamResponse]:
    """The handler of the page."""

    def show(_request: web.Request, texts: bool) -> web.StreamResponse:
        shown = render(read_status(), texts=texts)
        return web.Response(text=shown, content_type="text/html", headers=_HEADERS)

    return show


def render(status: ControllerStatus, *, texts: bool = True) -> str:
    """The whole page. Without `texts`, errors are shown by their types, and messages are left out."""
    ready = _marked("ready" if status.ready else "not ready", good=status.ready)
    sections = (
        _section("Conditions", ("Type", "Status", "Reason", "Since", "Message"), _conditions(status, texts)),
        _section(
            "Resources",
            ("Name", "Synced", "Objects", "Bytes", "Lists", "Watches", "Error"),
            _resources(status, texts),
        ),
        _section(
            "Handlers",
            (
                "Name",
                "Delivered",
                "Succeeded",
                "Failed",
                "Retried",
                "Filtered",
                "Replayed",
                "Queued",
                "Running",
                "Dead letters",
                "p95",
                "Last error",
            ),
            _handlers(status, texts),
        ),
        _section("Plugins", ("Name", "Version", "State", "Reason"), _plugins(status, texts)),
    )
    name = escape(status.name)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{name}</title>'
        '<meta name="viewport" content="width=device-width">'
        f"<style>{_STYLE}</style></head><body>"
        f"<h1>{name} <small>generation {status.generation}</small> {ready}</h1>"
        f"<small>bundle {escape(status.bundle_hash[:12])}, asked again every {_EVERY_SECONDS} s; "
        '<a href="/status">status</a> <a href="/metrics">metrics</a></small>'
        f"{''.join(sections)}</body></html>\n"
    )


def _conditions(status: ControllerStatus, texts: bool) -> Iterable[Row]:
    for c in status.conditions:
        yield (
            c.type,
            c.status,
            c.reason,
            f"{c.last_transition_time:%Y-%m-%d %H:%M:%S} UTC",
            c.message if texts else "",
        )


def _resources(status: ControllerStatus, texts: bool) -> Iterable[Row]:
    for r in status.resources:
        synced = "yes" if r.synced else f"{r.items_listed:,} listed"
        error = r.error if texts else type_name(r.error_type)
        yield (r.name, synced, f"{r.objects:,}", f"{r.bytes:,}", r.lists, r.watches, error or "")


def _handlers(status: ControllerStatus, texts: bool) -> Iterable[Row]:
    for h in status.handlers:
        calls = (h.delivered, h.succeeded, h.failed, h.retried)
        others = (h.filtered, h.replayed, h.queued, h.running, h.dead_letters)
        numbers = (f"{number:,}" for number in (*calls, *others))
        error = h.last_error if texts else type_name(h.last_error_type)
        yield (h.name, *numbers, f"{h.p95_seconds * 1000:.3g} ms", error or "")


def _plugins(status: ControllerStatus, texts: bool) -> Iterable[Row]:
    for p in status.plugins:
        yield (p.name, p.version, p.state, (texts and p.reason) or "")


def _section(title: str, headers: Sequence[str], rows: Iterable[Row]) -> str:
    body = "".join(f"<tr>{''.join(f'<td>{escape(str(cell))}</td>' for cell in row)}</tr>" for row in rows)
    if not body:
        return ""
    head = "".join(f"<th>{escape(header)}</th>" for header in headers)
    table = f"<table><tr>{head}</tr>{body}</table>"
    return f'<h2>{escape(title)}</h2><div class="scroll">{table}</div>'


def _marked(text: str, *, good: bool) -> str:
    return f'<span class="{"good" if good else "bad"}">{escape(text)}</span>'
