"""Conversations and steps of an episode, as the exported form has them."""

from collections.abc import Sequence
from typing import Any

from rollq.events import Acted, Message, Observed, Prompt, Replied, Sampled
from rollq.trajectory import Trajectory

TraceEvents = tuple[Prompt, Sequence[Sampled | Observed]]


def conversations(trajectory: Trajectory) -> list[dict[str, Any]]:
    """The conversation of each trace that an agent program or a job's `context` opened, in the
    order of the tokens; empty where there is only one, unless it is of one of `Job.models`.

    `messages` is its conversation, whose last assistant messages are its turns. `turns` has their
    numbers in the episode, in which all traces count together. `tools` has names. `kind` is `main`
    or `helper` (`Trajectory.kinds`), `model` the one of `Job.models` whose trace it is. `behind` is
    there where its tokens begin with those of an earlier trace up to the end of one of its turns:
    `[trace, turn]`. `unanswered` is the text of a last turn that is not among the messages, because
    the attempt failed.
    """
    traces = trajectory.trace_events()
    has_several = trajectory.of_agent or trajectory.job.context
    if not trajectory.job.models and (not has_several or len(traces) < 2):
        return []
    records = []
    for number, messages in enumerate(trajectory.conversations):
        record = _conversation(messages, traces[number]) | _behind(traces, number)
        records.append(record | {"kind": trajectory.kinds[number]})
    return records


def _conversation(messages: list[Message], trace: TraceEvents) -> dict[str, Any]:
    prompt, response = trace
    sampled = [event for event in response if isinstance(event, Sampled) and event.ids]
    answered = {event.turn for event in response if isinstance(event, Observed)}
    unanswered = [event.text for event in sampled if event.turn not in answered]
    record: dict[str, Any] = {
        "messages": messages,
        "tools": [str((tool.get("function") or tool).get("name")) for tool in prompt.tools],
        "turns": [*dict.fromkeys(event.turn for event in sampled)],
    }
    if prompt.model:
        record["model"] = prompt.model
    if unanswered:
        record["unanswered"] = "".join(unanswered)
    return record


def _behind(traces: Sequence[TraceEvents], number: int) -> dict[str, Any]:
    """The longest beginning that the trace shares with an earlier one up to the end of a turn."""
    prompt_ids = traces[number][0].ids.tobytes()
    longest = 0
    behind: dict[str, Any] = {}
    for earlier, trace in enumerate(traces[:number]):
        length, turn = _shared_beginning(prompt_ids, trace)
        if length > longest:
            longest = length
            behind = {"behind": [earlier, turn]}
    return behind


def _shared_beginning(prompt_ids: bytes, trace: TraceEvents) -> tuple[int, int]:
    """Bytes of the longest beginning that ends with a turn of the trace, and that turn; 0 bytes
    where there is none.
    """
    prompt, response = trace
    length = 0
    at = 0
    last_turn = 0
    for place, event in enumerate((prompt, *response)):
        ids = event.ids.tobytes()
        if not prompt_ids.startswith(ids, at):
            break
        at += len(ids)
        ends_turn = place == len(response) or isinstance(response[place], Observed)
        if isinstance(event, Sampled) and ends_turn:
            length = at
            last_turn = event.turn
    return length, last_turn


def steps(trajectory: Trajectory) -> list[dict[str, Any]]:
    """Actions of an agent program in the environment and replies of models that are not trained, in
    order. `turn` is the last one that was sampled before it; null for the opening.
    """
    records: list[dict[str, Any]] = []
    turn: int | None = None
    for event in trajectory.events:
        if isinstance(event, Sampled):
            turn = event.turn
        elif isinstance(event, Replied):
            action = {"name": f"model {event.model}", "arguments": {}}
            records.append({"turn": turn, "action": action, "text": event.text})
        elif isinstance(event, Acted):
            step: dict[str, Any] = {"turn": turn, "action": dict(event.action), "text": event.text}
            if event.done:
                step["done"] = True
            records.append(step)
    return records


def unanswered(trajectory: Trajectory) -> str | None:
    """The engine's text of a last turn that was sampled and led to nothing, because the attempt
    failed in it. None where the last turn was answered.
    """
    last = -1
    text = None
    for event in trajectory.events:
        if isinstance(event, Sampled) and event.ids and event.turn >= last:
            before = text if text and event.turn == last else ""
            text = before + event.text
            last = event.turn
        elif isinstance(event, Observed) and (event.trace is None or event.turn == last):
            text = None
    return text
