"""One request of an agent program, in the form that all dialects are read into.

It knows no tokens and no HTTP.
"""

import hashlib
import json
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce

import orjson

from rollq.events import Message, Prompt
from rollq.job import Job, Json

MAX_NEW_TOKENS, ONE_CALL, FORCED_CALL = "max_new_tokens", "one_call", "tool_choice"
"""Entries of `TurnRequest.options` that are not sampling parameters. A forced call is recorded and
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
    """Messages in normal form: content is a string, and keys without a value are left out."""
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
    model: str = ""
    """The one of `Job.models` that it is for; "" for the policy."""
    digests: Sequence[bytes] = ()
    """Digests of the conversation before the first message, and after each, by
    `TraceTree.recognised`.
    """

    @property
    def texts(self) -> list[str]:
        """Texts that the model is shown, without reasoning, which most templates leave out."""
        texts = [json.dumps(self.tools, ensure_ascii=False)]
        for message in self.messages:
            texts.append(message["content"])
            texts += [call["function"]["arguments"] for call in message.get("tool_calls", ())]
        return texts


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
    """The digest of the conversation of digest `before` and one more message, whose reasoning does
    not count: few frameworks write it back.
    """
    counted = {key: value for key, value in message.items() if key != "reasoning_content"}
    return _digest(before, orjson.dumps(counted, option=orjson.OPT_SORT_KEYS))


def likeness(before: bytes, reply: Message) -> bytes:
    """The digest that a turn of the model behind the conversation of digest `before` keeps when a
    client rewrites it: the ids of its calls, or its words.

    Clients fill in the defaults of arguments, write numbers and white space their own way, and drop
    the text beside calls.
    """
    ids = sorted(call["id"] for call in reply.get("tool_calls", ()))
    words = unicodedata.normalize("NFC", reply["content"]).split()
    return _digest(before, orjson.dumps([ids, [] if ids else words]))


def _digest(before: bytes, text: bytes) -> bytes:
    return hashlib.blake2b(before + text, digest_size=16).digest()


def opening_digest(tools: Sequence[Json], model: str) -> bytes:
    """The digest of a conversation with this one of `Job.models`, before its first message."""
    return _digest(model.encode(), orjson.dumps(list(tools), option=orjson.OPT_SORT_KEYS))


def digest_of(prompt: Prompt) -> bytes:
    """The digest of the conversation of a prompt."""
    return reduce(longer, prompt.messages, opening_digest(prompt.tools, prompt.model))


def options_key(options: Mapping[str, Json]) -> str:
    """The options as one text that is the same for equal requests."""
    return _WRITTEN(dict(options))
