"""The error bodies of an SGLang server, which has five shapes of them, and plain text."""

from typing import Any


class HttpError(Exception):
    """Answer with this status and this body, JSON unless it is a text."""

    def __init__(self, status: int, body: dict[str, Any] | str) -> None:
        super().__init__(body)
        self.status = status
        self.body = body


def bad_value(message: str) -> HttpError:
    """A value that makes no sense: too long, a duplicate request id, a temperature below zero."""
    return HttpError(400, {"error": {"message": message}})


def bad_contract(message: str) -> HttpError:
    """An unknown key or a wrong type inside the sampling parameters."""
    return HttpError(400, {"error": message})


def bad_body(field: str, message: str) -> HttpError:
    """No JSON, a missing field, a wrong type outside the sampling parameters."""
    text = f"1 validation error:\n  {{'loc': ('body', '{field}'), 'msg': '{message}'}}"
    return HttpError(400, {"object": "error", "message": text, "type": "Bad Request", "param": None, "code": 400})


def bad_request(message: str) -> HttpError:
    """What an endpoint of the OpenAI kind refuses for its values."""
    return HttpError(
        400, {"object": "error", "message": message, "type": "BadRequestError", "param": None, "code": 400}
    )


def broken() -> HttpError:
    """What a server of this version did not expect and survives."""
    return HttpError(500, "Internal Server Error")


def overloaded(message: str = "The request queue is full.") -> HttpError:
    return HttpError(503, {"object": "error", "message": message, "type": "503", "param": None, "code": 503})


def detail(status: int, message: str) -> HttpError:
    """An unknown path (404) or method (405)."""
    return HttpError(status, {"detail": message})
