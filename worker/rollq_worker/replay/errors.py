"""The error bodies of an SGLang server, which has five shapes of them; clients have to read all five."""

from typing import Any


class HttpError(Exception):
    """Answer with this status and this JSON body."""

    def __init__(self, status: int, body: dict[str, Any]) -> None:
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


def overloaded(message: str = "The request queue is full.") -> HttpError:
    return HttpError(503, {"object": "error", "message": message, "type": "503", "param": None, "code": 503})


def detail(status: int, message: str) -> HttpError:
    """An unknown path (404) or method (405)."""
    return HttpError(status, {"detail": message})
