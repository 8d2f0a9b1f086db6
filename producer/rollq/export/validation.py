"""Checks a trajectory in the exported form: what `rollq.export.record` promises of it.

Pure: a record in, words about its faults out. The formats read files and call this for each
trajectory.
"""

from base64 import b64decode
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate, groupby, pairwise
from typing import Any, NamedTuple

from rollq.errors import ContractError, FailureClass
from rollq.events import GRADED, Finish, Stop
from rollq.job import parse_id
from rollq.sampling import number
from rollq.trajectory_extras import Extra


class Checked(NamedTuple):
    """One trajectory of a file, or a part of the file that could not be read."""

    where: str
    """For people: `line 12`."""
    job: str
    """Empty when it could not be read."""
    faults: Sequence[str]
    """What is wrong; empty when all is well."""
    share: float
    """How much of the file is read with it, from 0.0 to 1.0."""


class Head(NamedTuple):
    """What a list shows of a trajectory: its facts without messages and tokens, which are nearly
    all of it. Or a part of the file that could not be read.
    """

    name: str
    """For people: `line 12`."""
    where: Any
    """What `read_at` of its format finds it by."""
    end: Any
    """What `heads` of its format goes on behind it with."""
    fields: Mapping[str, Any]
    """At least the fields of `Facts` that the record has, and `sampled` (tokens) where it is known.
    """
    wrong: str
    """Why it could not be read; then `fields` is empty."""
    share: float
    """How much of the file is read with it, from 0.0 to 1.0."""


def _whole(value: Any) -> bool:
    return type(value) is int and value >= 0


def _text(value: Any) -> bool:
    return isinstance(value, str) and value != ""


def _map(value: Any) -> bool:
    return isinstance(value, dict)


def _list(value: Any) -> bool:
    return isinstance(value, list)


Check = Callable[[Any], bool]
FIELDS: Mapping[str, tuple[Check, str]] = {
    **dict.fromkeys(("job", "run", "group", "env", "split", "queue"), (_text, "a text")),
    **dict.fromkeys(
        ("sample", "task", "attempt", "turns"), (_whole, "a whole number of at least 0")
    ),
    "began": (lambda value: number(value) and value >= 0, "a time in Unix seconds"),
    **dict.fromkeys(("labels", "sampling", "info"), (_map, "a mapping")),
    "stop": (lambda value: value in [*Stop], f"one of {', '.join(Stop)}"),
    "failure": (
        lambda value: value is None or value in [*FailureClass],
        f"null or one of {', '.join(FailureClass)}",
    ),
    "reward": (lambda value: value is None or number(value), "null or a finite number"),
    "messages": (
        lambda value: (
            _list(value) and all(_map(m) and isinstance(m.get("role"), str) for m in value)
        ),
        "a list of messages, each with a role",
    ),
    **dict.fromkeys(("tokens", "mask", "logprobs", "versions"), (_list, "a list")),
    "traces": (
        lambda value: _list(value) and all(_whole(n) and n for n in value),
        "a list of lengths above 0",
    ),
}
"""What each field of a record must be. Other fields may be there too."""


def faults(record: Mapping[str, Any]) -> list[str]:
    """What is wrong with a record, in words. Empty when nothing is."""
    wrong = [f"it has no {name}" for name in FIELDS if name not in record]
    if len(wrong) > len(FIELDS) // 2:
        return [
            f"it is no exported trajectory: {', '.join(wrong[:2])}, and "
            f"{len(wrong) - 2} more are missing"
        ]
    for name, (good, words) in FIELDS.items():
        if name in record and not good(record[name]):
            wrong.append(f"{name} must be {words}, not {record[name]!r:.60}")
    if wrong:
        return wrong
    wrong = [
        *_name_faults(record),
        *_outcome_faults(record),
        *_token_faults(record),
        *_piece_faults(record),
    ]
    return wrong or [
        *_turn_faults(record),
        *_turn_reward_faults(record),
        *_time_faults(record),
        *_extra_faults(record),
    ]


