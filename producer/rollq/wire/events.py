"""Events as msgpack arrays, checked where they are read.

What is written was checked where it came in: a sampled event in the engine's reply, a grade at the
end of the episode. It knows nothing of jobs, headers and the order of events.
"""

from __future__ import annotations  # array[int] is subscriptable at run time from Python 3.12 on

import math
import zlib
from array import array
from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeVar

from rollq.errors import ContractError, FailureClass
from rollq.events import (
    GRADED,
    Acted,
    Closed,
    DeferredTexts,
    Event,
    Finish,
    Observed,
    Prompt,
    Replied,
    Sampled,
    Stop,
    VersionSpan,
)
from rollq.wire.blob import (
    SCHEMA,
    defer,
    dump,
    dump_ids,
    heading,
    load,
    load_ids,
    pack,
    pack_bytes,
    pack_texts,
    plain,
    unpack,
    unpack_bytes,
    wrong,
)
from rollq.wire.extras import decode_extra, encode_extra


def encode_event(event: Event, job_id: str) -> bytes:
    """The event's blob. Raises ContractError for what has no form on the wire, as a text that is a
    set.
    """
    where = f"job {job_id}"
    match event:
        case Sampled():
            spans = [[span.version, span.start, span.end] for span in event.versions]
            ids, logprobs = dump_ids(event.ids, where), pack_bytes(dump(event.logprobs, "f", where))
            fields = [
                event.turn,
                ids,
                logprobs,
                spans,
                event.finish,
                pack_texts([event.text], where),
            ]
            experts = None if event.experts is None else encode_extra(event.experts, where)
            fields += [event.cached_tokens, float(event.at), float(event.seconds)]
            fields += [event.trace, plain(event.asked, where), experts]
        case Observed():
            texts = [event.message, event.actions, event.replies, event.errors]
            fields = [event.turn, dump_ids(event.ids, where), pack_texts(texts, where)]
            fields += [event.extra_calls, event.done, float(event.at), float(event.seconds)]
            fields.append(event.trace)
        case Prompt():
            texts = [event.messages, event.tools]
            fields = [dump_ids(event.ids, where), pack_texts(texts, where), float(event.at)]
            fields += [event.model] if event.model else []
        case Acted():
            texts = [event.action, event.text]
            fields = [pack_texts(texts, where), event.done, float(event.at), float(event.seconds)]
        case Replied():
            fields = [event.model, event.request, dump_ids(event.ids, where), event.finish]
            fields += [pack_texts([event.text], where), float(event.at), float(event.seconds)]
        case Closed():
            reward = None if event.reward is None else float(event.reward)
            fields = [
                event.stop,
                reward,
                event.failure,
                pack_texts([event.info], where),
                float(event.at),
            ]
    return pack([SCHEMA, type(event).__name__.lower(), *fields], where)


def decode_event(blob: bytes, job_id: str) -> Event:
    """The event, with its texts still packed. They are read when first asked for, and may then
    raise ContractError.
    """
    where = f"job {job_id}"
    fields = unpack(blob, "event", None, where)
    decode = _EVENTS.get(fields[1]) if len(fields) > 1 and type(fields[1]) is str else None
    if decode is None:
        raise ContractError(f"{where}: {str(fields[1:2])[:80]} is not a known kind of event")
    try:
        return decode(fields, where)
    except ContractError:
        raise
    except (TypeError, ValueError, zlib.error) as e:
        raise ContractError(
            f"{where}: unreadable {fields[1]} event: {type(e).__name__}: {e}"
        ) from e


def is_observed(blob: bytes) -> bool:
    """True if a blob is an `Observed`, which ends a turn. The event is not decoded."""
    return bool(heading(blob)[1] == "observed")


def _prompt(fields: list[Any], where: str) -> Prompt:
    _, _, ids, texts, at, *named = fields
    model = named[0] if named else ""
    if type(at) is not float or type(model) is not str or len(named) > 1:
        wrong(where, "prompt", fields)
    return _new_prompt(load_ids(ids), at, model, defer(texts, where, messages=list, tools=list))


def _sampled(fields: list[Any], where: str) -> Sampled:
    _, _, turn, ids, logprobs, spans, finish, texts, *numbers, trace, asked, blob = fields
    cached_tokens, at, seconds = numbers
    if type(at) is not float or type(seconds) is not float:
        wrong(where, "time of a sampled event", [at, seconds])
    tokens, floats = load_ids(ids), load("f", unpack_bytes(logprobs))
    finish = _FINISH[finish] if finish in _FINISH else Finish(finish)
    _check_sampled(turn, tokens, floats, spans, cached_tokens, where)
    versions = tuple([_span(*span) for span in spans])
    read = defer(texts, where, text=str)
    _check_trace(trace, where)
    if type(asked) is not dict:
        wrong(where, "asked", asked)
    experts = None if blob is None else decode_extra(blob, where)
    return _new_sampled(
        turn,
        tokens,
        floats,
        versions,
        finish,
        cached_tokens,
        at,
        seconds,
        trace,
        asked,
        experts,
        read,
    )


