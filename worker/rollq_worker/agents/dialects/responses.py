"""OpenAI's Responses: a request as a `TurnRequest`, and a finished turn as the reply or its events.

A request may go on from any earlier response of its episode. The form:
https://platform.openai.com/docs/api-reference/responses. It knows no HTTP.
"""

import json
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any

from rollq.events import Message
from rollq.job import Json
from rollq_worker.agents.dialects import chat_completions
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
from rollq_worker.agents.unreadable_calls import arguments_of

PARAMETERS = Parameters(
    sampling={"temperature": "temperature", "top_p": "top_p"},
    length=("max_output_tokens",),
    without_effect=frozenset(
        {
            *("model", "user", "metadata", "client_metadata", "safety_identifier"),
            *("prompt_cache_key", "prompt_cache_retention", "store", "stream_options"),
            # the policy thinks as its chat template lets it, and its thoughts are given whole
            "reasoning",
        }
    ),
    neutral={
        "background": (False,),
        "include": ([], ["reasoning.encrypted_content"]),
        "service_tier": ("auto", "default"),
        "top_logprobs": (0,),
        "truncation": ("disabled",),
    },
)
TEXTS = ("input_text", "output_text", "text")
"""Types of parts of text."""
SHOWN_OF_TOOLS = ("name", "description", "parameters")
"""Keys of a tool that the model is shown."""
ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}


class Responses:
    """The dialect for one episode."""

    error = staticmethod(chat_completions.error)

    def __init__(self) -> None:
        self._replies: dict[str, tuple[Turn, bool]] = {}
        """Turn of each response by its id, and True if the conversation begins with instructions.
        """

    def read(self, body: Any) -> TurnRequest:
        fields = object_of(body, "the body")
        items = fields.pop("input", None)
        instructions = fields.pop("instructions", None)
        tools = fields.pop("tools", [])
        choice = fields.pop("tool_choice", "auto")
        stream = flag_of(fields.pop("stream", False), "stream")
        before = fields.pop("previous_response_id", None)
        shows_tools, options = read_choice(choice)
        several = flag_of(fields.pop("parallel_tool_calls", True), "parallel_tool_calls")
        if not several:
            options[ONE_CALL] = True
        options |= _grammar(object_of(fields.pop("text", {}), "text"))
        messages = [*self._before(before), *_messages(items)]
        if not messages:
            raise RequestRefused("input must be a text or a list of items", param="input")
        if instructions is not None:
            messages.insert(
                0, {"role": "system", "content": text_of(instructions, "instructions", TEXTS)}
            )
        return TurnRequest(
            messages=checked_messages(messages, "input"),
            tools=checked_tools(tools, "function", _function) if shows_tools else [],
            options=PARAMETERS.read(fields, options),
            stream=stream,
            repeated={
                "previous_response_id": before,
                "instructions": instructions,
                "tools": tools,
                "tool_choice": choice,
                "parallel_tool_calls": several,
            },
        )

    def _before(self, response: Any) -> Sequence[Message]:
        if response is None:
            return ()
        if not isinstance(response, str) or response not in self._replies:
            raise RequestRefused(
                f"previous_response_id: there is no response {response!s:.80} in this episode",
                param="previous_response_id",
                code="previous_response_not_found",
            )
        turn, instructed = self._replies[response]
        assert turn.message is not None, "it is over"
        return [*turn.conversation[instructed:], turn.message]

    def reply(self, turn: Turn, request: TurnRequest) -> dict[str, Any]:
        response = {
            **_head(turn, request),
            "output": _output(turn),
            "usage": _usage(turn),
            "status": "completed",
        }
        if turn.cut:
            response |= {
                "status": "incomplete",
                "incomplete_details": {"reason": "max_output_tokens"},
            }
        self._replies[response["id"]] = turn, request.repeated["instructions"] is not None
        return response

    def stream(self, turn: Turn, request: TurnRequest) -> Iterator[bytes]:
        numbers = count()
        for event in _events(self.reply(turn, request)):
            numbered = {**event, "sequence_number": next(numbers)}
            yield f"event: {event['type']}\ndata: {json.dumps(numbered)}\n\n".encode()


def _grammar(text: dict[str, Any]) -> dict[str, Json]:
    for name, value in text.items():
        if name not in ("format", "verbosity"):
            raise refused_value(f"text.{name}", value)
    form = object_of(text.get("format", {"type": "text"}), "text.format")
    return grammar(form.get("type"), form.get("schema"), "text.format")


def _function(tool: dict[str, Any]) -> Json:
    return {name: tool[name] for name in SHOWN_OF_TOOLS if name in tool}


def _messages(items: Any) -> list[Message]:
    """The items in normal form. A turn of the model, with its reasoning and calls, is one
    message.
    """
    if items is None or isinstance(items, str):
        if items:
            return [{"role": "user", "content": items}]
        return []
    messages: list[Message] = []
    for n, one in enumerate(list_of(items, "input")):
        where = f"input[{n}]"
        item = object_of(one, where)
        _add_item(messages, item, where)
    return messages


