"""When each part of an episode began, and how long it took."""

from collections import deque
from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import Any

from rollq.events import Acted, Event, Observed, Sampled
from rollq.trajectory import Trajectory


def times_of(trajectory: Trajectory) -> list[list[Any]]:
    """`[what, start, seconds, turn]` of each of the engine's replies and of what answered each
    turn, in order.

    What is `engine` (its queue included), `user` where a user answered the turn, else
    `environment`; `agent` is the time between two turns of a trace that an agent program spent by
    itself. The start is Unix time.
    """
    times: list[list[Any]] = []
    agent_times: list[list[Any]] = []
    turn = 0
    for event in trajectory.events:
        if isinstance(event, Observed) and event.trace is not None:
            agent_times.append(["agent", event.at, event.seconds, event.turn])
            continue
        if isinstance(event, Sampled | Observed):
            turn = event.turn
        if isinstance(event, Sampled | Observed | Acted):
            times.append([_what(event), event.at, event.seconds, turn])
    if agent_times:
        times = sorted([*times, *_alone(agent_times, times)], key=itemgetter(1))
    return [[what, round(at, 3), round(seconds, 4), turn] for what, at, seconds, turn in times]


def _what(event: Event) -> str:
    if isinstance(event, Sampled):
        return "engine"
    if isinstance(event, Acted):
        return "user" if "user" in event.action else "environment"
    assert isinstance(event, Observed)
    answers = event.replies[: len(event.actions) or 1]  # what the context asks is no answer
    user_replied = any(reply.get("role") == "user" for reply in answers)
    user_spoke = any("user" in action for action in event.actions)
    return "user" if user_replied or user_spoke else "environment"


def _alone(times: Sequence[list[Any]], others: Sequence[list[Any]]) -> Iterator[list[Any]]:
    """The parts of these times in which nothing else was going on. None comes twice."""
    busy = deque(sorted((at, at + seconds) for _, at, seconds, _ in others))
    free_from = 0.0
    for what, at, seconds, turn in sorted(times, key=itemgetter(1)):
        begin, end = max(at, free_from), at + seconds
        while busy and busy[0][0] < end:
            other_begin, other_end = busy.popleft()
            if begin < other_begin:
                yield [what, begin, other_begin - begin, turn]
            begin = max(begin, other_end)
        if begin < end:
            yield [what, begin, end - begin, turn]
        free_from = max(begin, end)
