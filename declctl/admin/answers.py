"""Answers of the admin address: JSON, and every refusal a sentence under `error`."""

import json
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler

from declctl.errors import CacheError, NotSynced

_PATHS = (
    "/, /healthz, /readyz, /status, /plan, /history, /metrics, /cache/{resource}, /cache/{resource}/{key}, "
    "/index/{resource}/{index}/{value}, "
    "POST /-/reload and POST /-/rollback"
)


def answer(document: Any, *, status: int = 200) -> web.Response:
    """A JSON document."""
    text = json.dumps(document, ensure_ascii=False)
    return web.Response(text=text + "\n", status=status, content_type="application/json")


def refusal(status: int, sentence: str) -> web.Response:
    """Why not."""
    return answer({"error": sentence}, status=status)


@web.middleware
async def as_sentences(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turn what is raised on the way into a sentence."""
    try:
        return await handler(request)
    except NotSynced as error:
        return refusal(503, str(error))
    except CacheError as error:
        return refusal(404, str(error))
    except web.HTTPNotFound:
        return refusal(404, f"There is nothing at {request.path}; there are {_PATHS}.")
    except web.HTTPMethodNotAllowed as error:
        return refusal(
            405, f"{request.path} takes {', '.join(sorted(error.allowed_methods))}, not {request.method}."
        )
