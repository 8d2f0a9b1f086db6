"""The traces of an agent program's episode in the exported form: which conversation is which trace, and what was done
in the environment between turns.

Pure. Episodes of rollq's own loop have neither.
"""

from collections.abc import Sequence
from typing import Any

from rollq.events import Acted, Message, Observed, Prompt, Sampled
from rollq.trajectory import Trajectory


def conversations(trajectory: Trajectory) -> list[dict[str, Any]]:
    """For each trace that an agent program opened, in the order of the tokens; empty where there is only one.

    `messages` is its conversation, whose last assistant messages are its turns. `turns` has their numbers in the
    episode, in which all traces count together. `tools` has names. `behind` is there where its tokens begin with those
    of an earlier trace up to the end of one of its turns: `[trace, turn]`. `unanswered` is the text of a last turn that
    is not among the messages, because the attempt failed.
    """
    traces = trajectory.trace_events()
    if not trajectory.of_agent or len(traces) < 2:
        return []
    return [
        _conversation(messages, prompt, response) | _behind(traces, number)
        for number, (messages, (prompt, response)) in enumerate(zip(trajectory.conversations, traces, strict=True))
    ]


def _conversation(messages: list[Message], prompt: Prompt, response: Sequence[Sampled | Observed]) -> dict[str, Any]:
    sampled = [event for event in response if isinstance(event, Sampled) and event.ids]
    answered = {event.turn for event in response if isinstance(event, Observed)}
    left = "".join(event.text for event in sampled if event.turn not in answered)
    return {
        "messages": messages,
        "tools": [str((tool.get("function") or tool).get("name")) for tool in prompt.tools],
        "turns": [*dict.fromkeys(event.turn for event in sampled)],
        **({"unanswered": left} if left else {}),
    }


def _behind(traces: Sequence[tuple[Prompt, Sequence[Sampled | Observed]]], number: int) -> dict[str, Any]:
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
    """What an agent program did in the environment, in order. `turn` is the last one that was sampled before it; null
    for the opening."""
    found: list[dict[str, Any]] = []
    turn: int | None = None
    for event in trajectory.events:
        if isinstance(event, Sampled):
            turn = event.turn
        elif isinstance(event, Acted):
            done = {"done": True} if event.done else {}
            found.append({"turn": turn, "action": dict(event.action), "text": event.text, **done})
    return found