def length_faults(lists: Mapping[str, Sequence[Any]]) -> Iterator[str]:
    """Lists with one entry per token are equally long."""
    lengths = {name: len(values) for name, values in lists.items()}
    if len(set(lengths.values())) > 1:
        yield "its lengths differ: " + ", ".join(f"{n} {name}" for name, n in lengths.items())


def _name_faults(record: Mapping[str, Any]) -> Iterator[str]:
    try:
        named = parse_id(record["job"])
    except ContractError as e:
        yield str(e)
        return
    if named != (record["run"], record["group"], record["sample"]):
        yield (
            f"job {record['job']} is not run {record['run']}, group {record['group']}, sample "
            f"{record['sample']}"
        )


def _outcome_faults(record: Mapping[str, Any]) -> Iterator[str]:
    stop, reward, failure = record["stop"], record["reward"], record["failure"]
    if (reward is not None) is not (stop in GRADED):
        yield (
            f"stop {stop} with reward {reward!r}: exactly "
            f"{', '.join(sorted(GRADED))} carry a reward"
        )
    if failure is not None and stop in GRADED:
        yield f"stop {stop} with failure {failure}: a graded episode has none"


def _token_faults(record: Mapping[str, Any]) -> Iterator[str]:
    lists = {name: record[name] for name in ("tokens", "mask", "logprobs", "versions")}
    wrong = list(length_faults(lists))
    if sum(record["traces"]) != len(record["tokens"]):
        wrong.append(
            f"its traces make {sum(record['traces'])} tokens, and it has {len(record['tokens'])}"
        )
    if wrong:
        yield from wrong
        return
    for i, (token, sampled, logprob, version) in enumerate(zip(*lists.values(), strict=True)):
        if type(token) is not int or not 0 <= token < 2**32:
            why = f"id {token!r:.60} is no token id"
        elif type(sampled) is not int or sampled not in (0, 1):
            why = f"mask {sampled!r:.60} is neither 0 nor 1"
        elif not number(logprob):
            why = f"logprob {logprob!r:.60} is no finite number"
        elif sampled and not _text(version):
            why = f"it was sampled, and version {version!r:.60} is no name"
        elif not sampled and (logprob != 0.0 or version is not None):
            why = f"it was not sampled, and has logprob {logprob} and version {version!r:.60}"
        else:
            continue
        yield f"token {i}: {why}"
        return


def _piece_faults(record: Mapping[str, Any]) -> Iterator[str]:
    """A turn ends with a piece. Parquet and files of an earlier rollq have no pieces."""
    try:
        pieces = [(length, finish, *asked) for length, finish, *asked in record.get("pieces", [])]
        lengths = [
            piece[0]
            for piece in pieces
            if piece[1] in [*Finish] and [*map(_map, piece[2:])] in ([], [True])
        ]
        ends = {*accumulate(lengths)}
    except (TypeError, ValueError):
        yield (
            f"pieces must be a length, a finish and perhaps a mapping, not {record['pieces']!r:.60}"
        )
        return
    turns = [*accumulate(len(list(run)) for sampled, run in groupby(record["mask"]) if sampled)]
    if "pieces" in record and sum(lengths) != sum(map(bool, record["mask"])):
        yield (
            f"its pieces make {sum(lengths)} sampled tokens, and the mask "
            f"{sum(map(bool, record['mask']))}"
        )
    elif "pieces" in record and not ends >= {*turns}:
        yield (
            f"its pieces end at {sorted(ends)!r:.60} of the sampled tokens, and the "
            f"turns at {turns!r:.60}"
        )


def _time_faults(record: Mapping[str, Any]) -> Iterator[str]:
    """Parquet and files of an earlier rollq have none."""
    times = record.get("times", [])
    if not _list(times):
        yield f"times must be a list, not {times!r:.60}"
        return
    for time in times:
        if not (
            _list(time)
            and len(time) == 4
            and _text(time[0])
            and all(map(number, time[1:3]))
            and _whole(time[3])
        ):
            yield f"times must be lists of what, start, seconds and turn, not {time!r:.60}"
            return


