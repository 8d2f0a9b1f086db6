"""A trajectory as one plain JSON object: the line of an exported file."""

import json
from base64 import b64encode
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from operator import itemgetter
from typing import Any

from rollq.errors import ContractError
from rollq.events import Acted, Message, Observed, Prompt, Sampled
from rollq.trajectory import Trajectory
from rollq.trajectory_extras import Extra


class Unexportable(ContractError):
    """This trajectory cannot be exported. The caller rejects its job."""

    job_id: str = ""


def record(trajectory: Trajectory) -> dict[str, Any]:
    """The object on a line of an exported file.

    `tokens`, `mask`, `logprobs` and `versions` have equal length. The traces follow one another in
    them, and `traces` lists the length of each. `pieces` has the length and the finish of each of
    the engine's replies, in order, and `Sampled.asked` where an agent program asked for something.
    `times` is `times_of`. Where the mask is 0, the logprob is 0.0 and the version null.
    `unanswered` is there when the last turn was never answered: its text, such as the call that
    crashed the environment. Raises ContractError when a text in Redis cannot be read.
    """
    unanswered = _unanswered(trajectory)
    return facts(trajectory) | {
        "tokens": trajectory.tokens.tolist(),
        "mask": list(trajectory.mask),
        "logprobs": trajectory.logprobs.tolist(),
        "versions": trajectory.versions,
        "traces": trajectory.traces,
        "pieces": [_piece(event) for event in trajectory.spans if isinstance(event, Sampled)],
        "times": times_of(trajectory),
        **({"unanswered": unanswered} if unanswered is not None else {}),
    }


def _piece(event: Sampled) -> list[Any]:
    return [len(event.ids), event.finish.value, *([dict(event.asked)] if event.asked else [])]


def times_of(trajectory: Trajectory) -> list[list[Any]]:
    """`[what, start, seconds, turn]` of each of the engine's replies and of what answered each
    turn, in order.

    What is `engine` (its queue included), `user` where a user answered the turn, else
    `environment`; `agent` is the time between two turns of a trace that an agent program spent by
    itself. The start is Unix time.
    """
    times: list[list[Any]] = []
    waits: list[list[Any]] = []
    turn = 0
    for event in trajectory.events:
        if isinstance(event, Sampled):
            what, turn = "engine", event.turn
        elif isinstance(event, Observed) and event.trace is not None:
            waits.append(["agent", event.at, event.seconds, event.turn])
            continue
        elif isinstance(event, Observed):
            answers = event.replies[: len(event.actions) or 1]  # what the context asks is no answer
            said = any(reply.get("role") == "user" for reply in answers)
            what = (
                "user"
                if said or any("user" in action for action in event.actions)
                else "environment"
            )
            turn = event.turn
        elif isinstance(event, Acted):
            what = "user" if "user" in event.action else "environment"
        else:
            continue
        times.append([what, event.at, event.seconds, turn])
    found = sorted([*times, *_alone(waits, times)], key=itemgetter(1)) if waits else times
    return [[what, round(at, 3), round(seconds, 4), number] for what, at, seconds, number in found]


def _alone(waits: Sequence[list[Any]], others: Sequence[list[Any]]) -> Iterator[list[Any]]:
    """The parts of these times in which nothing else was going on. None is given twice."""
    busy = deque(sorted((at, at + seconds) for _, at, seconds, _ in others))
    free_from = 0.0
    for what, at, seconds, turn in sorted(waits, key=itemgetter(1)):
        begin, end = max(at, free_from), at + seconds
        while busy and busy[0][0] < end:
            other_begin, other_end = busy.popleft()
            if begin < other_begin:
                yield [what, begin, other_begin - begin, turn]
            begin = max(begin, other_end)
        if begin < end:
            yield [what, begin, end - begin, turn]
        free_from = max(begin, end)


def _unanswered(trajectory: Trajectory) -> str | None:
    """The engine's text of a last turn that was sampled and led to nothing, because the attempt
    failed in it. None where the last turn was answered.
    """
    last, text = -1, None
    for event in trajectory.events:
        if isinstance(event, Sampled) and event.ids and event.turn >= last:
            text = (text or "") + event.text if event.turn == last else event.text
            last = event.turn
        elif isinstance(event, Observed) and (event.trace is None or event.turn == last):
            text = None
    return text


