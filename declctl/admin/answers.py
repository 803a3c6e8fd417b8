"""Answers of the admin address: JSON, and every refusal a sentence under `error`."""

import logging
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler

from declctl.errors import CacheError, NotSynced
from declctl.kit.text import to_json

_log = logging.getLogger(__name__)
_PATHS = (
    "/, /healthz, /readyz, /status, /plan, /history, /metrics, /cache/{resource}, /cache/{resource}/{key}, "
    "/index/{resource}/{index}/{value}, "
    "POST /-/reload and POST /-/rollback"
)


def answer(document: Any, *, status: int = 200) -> web.Response:
    """A JSON document."""
    return web.Response(text=f"{to_json(document)}\n", status=status, content_type="application/json")


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
    except web.HTTPException:
        raise
    except Exception as error:  # noqa: BLE001 - the last stop: the answer is a sentence, and the log has the traceback
        _log.exception("%s %s met a fault in declctl itself", request.method, request.path)
        return refusal(500, f"This is a fault in declctl itself, and its log has the place: {_told(error)}")


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
