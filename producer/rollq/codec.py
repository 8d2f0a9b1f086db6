"""Values to bytes and back: the wire, the journal and the export's source. docs/wire.md has the layout byte by byte.

The invariant: what is decoded equals what was encoded, or a ContractError names the job. Every blob is a msgpack array
that starts with the schema's version and its kind. Token ids and logprobs are little-endian buffers, so that encoding
and decoding them is a copy; texts are a blob of their own that is only read when somebody asks. It knows nothing of
Redis, and nothing of what a good trajectory is beyond its types.
"""

from __future__ import annotations  # array[int] is subscriptable at run time from Python 3.12 on

import hashlib
import json
import math
import sys
import zlib
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NoReturn

import msgpack

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

SCHEMA = 1
LARGE = 512
"""Bytes of packed texts from which on they are compressed."""
MAX_TEXTS = 256 << 20
"""Bytes that compressed texts may unpack to; more is a bomb, not a conversation."""
MAX_DEPTH = 64
"""Nesting of a job's own mappings."""
BIG_INT = 1
"""msgpack extension: a whole number beyond 64 bits (a policy may write one), two's complement, little-endian."""

_SWAP = sys.byteorder == "big"
_new = object.__new__
_set = object.__setattr__


def encode_job(job: Job) -> bytes:
    """The job's blob. Raises ContractError when its mappings hold what JSON cannot say."""
    return _pack([SCHEMA, "job", *_content(job).values(), job.seq], job.id)


def decode_job(blob: bytes, id: str | None = None) -> Job:
    """Raises ContractError; with `id`, also when the blob is another job's."""
    where = f"job {id}" if id else "a job"
    fields = _unpack(blob, "job", 18, where)
    try:
        *head, budget, purpose, seed, size, min_viable, history, seq = fields
        run, group, sample, env, split, task, env_args, agent, agent_args, user, sampling = head
        max_turns, max_tokens, max_new_tokens, deadline_s = budget
        job = Job(
            run=run,
            group=group,
            sample=sample,
            env=env,
            split=split,
            task=task,
            env_args=env_args,
            agent=agent,
            agent_args=agent_args,
            user=user,
            sampling=sampling,
            budget=Budget(
                max_turns=max_turns, max_tokens=max_tokens, max_new_tokens=max_new_tokens, deadline_s=deadline_s
            ),
            purpose=Purpose(purpose),
            seed=seed,
            size=size,
            min_viable=min_viable,
            history=History(history),
            seq=seq,
        )
    except ContractError as e:
        raise ContractError(f"{where}: {e}") from e
    except (TypeError, ValueError) as e:
        raise ContractError(f"{where}: unreadable job: {type(e).__name__}: {e}") from e
    if id is not None and job.id != id:
        raise ContractError(f"{where}: the blob is that of job {job.id}")
    return job


