"""The shapes of a server's refusals, which clients have to tell apart."""

import requests


def value_refusal(answer: requests.Response) -> str:
    """The message of `{"error": {"message": ...}}`: a value out of range."""
    assert answer.status_code == 400, answer.text
    message = answer.json()["error"]["message"]
    assert isinstance(message, str)
    return message


def assert_body_refused(answer: requests.Response) -> None:
    """No JSON, or a wrong type elsewhere in the body."""
    assert answer.status_code == 400, answer.text
    body = answer.json()
    assert "validation error" in body.pop("message")
    assert body == {"object": "error", "type": "Bad Request", "param": None, "code": 400}
