"""JSON bodies: those that requests carry, and SGLang's refusals, which have several shapes.

It does not know the meaning of a request.
"""

import json
from typing import Any

from aiohttp import web


class HttpError(Exception):
    """An answer with this status and this body of JSON."""

    def __init__(self, status: int, body: dict[str, Any]) -> None:
        super().__init__(body)
        self.status = status
        self.body = body


def bad_value(message: str) -> HttpError:
    """A value out of range: a prompt that is too long, a duplicate request id, a negative
    temperature.
    """
    return HttpError(400, {"error": {"message": message}})


def bad_type(message: str) -> HttpError:
    """An unknown key or a wrong type inside the sampling parameters."""
    return HttpError(400, {"error": message})


def bad_body(field: str, message: str) -> HttpError:
    """No JSON, a missing field, or a wrong type anywhere else."""
    text = f"1 validation error:\n  {{'loc': ('body', '{field}'), 'msg': '{message}'}}"
    return HttpError(
        400, {"object": "error", "message": text, "type": "Bad Request", "param": None, "code": 400}
    )


def queue_full() -> HttpError:
    message = "The request queue is full."
    return HttpError(
        503, {"object": "error", "message": message, "type": "503", "param": None, "code": 503}
    )


async def json_body(request: web.Request) -> dict[str, Any]:
    """The request's JSON object. Raises HttpError."""
    try:
        body = json.loads(await request.read())
    except (ValueError, RecursionError) as e:
        raise bad_body("", f"JSON decode error: {type(e).__name__}") from e
    if not isinstance(body, dict):
        raise bad_body("", "Input should be a dictionary")
    return body
