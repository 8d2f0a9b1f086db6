"""What an agent program asks for: a chat completion in OpenAI's form, checked and brought into one normal form.

The invariant: each thing that a request asks for is carried out or refused by name. It knows no tokens and no HTTP.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rollq.errors import ContractError
from rollq.events import Message
from rollq.job import Job, Json
from rollq.sampling import objection
from rollq.wire.blob import plain
from rollq_worker.episode.messages import checked_schemas

SAME_NAME = (
    "temperature top_p frequency_penalty presence_penalty logit_bias stop top_k min_p repetition_penalty".split()
)
"""Parameters that the engine has under the same name."""
MAX_NEW_TOKENS, ONE_CALL = "max_new_tokens", "one_call"
"""Entries of `ChatRequest.asked` that are no sampling parameters."""
WITHOUT_EFFECT = {"model", "user", "metadata", "safety_identifier", "prompt_cache_key"}
"""Labels for whoever serves the model; they change no reply."""
NEUTRAL: Mapping[str, Sequence[Json]] = {
    "n": (1,),
    "logprobs": (False,),
    "store": (False,),
    "modalities": (["text"],),
    "service_tier": ("auto", "default"),
    "functions": ([],),
    "top_logprobs": (0,),
    "ignore_eos": (False,),
}
"""Parameters of which only these values are carried out."""
UNSEEN = ("strict", "cache_control")
"""What the model is not shown of a tool. Calls are sampled freely, because a grammar would change the logprobs."""
ROLES = {"system", "developer", "user", "assistant", "tool"}
KNOWN_KEYS = {"role", "content", "name", "tool_calls", "tool_call_id", "reasoning_content"}
IGNORED_KEYS = {"reasoning_details", "thinking_blocks", "provider_specific_fields", "cache_control"}
"""What frameworks add to messages for other services: it asks for nothing, and repeats the reasoning at most."""


class RequestRefused(Exception):
    """A request that is answered with an error in OpenAI's form."""

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None, status: int = 400) -> None:
        super().__init__(message)
        self.param, self.code, self.status = param, code, status


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """A request for one turn."""

    messages: Sequence[Message]
    """In normal form: content is a string, and keys without a value are left out."""
    tools: list[Json]
    """Schemas in OpenAI's form, as the chat template shows them."""
    asked: Mapping[str, Json]
    """What is asked for beside messages and tools: sampling parameters by the engine's names, MAX_NEW_TOKENS,
    ONE_CALL."""
    stream: bool = False
    usage: bool = False
    """A stream ends with the number of tokens."""


def with_asked(job: Job, asked: Mapping[str, Json]) -> Job:
    """The job with what a request asks for. A turn is never longer than the job's own. Raises ContractError."""
    if not asked:
        return job
    sampling = {name: value for name, value in asked.items() if name not in (MAX_NEW_TOKENS, ONE_CALL)}
    most = min(job.budget.max_new_tokens, asked.get(MAX_NEW_TOKENS, job.budget.max_new_tokens))
    return replace(job, sampling={**job.sampling, **sampling}, budget=replace(job.budget, max_new_tokens=most))


def read_request(body: Any) -> ChatRequest:
    """The request of a JSON body. Raises RequestRefused, which names what is wrong or not supported."""
    if not isinstance(body, dict):
        raise RequestRefused("the body must be a JSON object")
    given = {name: value for name, value in body.items() if value is not None}
    messages, tools = given.pop("messages", None), given.pop("tools", [])
    choice, stream = given.pop("tool_choice", "auto"), given.pop("stream", False)
    options = given.pop("stream_options", {})
    if not isinstance(messages, list) or not messages:
        raise RequestRefused("messages must be a list with at least one message", param="messages")
    if choice not in ("auto", "none"):
        raise RequestRefused(
            "tool_choice must be auto or none: the model's calls are sampled freely", param="tool_choice"
        )
    if not isinstance(stream, bool):
        raise RequestRefused("stream must be true or false", param="stream")
    if not isinstance(options, dict) or options.keys() - {"include_usage", "include_obfuscation"}:
        raise RequestRefused("stream_options has include_usage only", param="stream_options")
    read = [_message(message, f"messages[{n}]") for n, message in enumerate(messages)]
    if read[-1]["role"] == "assistant":
        raise RequestRefused("the last message must not be the assistant's: there is no prefill", param="messages")
    return ChatRequest(
        messages=read,
        tools=_tools(tools) if choice == "auto" else [],
        asked=_asked(given),
        stream=stream,
        usage=bool(options.get("include_usage")),
    )


def _asked(given: dict[str, Any]) -> dict[str, Json]:
    asked: dict[str, Json] = {}
    for name, value in given.items():
        if name in SAME_NAME:
            asked[name] = value
        elif name in ("max_tokens", "max_completion_tokens"):
            if type(value) is not int or value < 1:
                raise RequestRefused(f"{name} must be a whole number of at least 1", param=name)
            asked[MAX_NEW_TOKENS] = value
        elif name == "seed":
            asked["sampling_seed"] = value
        elif name == "parallel_tool_calls" and isinstance(value, bool):
            if not value:
                asked[ONE_CALL] = True
        elif name == "response_format":
            asked |= _grammar(value)
        elif name not in WITHOUT_EFFECT and value not in NEUTRAL.get(name, ()):
            known = f"it can be {NEUTRAL[name][0]!r} only" if name in NEUTRAL else "it is not supported here"
            raise RequestRefused(f"{name} is {str(value)[:80]!r}: {known}", param=name, code="unsupported_parameter")
    sampling = {name: value for name, value in asked.items() if name not in (MAX_NEW_TOKENS, ONE_CALL)}
    if why := objection(sampling, 1 << 30):
        raise RequestRefused(why)
    try:
        plain(asked, "the request")  # it is journaled
    except ContractError as e:
        raise RequestRefused(str(e)) from e
    return asked


