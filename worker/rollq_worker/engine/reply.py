"""What an SGLang server answers, read strictly: a reply becomes a `Generated`, an error body one readable line.

The invariant: what leaves this module has one finite logprob for each id, and version spans that tile the ids; all
else leaves it as ReplyError. It knows nothing of HTTP connections, retries or jobs.
"""

from __future__ import annotations  # array[int] is subscriptable at run time from Python 3.12 on

import json
import math
from array import array
from typing import Any

import orjson

from rollq.trajectory import Finish, VersionSpan
from rollq_worker.protocols import Generated

MAX_MESSAGE = 300
"""Characters of a foreign error message that are worth passing on."""
ANY_ID = 1 << 32
HIGHEST_LOGPROB = 1e-6
"""Rounding may put a logprob this far above 0."""


class ReplyError(ValueError):
    """The reply breaks the engine's contract: retried, then an EngineFailure."""


class AbortError(ReplyError):
    """The engine gave the request up before it sampled anything, for a reason of its own."""

    def __init__(self, message: str, status: int | None) -> None:
        super().__init__(message)
        self.status = status
        """The HTTP status that SGLang files it under: 503 for a full queue or a queue timeout."""


def read_reply(body: bytes, *, rid: str, prompt: int, max_new_tokens: int, vocabulary: int = ANY_ID) -> Generated:
    """The body of a 200 from `/generate`, for request `rid` of `prompt` tokens. Raises ReplyError, nothing else.

    Ids from `vocabulary` on are no model's. A request aborted while it was queued has no ids and comes back as finish
    ABORT, unless the engine gives a reason.
    """
    try:
        reply = _parse(body)
        meta = reply["meta_info"]
        finish = Finish(meta["finish_reason"]["type"])
        ids = _ids(reply["output_ids"])
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as e:
        raise ReplyError(f"not a reply of /generate ({type(e).__name__}: {e}): {_clip(body)}") from e
    if meta.get("id", rid) != rid:
        raise ReplyError(f"this answers another request: {_clip(meta['id'])}")
    if not ids and finish is Finish.ABORT:
        _refuse_reasons(meta["finish_reason"])
        return Generated(ids=ids, logprobs=array("f"), versions=(), finish=finish)
    if not ids:
        raise ReplyError(f"no token was sampled, and yet the reply is finished by {finish.value}")
    seen = meta.get("prompt_tokens", prompt)
    if seen != prompt:
        raise ReplyError(f"the engine saw {_clip(seen)} prompt tokens of {prompt} (does it truncate?)")
    if len(ids) > max_new_tokens:
        raise ReplyError(f"{len(ids)} tokens were sampled where {max_new_tokens} were allowed")
    if max(ids) >= vocabulary:
        raise ReplyError(f"token id {max(ids)} was sampled, which no model of this tokenizer has")
    if meta.get("completion_tokens", len(ids)) != len(ids):
        raise ReplyError(f"{len(ids)} output ids, but completion_tokens is {_clip(meta['completion_tokens'])}")
    text, cached = reply.get("text"), meta.get("cached_tokens")
    return Generated(
        ids=ids,
        logprobs=_logprobs(meta, ids),
        versions=_versions(meta, len(ids)),
        finish=finish,
        text=text if isinstance(text, str) else "",
        cached_tokens=cached if type(cached) is int and 0 <= cached <= prompt else 0,
    )


def _parse(body: bytes) -> Any:
    """Raises ValueError, RecursionError. json holds the interpreter seven times as long, and takes half a character."""
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        return json.loads(body)


def _ids(found: object) -> array[int]:
    """Raises TypeError, OverflowError."""
    if not isinstance(found, list) or not all(type(id) is int for id in found):
        raise TypeError("the output ids are no list of whole numbers")
    return array("I", found)


def _refuse_reasons(reason: dict[str, Any]) -> None:
    status, kind = reason.get("status_code"), reason.get("err_type")
    if status is not None or kind:
        message = (
            f"the engine aborted the request: {_clip(reason.get('message'))} (status {_clip(status)}, {_clip(kind)})"
        )
        raise AbortError(message, status if isinstance(status, int) else None)


def _logprobs(meta: dict[str, Any], ids: array[int]) -> array[float]:
    entries = meta.get("output_token_logprobs")
    if not isinstance(entries, list):
        raise ReplyError("the reply has no output_token_logprobs")
    try:
        logprobs = array("f", [entry[0] for entry in entries])
        scored = [entry[1] for entry in entries]
    except (TypeError, LookupError, OverflowError) as e:
        raise ReplyError(f"unreadable output_token_logprobs: {type(e).__name__}: {e}") from e
    if scored != ids.tolist():
        raise ReplyError(f"{len(scored)} logprobs do not belong to the {len(ids)} output ids")
    if not all(map(math.isfinite, logprobs)):
        raise ReplyError("a logprob is not finite")
    if max(logprobs) > HIGHEST_LOGPROB:
        raise ReplyError(f"a logprob is above 0: {max(logprobs)}")
    return logprobs


def _versions(meta: dict[str, Any], length: int) -> tuple[VersionSpan, ...]:
    """The spans as reported, empty ones left out; older servers only report the last version."""
    try:
        spans = [(span["version"], span["start"], span["end"]) for span in meta.get("weight_versions") or ()]
        if not all(type(name) is str and type(start) is type(end) is int for name, start, end in spans):
            raise TypeError("a span has a name, and whole numbers for its ends")
        kept = tuple(VersionSpan(*span) for span in spans if span[1] < span[2])
    except (TypeError, LookupError) as e:
        raise ReplyError(f"unreadable weight_versions: {type(e).__name__}: {e}") from e
    if not kept:
        kept = (VersionSpan(_clip(meta.get("weight_version", "default")), 0, length),)
    reached = 0
    for span in kept:
        if span.start != reached:
            break
        reached = span.end
    if reached != length:
        raise ReplyError(f"weight_versions {_clip(spans)} do not tile {length} tokens")
    return kept


def read_error(body: bytes) -> str:
    """The message in an error body, whichever of SGLang's shapes (or a router's) it has."""
    try:
        reply = json.loads(body)
    except (ValueError, RecursionError):
        return _clip(body)
    if not isinstance(reply, dict):
        return _clip(body)
    error = reply.get("error", reply)
    message = error if isinstance(error, str) else None
    if isinstance(error, dict):
        message = error.get("message") or error.get("detail")
    if not isinstance(message, str):
        return _clip(body)
    # Validation errors go on with the server's file paths.
    return _clip(message.split("\n\n  File ")[0])


def _clip(said: object) -> str:
    """Something that an engine said, as one line of bounded length."""
    text = " ".join((said.decode("utf-8", "replace") if isinstance(said, bytes) else str(said)).split())
    return text if len(text) <= MAX_MESSAGE else text[:MAX_MESSAGE] + " ..."
