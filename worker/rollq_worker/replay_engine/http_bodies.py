"""JSON bodies: those that requests carry, and SGLang's refusals, which have five shapes.

It does not know what a request asks for.
"""

import json
from typing import Any

from aiohttp import web

JSON = "application/json"


class HttpError(Exception):
    """An answer with this status and this body, which is JSON unless it is a string."""

    def __init__(self, status: int, body: dict[str, Any] | str) -> None:
        super().__init__(body)
        self.status = status
        self.body = body


def bad_value(message: str) -> HttpError:
    """A value out of range: a prompt that is too long, a duplicate request id, a negative temperature."""
    return HttpError(400, {"error": {"message": message}})


def bad_type(message: str) -> HttpError:
    """An unknown key or a wrong type inside the sampling parameters, or in what is asked about logprobs."""
    return HttpError(400, {"error": message})


def bad_body(field: str, message: str) -> HttpError:
    """No JSON, a missing field, or a wrong type anywhere else."""
    text = f"1 validation error:\n  {{'loc': ('body', '{field}'), 'msg': '{message}'}}"
    return HttpError(400, {"object": "error", "message": text, "type": "Bad Request", "param": None, "code": 400})


def bad_openai_request(message: str) -> HttpError:
    """A value that an endpoint of the OpenAI kind refuses."""
    return HttpError(
        400, {"object": "error", "message": message, "type": "BadRequestError", "param": None, "code": 400}
    )


def queue_full() -> HttpError:
    message = "The request queue is full."
    return HttpError(503, {"object": "error", "message": message, "type": "503", "param": None, "code": 503})


async def json_body(request: web.Request, *, strictly: bool = False) -> dict[str, Any]:
    """The request's JSON object. With `strictly`, content types like application/x+json are refused too. Raises
    HttpError."""
    raw = await request.read()
    kind = request.content_type
    if strictly and kind != JSON:
        raise bad_body("content-type", "Unsupported Media Type: Only application/json is allowed")
    if not raw:
        raise bad_body("", "Field required")
    if kind != JSON and not (kind.startswith("application/") and kind.endswith("+json")):
        raise bad_body("", f"Input should be a dictionary, not {kind}")
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError) as e:
        raise bad_body("", f"JSON decode error: {type(e).__name__}") from e
    if not isinstance(body, dict):
        raise bad_body("", "Input should be a dictionary")
    return body


def is_bool(value: object) -> bool:
    return isinstance(value, bool)


def is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_text(value: object) -> bool:
    return isinstance(value, str)


def is_map(value: object) -> bool:
    return isinstance(value, dict)


def are_texts(value: object) -> bool:
    return isinstance(value, str) or (isinstance(value, list) and all(map(is_text, value)))


def are_ints(value: object) -> bool:
    return isinstance(value, list) and all(map(is_int, value))
