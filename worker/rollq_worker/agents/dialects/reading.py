"""The reading that all dialects share: JSON objects, parts of text, tools, and parameters of the
sampling.

The invariant: each parameter of a request is carried out, named as one without effect, or refused
by name. Fields of messages and tools that the model is not shown ask for nothing, and are left out.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rollq.errors import ContractError
from rollq.events import Message
from rollq.job import Json
from rollq.sampling import objection
from rollq.wire.blob import plain
from rollq_worker.agents.turn_request import (
    FORCED_CALL,
    MAX_NEW_TOKENS,
    RequestRefused,
    sampling_of,
)
from rollq_worker.episode.messages import checked_schemas

HOSTED = (
    *("web_search", "web_fetch", "file_search", "tool_search", "code_execution"),
    *("code_interpreter", "image_generation"),
)
"""Beginnings of the types of tools that OpenAI and Anthropic run by themselves. Many programs
declare them unasked. The policy is not shown them, so it never calls one.
"""
UNSEEN = frozenset(
    "image image_url input_image input_audio document file input_file computer_screenshot".split()
)
"""Parts of a content that are shown to the policy as their kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """The names under which a dialect asks for things beside the conversation."""

    sampling: Mapping[str, str]
    """The engine's name by the dialect's."""
    length: Sequence[str]
    """Parameters that limit the tokens of a turn."""
    without_effect: frozenset[str]
    """Parameters that change no reply here."""
    neutral: Mapping[str, Sequence[Json]]
    """Parameters of which only the given values are carried out."""

    def read(self, fields: Mapping[str, Any], begun: Mapping[str, Json]) -> Mapping[str, Json]:
        """`TurnRequest.options`: those that are `begun`, and those in the other fields of a body.

        Raises RequestRefused, also for values that the engine or the journal does not take.
        """
        options = dict(begun)
        for name, value in fields.items():
            if name in self.sampling:
                options[self.sampling[name]] = value
            elif name in self.length:
                if type(value) is not int or value < 1:
                    raise RequestRefused(f"{name} must be a whole number of at least 1", param=name)
                options[MAX_NEW_TOKENS] = value
            elif name not in self.without_effect and value not in self.neutral.get(name, ()):
                raise refused_value(name, value, self.neutral.get(name))
        _check_options(options)
        return options


def refused_value(name: str, value: Any, neutral: Sequence[Json] | None = None) -> RequestRefused:
    """The refusal of a parameter, or of this value of it."""
    if neutral is None:
        allowed = "it is not supported here"
    else:
        allowed = f"it can be {neutral[0]!r} only"
    return RequestRefused(
        f"{name} is {str(value)[:80]!r}: {allowed}", param=name, code="unsupported_parameter"
    )


def _check_options(options: Mapping[str, Json]) -> None:
    problem = objection(sampling_of(options), 1 << 30)
    if problem:
        raise RequestRefused(problem)
    try:
        plain(options, "the request")
    except ContractError as e:
        raise RequestRefused(str(e)) from e


def read_choice(choice: Any) -> tuple[bool, dict[str, Json]]:
    """True if the model is shown the tools, and the options that follow from a `tool_choice`.

    A call that is to be made is sampled as any other, because a grammar would change the logprobs,
    and the wish is recorded. Raises RequestRefused for another choice.
    """
    kind = choice.get("type") if isinstance(choice, dict) else choice
    if kind in ("auto", "none"):
        return kind == "auto", {}
    if kind in ("required", "function", "any", "tool"):
        return True, {FORCED_CALL: choice}
    raise RequestRefused(
        "tool_choice must be auto, none, or a function to call", param="tool_choice"
    )


