"""Anthropic's Messages: a request as a `TurnRequest`, and a finished turn as the reply or its
events.

The form: https://docs.anthropic.com/en/api/messages. It knows no HTTP.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from rollq.events import Message
from rollq.job import Json
from rollq_worker.agents.dialects.chat_completions import MODEL
from rollq_worker.agents.dialects.reading import (
    Parameters,
    checked_messages,
    checked_tools,
    flag_of,
    grammar,
    list_of,
    object_of,
    read_choice,
    refused_value,
    text_at,
    text_of,
)
from rollq_worker.agents.traces import Turn
from rollq_worker.agents.turn_request import ONE_CALL, RequestRefused, TurnRequest

PARAMETERS = Parameters(
    sampling={
        "temperature": "temperature",
        "top_p": "top_p",
        "top_k": "top_k",
        "stop_sequences": "stop",
    },
    length=("max_tokens",),
    # The policy thinks as its chat template lets it.
    without_effect=frozenset({"model", "metadata", "cache_control", "thinking"}),
    neutral={"service_tier": ("auto", "standard_only"), "mcp_servers": ([],)},
)
SHOWN_OF_TOOLS = {"name": "name", "description": "description", "input_schema": "parameters"}
"""Keys of a tool that the model is shown, and their names in OpenAI's form."""
KEPT_THOUGHTS: Sequence[Json] = (
    {"edits": []},
    {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
)
"""The edits of a context that change nothing."""


def read(body: Any) -> TurnRequest:
    fields = object_of(body, "the body")
    messages = fields.pop("messages", None)
    system = fields.pop("system", None)
    tools = fields.pop("tools", [])
    stream = flag_of(fields.pop("stream", False), "stream")
    choice = object_of(fields.pop("tool_choice", {"type": "auto"}), "tool_choice")
    if not isinstance(messages, list) or not messages:
        raise RequestRefused("messages must be a list with at least one message", param="messages")
    shows_tools, forced = read_choice(choice)
    if "thread" in fields:
        # by this code the anthropic package's tool runner knows that it can go on without
        raise RequestRefused(
            "thread is not supported here", param="thread", code="thread_unsupported_request"
        )
    if fields.pop("context_management", None) not in (None, *KEPT_THOUGHTS):
        raise refused_value("context_management", body["context_management"])
    options = _output_options(object_of(fields.pop("output_config", {}), "output_config"))
    options |= forced
    several = "tool_choice.disable_parallel_tool_use"
    if flag_of(choice.get("disable_parallel_tool_use", False), several):
        options[ONE_CALL] = True
    shown: list[Message] = []
    if system:
        shown.append({"role": "system", "content": text_of(system, "system")})
    for n, message in enumerate(messages):
        more = _messages(object_of(message, f"messages[{n}]"), f"messages[{n}]")
        if shown and shown[-1]["role"] == more[0]["role"] == "assistant":
            more = [_joined(shown.pop(), more[0])]  # some clients send each block by itself
        shown += more
    return TurnRequest(
        messages=checked_messages(shown, "messages"),
        tools=checked_tools(tools, "custom", _function) if shows_tools else [],
        options=PARAMETERS.read(fields, options),
        stream=stream,
    )


def _output_options(config: dict[str, Any]) -> dict[str, Json]:
    options: dict[str, Json] = {}
    for name, value in config.items():
        if name == "format":
            form = object_of(value, "output_config.format")
            options |= grammar(form.get("type"), form.get("schema"), "output_config.format")
        elif name != "effort":
            raise refused_value(f"output_config.{name}", value)
    return options


def _function(tool: dict[str, Any]) -> Json:
    return {theirs: tool[ours] for ours, theirs in SHOWN_OF_TOOLS.items() if ours in tool}


def _messages(message: dict[str, Any], where: str) -> list[Message]:
    """A message in normal form. The results of calls, which come in the user's message, are
    messages of their own. A system message in mid-conversation is shown as the user's: few
    templates take another, and none as the reply to a turn.
    """
    role = message.get("role")
    content = message.get("content")
    if role == "assistant":
        return [_assistant(_blocks(content, where), where)]
    if role not in ("user", "system"):
        raise RequestRefused(
            f"{where} has the role {role!r:.80}; there is assistant, system, user", param=where
        )
    results: list[Message] = []
    texts: list[Json] = []
    for block in _blocks(content, where):
        if block.get("type") == "tool_result" and role == "user":
            id = text_at(block, "tool_use_id", where)
            results.append(
                {
                    "role": "tool",
                    "tool_call_id": id,
                    "content": text_of(block.get("content"), where),
                }
            )
        else:
            texts.append(block)
    if texts or not results:
        return [*results, {"role": "user", "content": text_of(texts, where)}]
    return results


def _blocks(content: Any, where: str) -> list[dict[str, Any]]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return [object_of(block, where) for block in list_of(content, where)]


def _assistant(blocks: Sequence[dict[str, Any]], where: str) -> Message:
    texts: list[Json] = []
    thoughts: list[str] = []
    calls: list[Json] = []
    for block in blocks:
        kind = block.get("type")
        if kind == "tool_use":
            arguments = json.dumps(object_of(block.get("input", {}), where))
            function = {"name": text_at(block, "name", where), "arguments": arguments}
            calls.append(
                {"id": text_at(block, "id", where), "type": "function", "function": function}
            )
        elif kind == "thinking":
            thoughts.append(text_at(block, "thinking", where))
        elif kind != "redacted_thinking":
            texts.append(block)
    turn: Message = {"role": "assistant", "content": text_of(texts, where)}
    turn |= {"reasoning_content": "".join(thoughts)} if thoughts else {}
    return {**turn, "tool_calls": calls} if calls else turn


def _joined(turn: Message, more: Message) -> Message:
    """Two messages of the model in a row are one turn."""
    calls = [*turn.get("tool_calls", ()), *more.get("tool_calls", ())]
    joined = {**turn, **more, "content": turn["content"] + more["content"]}
    return {**joined, "tool_calls": calls} if calls else joined


def reply(turn: Turn, request: TurnRequest) -> dict[str, Any]:
    return {
        **_head(turn),
        "content": _content(turn),
        **_stopped(turn),
        "usage": _usage(turn),
    }


def stream(turn: Turn, request: TurnRequest) -> Iterator[bytes]:
    for event in _events(turn):
        yield f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()


def _events(turn: Turn) -> Iterator[dict[str, Any]]:
    usage = _usage(turn)
    nothing = {
        "content": list[Any](),
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {**usage, "output_tokens": 0},
    }
    yield {"type": "message_start", "message": {**_head(turn), **nothing}}
    for index, block in enumerate(_content(turn)):
        empty: dict[str, Any]
        match block["type"]:
            case "text":
                empty = {"text": ""}
                delta = {"type": "text_delta", "text": block["text"]}
            case "thinking":
                empty = {"thinking": ""}
                delta = {"type": "thinking_delta", "thinking": block["thinking"]}
            case _:
                empty = {"input": {}}
                delta = {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
        yield {"type": "content_block_start", "index": index, "content_block": {**block, **empty}}
        yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    yield {"type": "message_delta", "delta": _stopped(turn), "usage": usage}
    yield {"type": "message_stop"}


def model(name: str = MODEL) -> dict[str, Any]:
    return {"type": "model", "id": name, "display_name": name, "created_at": "1970-01-01T00:00:00Z"}


def models(names: Sequence[str]) -> dict[str, Any]:
    ends = {"first_id": names[0], "last_id": names[-1]}
    return {"data": [*map(model, names)], **ends, "has_more": False}


def error(refused: RequestRefused) -> dict[str, Any]:
    kinds = {
        401: "authentication_error",
        404: "not_found_error",
        413: "request_too_large",
        429: "rate_limit_error",
        503: "api_error",
    }
    kind = kinds.get(refused.status, "invalid_request_error")
    error: dict[str, Any] = {"type": kind, "message": str(refused)}
    if refused.code:
        error["details"] = {"error_code": refused.code}
    return {"type": "error", "error": error}


def _head(turn: Turn) -> dict[str, Any]:
    return {"id": f"msg_{turn.number}", "type": "message", "role": "assistant", "model": MODEL}


def _content(turn: Turn) -> list[dict[str, Any]]:
    message = turn.message or {}
    content = list[dict[str, Any]]()
    thought = message.get("reasoning_content")
    if thought:
        content.append({"type": "thinking", "thinking": thought, "signature": ""})
    if message.get("content"):
        content.append({"type": "text", "text": message["content"]})
    for call in message.get("tool_calls", ()):
        function = call["function"]
        called = {
            "id": call["id"],
            "name": function["name"],
            "input": json.loads(function["arguments"]),
        }
        content.append({"type": "tool_use", **called})
    return content


def _stopped(turn: Turn) -> dict[str, Any]:
    if turn.calls:
        return {"stop_reason": "tool_use", "stop_sequence": None}
    if turn.stop_text is not None:
        return {"stop_reason": "stop_sequence", "stop_sequence": turn.stop_text}
    return {"stop_reason": "max_tokens" if turn.cut else "end_turn", "stop_sequence": None}


def _usage(turn: Turn) -> dict[str, int]:
    cached = sum(piece.cached_tokens for piece in turn.pieces[:1])
    return {
        "input_tokens": turn.begin - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": turn.end - turn.begin,
    }
