"""Values to bytes and back: jobs, and the headers and events of journals. docs/wire.md has the layout byte by byte.

The invariant: what is decoded equals what was encoded, or a ContractError names the job. Every blob is a msgpack array
that starts with the schema's version and its kind. Token ids, logprobs and texts are compressed, each apart, and
texts are read when they are first asked for. It knows nothing of Redis. Of a trajectory it checks only the types and
the order of events.
"""

from __future__ import annotations  # array[int] is subscriptable at run time from Python 3.12 on

import hashlib
import json
import math
import zlib
from array import array
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from rollq.deferred_texts import without_texts
from rollq.errors import ContractError, FailureClass
from rollq.job import Budget, History, Job, Json, Purpose
from rollq.trajectory import (
    GRADED,
    Closed,
    Event,
    Finish,
    Header,
    Observed,
    Prompt,
    Sampled,
    Stop,
    Trajectory,
    VersionSpan,
)
from rollq.wire.blob import (
    DIGEST,
    SCHEMA,
    defer,
    dump,
    dump_ids,
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

MAX_LABELS = 2048
"""Most bytes of a job's packed labels."""


def encode_job(job: Job) -> bytes:
    """The job's blob. Raises ContractError when its mappings hold what JSON cannot say."""
    return pack([SCHEMA, "job", *_content(job).values(), job.seq, *_later(job)], job.id)


_JOB = ("run", "group", "sample", "env", "split", "task", "env_args", "agent", "agent_args", "user", "sampling")
"""The first fields of a job, in the order of the wire."""
_LATER = ("spare", "template_kwargs", "routed_experts", "reward", "reward_args")
"""Fields that the schema got later. A map at the end of the blob has those that are not 0 or empty."""


def decode_job(blob: bytes, id: str | None = None) -> Job:
    """The job in a blob. Raises UnknownSchema or ContractError; with `id`, also when the blob is another job's."""
    where = f"job {id}" if id else "a job"
    fields = unpack(blob, "job", 20, where, optional=1)
    try:
        *content, budget, purpose, seed, size, min_viable, history, queue, labels, seq = fields[:20]
        max_turns, max_tokens, max_new_tokens, deadline_s = budget
        job = Job(
            **dict(zip(_JOB, content, strict=True)),
            budget=Budget(
                max_turns=max_turns, max_tokens=max_tokens, max_new_tokens=max_new_tokens, deadline_s=deadline_s
            ),
            purpose=Purpose(purpose),
            seed=seed,
            size=size,
            min_viable=min_viable,
            history=History(history),
            queue=queue,
            labels=labels,
            seq=seq,
            **_read_later(fields[20:], where),
        )
    except ContractError as e:
        raise ContractError(f"{where}: {e}") from e
    except (TypeError, ValueError) as e:
        raise ContractError(f"{where}: unreadable job: {type(e).__name__}: {e}") from e
    if id is not None and job.id != id:
        raise ContractError(f"{where}: the blob is that of job {job.id}")
    return job


def job_digest(job: Job) -> bytes:
    """The first 16 bytes of the sha256 of the job's content: everything but `seq`, whatever order its mappings are
    in."""
    text = json.dumps([*_content(job).values(), *_later(job)], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).digest()[:DIGEST]


def encode_header(header: Header, job_id: str = "?") -> bytes:
    """The header's blob: entry 0 of a journal. Raises ContractError."""
    where = f"job {job_id}: header"
    *texts, kwargs, at = (getattr(header, name) for name in _HEADER)
    blob = pack([SCHEMA, "header", *texts, plain(kwargs, where), float(at)], where)
    decode_header(blob, job_id)
    return blob


def decode_header(blob: bytes, job_id: str = "?") -> Header:
    where = f"job {job_id}: header"
    fields = unpack(blob, "header", 10, where)
    attempt, *texts, kwargs, at = fields
    if type(attempt) is not int or attempt < 0 or type(at) is not float:
        wrong(where, "attempt or at", fields)
    for text in texts:
        if type(text) is not str:
            wrong(where, "a text", text)
    if type(kwargs) is not dict:
        wrong(where, "template_kwargs", kwargs)
    return Header(**dict(zip(_HEADER, fields, strict=True)))


_HEADER: tuple[str, ...] = Header.__slots__  # in the order of the wire, which a test pins


def encode_event(event: Event, job_id: str) -> bytes:
    """The event's blob. What `decode_event` would refuse is refused here, so nothing unreadable is ever journaled.

    Raises ContractError.
    """
    where = f"job {job_id}"
    try:
        match event:
            case Sampled():
                spans = [[span.version, span.start, span.end] for span in event.versions]
                _check_sampled(event.turn, event.ids, event.logprobs, spans, event.cached_tokens, where)
                ids, logprobs = dump_ids(event.ids, where), pack_bytes(dump(event.logprobs, "f", where))
                fields = [event.turn, ids, logprobs, spans, Finish(event.finish), pack_texts([event.text], where)]
                fields += [event.cached_tokens, float(event.at), float(event.seconds)]
            case Observed():
                _check_observed(event.turn, event.extra_calls, event.done, where)
                texts = [event.message, event.actions, event.replies, event.errors]
                fields = [event.turn, dump_ids(event.ids, where), pack_texts(texts, where)]
                fields += [event.extra_calls, event.done, float(event.at), float(event.seconds)]
            case Prompt():
                texts = [event.messages, event.tools]
                fields = [dump_ids(event.ids, where), pack_texts(texts, where), float(event.at)]
            case Closed():
                reward = event.reward if type(event.reward) is not int else float(event.reward)
                _check_closed(event.stop, reward, where)
                failure = None if event.failure is None else FailureClass(event.failure)
                fields = [event.stop, reward, failure, pack_texts([event.info], where), float(event.at)]
    except (TypeError, ValueError) as e:
        raise ContractError(
            f"{where}: this {type(event).__name__.lower()} event is none: {type(e).__name__}: {e}"
        ) from e
    return pack([SCHEMA, type(event).__name__.lower(), *fields], where)


def decode_event(blob: bytes, job_id: str) -> Event:
    """The event, with its texts still packed. They are read when first asked for, and may then raise ContractError."""
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
        raise ContractError(f"{where}: unreadable {fields[1]} event: {type(e).__name__}: {e}") from e


def is_observed(blob: bytes) -> bool:
    """Whether a blob is an `Observed`, which ends a turn. The event is not decoded."""
    return blob[2:11] == b"\xa8observed"


def read_trajectory(job: Job, header: bytes | Header, events: Sequence[bytes]) -> Trajectory:
    """A trajectory from its job and its journal's blobs.

    Raises ContractError; also for events out of order: a `Prompt` comes first, a `Closed` last or not at all.
    """
    job_id = job.id
    decoded = [decode_event(event, job_id) for event in events]
    if decoded and not isinstance(decoded[0], Prompt) and not (len(decoded) == 1 and isinstance(decoded[0], Closed)):
        raise ContractError(f"job {job_id}: the first event is a {type(decoded[0]).__name__}, not a Prompt")
    if any(isinstance(event, Closed) for event in decoded[:-1]):
        raise ContractError(f"job {job_id}: an event follows Closed")
    head = header if isinstance(header, Header) else decode_header(header, job_id)
    return Trajectory(job=job, header=head, events=decoded)


def _content(job: Job) -> dict[str, Json]:
    """The job's content as plain JSON values, in the order of the wire."""
    where = f"job {job.id}"
    budget = job.budget
    labels = plain(job.labels, where)
    if labels and (size := len(pack(labels, where))) > MAX_LABELS:
        raise ContractError(f"{where}: labels of {size} bytes: at most {MAX_LABELS} travel with a job")
    return {
        "run": job.run,
        "group": job.group,
        "sample": job.sample,
        "env": job.env,
        "split": job.split,
        "task": job.task,
        "env_args": plain(job.env_args, where),
        "agent": job.agent,
        "agent_args": plain(job.agent_args, where),
        "user": plain(job.user, where),
        "sampling": plain(job.sampling, where),
        "budget": [budget.max_turns, budget.max_tokens, budget.max_new_tokens, float(budget.deadline_s)],
        "purpose": job.purpose.value,
        "seed": job.seed,
        "size": job.size,
        "min_viable": job.min_viable,
        "history": job.history.value,
        "queue": job.queue,
        "labels": labels,
    }


def _later(job: Job) -> list[dict[str, Json]]:
    """The map of the later fields; nothing when it is empty, so that blobs and digests of older jobs stay the same."""
    later = {name: plain(value, f"job {job.id}: {name}") for name in _LATER if (value := getattr(job, name))}
    return [later] if later else []


def _read_later(fields: list[Any], where: str) -> dict[str, Any]:
    for later in fields:
        if type(later) is not dict or not later or not later.keys() <= set(_LATER):
            wrong(where, "map of later fields", later)
    return fields[0] if fields else {}


_PROMPT_TEXTS = (("messages", list), ("tools", list))
_SAMPLED_TEXTS = (("text", str),)
_OBSERVED_TEXTS = (("message", dict), ("actions", list), ("replies", list), ("errors", list))
_CLOSED_TEXTS = (("info", dict),)


def _prompt(fields: list[Any], where: str) -> Prompt:
    _, _, ids, texts, at = fields
    if type(at) is not float:
        wrong(where, "prompt", fields)
    return _new_prompt(load_ids(ids), at, defer(texts, _PROMPT_TEXTS, where))


def _sampled(fields: list[Any], where: str) -> Sampled:
    _, _, turn, ids, logprobs, spans, finish, texts, cached_tokens, at, seconds = fields
    if type(at) is not float or type(seconds) is not float:
        wrong(where, "time of a sampled event", [at, seconds])
    tokens, floats = load_ids(ids), load("f", unpack_bytes(logprobs))
    finish = _FINISH[finish] if finish in _FINISH else Finish(finish)
    _check_sampled(turn, tokens, floats, spans, cached_tokens, where)
    versions = tuple([_span(*span) for span in spans])
    read = defer(texts, _SAMPLED_TEXTS, where)
    return _new_sampled(turn, tokens, floats, versions, finish, cached_tokens, at, seconds, read)


_span = lru_cache(4096)(VersionSpan)  # most turns are one span, so equal ones are the same object
_FINISH = {finish.value: finish for finish in Finish}  # five times as fast as calling the enum


def _check_sampled(
    turn: Any, ids: array[int], logprobs: array[float], spans: Any, cached_tokens: Any, where: str
) -> None:
    """Check what holds on both ways of the wire: the spans tile the ids, and each id has a finite logprob."""
    length, end = len(ids), 0
    if not (type(turn) is int and turn >= 0 and type(cached_tokens) is int):
        wrong(where, "sampled", [turn, cached_tokens])
    if len(logprobs) != length:
        raise ContractError(f"{where}: turn {turn} has {length} sampled tokens and {len(logprobs)} logprobs")
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
    raise ContractError(f"{where}: turn {turn}: version spans {spans!r} do not tile {length} tokens")


def _observed(fields: list[Any], where: str) -> Observed:
    _, _, turn, ids, texts, extra_calls, done, at, seconds = fields
    if type(at) is not float or type(seconds) is not float:
        wrong(where, "time of an observed event", [at, seconds])
    _check_observed(turn, extra_calls, done, where)
    return _new_observed(turn, load_ids(ids), extra_calls, done, at, seconds, defer(texts, _OBSERVED_TEXTS, where))


def _check_observed(turn: Any, extra_calls: Any, done: Any, where: str) -> None:
    if not (type(turn) is int and turn >= 0 and type(extra_calls) is int and type(done) is bool):
        wrong(where, "observed", [turn, extra_calls, done])


def _closed(fields: list[Any], where: str) -> Closed:
    _, _, stop, reward, failure, texts, at = fields
    stop = Stop(stop)
    _check_closed(stop, reward, where)
    if type(at) is not float:
        wrong(where, "time of a closed event", at)
    failure = None if failure is None else FailureClass(failure)
    return _new_closed(stop, reward, failure, at, defer(texts, _CLOSED_TEXTS, where))


def _check_closed(stop: Stop, reward: Any, where: str) -> None:
    if reward is not None and (type(reward) is not float or not math.isfinite(reward)):
        raise ContractError(f"{where}: the reward must be a finite number, not {reward!r}")
    if (reward is None) is (Stop(stop) in GRADED):
        raise ContractError(f"{where}: stop {stop.value} with reward {reward!r}: exactly graded stops carry a reward")


_new_prompt = without_texts(Prompt, "ids", "at")
_new_sampled = without_texts(Sampled, "turn", "ids", "logprobs", "versions", "finish", "cached_tokens", "at", "seconds")
_new_observed = without_texts(Observed, "turn", "ids", "extra_calls", "done", "at", "seconds")
_new_closed = without_texts(Closed, "stop", "reward", "failure", "at")

_EVENTS: dict[str, Callable[[list[Any], str], Event]] = {
    "prompt": _prompt,
    "sampled": _sampled,
    "observed": _observed,
    "closed": _closed,
}
