"""One request of an agent program, in the form that all dialects are read into.

It knows no tokens and no HTTP.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import orjson

from rollq.events import Message
from rollq.job import Job, Json

MAX_NEW_TOKENS, ONE_CALL, FORCED_CALL = "max_new_tokens", "one_call", "tool_choice"
"""Entries of `TurnRequest.options` that are no sampling parameters. A forced call is recorded and
has no effect.
"""
_WRITTEN = json.JSONEncoder(sort_keys=True).encode


class RequestRefused(Exception):
    """A request that is answered with an error."""

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        status: int = 400,
    ) -> None:
        super().__init__(message)
        self.param = param
        self.code = code
        self.status = status


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRequest:
    """A request for one turn."""

    messages: Sequence[Message]
    """In normal form: content is a string, and keys without a value are left out."""
    tools: list[Json]
    """Schemas in OpenAI's form, as the chat template shows them."""
    options: Mapping[str, Json]
    """Options beside messages and tools: sampling parameters by the engine's names, MAX_NEW_TOKENS,
    ONE_CALL, FORCED_CALL.
    """
    stream: bool = False
    usage: bool = False
    """A stream ends with the number of tokens."""
    repeated: Mapping[str, Json] = field(default_factory=dict)
    """Parts of the request that the reply repeats."""
    digests: Sequence[bytes] = field(init=False)
    """Of the conversation before the first message, and after each. Made once, in the request's own
    thread.
    """

    def __post_init__(self) -> None:
        object.__setattr__(self, "digests", chains(self.tools, self.messages))


def with_options(job: Job, options: Mapping[str, Json]) -> Job:
    """The job with the options of a request. A turn is never longer than the job's own. Raises
    ContractError.
    """
    if not options:
        return job
    longest = job.budget.max_new_tokens
    wanted = options.get(MAX_NEW_TOKENS, longest)
    budget = replace(job.budget, max_new_tokens=min(longest, wanted))
    sampling = {**job.sampling, **sampling_of(options)}
    return replace(job, sampling=sampling, budget=budget)


def sampling_of(options: Mapping[str, Json]) -> dict[str, Json]:
    """The sampling parameters among the options of a request."""
    own = (MAX_NEW_TOKENS, ONE_CALL, FORCED_CALL)
    return {name: value for name, value in options.items() if name not in own}


def longer(before: bytes, message: Message) -> bytes:
    """The digest of the conversation of digest `before` and one more message.

    Frameworks write the model's own turns back with other white space around them and in arguments,
    and without the reasoning. Sampled turns are known by their ids, so none of this makes another
    message of them.
    """
    text = orjson.dumps(_normal(message), option=orjson.OPT_SORT_KEYS)
    return _digest(before, text)


def _normal(message: Message) -> Json:
    if message["role"] != "assistant":
        return dict(message)
    calls = [
        [call["id"], call["function"]["name"], _arguments(call["function"]["arguments"])]
        for call in message.get("tool_calls", ())
    ]
    return {"role": "assistant", "content": message["content"].strip(), "calls": calls}


def _arguments(text: str) -> str:
    try:
        return _WRITTEN(json.loads(text))
    except (ValueError, RecursionError):
        return text


def _digest(before: bytes, text: bytes) -> bytes:
    return hashlib.blake2b(before + text, digest_size=16).digest()


def chains(tools: Sequence[Json], messages: Sequence[Message]) -> list[bytes]:
    """The digest before the first message, and the one after each."""
    digests = [_digest(b"", _WRITTEN(list(tools)).encode())]
    for message in messages:
        digests.append(longer(digests[-1], message))
    return digests


def options_key(options: Mapping[str, Json]) -> str:
    """The options as one text that is the same for equal requests."""
    return _WRITTEN(dict(options))