def job_digest(job: Job) -> str:
    """sha256 of the job's content in hexadecimal: everything but `seq`, whatever order its mappings are in."""
    text = json.dumps(list(_content(job).values()), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def encode_header(header: Header, job_id: str = "?") -> bytes:
    """The header's blob: entry 0 of a journal. Raises ContractError."""
    *texts, at = (getattr(header, name) for name in _HEADER)
    blob = _pack([SCHEMA, "header", *texts, float(at)], f"job {job_id}: header")
    decode_header(blob, job_id)
    return blob


def decode_header(blob: bytes, job_id: str = "?") -> Header:
    where = f"job {job_id}: header"
    fields = _unpack(blob, "header", 9, where)
    attempt, *texts, at = fields
    if type(attempt) is not int or attempt < 0 or type(at) is not float:
        _wrong(where, "attempt or at", fields)
    for text in texts:
        if type(text) is not str:
            _wrong(where, "a text", text)
    return Header(**dict(zip(_HEADER, fields, strict=True)))


_HEADER = (
    "attempt",
    "worker",
    "rollq",
    "env_version",
    "task_hash",
    "template_hash",
    "tokenizer_hash",
    "history",
    "at",
)


def encode_event(event: Event, job_id: str) -> bytes:
    """The event's blob; it is read back once before it leaves, so nothing unreadable is ever journaled."""
    where = f"job {job_id}"
    match event:
        case Sampled():
            spans = [[span.version, span.start, span.end] for span in event.versions]
            ids, logprobs = _dump(event.ids, "I", where), _dump(event.logprobs, "f", where)
            fields = [event.turn, ids, logprobs, spans, event.finish, event.text]
            fields += [event.cached_tokens, float(event.at), float(event.seconds)]
        case Observed():
            texts = [event.message, event.actions, event.replies, event.errors]
            fields = [event.turn, _dump(event.ids, "I", where), _pack_texts(texts, where)]
            fields += [event.extra_calls, event.done, float(event.at), float(event.seconds)]
        case Prompt():
            texts = [event.messages, event.tools]
            fields = [_dump(event.ids, "I", where), _pack_texts(texts, where), float(event.at)]
        case Closed():
            if isinstance(event.reward, bool):
                _wrong(where, "reward", event.reward)
            reward = event.reward if event.reward is None else float(event.reward)
            fields = [event.stop, reward, event.failure, _pack_texts([event.info], where), float(event.at)]
    blob = _pack([SCHEMA, type(event).__name__.lower(), *fields], where)
    decode_event(blob, job_id)
    return blob


def decode_event(blob: bytes, job_id: str) -> Event:
    """The event with its texts still packed: they are read, and may raise ContractError, when first asked for."""
    where = f"job {job_id}"
    fields = _unpack(blob, "event", None, where)
    decode = _EVENTS.get(fields[1]) if len(fields) > 1 and type(fields[1]) is str else None
    if decode is None:
        raise ContractError(f"{where}: {str(fields[1:2])[:80]} is no kind of event")
    try:
        return decode(fields, where)
    except ContractError:
        raise
    except (TypeError, ValueError) as e:
        raise ContractError(f"{where}: unreadable {fields[1]} event: {type(e).__name__}: {e}") from e


def is_observed(blob: bytes) -> bool:
    """Whether an event's blob is that of an `Observed`, the end of a turn, without decoding it."""
    return blob[2:11] == b"\xa8observed"


def encode_trajectory(trajectory: Trajectory) -> bytes:
    """One blob that holds the job's, the header's and the events' blobs, each as in the journal."""
    job_id = trajectory.job.id
    events = [encode_event(event, job_id) for event in trajectory.events]
    return join_trajectory(encode_job(trajectory.job), encode_header(trajectory.header), events)


def join_trajectory(job: bytes, header: bytes, events: Sequence[bytes]) -> bytes:
    """The same from blobs that are encoded already."""
    return _pack([SCHEMA, "trajectory", job, header, list(events)], "a trajectory")


def decode_trajectory(blob: bytes) -> Trajectory:
    """Raises ContractError; also for events out of order: a `Prompt` first, a `Closed` last or not at all."""
    _, _, job, header, events = _unpack(blob, "trajectory", 3, "a trajectory", strip=False)
    if type(job) is not bytes or type(header) is not bytes or type(events) is not list:
        raise ContractError("a trajectory: wants the blobs of a job, a header and events")
    return read_trajectory(decode_job(job), header, events)


def read_trajectory(job: Job, header: bytes | Header, events: Sequence[bytes]) -> Trajectory:
    """A trajectory from its job and its journal's blobs. Raises ContractError as `decode_trajectory` does."""
    job_id = job.id
    decoded = [decode_event(event, job_id) for event in events]
    if decoded and not isinstance(decoded[0], Prompt) and not (len(decoded) == 1 and isinstance(decoded[0], Closed)):
        raise ContractError(f"job {job_id}: the first event is a {type(decoded[0]).__name__}, not a Prompt")
    if any(isinstance(event, Closed) for event in decoded[:-1]):
        raise ContractError(f"job {job_id}: an event follows Closed")
    head = header if isinstance(header, Header) else decode_header(header, job_id)
    return Trajectory(job=job, header=head, events=decoded)


def _content(job: Job) -> dict[str, Json]:
    """Everything that makes the job this job, as plain JSON values in the order of the wire."""
    where = f"job {job.id}"
    budget = job.budget
    return {
        "run": job.run,
        "group": job.group,
        "sample": job.sample,
        "env": job.env,
        "split": job.split,
        "task": job.task,
        "env_args": _plain(job.env_args, where),
        "agent": job.agent,
        "agent_args": _plain(job.agent_args, where),
        "user": _plain(job.user, where),
        "sampling": _plain(job.sampling, where),
        "budget": [budget.max_turns, budget.max_tokens, budget.max_new_tokens, float(budget.deadline_s)],
        "purpose": job.purpose.value,
        "seed": job.seed,
        "size": job.size,
        "min_viable": job.min_viable,
        "history": job.history.value,
    }


def _plain(value: Json, where: str, depth: int = 0) -> Json:
    """A copy in lists and dicts. Raises ContractError for anything that JSON cannot say."""
    if depth > MAX_DEPTH:
        raise ContractError(f"{where}: nested more than {MAX_DEPTH} deep")
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, int):
        if not -(2**63) <= value < 2**64:
            raise ContractError(f"{where}: {value} does not fit in 64 bits")
        return int(value)
    if isinstance(value, float) and math.isfinite(value):
        return float(value)
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise ContractError(f"{where}: the key {key!r} is not a string")
        return {str(key): _plain(item, where, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, where, depth + 1) for item in value]
    raise ContractError(f"{where}: {value!r} ({type(value).__name__}) is nothing that JSON can say")


