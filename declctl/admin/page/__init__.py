"""`GET /`: the status as a page of a browser. The answers are HTML, and JSON for later views.

- `elements`: a tree of elements, as HTML and as JSON.
- `values`: how moments, sizes and other values are written.
- `alarms`: what is wrong, and what to do.
- `trends`: the last 15 minutes, as figures with lines.
- `graph`: the picture of what the manifest connects.
- `sections`: the content as trees of elements.
- `assets`: the frame of the page, its style sheet and its script, which this module puts together.

The page is one file: it loads nothing, from this host or another one. Its first view is complete without its
script. The script asks for the next view every two seconds, with `Accept: application/json`, and changes the
elements that differ. It polls, because a stream of events would occupy one of the few requests that the
address answers at a time, for as long as the page is open.
"""

import asyncio
import hashlib
from base64 import b64encode
from collections.abc import Awaitable, Callable, Sequence
from html import escape
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

import msgspec
from aiohttp import web

from declctl.admin.page.alarms import Level, alarm_elements, alarms
from declctl.admin.page.elements import html
from declctl.admin.page.graph import GraphPicture
from declctl.admin.page.sections import View, head, navigation, sections, view
from declctl.admin.page.trends import Trends
from declctl.admin.page.values import moment
from declctl.kit import Clock, SystemClock
from declctl.manifest import Plan
from declctl.objects import GroupVersionKind
from declctl.runtime.reporting.recent_figures import RecentFigures
from declctl.runtime.reporting.status import ControllerStatus

if TYPE_CHECKING:  # for annotations alone
    from declctl.runtime.runtime import Runtime

_ASSETS = Path(__file__).parent / "assets"
_FRAME = Template((_ASSETS / "page.html").read_text("utf-8"))
_STYLE = (_ASSETS / "page.css").read_text("utf-8")
_SCRIPT = (_ASSETS / "page.js").read_text("utf-8")
# A script of another version may not understand the answers: it compares this with its own.
_BUILD = hashlib.sha256(f"{_FRAME.template}{_STYLE}{_SCRIPT}".encode()).hexdigest()[:16]


def _source(text: str) -> str:
    """The source of a Content-Security-Policy that allows one inline script or style sheet."""
    return f"'sha256-{b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


_POLICY = (
    "default-src 'none'",
    f"script-src {_source(_SCRIPT)}",
    f"style-src {_source(_STYLE)}",
    "img-src data:",  # the empty icon
    "connect-src 'self'",
    "base-uri 'none'",
    "form-action 'none'",
    "frame-ancestors 'none'",
    # The browser refuses each assignment of a text as markup, also in the script of the page.
    "require-trusted-types-for 'script'",
    "trusted-types 'none'",
)
_HEADERS = {
    "Cache-Control": "no-store",
    "Vary": "Accept, Authorization",
    "Content-Security-Policy": "; ".join(_POLICY),
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class _Pictures:
    """Keeps the picture of the graph until another plan runs, or another kind is written. From any thread."""

    def __init__(self) -> None:
        self._made: tuple[Plan, Sequence[tuple[str, GroupVersionKind, str]], GraphPicture] | None = None

    def of(self, plan: Plan, status: ControllerStatus) -> GraphPicture:
        """The picture of a plan, with the kinds that were written so far."""
        written = [(each.handler, each.kind, each.verb) for each in status.kind_writes]
        made = self._made
        # A plan is compared by its identity: a reload makes another one.
        if made is None or made[0] is not plan or made[1] != written:
            made = self._made = plan, written, GraphPicture(plan, written)
        return made[2]


def page(
    runtime: "Runtime", recent: RecentFigures, *, clock: Clock | None = None
) -> Callable[[web.Request, bool], Awaitable[web.StreamResponse]]:
    """The handler of `GET /`: HTML, or JSON for a client that accepts `application/json`.

    Called on the machinery loop; a thread makes the view. The second argument of the handler says whether
    texts may be shown. The JSON is for the script of the page, and may change with each version; other
    clients read `/status`.
    """
    source, pictures, trends = clock or SystemClock(), _Pictures(), Trends(recent)

    async def show(request: web.Request, texts: bool) -> web.StreamResponse:
        is_json = "application/json" in request.headers.get("Accept", "")
        status, history, plan = runtime.status(), runtime.history(), runtime.plan

        def made() -> bytes:
            shown = view(status, history, plan, trends, now=source.now(), texts=texts)
            regions = _regions(shown, pictures.of(plan, status))
            return msgspec.json.encode(regions) if is_json else _document(regions).encode()

        # In a thread: the view of dozens of handlers takes too long for the machinery loop.
        body = await asyncio.to_thread(made)
        headers = {name: _HEADERS[name] for name in ("Cache-Control", "Vary")} if is_json else _HEADERS
        kind = "application/json" if is_json else "text/html"
        shown = web.Response(body=body, content_type=kind, charset="utf-8", headers=headers)
        shown.enable_compression()  # of a client that takes it; a view is a tenth as large
        return shown

    return show


def _regions(shown: View, picture: GraphPicture) -> dict[str, Any]:
    """The content of each region of the page, and what its script needs."""
    found = alarms(shown.status, shown.document, shown.history, now=shown.now)
    urgent = sum(alarm.level is Level.ALARM for alarm in found)
    content = sections(shown, picture)
    return {
        "build": _BUILD,
        "redacted": not shown.texts,
        "sample": shown.trends.recent.number,
        "time": moment(shown.now),
        "title": f"{f'✗ {urgent} · ' if urgent else ''}{shown.status.name}",
        "head": head(shown),
        "alarms": alarm_elements(found),
        "sections": navigation(content),
        "content": content,
    }


def _document(regions: dict[str, Any]) -> str:
    """The page as HTML."""
    return _FRAME.substitute(
        build=_BUILD,
        style=_STYLE,
        script=_SCRIPT,
        title=escape(regions["title"]),
        time=escape(regions["time"]),
        redacted="true" if regions["redacted"] else "false",
        **{name: html(regions[name]) for name in ("head", "alarms", "sections", "content")},
    )
