"""The shapes of a server's refusals, which clients have to tell apart."""

import requests


def error_of(answer: requests.Response) -> str:
    """`{"error": {"message": ...}}`: a value that makes no sense."""
    assert answer.status_code == 400, answer.text
    message = answer.json()["error"]["message"]
    assert isinstance(message, str)
    return message


def assert_invalid(answer: requests.Response) -> None:
    """No JSON, or a wrong type in the body."""
    assert answer.status_code == 400, answer.text
    body = answer.json()
    assert {key: body[key] for key in ("object", "type", "param", "code")} == {
        "object": "error",
        "type": "Bad Request",
        "param": None,
        "code": 400,
    }
    assert "validation error" in body["message"]