def _pack(value: Any, where: str) -> bytes:
    try:
        return bytes(msgpack.packb(value, default=_pack_other, unicode_errors="surrogatepass"))
    except (TypeError, ValueError, OverflowError) as e:
        raise ContractError(f"{where}: cannot be encoded: {type(e).__name__}: {e}") from e


def _pack_other(value: Any) -> Any:
    """What msgpack does not know: mappings and sequences of other types, and large whole numbers."""
    if isinstance(value, int):
        return msgpack.ExtType(BIG_INT, value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True))
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Sequence):
        return list(value)
    raise TypeError(f"{type(value).__name__} is nothing that JSON can say")


def _unpack_ext(code: int, data: bytes) -> int:
    if code != BIG_INT:
        raise ValueError(f"unknown msgpack extension {code}")
    return int.from_bytes(data, "little", signed=True)


def _unpack(blob: bytes, kind: str, size: int | None, where: str, strip: bool = True) -> list[Any]:
    """The blob's array: of `size` fields behind version and kind, which are stripped; None: an event, not stripped."""
    try:
        fields = msgpack.unpackb(blob, ext_hook=_unpack_ext, unicode_errors="surrogatepass")
    except Exception as e:  # msgpack's own errors share no base, and some print empty
        raise ContractError(f"{where}: unreadable {kind}: {type(e).__name__}: {e}") from e
    if type(fields) is not list or not fields:
        raise ContractError(f"{where}: unreadable {kind}: not an array that starts with the schema's version")
    if type(fields[0]) is not int or fields[0] != SCHEMA:
        raise ContractError(f"{where}: schema {fields[0]!r} of a {kind}; this rollq reads {SCHEMA}. Upgrade rollq.")
    if size is None:
        return fields
    if len(fields) != size + 2 or fields[1] != kind:
        raise ContractError(f"{where}: {str(fields[1:2])[:80]} with {len(fields)} fields is not a {kind}")
    return fields[2:] if strip else fields


def _dump(buffer: Iterable[Any], typecode: str, where: str) -> bytes:
    """u32 or f32, little-endian."""
    if not isinstance(buffer, array) or buffer.typecode != typecode:
        raise ContractError(f"{where}: wants an array({typecode!r}), not {type(buffer).__name__}")
    if _SWAP:
        buffer = array(typecode, buffer)
        buffer.byteswap()
    return buffer.tobytes()


def _load(typecode: str, raw: bytes) -> array[Any]:
    buffer = array(typecode)
    buffer.frombytes(raw)  # ValueError unless whole items
    if _SWAP:
        buffer.byteswap()
    return buffer


def _pack_texts(texts: list[Any], where: str) -> bytes:
    """One byte that says how, then the packed texts: 0 as they are, 1 compressed by zlib."""
    packed = _pack(texts, where)
    if len(packed) < LARGE:
        return b"\0" + packed
    return b"\1" + zlib.compress(packed, 6)


def _read_texts(raw: bytes, names: Sequence[str], types: Sequence[Any], where: str) -> dict[str, Any]:
    """The texts by field name. Raises ContractError unless they are of these types."""
    try:
        packed = raw[1:]
        if raw[:1] == b"\1":
            inflate = zlib.decompressobj()
            packed = inflate.decompress(packed, MAX_TEXTS)
            if not inflate.eof or inflate.unused_data:
                raise ValueError("not one whole zlib stream")
        elif raw[:1] != b"\0":
            raise ValueError(f"unknown packing {raw[:1]!r}")
        values = msgpack.unpackb(packed, ext_hook=_unpack_ext, unicode_errors="surrogatepass", strict_map_key=False)
    except Exception as e:  # msgpack's own errors share no base, and some print empty
        raise ContractError(f"{where}: unreadable texts: {type(e).__name__}: {e}") from e
    if type(values) is not list or len(values) != len(names):
        raise ContractError(f"{where}: the texts are not {', '.join(names)}")
    for name, kind, value in zip(names, types, values, strict=True):
        if not isinstance(value, kind):
            _wrong(where, name, value)
    return dict(zip(names, values, strict=True))