def _add_item(messages: list[Message], item: dict[str, Any], where: str) -> None:
    role = ROLES.get(str(item.get("role")))
    match item.get("type", "message"):
        case "message" if role == "assistant":
            _model_turn(messages)["content"] += text_of(item.get("content"), where, TEXTS)
        case "message" if role:
            text = text_of(item.get("content"), where, TEXTS)
            messages.append({"role": role, "content": text})
        case "reasoning":
            text = text_of(item.get("content"), where, ("reasoning_text",))
            if text:
                turn = _model_turn(messages)
                turn["reasoning_content"] = turn.get("reasoning_content", "") + text
        case "function_call":
            function = {key: text_at(item, key, where) for key in ("name", "arguments")}
            id = text_at(item, "call_id", where)
            call = {"id": id, "type": "function", "function": function}
            _model_turn(messages).setdefault("tool_calls", []).append(call)
        case "function_call_output":
            text = text_of(item.get("output"), where, TEXTS)
            id = text_at(item, "call_id", where)
            messages.append({"role": "tool", "tool_call_id": id, "content": text})
        case kind:
            raise RequestRefused(
                f"{where} is a {kind!s:.80} of {item.get('role')!s:.80}, which is not supported "
                "here",
                param=where,
            )


def _model_turn(messages: list[Message]) -> Message:
    """The model's turn that the items before belong to, or a new one."""
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": ""})
    return messages[-1]


def _head(turn: Turn, request: TurnRequest) -> dict[str, Any]:
    return {
        "id": f"resp_{turn.number}",
        "object": "response",
        "created_at": int(turn.pieces[0].at),
        "model": MODEL,
        "error": None,
        "incomplete_details": None,
        **request.repeated,
    }


def _output(turn: Turn) -> list[dict[str, Any]]:
    message = turn.message or {}
    output = list[dict[str, Any]]()
    done = {"status": "completed"}
    thought = message.get("reasoning_content")
    if thought:
        part = {"type": "reasoning_text", "text": thought}
        output.append(
            {
                "type": "reasoning",
                "id": f"rs_{turn.number}",
                "summary": [],
                "content": [part],
                **done,
            }
        )
    if message.get("content") or not turn.calls:
        # also an empty turn is one item at least
        part = {
            "type": "output_text",
            "text": message["content"],
            "annotations": [],
            "logprobs": [],
        }
        reply_item = {"type": "message", "id": f"msg_{turn.number}", "role": "assistant"}
        output.append({**reply_item, "content": [part], **done})
    for call in turn.calls:
        named = {
            "type": "function_call",
            "id": f"fc_{turn.number}_{call['id']}",
            "call_id": call["id"],
        }
        output.append({**named, **call["function"], "arguments": arguments_of(call), **done})
    return output


def _events(response: dict[str, Any]) -> Iterator[dict[str, Any]]:
    begun = {
        **response,
        "status": "in_progress",
        "incomplete_details": None,
        "output": [],
        "usage": None,
    }
    yield {"type": "response.created", "response": begun}
    yield {"type": "response.in_progress", "response": begun}
    for index, item in enumerate(response["output"]):
        at = {"output_index": index, "item_id": item["id"]}
        empty: dict[str, Any] = (
            {"arguments": ""} if item["type"] == "function_call" else {"content": []}
        )
        added = {**item, **empty, "status": "in_progress"}
        yield {"type": "response.output_item.added", "output_index": index, "item": added}
        if item["type"] == "function_call":
            kind = "response.function_call_arguments"
            arguments = item["arguments"]
            yield {"type": f"{kind}.delta", **at, "delta": arguments}
            yield {"type": f"{kind}.done", **at, "name": item["name"], "arguments": arguments}
        else:
            yield from _part_events(item["content"][0], at)
        yield {"type": "response.output_item.done", "output_index": index, "item": item}
    yield {"type": f"response.{response['status']}", "response": response}


def _part_events(part: dict[str, Any], at: dict[str, Any]) -> Iterator[dict[str, Any]]:
    at = {**at, "content_index": 0}
    yield {"type": "response.content_part.added", **at, "part": {**part, "text": ""}}
    yield {"type": f"response.{part['type']}.delta", **at, "delta": part["text"], "logprobs": []}
    yield {"type": f"response.{part['type']}.done", **at, "text": part["text"], "logprobs": []}
    yield {"type": "response.content_part.done", **at, "part": part}


def _usage(turn: Turn) -> dict[str, Any]:
    prompt = turn.begin
    sampled = turn.end - turn.begin
    return {
        "input_tokens": prompt,
        "input_tokens_details": {
            "cached_tokens": sum(piece.cached_tokens for piece in turn.pieces[:1]),
            "cache_write_tokens": 0,
        },
        "output_tokens": sampled,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": prompt + sampled,
    }
