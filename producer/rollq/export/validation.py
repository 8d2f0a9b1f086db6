"""Checks a trajectory in the exported form: the promises of `rollq.export.record`.

Pure: a record in, words about its faults out.
"""

from base64 import b64decode
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, groupby, pairwise
from typing import Any, NamedTuple

from rollq.errors import ContractError
from rollq.events import GRADED, Finish
from rollq.export.facts import FACTS, Record, are_messages, is_list, is_mapping, is_text
from rollq.job import parse_id
from rollq.numbers import is_number, is_whole
from rollq.trajectory_extras import Extra

PER_TOKEN = ("tokens", "mask", "logprobs", "versions")
"""Fields with one entry per token."""


class Checked(NamedTuple):
    """One trajectory of a file, or a part of the file that could not be read."""

    where: str
    """Place for people, such as `line 12`."""
    job: str
    """Empty when it could not be read."""
    faults: Sequence[str]
    """Faults in words. Empty when all is well."""
    share: float
    """Part of the file up to its end, from 0.0 to 1.0."""


def faults(record: Record) -> list[str]:
    """Faults of a record, in words. Empty when there are none."""
    required = [name for name, fact in FACTS.items() if not fact.is_optional]
    missing = [f"it has no {name}" for name in required if name not in record]
    if len(missing) > len(required) // 2:
        return [
            f"it is not an exported trajectory: {', '.join(missing[:2])}, and {len(missing) - 2} "
            "more are missing"
        ]
    by_field = [*missing, *_field_faults(record)]
    if by_field:
        return by_field
    by_token = [
        *_name_faults(record),
        *_outcome_faults(record),
        *_token_faults(record),
        *_piece_faults(record),
    ]
    return by_token or [
        *_teacher_faults(record),
        *_turn_faults(record),
        *_turn_reward_faults(record),
        *_extra_faults(record),
    ]


def _field_faults(record: Record) -> Iterator[str]:
    for name, fact in FACTS.items():
        if name in record and not fact.accepts(record[name]):
            yield f"{name} must be {fact.kind}, not {record[name]!r:.60}"


def _name_faults(record: Record) -> Iterator[str]:
    try:
        names = parse_id(record["job"])
    except ContractError as e:
        yield str(e)
        return
    if names != (record["run"], record["group"], record["sample"]):
        yield (
            f"job {record['job']} is not run {record['run']}, group {record['group']}, sample "
            f"{record['sample']}"
        )


def _outcome_faults(record: Record) -> Iterator[str]:
    stop, reward, failure = record["stop"], record["reward"], record["failure"]
    if (reward is not None) is not (stop in GRADED):
        yield (
            f"stop {stop} with reward {reward!r}: exactly {', '.join(sorted(GRADED))} carry a "
            "reward"
        )
    if failure is not None and stop in GRADED:
        yield f"stop {stop} with failure {failure}: a graded episode has none"


def _token_faults(record: Record) -> Iterator[str]:
    lists = [record[name] for name in PER_TOKEN]
    if len(set(map(len, lists))) > 1:
        lengths = [f"{len(record[name])} {name}" for name in PER_TOKEN]
        yield "its lengths differ: " + ", ".join(lengths)
        return
    if sum(record["traces"]) != len(record["tokens"]):
        yield f"its traces make {sum(record['traces'])} tokens, and it has {len(record['tokens'])}"
        return
    for place, entry in enumerate(zip(*lists, strict=True)):
        fault = _token_fault(*entry)
        if fault:
            yield f"token {place}: {fault}"
            return


def _token_fault(token: Any, sampled: Any, logprob: Any, version: Any) -> str:
    if not is_whole(token, at_most=2**32 - 1):
        return f"id {token!r:.60} is not a token id"
    if not is_whole(sampled, at_most=1):
        return f"mask {sampled!r:.60} is neither 0 nor 1"
    if not is_number(logprob):
        return f"logprob {logprob!r:.60} is not a finite number"
    if sampled and not is_text(version):
        return f"it was sampled, and version {version!r:.60} is not a name"
    if not sampled and (logprob != 0.0 or version is not None):
        return f"it was not sampled, and has logprob {logprob} and version {version!r:.60}"
    return ""


def _teacher_faults(record: Record) -> Iterator[str]:
    by_teacher = record.get("teacher_logprobs", {})
    teachers = record.get("teachers", {})
    is_scored = record["stop"] in GRADED and any(record["mask"])
    if is_scored and by_teacher.keys() != teachers.keys():
        yield f"it has logprobs of the teachers {[*by_teacher]}, and its teachers are {[*teachers]}"
    for teacher, logprobs in by_teacher.items():
        if not is_list(logprobs) or len(logprobs) != len(record["mask"]):
            yield f"teacher {teacher}: not one logprob for each of {len(record['mask'])} tokens"
        elif not all(
            is_number(logprob) and (sampled or logprob == 0.0)
            for logprob, sampled in zip(logprobs, record["mask"], strict=True)
        ):
            yield f"teacher {teacher}: a logprob is not a finite number, or of an unsampled token"