def _defer(raw: Any, names: Sequence[str], types: Sequence[Any], where: str) -> Callable[[], dict[str, Any]]:
    if type(raw) is not bytes:
        _wrong(where, "texts", raw)
    return partial(_read_texts, raw, names, types, where)


def _prompt(fields: list[Any], where: str) -> Prompt:
    _, _, ids, texts, at = fields
    if type(at) is not float:
        _wrong(where, "prompt", fields)
    event = _new(Prompt)
    _set(event, "ids", _load("I", ids))
    _set(event, "_read", _defer(texts, ("messages", "tools"), (list, list), where))
    _set(event, "at", at)
    return event


def _sampled(fields: list[Any], where: str) -> Sampled:
    _, _, turn, ids, logprobs, spans, finish, text, cached_tokens, at, seconds = fields
    tokens, floats = _load("I", ids), _load("f", logprobs)
    if len(tokens) != len(floats):
        raise ContractError(f"{where}: turn {turn} has {len(tokens)} sampled tokens and {len(floats)} logprobs")
    if not math.isfinite(sum(floats)):  # f32s cannot overflow a double
        raise ContractError(f"{where}: turn {turn} has a logprob that is not finite")
    if not (type(turn) is int and turn >= 0 and type(text) is str and type(cached_tokens) is int):
        _wrong(where, "sampled", [turn, text, cached_tokens])
    if type(at) is not float or type(seconds) is not float:
        _wrong(where, "time of a sampled event", [at, seconds])
    event = _new(Sampled)
    _set(event, "turn", turn)
    _set(event, "ids", tokens)
    _set(event, "logprobs", floats)
    _set(event, "versions", _spans(spans, len(tokens), f"{where}: turn {turn}"))
    _set(event, "finish", _FINISH[finish] if finish in _FINISH else Finish(finish))
    _set(event, "text", text)
    _set(event, "cached_tokens", cached_tokens)
    _set(event, "at", at)
    _set(event, "seconds", seconds)
    return event


_FINISH = {finish.value: finish for finish in Finish}  # a look-up costs a fifth of calling the enum


def _spans(raw: Any, length: int, where: str) -> tuple[VersionSpan, ...]:
    """Checked to tile `[0, length)`."""
    spans, end = [], 0
    for version, start, stop in raw:
        if type(version) is not str or type(start) is not int or type(stop) is not int:
            _wrong(where, "version span", [version, start, stop])
        if start != end or stop < start:
            raise ContractError(f"{where}: version spans {raw!r} do not tile {length} tokens")
        spans.append(VersionSpan(version, start, stop))
        end = stop
    if end != length:
        raise ContractError(f"{where}: version spans {raw!r} do not tile {length} tokens")
    return tuple(spans)


def _observed(fields: list[Any], where: str) -> Observed:
    _, _, turn, ids, texts, extra_calls, done, at, seconds = fields
    if not (type(turn) is int and turn >= 0 and type(extra_calls) is int and type(done) is bool):
        _wrong(where, "observed", [turn, extra_calls, done])
    if type(at) is not float or type(seconds) is not float:
        _wrong(where, "time of an observed event", [at, seconds])
    event = _new(Observed)
    _set(event, "turn", turn)
    _set(event, "ids", _load("I", ids))
    _set(event, "_read", _defer(texts, _OBSERVED, (dict, list, list, list), where))
    _set(event, "extra_calls", extra_calls)
    _set(event, "done", done)
    _set(event, "at", at)
    _set(event, "seconds", seconds)
    return event


_OBSERVED = ("message", "actions", "replies", "errors")


def _closed(fields: list[Any], where: str) -> Closed:
    _, _, stop, reward, failure, texts, at = fields
    stop = Stop(stop)
    if reward is not None and (type(reward) is not float or not math.isfinite(reward)):
        raise ContractError(f"{where}: the reward must be a finite number, not {reward!r}")
    if (reward is None) is (stop in GRADED):
        raise ContractError(f"{where}: stop {stop.value} with reward {reward!r}: exactly graded stops carry a reward")
    if type(at) is not float:
        _wrong(where, "time of a closed event", at)
    event = _new(Closed)
    _set(event, "stop", stop)
    _set(event, "reward", reward)
    _set(event, "failure", failure if failure is None else FailureClass(failure))
    _set(event, "_read", _defer(texts, ("info",), (dict,), where))
    _set(event, "at", at)
    return event


def _wrong(where: str, what: str, value: Any) -> NoReturn:
    raise ContractError(f"{where}: wrong {what}: {str(value)[:200]}")


_EVENTS: dict[str, Callable[[list[Any], str], Event]] = {
    "prompt": _prompt,
    "sampled": _sampled,
    "observed": _observed,
    "closed": _closed,
}
