"""The parts of an engine's answers that both servers share: refusals, and the checks of ids,
logprobs and versions.

The invariants: a `Generated` has one finite logprob for each id, and version spans that tile the
ids. A job is blamed only if the engine looked at its request and refused it. It knows nothing of
connections or retries.
"""

from __future__ import annotations  # array[int] is subscriptable at run time from Python 3.12 on

import json
import math
import re
from array import array
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import orjson

from rollq.errors import JobFailure
from rollq.events import Finish, VersionSpan
from rollq_worker.protocols import Generated, SampleRequest, Scores, Scoring
from rollq_worker.remote.http_client import NoResponse, Response

MAX_MESSAGE = 300
"""Number of characters that are kept of an engine's error message."""
CONTEXT_FULL = re.compile(
    r"context length|maximum allowed length|maximum model length|token count exceeds", re.IGNORECASE
)
CONTEXT_TOKENS = re.compile(
    r"(?:context length|maximum allowed length)\D{0,10}(\d+) tokens|maximum model length of (\d+)",
    re.IGNORECASE,
)
PROMPT_TOKENS = re.compile(
    r"input(?: length)? \((\d+) tokens|(\d+) tokens from the input", re.IGNORECASE
)
ADAPTER_MISSING = re.compile(
    "Got LoRA adapter that has never been loaded|The following requested LoRA adapters are not "
    "loaded|Failed to implicitly load LoRA adapter|LoRA adapter '.*' was requested, but LoRA is "
    "not enabled"
)
"""Beginnings of these messages. The engine itself loads a name again that was unloaded, which may
fail.
"""
BUSY = frozenset({429, 503})
NOT_THE_REQUEST = BUSY | {401, 403, 404, 405, 407}
"""Statuses that blame the engine or the way to it, as redirects do, and never this request."""


class EngineUnavailable(Exception):
    """The engine takes no requests now: wait for it. `unreachable`: no server answers at its
    address. `foreign`: the answer may be another server's, such as a proxy's.
    """

    def __init__(self, message: str, *, unreachable: bool = False, foreign: bool = False) -> None:
        super().__init__(message)
        self.unreachable = unreachable
        self.foreign = foreign


class RequestFailed(Exception):
    """The engine did not answer this request as it should: send it again, a bounded number of
    times.
    """


class EngineAborted(RequestFailed):
    """The engine ended this request for a reason of its own."""


class AdapterMissing(Exception):
    """The engine has not loaded the adapter that the request names."""


class ContextExceeded(Exception):
    """The engine's context is shorter than we knew: send the request again for fewer tokens."""

    def __init__(self, message: str, limit: int, prompt: int) -> None:
        super().__init__(message)
        self.limit = limit
        """Limit in tokens; 0 if the engine did not report it."""
        self.prompt = prompt
        """The prompt's tokens, as the engine counts them; 0 when it did not report them."""


def read_refusal(
    response: Response, key: str
) -> EngineUnavailable | RequestFailed | ContextExceeded | AdapterMissing | JobFailure:
    """The error that a status other than 200 means for the job `key`."""
    status = response.status
    error = read_error(response.body)
    message = f"the engine answered {status}: {error}"
    if status in NOT_THE_REQUEST or 300 <= status < 400:
        return EngineUnavailable(message, foreign=status not in BUSY)
    is_refusal = 400 <= status < 500 and status != 408
    if not is_refusal or "duplicate request id" in message.lower():
        return RequestFailed(message)
    if ADAPTER_MISSING.match(error):
        return AdapterMissing(message)
    if CONTEXT_FULL.search(message):
        return _context_exceeded(message)
    return JobFailure(f"{key}: {message}")


def _context_exceeded(message: str) -> ContextExceeded:
    limit = CONTEXT_TOKENS.search(message)
    prompt = PROMPT_TOKENS.search(message)
    limit_tokens = int(limit[1] or limit[2]) if limit else 0
    prompt_tokens = int(prompt[1] or prompt[2]) if prompt else 0
    return ContextExceeded(message, limit_tokens, prompt_tokens)


def nothing_sampled() -> Generated:
    """The reply of a request that was aborted before its first token."""
    return Generated(ids=array("I"), logprobs=array("f"), versions=(), finish=Finish.ABORT)


def parsed(body: bytes) -> Any:
    """Parses JSON. Raises ValueError, RecursionError. orjson is seven times as fast, but rejects
    lone surrogates.
    """
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        return json.loads(body)


def ids_of(value: object) -> array[int]:
    """The ids in a reply. Raises TypeError, OverflowError."""
    if not isinstance(value, list) or not {int}.issuperset(map(type, value)):
        raise TypeError("the output ids are not a list of integers")
    return array("I", value)


