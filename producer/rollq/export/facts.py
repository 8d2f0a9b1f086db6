"""Fields of an exported trajectory: where each comes from, and what its value must be.

The record of a trajectory, the offline check of a file and the test of docs/commands.md all read
`FACTS`. A field of a job is exported once it stands in `JOB_FIELDS` or `OPTIONAL_JOB_FIELDS`.
"""

from base64 import b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from rollq.errors import FailureClass
from rollq.events import Sampled, Stop
from rollq.export.conversations import conversations, steps, unanswered
from rollq.export.times import episode_times
from rollq.job import FIELD_TYPES
from rollq.numbers import is_number
from rollq.teachers import teacher_of
from rollq.trajectory import Trajectory

JOB_FIELDS = ("run", "group", "sample", "env", "split", "task", "queue", "labels", "sampling")
"""Fields of `Job` that every record has."""
OPTIONAL_JOB_FIELDS = ("adapter", "teachers", "models")
"""Fields of `Job` that a record has where they are not empty."""


Record = Mapping[str, Any]
"""An exported trajectory, as a JSON object."""


@dataclass(frozen=True, slots=True)
class Fact:
    """A field of the record."""

    read: Callable[[Trajectory], Any]
    """The fact's value. None leaves out a field that is optional. Raises ContractError when a text
    in Redis cannot be read.
    """
    accepts: Callable[[Any], bool]
    """True for a value that the field may have."""
    kind: str
    """Such values in words: `a text`."""
    is_optional: bool = False


def is_text(value: Any) -> bool:
    return isinstance(value, str) and value != ""


def is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def is_mapping(value: Any) -> bool:
    return isinstance(value, dict)


def is_list(value: Any) -> bool:
    return isinstance(value, list)


def is_message(value: Any) -> bool:
    return is_mapping(value) and isinstance(value.get("role"), str)


def are_messages(value: Any) -> bool:
    return is_list(value) and all(map(is_message, value))


def _is_time(value: Any) -> bool:
    return is_number(value) and bool(value >= 0)


def _is_stop(value: Any) -> bool:
    return value in [*Stop]


def _is_failure(value: Any) -> bool:
    return value is None or value in [*FailureClass]


def _is_reward(value: Any) -> bool:
    return value is None or is_number(value)


def _are_rewards(value: Any) -> bool:
    return is_list(value) and all(map(_is_reward, value))


def _are_lengths(value: Any) -> bool:
    return is_list(value) and all(is_count(length) and length for length in value)


def _are_times(value: Any) -> bool:
    return is_list(value) and all(map(_is_wait, value))


def _is_wait(value: Any) -> bool:
    if not is_list(value) or len(value) != 4:
        return False
    kind, start, seconds, turn = value
    return is_text(kind) and is_number(start) and is_number(seconds) and is_count(turn)


TEXT = (is_text, "a text")
COUNT = (is_count, "a whole number of at least 0")
MAPPING = (is_mapping, "a mapping")
LIST = (is_list, "a list")


def _job_fact(name: str, *, is_optional: bool = False) -> Fact:
    """The fact of a job's field. The field's type says what it must be."""
    accepts, kind = {int: COUNT, str: TEXT, Mapping: MAPPING}[FIELD_TYPES[name]]

    def read(trajectory: Trajectory) -> Any:
        value = getattr(trajectory.job, name)
        if is_optional and not value:
            return None
        return dict(value) if accepts is is_mapping else value

    return Fact(read, accepts, kind, is_optional)


def _extras(trajectory: Trajectory) -> dict[str, Any] | None:
    arrays = {}
    for name, extra in trajectory.extras.items():
        if teacher_of(name):
            continue
        data = b64encode(extra.data).decode()
        arrays[name] = {"dtype": extra.dtype, "shape": list(extra.shape), "data": data}
    return arrays or None


def _teacher_logprobs(trajectory: Trajectory) -> dict[str, Any] | None:
    by_teacher = trajectory.teacher_logprobs.items()
    return {teacher: logprobs.tolist() for teacher, logprobs in by_teacher} or None


def _pieces(trajectory: Trajectory) -> list[list[Any]]:
    pieces = []
    for event in trajectory.spans:
        if isinstance(event, Sampled):
            piece: list[Any] = [len(event.ids), event.finish.value]
            if event.asked:
                piece.append(dict(event.asked))
            pieces.append(piece)
    return pieces


FACTS: Mapping[str, Fact] = {
    "job": Fact(attrgetter("job.id"), *TEXT),
    "began": Fact(attrgetter("header.at"), _is_time, "a time in Unix seconds"),
    **{name: _job_fact(name) for name in JOB_FIELDS},
    "attempt": Fact(attrgetter("header.attempt"), *COUNT),
    "stop": Fact(lambda t: t.stop and t.stop.value, _is_stop, f"one of {', '.join(Stop)}"),
    "failure": Fact(
        lambda t: t.failure and t.failure.value,
        _is_failure,
        f"null or one of {', '.join(FailureClass)}",
    ),
    "reward": Fact(attrgetter("reward"), _is_reward, "null or a finite number"),
    "turns": Fact(attrgetter("turns"), *COUNT),
    "turn_rewards": Fact(
        attrgetter("turn_rewards"), _are_rewards, "a list of null or finite numbers"
    ),
    "messages": Fact(attrgetter("messages"), are_messages, "a list of messages, each with a role"),
    "conversations": Fact(lambda t: conversations(t) or None, *LIST, is_optional=True),
    "steps": Fact(lambda t: steps(t) or None, *LIST, is_optional=True),
    "info": Fact(lambda t: dict(t.info), *MAPPING),
    "template_kwargs": Fact(
        lambda t: dict(t.header.template_kwargs) or None, *MAPPING, is_optional=True
    ),
    **{name: _job_fact(name, is_optional=True) for name in OPTIONAL_JOB_FIELDS},
    "extras": Fact(_extras, *MAPPING, is_optional=True),
    "tokens": Fact(lambda t: t.tokens.tolist(), *LIST),
    "mask": Fact(lambda t: list(t.mask), *LIST),
    "logprobs": Fact(lambda t: t.logprobs.tolist(), *LIST),
    "teacher_logprobs": Fact(_teacher_logprobs, *MAPPING, is_optional=True),
    "versions": Fact(attrgetter("versions"), *LIST),
    "traces": Fact(attrgetter("traces"), _are_lengths, "a list of lengths above 0"),
    "pieces": Fact(_pieces, *LIST),
    "times": Fact(
        lambda t: list(map(list, episode_times(t))),
        _are_times,
        "a list of kind, start, seconds and turn",
    ),
    "unanswered": Fact(
        unanswered, lambda value: isinstance(value, str), "a text", is_optional=True
    ),
}
"""All fields, in the order of the record. `job` comes first: `jsonl.START` knows it."""
