"""OpenAI's chat completions: a request as a `TurnRequest`, and a finished turn as the reply or its
chunks.

The form: https://platform.openai.com/docs/api-reference/chat. It knows no HTTP.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from rollq.events import Message
from rollq.job import Json
from rollq_worker.agents.dialects.reading import (
    Parameters,
    checked_messages,
    checked_tools,
    flag_of,
    grammar,
    list_of,
    object_of,
    read_choice,
    text_at,
    text_of,
)
from rollq_worker.agents.traces import Turn
from rollq_worker.agents.turn_request import ONE_CALL, RequestRefused, TurnRequest
from rollq_worker.agents.unreadable_calls import arguments_of

MODEL = "rollq"
"""The name of the policy. Every other name means the same."""
SAMPLING = (
    "temperature top_p frequency_penalty presence_penalty logit_bias stop top_k min_p "
    "repetition_penalty".split()
)
PARAMETERS = Parameters(
    sampling={**{name: name for name in SAMPLING}, "seed": "sampling_seed"},
    length=("max_tokens", "max_completion_tokens"),
    without_effect=frozenset(
        "model user metadata safety_identifier prompt_cache_key reasoning_effort verbosity".split()
    ),
    neutral={
        "n": (1,),
        "logprobs": (False,),
        "store": (False,),
        "modalities": (["text"],),
        "service_tier": ("auto", "default"),
        "functions": ([],),
        "top_logprobs": (0,),
        "ignore_eos": (False,),
    },
)
ROLES = {"system", "developer", "user", "assistant", "tool"}
KNOWN_KEYS = {"role", "content", "name", "tool_calls", "tool_call_id", "reasoning_content"}
IGNORED_KEYS = {"reasoning_details", "thinking_blocks", "provider_specific_fields", "cache_control"}
"""Keys that frameworks add to messages for other services. They ask for nothing, and repeat the
reasoning at most.
"""


def read(body: Any) -> TurnRequest:
    fields = object_of(body, "the body")
    messages = fields.pop("messages", None)
    tools = fields.pop("tools", [])
    choice = fields.pop("tool_choice", "auto")
    stream = flag_of(fields.pop("stream", False), "stream")
    stream_options = fields.pop("stream_options", {})
    if not isinstance(messages, list) or not messages:
        raise RequestRefused("messages must be a list with at least one message", param="messages")
    shows_tools, options = read_choice(choice)
    is_known = {"include_usage", "include_obfuscation"}.issuperset
    if not isinstance(stream_options, dict) or not is_known(stream_options):
        raise RequestRefused("stream_options has include_usage only", param="stream_options")
    if not flag_of(fields.pop("parallel_tool_calls", True), "parallel_tool_calls"):
        options[ONE_CALL] = True
    options |= _grammar(fields.pop("response_format", {"type": "text"}))
    return TurnRequest(
        messages=checked_messages(
            [_message(one, f"messages[{n}]") for n, one in enumerate(messages)], "messages"
        ),
        tools=checked_tools(tools, "function", _function) if shows_tools else [],
        options=PARAMETERS.read(fields, options),
        stream=stream,
        usage=bool(stream_options.get("include_usage")),
    )


def _grammar(form: Any) -> dict[str, Json]:
    if not isinstance(form, dict):
        form = {}
    wrapper = form.get("json_schema")
    schema = wrapper.get("schema") if isinstance(wrapper, dict) else None
    return grammar(form.get("type"), schema, "response_format")


def _function(tool: dict[str, Any]) -> Json:
    function = object_of(tool.get("function"), "tools.function")
    return {
        name: value for name, value in function.items() if name not in ("strict", "cache_control")
    }


def _message(message: Any, where: str) -> Message:
    fields = {key: value for key, value in object_of(message, where).items() if value != []}
    role = fields.get("role")
    if not isinstance(role, str) or role not in ROLES:
        raise RequestRefused(
            f"{where} has the role {role!r:.80}; there is {', '.join(sorted(ROLES))}", param=where
        )
    if "reasoning" in fields:  # what OpenRouter and vLLM call it
        fields.setdefault("reasoning_content", fields.pop("reasoning"))
    unknown = sorted(fields.keys() - KNOWN_KEYS - IGNORED_KEYS)
    if unknown:
        raise RequestRefused(
            f"{where} has {unknown[0]}, which is not supported here", param=f"{where}.{unknown[0]}"
        )
    shown: Message = {
        "role": "system" if role == "developer" else role,
        "content": text_of(fields.get("content"), where),
    }
    shown |= {
        key: text_at(fields, key, where)
        for key in ("name", "tool_call_id", "reasoning_content")
        if key in fields
    }
    if "tool_calls" in fields:
        shown["tool_calls"] = [
            _call(call, f"{where}.tool_calls") for call in list_of(fields["tool_calls"], where)
        ]
    return shown


def _call(call: Any, where: str) -> Json:
    fields = object_of(call, where)
    function = object_of(fields.get("function"), f"{where}.function")
    inside = f"{where}.function"
    named = {key: text_at(function, key, inside) for key in ("name", "arguments")}
    id = text_at(fields, "id", where)
    return {"id": id, "type": "function", "function": named}


def reply(turn: Turn, request: TurnRequest) -> dict[str, Any]:
    message = {**(turn.message or {}), "refusal": None}
    if turn.calls:
        message |= {"tool_calls": _calls(turn), "content": message["content"] or None}
    return {
        **_head(turn, "chat.completion"),
        "choices": [
            {"index": 0, "message": message, "finish_reason": _finish(turn), "logprobs": None}
        ],
        "usage": _usage(turn),
    }


def stream(turn: Turn, request: TurnRequest) -> Iterator[bytes]:
    for chunk in _chunks(turn, request):
        yield f"data: {json.dumps(chunk)}\n\n".encode()
    yield b"data: [DONE]\n\n"


def _chunks(turn: Turn, request: TurnRequest) -> Iterator[dict[str, Any]]:
    message = turn.message or {}
    head = _head(turn, "chat.completion.chunk")

    def chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
        return {
            **head,
            "choices": [{"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}],
        }

    yield chunk({"role": "assistant", "content": ""})
    for key in ("reasoning_content", "content"):
        if message.get(key):
            yield chunk({key: message[key]})
    for n, call in enumerate(_calls(turn)):
        yield chunk({"tool_calls": [{"index": n, **call}]})
    yield chunk({}, _finish(turn))
    if request.usage:
        yield {**head, "choices": [], "usage": _usage(turn)}


def _calls(turn: Turn) -> list[Json]:
    return [
        {**call, "function": {**call["function"], "arguments": arguments_of(call)}}
        for call in turn.calls
    ]


def error(refused: RequestRefused) -> dict[str, Any]:
    kinds = {
        401: "authentication_error",
        404: "not_found_error",
        429: "rate_limit_error",
        503: "server_error",
    }
    kind = kinds.get(refused.status, "invalid_request_error")
    return {
        "error": {
            "message": str(refused),
            "type": kind,
            "param": refused.param,
            "code": refused.code,
        }
    }


def model(name: str = MODEL) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "rollq"}


def models(names: Sequence[str]) -> dict[str, Any]:
    return {"object": "list", "data": [*map(model, names)]}


def _head(turn: Turn, kind: str) -> dict[str, Any]:
    versions = turn.pieces[-1].versions
    return {
        "id": f"chatcmpl-{turn.number}",
        "object": kind,
        "created": int(turn.pieces[0].at),
        "model": MODEL,
        "system_fingerprint": versions[-1].version if versions else None,
    }


def _finish(turn: Turn) -> str:
    if turn.calls:
        return "tool_calls"
    return "length" if turn.cut else "stop"


def _usage(turn: Turn) -> dict[str, Any]:
    prompt = turn.begin
    sampled = turn.end - turn.begin
    cached = sum(piece.cached_tokens for piece in turn.pieces[:1])
    return {
        "prompt_tokens": prompt,
        "completion_tokens": sampled,
        "total_tokens": prompt + sampled,
        "prompt_tokens_details": {"cached_tokens": cached},
    }
