"""A finished turn as OpenAI's chat completion, whole or as a stream of chunks; and OpenAI's errors and models.

It knows no HTTP.
"""

from collections.abc import Iterator
from typing import Any

from rollq_worker.agents.chat_request import ChatRequest, RequestRefused
from rollq_worker.agents.traces import Turn

MODEL = "rollq"
"""The name of the policy. Every other name means the same."""


def completion(turn: Turn) -> dict[str, Any]:
    """The body of a reply."""
    message = {**(turn.message or {}), "refusal": None}
    if "tool_calls" in message and not message["content"]:
        message["content"] = None
    return {
        **_head(turn, "chat.completion"),
        "choices": [{"index": 0, "message": message, "finish_reason": _finish(turn), "logprobs": None}],
        "usage": _usage(turn),
    }


def chunks(turn: Turn, request: ChatRequest) -> Iterator[dict[str, Any]]:
    """The same as a stream's chunks. The turn is whole when the stream begins."""
    message = turn.message or {}
    head = _head(turn, "chat.completion.chunk")

    def chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
        return {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}]}

    yield chunk({"role": "assistant", "content": ""})
    for key in ("reasoning_content", "content"):
        if message.get(key):
            yield chunk({key: message[key]})
    for n, call in enumerate(message.get("tool_calls", ())):
        yield chunk({"tool_calls": [{"index": n, **call}]})
    yield chunk({}, _finish(turn))
    if request.usage:
        yield {**head, "choices": [], "usage": _usage(turn)}


def error(refused: RequestRefused) -> dict[str, Any]:
    """The body of an error."""
    kinds = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error", 503: "server_error"}
    kind = kinds.get(refused.status, "invalid_request_error")
    return {"error": {"message": str(refused), "type": kind, "param": refused.param, "code": refused.code}}


def model() -> dict[str, Any]:
    return {"id": MODEL, "object": "model", "created": 0, "owned_by": "rollq"}


def models() -> dict[str, Any]:
    return {"object": "list", "data": [model()]}


def _head(turn: Turn, kind: str) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{turn.number}",
        "object": kind,
        "created": int(turn.pieces[0].at),
        "model": MODEL,
        "system_fingerprint": turn.pieces[-1].versions[-1].version if turn.pieces[-1].versions else None,
    }


def _finish(turn: Turn) -> str:
    if turn.message and turn.message.get("tool_calls"):
        return "tool_calls"
    return "length" if turn.cut else "stop"


def _usage(turn: Turn) -> dict[str, Any]:
    prompt, sampled = turn.begin, turn.end - turn.begin
    cached = sum(piece.cached_tokens for piece in turn.pieces[:1])
    return {
        "prompt_tokens": prompt,
        "completion_tokens": sampled,
        "total_tokens": prompt + sampled,
        "prompt_tokens_details": {"cached_tokens": cached},
    }