def _grammar(value: Any) -> dict[str, Json]:
    """A response_format as the engine's grammar."""
    kind = value.get("type") if isinstance(value, dict) else None
    if kind == "text":
        return {}
    if kind == "json_object":
        return {"json_schema": '{"type":"object"}'}
    schema = value.get("json_schema") if kind == "json_schema" else None
    if not isinstance(schema, dict) or not isinstance(schema.get("schema"), dict):
        raise RequestRefused(
            "response_format must be text, json_object, or json_schema with a schema", param="response_format"
        )
    return {"json_schema": json.dumps(schema["schema"], sort_keys=True)}


def _tools(tools: Any) -> list[Json]:
    if not isinstance(tools, list):
        raise RequestRefused("tools must be a list", param="tools")
    shown = []
    for tool in tools:
        function = tool.get("function") if isinstance(tool, dict) and tool.get("type") == "function" else None
        if not isinstance(function, dict):
            raise RequestRefused('a tool is {"type": "function", "function": {...}}', param="tools")
        kept = {name: value for name, value in function.items() if name not in UNSEEN and value is not None}
        shown.append({"type": "function", "function": kept})
    try:
        return checked_schemas(plain(shown, "they are"))
    except (ContractError, TypeError, ValueError) as e:
        raise RequestRefused(f"tools: {e}", param="tools") from e


def _message(message: Any, where: str) -> Message:
    if not isinstance(message, dict):
        raise RequestRefused(f"{where} is no JSON object", param=where)
    given = {name: value for name, value in message.items() if value is not None and value != []}
    role = given.get("role")
    if not isinstance(role, str) or role not in ROLES:
        raise RequestRefused(f"{where} has the role {role!r}; there is {', '.join(sorted(ROLES))}", param=where)
    if "reasoning" in given:  # what OpenRouter and vLLM call it
        given.setdefault("reasoning_content", given.pop("reasoning"))
    if unknown := sorted(given.keys() - KNOWN_KEYS - IGNORED_KEYS):
        raise RequestRefused(f"{where} has {unknown[0]}, which is not supported here", param=f"{where}.{unknown[0]}")
    read: Message = {"role": "system" if role == "developer" else role, "content": _text(given.get("content"), where)}
    for key in ("name", "tool_call_id", "reasoning_content"):
        if key in given:
            if not isinstance(given[key], str):
                raise RequestRefused(f"{where}.{key} must be a string", param=f"{where}.{key}")
            read[key] = given[key]
    if "tool_calls" in given:
        read["tool_calls"] = [_call(call, where) for call in _list(given["tool_calls"], where)]
    return read


def _text(content: Any, where: str) -> str:
    """A content as one string; parts of text are joined."""
    if content is None or isinstance(content, str):
        return content or ""
    parts = _list(content, where)
    if not all(
        isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str) for part in parts
    ):
        raise RequestRefused(f"{where}: only text is supported here, no images, sound or files", param=where)
    return "".join(part["text"] for part in parts)


def _call(call: Any, where: str) -> Json:
    function = call.get("function") if isinstance(call, dict) else None
    id = call.get("id") if isinstance(call, dict) else None
    texts = (id, *(function.get(name) for name in ("name", "arguments"))) if isinstance(function, dict) else (None,)
    if not isinstance(function, dict) or not all(isinstance(text, str) for text in texts):
        raise RequestRefused(f"{where}: a tool call has an id and a function with name and arguments", param=where)
    return {
        "id": id,
        "type": "function",
        "function": {"name": function["name"], "arguments": function["arguments"]},
    }


def _list(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise RequestRefused(f"{where} has {str(value)[:80]!r} where a list belongs", param=where)
    return value


def chain(tools: Sequence[Json]) -> bytes:
    """The digest of a conversation without messages, which has these tools."""
    return _digest(b"", json.dumps(list(tools), sort_keys=True))


def longer(before: bytes, message: Message) -> bytes:
    """The digest of the conversation of digest `before` and one more message.

    Frameworks write the model's own turns back with other white space around them and in arguments, and without the
    reasoning. What was sampled is known by its ids, so none of this makes it another message.
    """
    return _digest(before, json.dumps(_normal(message), sort_keys=True))


def _normal(message: Message) -> Json:
    if message["role"] != "assistant":
        return dict(message)
    calls = [
        [call["id"], call["function"]["name"], _arguments(call["function"]["arguments"])]
        for call in message.get("tool_calls", ())
    ]
    return {"role": "assistant", "content": message["content"].strip(), "calls": calls}


def _arguments(text: str) -> Json:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _digest(before: bytes, text: str) -> bytes:
    return hashlib.blake2b(before + text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def chains(tools: Sequence[Json], messages: Sequence[Message]) -> list[bytes]:
    """The digest before the first message, and the one after each."""
    found = [chain(tools)]
    for message in messages:
        found.append(longer(found[-1], message))
    return found


def asked_key(asked: Mapping[str, Json]) -> str:
    """What is asked, as one text that is the same for equal requests."""
    return json.dumps(dict(asked), sort_keys=True)
