"""What `rollq doctor` says of an endpoint that plays users or judges: whether it answers, and takes
the key.
"""

import json

from rollq.servers.health import Finding, Level
from rollq.settings import Endpoint
from rollq.urls import mask_url
from rollq_worker.remote.chat_model import KeyUnreadable, http_client, key_of
from rollq_worker.remote.http_client import NoResponse, Response

SHOWN_MODELS = 5
ADDRESS = (
    "correct its address in ROLLQ_USER_ENDPOINTS, up to and including /v1, or start the server"
)


def check(name: str, endpoint: Endpoint) -> list[Finding]:
    """Ask for the list of models, which costs nothing. A server that has no such list gets a
    request without content, which it refuses.
    """
    title, url = f"user model {name}", mask_url(endpoint.url)
    try:
        key = key_of(endpoint)
    except KeyUnreadable as e:
        return [
            Finding(title, Level.FAIL, f"{url}: {e}", "correct key_file in ROLLQ_USER_ENDPOINTS")
        ]
    headers = {"Authorization": f"Bearer {key}"} if key else None

    def ask(method: str, path: str, body: bytes | None) -> Response:
        address = endpoint.url.rstrip("/") + path
        return http_client().request(
            method, address, body, headers=headers, timeout_s=10.0, total=True
        )

    try:
        response = ask("GET", "/models", None)
        listed = response.status == 200
        if response.status in (404, 405):
            response = ask("POST", "/chat/completions", b"{}")
    except NoResponse as e:
        return [Finding(title, Level.FAIL, f"{url} does not answer: {e}", ADDRESS)]
    return [_judged(title, url, endpoint, response, listed)]


def _judged(title: str, url: str, endpoint: Endpoint, response: Response, listed: bool) -> Finding:
    key = f"the key in {endpoint.key_file}" if endpoint.key_file else "a request without a key"
    status = response.status
    if status in (401, 403):
        return Finding(
            title,
            Level.FAIL,
            f"{url} refuses {key} ({status})",
            "correct the content of its key_file",
        )
    if listed:
        models = _models(response)
        shown = ", ".join(models[:SHOWN_MODELS]) + (", ..." if models[SHOWN_MODELS:] else "")
        return Finding(
            title,
            Level.OK,
            f"{url} takes {key}; models: {shown or 'none'}",
            details={"models": models},
        )
    if status in (400, 422):
        return Finding(title, Level.OK, f"{url} takes {key}; it does not list its models")
    if status == 429 or status >= 500:
        return Finding(
            title,
            Level.WARN,
            f"{url} answers {status}",
            "look at that server; rollq asks again by itself",
        )
    return Finding(
        title, Level.FAIL, f"{url} is no OpenAI-compatible server: it answers {status}", ADDRESS
    )


def _models(response: Response) -> list[str]:
    try:
        return [str(model["id"]) for model in json.loads(response.body)["data"]]
    except (ValueError, LookupError, TypeError):
        return []