def check_ids(ids: array[int], max_new_tokens: int, vocabulary: int) -> None:
    """Raises RequestFailed for more tokens than were allowed, and for an id that no model has."""
    if len(ids) > max_new_tokens:
        raise RequestFailed(f"{len(ids)} tokens were sampled where {max_new_tokens} were allowed")
    if max(ids) >= vocabulary:
        raise RequestFailed(
            f"token id {max(ids)} was sampled, which no model of this tokenizer has"
        )


def checked_logprobs(
    values: Iterable[Any], scored_ids: Sequence[Any], ids: array[int]
) -> array[float]:
    """The logprobs of the ids. Raises RequestFailed for those of other ids, and for numbers that no
    sampler draws a token by; TypeError, OverflowError for other values.
    """
    logprobs = array("f", list(values))
    if list(scored_ids) != ids.tolist():
        raise RequestFailed(
            f"{len(scored_ids)} logprobs do not belong to the {len(ids)} output ids"
        )
    if not math.isfinite(sum(logprobs)):  # the sum of numbers of 32 bits is finite
        raise RequestFailed("a logprob is not finite")
    # Rounding may put a logprob this far above 0.
    if max(logprobs) > 1e-6:
        raise RequestFailed(f"a logprob is above 0: {max(logprobs)}")
    # No softmax lets a sampler draw a token this unlikely: such numbers (-9999, the lowest float)
    # mark masked tokens.
    if min(logprobs) < -1000.0:
        raise RequestFailed(
            f"a sampled token has the logprob {min(logprobs):g}, which marks a masked one"
        )
    return logprobs


def finite(logprobs: Iterable[float]) -> array[float]:
    """array('d'). Raises ValueError for numbers that are not finite, TypeError for none."""
    numbers = array("d", logprobs)
    if not all(map(math.isfinite, numbers)):
        raise ValueError("a logprob is not finite")
    return numbers


def scores_of(
    read: Callable[[Any, array[int], Scoring], Scores], reply: Any, request: SampleRequest
) -> Scores | None:
    """The scores in a reply, read in its server's form; None if none were asked for. Raises
    RequestFailed.
    """
    if request.scoring is None:
        return None
    try:
        return read(reply, request.ids, request.scoring)
    except (TypeError, LookupError, ValueError, OverflowError) as e:
        raise RequestFailed(f"unreadable prompt scores: {type(e).__name__}: {e}") from e


def tiled_versions(reported: Any, otherwise: str, length: int) -> tuple[VersionSpan, ...]:
    """The reported version spans, without empty ones; one of the version `otherwise` where there
    are none. Raises RequestFailed.
    """
    try:
        spans = [_span(span) for span in reported or ()]
    except (TypeError, LookupError) as e:
        raise RequestFailed(f"unreadable weight_versions: {type(e).__name__}: {e}") from e
    filled = tuple(span for span in spans if span.start < span.end)
    if not filled:
        filled = (VersionSpan(otherwise, 0, length),)
    reached = 0
    for span in filled:
        if span.start != reached:
            break
        reached = span.end
    if reached != length:
        ranges = [(span.version, span.start, span.end) for span in spans]
        raise RequestFailed(f"weight_versions {clip(ranges)} do not tile {length} tokens")
    return filled


def _span(reported: Any) -> VersionSpan:
    """Raises TypeError, LookupError."""
    version = reported["version"]
    start = reported["start"]
    end = reported["end"]
    if type(version) is not str or type(start) is not int or type(end) is not int:
        raise TypeError("a span needs a name and two integers")
    return VersionSpan(version, start, end)


def json_of(path: str, response: Response) -> object:
    """The JSON of an answer; None if the server does not have the path. Raises NoResponse while the
    engine is away.
    """
    if response.status >= 500:
        raise NoResponse(f"{path} answers {response.status}")
    return response.json() if response.status == 200 else None


def read_error(body: bytes) -> str:
    """The message in an error body, in any of SGLang's shapes or a router's."""
    try:
        reply = json.loads(body)
    except (ValueError, RecursionError):
        return clip(body)
    if not isinstance(reply, dict):
        return clip(body)
    error = reply.get("error", reply)
    message = error if isinstance(error, str) else None
    if isinstance(error, dict):
        message = error.get("message") or error.get("detail")
    if not isinstance(message, str):
        return clip(body)
    # The server's file paths follow the message of a validation error.
    return clip(message.split("\n\n  File ")[0])


def clip(value: object) -> str:
    """A value from an engine as one line of bounded length."""
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
    text = " ".join(text.split())
    if len(text) <= MAX_MESSAGE:
        return text
    return text[:MAX_MESSAGE] + " ..."