def _piece_faults(record: Record) -> Iterator[str]:
    """A turn ends with a piece."""
    for piece in record["pieces"]:
        if not _is_piece(piece):
            yield f"pieces must be a length, a finish and perhaps a mapping, not {piece!r:.60}"
            return
    piece_ends = [*accumulate(piece[0] for piece in record["pieces"])]
    turn_ends = [*accumulate(_sampled_runs(record["mask"]))]
    sampled = sum(map(bool, record["mask"]))
    in_pieces = piece_ends[-1] if piece_ends else 0
    if in_pieces != sampled:
        yield f"its pieces make {in_pieces} sampled tokens, and the mask {sampled}"
    elif not {*turn_ends} <= {*piece_ends}:
        yield (
            f"its pieces end at {piece_ends!r:.60} of the sampled tokens, and the turns at "
            f"{turn_ends!r:.60}"
        )


def _is_piece(value: Any) -> bool:
    if not is_list(value) or len(value) not in (2, 3):
        return False
    length, finish, *options = value
    return type(length) is int and finish in [*Finish] and all(map(is_mapping, options))


def _sampled_runs(mask: Sequence[int]) -> list[int]:
    """Lengths of the runs of sampled tokens, which are the turns of one trace."""
    return [len([*run]) for sampled, run in groupby(mask) if sampled]


def _turn_reward_faults(record: Record) -> Iterator[str]:
    if len(record["turn_rewards"]) != record["turns"]:
        yield f"it has {record['turns']} turns, and {len(record['turn_rewards'])} turn_rewards"


def _extra_faults(record: Record) -> Iterator[str]:
    for name, extra in record.get("extras", {}).items():
        try:
            data = b64decode(extra["data"], validate=True)
            Extra(dtype=extra["dtype"], shape=extra["shape"], data=data)
        except (KeyError, TypeError, ValueError) as e:  # a ContractError is a ValueError
            yield f"extra {name} is not an array: {type(e).__name__}: {e}"


def _turn_faults(record: Record) -> Iterator[str]:
    """Turns, traces, mask and messages tell the same story. A turn's sampled tokens are
    consecutive, in one trace.
    """
    mask, turns = record["mask"], record["turns"]
    turns_by_trace = []
    for begin, end in _trace_bounds(record):
        if mask[begin]:
            yield f"token {begin} opens a trace and was sampled: there is nothing before it"
        turns_by_trace.append(len(_sampled_runs(mask[begin:end])))
    if record["stop"] in GRADED and sum(turns_by_trace) != turns:
        yield f"it has {turns} turns, and the mask {sum(turns_by_trace)}"
    if "conversations" in record:
        yield from _conversation_faults(record["conversations"], turns_by_trace)
        return
    if 0 in turns_by_trace[:-1]:
        empty = turns_by_trace.index(0)
        yield f"nothing was sampled in trace {empty}, and another one follows"
    answers = _assistant_messages(record["messages"])
    if answers < turns:
        yield f"it has {turns} turns, and {answers} messages of the assistant"


def _trace_bounds(record: Record) -> Iterator[tuple[int, int]]:
    """The first token of each trace, and the token behind its last."""
    return pairwise(accumulate(record["traces"], initial=0))


def _conversation_faults(
    conversations: Sequence[Any], turns_by_trace: Sequence[int]
) -> Iterator[str]:
    """Episodes of agent programs, and those whose context was shortened, have a conversation for
    each of several traces.
    """
    if len(conversations) != len(turns_by_trace):
        yield f"it has {len(turns_by_trace)} traces, and conversations {conversations!r:.60}"
        return
    for place, turns in enumerate(turns_by_trace):
        conversation = conversations[place]
        if not _is_conversation(conversation):
            yield f"conversation {place} must have messages and turns"
            return
        if len(conversation["turns"]) != turns:
            yield (
                f"conversation {place} has {len(conversation['turns'])} turns, and the mask {turns}"
            )
        answers = _assistant_messages(conversation["messages"]) + ("unanswered" in conversation)
        if answers < turns:
            yield f"conversation {place} has {turns} turns, and {answers} messages of the assistant"


def _is_conversation(value: Any) -> bool:
    return is_mapping(value) and is_list(value.get("turns")) and are_messages(value.get("messages"))


def _assistant_messages(messages: Sequence[Mapping[str, Any]]) -> int:
    return sum(message["role"] == "assistant" for message in messages)
