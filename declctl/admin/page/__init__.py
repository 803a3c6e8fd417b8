"""`GET /`: the status as a page of a browser. The answers are HTML, and JSON for later views.

- `elements`: a tree of elements, as HTML and as JSON.
- `values`: how moments, sizes and other values are written.
- `alarms`: what is wrong, and what to do.
- `sections`: the content as trees of elements.
- `assets`: the frame of the page, its style sheet and its script, which this module puts together.

The page is one file: it loads nothing, from this host or another one. Its first view is complete without its
script. The script asks for the next view every two seconds, with `Accept: application/json`, and changes the
elements that differ. It polls, because a stream of events would occupy one of the few requests that the
address answers at a time, for as long as the page is open.
"""

import hashlib
from base64 import b64encode
from collections.abc import Callable
from html import escape
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

from aiohttp import web

from declctl.admin.access import answer
from declctl.admin.page.alarms import Level, alarm_elements, alarms
from declctl.admin.page.elements import html
from declctl.admin.page.sections import head, navigation, sections, view
from declctl.admin.page.values import moment
from declctl.kit import Clock, SystemClock

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


def page(
    runtime: "Runtime", *, clock: Clock | None = None
) -> Callable[[web.Request, bool], web.StreamResponse]:
    """The handler of `GET /`: HTML, or JSON for a client that accepts `application/json`.

    Called on the machinery loop. The second argument of the handler says whether texts may be shown. The JSON
    is for the script of the page, and may change with each version; other clients read `/status`.
    """
    source = clock or SystemClock()

    def show(request: web.Request, texts: bool) -> web.StreamResponse:
        regions = _regions(runtime, clock=source, texts=texts)
        if "application/json" in request.headers.get("Accept", ""):
            shown = answer(regions)
            shown.headers.update({name: _HEADERS[name] for name in ("Cache-Control", "Vary")})
            return shown
        return web.Response(text=_document(regions), content_type="text/html", headers=_HEADERS)

    return show


def _regions(runtime: "Runtime", *, clock: Clock, texts: bool) -> dict[str, Any]:
    """The content of each region of the page, and what its script needs."""
    now = clock.now()
    shown = view(runtime.status(), runtime.history(), runtime.plan, now=now, texts=texts)
    found = alarms(shown.status, shown.document, shown.history, now=now)
    urgent = sum(alarm.level is Level.ALARM for alarm in found)
    content = sections(shown)
    return {
        "build": _BUILD,
        "redacted": not texts,
        "time": moment(now),
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
