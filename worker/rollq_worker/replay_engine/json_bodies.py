"""The JSON objects that requests carry, as SGLang takes and refuses them. It does not know what is in them."""

import json
from typing import Any

from aiohttp import web

from rollq_worker.replay_engine.errors import bad_body

JSON = "application/json"


async def json_body(request: web.Request, *, strictly: bool = False) -> dict[str, Any]:
    """The object; `strictly`: not under a name like application/x+json either. Raises HttpError."""
    raw = await request.read()
    kind = request.content_type
    if strictly and kind != JSON:
        raise bad_body("content-type", "Unsupported Media Type: Only application/json is allowed")
    if not raw:
        raise bad_body("", "Field required")
    if kind != JSON and not (kind.startswith("application/") and kind.endswith("+json")):
        raise bad_body("", f"Input should be a dictionary, not {kind}")  # the real server sees bytes then
    try:
        body = json.loads(raw, parse_constant=_no_number)
    except (ValueError, RecursionError) as e:
        raise bad_body("", f"JSON decode error: {type(e).__name__}") from e
    if not isinstance(body, dict):
        raise bad_body("", "Input should be a dictionary")
    return body


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is no JSON")