def facts(trajectory: Trajectory) -> dict[str, Any]:
    """What the record says of the trajectory as a whole. Raises ContractError when a text in Redis
    cannot be read.
    """
    job, kwargs = trajectory.job, trajectory.header.template_kwargs
    return {
        "job": job.id,
        "began": trajectory.header.at,
        "run": job.run,
        "group": job.group,
        "sample": job.sample,
        "env": job.env,
        "split": job.split,
        "task": job.task,
        "queue": job.queue,
        "labels": dict(job.labels),
        "sampling": dict(job.sampling),
        "attempt": trajectory.header.attempt,
        "stop": trajectory.stop.value if trajectory.stop else None,
        "failure": trajectory.failure.value if trajectory.failure else None,
        "reward": trajectory.reward,
        "turns": trajectory.turns,
        "turn_rewards": trajectory.turn_rewards,
        "messages": trajectory.messages,
        **({"conversations": several} if (several := conversations(trajectory)) else {}),
        **({"steps": taken} if (taken := steps(trajectory)) else {}),
        "info": dict(trajectory.info),
        **({"template_kwargs": dict(kwargs)} if kwargs else {}),
        **({"adapter": job.adapter} if job.adapter else {}),
        **({"extras": _extras(trajectory.extras)} if trajectory.extras else {}),
    }


def _extras(extras: Mapping[str, Extra]) -> dict[str, Any]:
    return {
        name: {
            "dtype": extra.dtype,
            "shape": list(extra.shape),
            "data": b64encode(extra.data).decode(),
        }
        for name, extra in extras.items()
    }


def encode(trajectory: Trajectory) -> bytes:
    """The record as a line of JSON, newline included. Raises Unexportable."""
    try:
        return as_json(record(trajectory)).encode() + b"\n"
    except ValueError as e:
        raise unexportable(trajectory, e) from e


def as_json(value: Any) -> str:
    """Compact JSON in ASCII, because a policy can write half a surrogate pair. Raises
    ValueError.
    """
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def unexportable(trajectory: Trajectory, why: Exception) -> Unexportable:
    named = isinstance(why, ContractError)  # and then its text names the job
    error = Unexportable(
        str(why) if named else f"job {trajectory.job.id}: cannot be exported: {why}"
    )
    error.job_id = trajectory.job.id
    return error


def digest(line: bytes) -> int:
    """A hash of a record's line, a signed integer of 64 bits. It tells two episodes of one job
    apart.
    """
    return int.from_bytes(blake2b(line, digest_size=8).digest(), "little", signed=True)


def conversations(trajectory: Trajectory) -> list[dict[str, Any]]:
    """For each trace that an agent program or a job's `context` opened, in the order of the tokens;
    empty where there is only one.

    `messages` is its conversation, whose last assistant messages are its turns. `turns` has their
    numbers in the episode, in which all traces count together. `tools` has names. `behind` is there
    where its tokens begin with those of an earlier trace up to the end of one of its turns:
    `[trace, turn]`. `unanswered` is the text of a last turn that is not among the messages, because
    the attempt failed.
    """
    traces = trajectory.trace_events()
    if not (trajectory.of_agent or trajectory.job.context) or len(traces) < 2:
        return []
    return [
        _conversation(messages, prompt, response) | _behind(traces, number)
        for number, (messages, (prompt, response)) in enumerate(
            zip(trajectory.conversations, traces, strict=True)
        )
    ]


def _conversation(
    messages: list[Message], prompt: Prompt, response: Sequence[Sampled | Observed]
) -> dict[str, Any]:
    sampled = [event for event in response if isinstance(event, Sampled) and event.ids]
    answered = {event.turn for event in response if isinstance(event, Observed)}
    left = [event.text for event in sampled if event.turn not in answered]
    return {
        "messages": messages,
        "tools": [str((tool.get("function") or tool).get("name")) for tool in prompt.tools],
        "turns": [*dict.fromkeys(event.turn for event in sampled)],
        **({"unanswered": "".join(left)} if left else {}),
    }


def _behind(
    traces: Sequence[tuple[Prompt, Sequence[Sampled | Observed]]], number: int
) -> dict[str, Any]:
    """The longest beginning that the trace shares with an earlier one up to the end of a turn."""
    begins, best, found = traces[number][0].ids.tobytes(), 0, dict[str, Any]()
    for earlier, (prompt, response) in enumerate(traces[:number]):
        at = 0
        for place, event in enumerate((prompt, *response)):
            ids = event.ids.tobytes()
            if not begins.startswith(ids, at):
                break
            at += len(ids)
            last = place == len(response) or isinstance(response[place], Observed)
            if isinstance(event, Sampled) and last and at > best:
                best, found = at, {"behind": [earlier, event.turn]}
    return found


def steps(trajectory: Trajectory) -> list[dict[str, Any]]:
    """What an agent program did in the environment, in order. `turn` is the last one that was
    sampled before it; null for the opening.
    """
    found: list[dict[str, Any]] = []
    turn: int | None = None
    for event in trajectory.events:
        if isinstance(event, Sampled):
            turn = event.turn
        elif isinstance(event, Acted):
            done = {"done": True} if event.done else {}
            found.append({"turn": turn, "action": dict(event.action), "text": event.text, **done})
    return found