def _turn_reward_faults(record: Mapping[str, Any]) -> Iterator[str]:
    """Files of an earlier rollq have none."""
    if "turn_rewards" not in record:
        return
    rewards = record["turn_rewards"]
    if not _list(rewards) or not all(reward is None or number(reward) for reward in rewards):
        yield f"turn_rewards must be a list of null or finite numbers, not {rewards!r:.60}"
    elif len(rewards) != record["turns"]:
        yield f"it has {record['turns']} turns, and {len(rewards)} turn_rewards"


def _extra_faults(record: Mapping[str, Any]) -> Iterator[str]:
    """Of the fields that only some records have."""
    if not _map(kwargs := record.get("template_kwargs", {})):
        yield f"template_kwargs must be a mapping, not {kwargs!r:.60}"
    if "adapter" in record and not _text(record["adapter"]):
        yield f"adapter must be a text, not {record['adapter']!r:.60}"
    extras = record.get("extras", {})
    if not _map(extras):
        yield f"extras must be a mapping, not {extras!r:.60}"
        return
    for name, extra in extras.items():
        try:
            Extra(
                dtype=extra["dtype"],
                shape=extra["shape"],
                data=b64decode(extra["data"], validate=True),
            )
        except (
            KeyError,
            TypeError,
            ValueError,
        ) as e:  # ContractError and binascii.Error are ValueErrors
            yield f"extra {name} is no array: {type(e).__name__}: {e}"


def _turn_faults(record: Mapping[str, Any]) -> Iterator[str]:
    """Turns, traces, mask and messages tell the same story. A turn's sampled tokens are
    consecutive, in one trace.
    """
    mask, turns = record["mask"], record["turns"]
    ends = accumulate(record["traces"], initial=0)
    sampled = []
    for begin, end in pairwise(ends):
        if mask[begin]:
            yield f"token {begin} opens a trace and was sampled: there is nothing before it"
        sampled.append(sum(run for run, _ in groupby(mask[begin:end])))
    if "conversations" not in record and (
        empty := [place for place, count in enumerate(sampled[:-1]) if not count]
    ):
        yield f"nothing was sampled in trace {empty[0]}, and another one follows"
    if record["stop"] in GRADED and sum(sampled) != turns:
        yield f"it has {turns} turns, and the mask {sum(sampled)}"
    if "conversations" in record:
        yield from _conversation_faults(record)
        return
    answers = sum(message["role"] == "assistant" for message in record["messages"])
    if answers < turns:
        yield f"it has {turns} turns, and {answers} messages of the assistant"


def _conversation_faults(record: Mapping[str, Any]) -> Iterator[str]:
    """Episodes of agent programs, and those whose context was shortened, have one for each of
    several traces.
    """
    conversations, ends = record["conversations"], accumulate(record["traces"], initial=0)
    if not _list(conversations) or len(conversations) != len(record["traces"]):
        yield f"it has {len(record['traces'])} traces, and conversations {conversations!r:.60}"
        return
    for n, (each, (begin, end)) in enumerate(zip(conversations, pairwise(ends), strict=True)):
        if not (
            _map(each) and _list(each.get("turns")) and FIELDS["messages"][0](each.get("messages"))
        ):
            yield f"conversation {n} must have messages and turns"
            return
        runs = sum(run for run, _ in groupby(record["mask"][begin:end]))
        if len(each["turns"]) != runs:
            yield f"conversation {n} has {len(each['turns'])} turns, and the mask {runs}"
        said = sum(message["role"] == "assistant" for message in each["messages"]) + (
            "unanswered" in each
        )
        if said < runs:
            yield f"conversation {n} has {runs} turns, and {said} messages of the assistant"