_span = lru_cache(4096)(VersionSpan)  # most turns are one span, so equal ones are the same object
_FINISH = {finish.value: finish for finish in Finish}  # five times as fast as calling the enum


def _check_sampled(
    turn: Any, ids: array[int], logprobs: array[float], spans: Any, cached_tokens: Any, where: str
) -> None:
    """Checks that the spans tile the ids, and that each id has a finite logprob."""
    length = len(ids)
    end = 0
    if not (type(turn) is int and turn >= 0 and type(cached_tokens) is int):
        wrong(where, "sampled", [turn, cached_tokens])
    if len(logprobs) != length:
        raise ContractError(
            f"{where}: turn {turn} has {length} sampled tokens and {len(logprobs)} logprobs"
        )
    if not math.isfinite(sum(logprobs)):  # f32s cannot overflow a double
        raise ContractError(f"{where}: turn {turn} has a logprob that is not finite")
    for version, start, stop in spans:
        if type(version) is not str or type(start) is not int or type(stop) is not int:
            wrong(f"{where}: turn {turn}", "version span", [version, start, stop])
        if start != end or stop < start:
            break
        end = stop
    else:
        if end == length:
            return
    raise ContractError(
        f"{where}: turn {turn}: version spans {spans!r} do not tile {length} tokens"
    )


def _observed(fields: list[Any], where: str) -> Observed:
    _, _, turn, ids, texts, extra_calls, done, at, seconds, trace = fields
    if type(at) is not float or type(seconds) is not float:
        wrong(where, "time of an observed event", [at, seconds])
    if not (type(turn) is int and turn >= 0 and type(extra_calls) is int and type(done) is bool):
        wrong(where, "observed", [turn, extra_calls, done])
    _check_trace(trace, where)
    read = defer(texts, where, message=dict, actions=list, replies=list, errors=list)
    return _new_observed(turn, load_ids(ids), extra_calls, done, at, seconds, trace, read)


def _check_trace(trace: Any, where: str) -> None:
    if trace is not None and not (type(trace) is int and trace >= 0):
        wrong(where, "trace", trace)


def _acted(fields: list[Any], where: str) -> Acted:
    _, _, texts, done, at, seconds = fields
    if type(done) is not bool or type(at) is not float or type(seconds) is not float:
        wrong(where, "acted", [done, at, seconds])
    return _new_acted(done, at, seconds, defer(texts, where, action=dict, text=str))


def _replied(fields: list[Any], where: str) -> Replied:
    _, _, model, request, ids, finish, texts, at, seconds = fields
    if type(model) is not str or type(request) is not str:
        wrong(where, "replied", [model, request])
    if type(at) is not float or type(seconds) is not float:
        wrong(where, "time of a replied event", [at, seconds])
    read = defer(texts, where, text=str)
    return _new_replied(model, request, load_ids(ids), Finish(finish), at, seconds, read)


def _closed(fields: list[Any], where: str) -> Closed:
    _, _, stop, reward, failure, texts, at = fields
    stop = Stop(stop)
    if reward is not None and (type(reward) is not float or not math.isfinite(reward)):
        raise ContractError(f"{where}: the reward must be a finite number, not {reward!r}")
    if (reward is None) is (stop in GRADED):
        raise ContractError(
            f"{where}: stop {stop.value} with reward {reward!r}: exactly graded "
            "stops carry a reward"
        )
    if type(at) is not float:
        wrong(where, "time of a closed event", at)
    failure = None if failure is None else FailureClass(failure)
    return _new_closed(stop, reward, failure, at, defer(texts, where, info=dict))


E = TypeVar("E", bound=DeferredTexts)


def _without_texts(kind: type[E], *names: str) -> Callable[..., E]:
    """A function that makes an event of the values of these fields and, last, of what reads its
    texts.
    """
    setters = [getattr(kind, name).__set__ for name in (*names, "_read")]

    def make(*values: Any) -> E:
        event = object.__new__(kind)
        for setter, value in zip(setters, values, strict=True):
            setter(event, value)
        return event

    return make


_new_prompt = _without_texts(Prompt, "ids", "at", "model")
_new_sampled = _without_texts(
    Sampled,
    *(
        "turn",
        "ids",
        "logprobs",
        "versions",
        "finish",
        "cached_tokens",
        "at",
        "seconds",
        "trace",
        "asked",
        "experts",
    ),
)
_new_observed = _without_texts(
    Observed, "turn", "ids", "extra_calls", "done", "at", "seconds", "trace"
)
_new_acted = _without_texts(Acted, "done", "at", "seconds")
_new_replied = _without_texts(Replied, "model", "request", "ids", "finish", "at", "seconds")
_new_closed = _without_texts(Closed, "stop", "reward", "failure", "at")

_EVENTS: dict[str, Callable[[list[Any], str], Event]] = {
    "prompt": _prompt,
    "sampled": _sampled,
    "observed": _observed,
    "acted": _acted,
    "replied": _replied,
    "closed": _closed,
}