def checked_tools(
    tools: Any, kind: str, function_of: Callable[[dict[str, Any]], Json]
) -> list[Json]:
    """Tools in OpenAI's form, without HOSTED ones. Raises RequestRefused for tools of another kind,
    and for other values than schemas.
    """
    shown = []
    for n, tool in enumerate(list_of(tools, "tools")):
        fields = object_of(tool, f"tools[{n}]")
        other = fields.get("type", kind)
        if str(other).startswith(HOSTED):
            continue
        if other != kind:
            raise RequestRefused(
                f"tools[{n}] is {other!s:.80}: only {kind} tools are supported here", param="tools"
            )
        shown.append({"type": "function", "function": function_of(fields)})
    try:
        return checked_schemas(plain(shown, "they are"))
    except (ContractError, TypeError, ValueError) as e:
        raise RequestRefused(f"tools: {e}", param="tools") from e


def checked_messages(messages: Sequence[Message], param: str) -> Sequence[Message]:
    """A conversation that the policy may go on with. Raises RequestRefused."""
    if messages[-1]["role"] == "assistant":
        raise RequestRefused(
            "the last message must not be the assistant's: there is no prefill", param=param
        )
    waiting: list[str] = []
    """Calls without a result."""
    for message in messages:
        if message["role"] == "assistant":
            waiting = [call["id"] for call in message.get("tool_calls", ())]
        elif message["role"] == "tool":
            id = message.get("tool_call_id")
            if id not in waiting:
                raise RequestRefused(
                    f"{param} has a result for {id!r:.80}, which is not a call of the turn before "
                    "it, or is answered twice",
                    param=param,
                )
            waiting.remove(id)
    return messages


def object_of(value: Any, where: str) -> dict[str, Any]:
    """The fields of a JSON object without null. Raises RequestRefused."""
    if not isinstance(value, dict):
        raise RequestRefused(f"{where} is not a JSON object", param=where)
    return {name: item for name, item in value.items() if item is not None}


def list_of(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise RequestRefused(f"{where} has {str(value)[:80]!r} where a list belongs", param=where)
    return value


def text_at(value: Mapping[str, Any], key: str, where: str) -> str:
    """A field that must be a text. Raises RequestRefused."""
    text = value.get(key)
    if not isinstance(text, str):
        raise RequestRefused(f"{where}.{key} must be a string", param=f"{where}.{key}")
    return text


def flag_of(value: Any, name: str) -> bool:
    if not isinstance(value, bool):
        raise RequestRefused(f"{name} must be true or false", param=name)
    return value


def text_of(content: Any, where: str, kinds: Sequence[str] = ("text",)) -> str:
    """A content as one string; parts of text, which may be called by any of the `kinds`, are
    joined. What an agent program's policy cannot see is shown as its kind, such as `[image]`.
    """
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(_part(object_of(part, where), where, kinds) for part in list_of(content, where))


def _part(part: dict[str, Any], where: str, kinds: Sequence[str]) -> str:
    kind = text_at(part, "type", where)
    if kind in kinds:
        return text_at(part, "text", where)
    source = part.get("source")
    if kind == "search_result":
        head = [value for value in (part.get("title"), source) if isinstance(value, str)]
        return "\n".join([*head, text_of(part.get("content"), where)])
    if kind == "document" and isinstance(source, dict) and source.get("type") == "text":
        return text_at(source, "data", where)
    if kind in UNSEEN:
        return f"[{kind.removeprefix('input_').removesuffix('_url')}]"
    raise RequestRefused(
        f"{where} has a part of the type {kind!r:.80}, which is not supported here", param=where
    )


def grammar(kind: Any, schema: Any, param: str) -> dict[str, Json]:
    """The engine's grammar for an answer of this kind. Raises RequestRefused."""
    if kind == "text":
        return {}
    if kind == "json_object":
        return {"json_schema": '{"type":"object"}'}
    if kind != "json_schema" or not isinstance(schema, dict):
        raise RequestRefused(
            f"{param} must be text, json_object, or json_schema with a schema", param=param
        )
    return {"json_schema": json.dumps(schema, sort_keys=True)}
