"""Paths that are documented and that this version does not serve: they say so, with 501."""

from aiohttp import web

from declctl.admin.answers import refusal

_GET = ("/queue/{handler}", "/events")
_POST = ("/-/requeue", "/-/trigger", "/-/loglevel")


def not_yet(router: web.UrlDispatcher) -> None:
    """Add every one of them."""
    for path in _GET:
        router.add_get(path, _refuse)
    for path in _POST:
        router.add_post(path, _refuse)


async def _refuse(request: web.Request) -> web.StreamResponse:
    return refusal(
        501, f"This version does not do {request.method} {request.path} yet; /status has what is known."
    )
