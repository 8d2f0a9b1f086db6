"""Start and duration of each part of an episode."""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter
from typing import NamedTuple

from rollq.env import RESPOND, Json
from rollq.events import Acted, Observed, Sampled
from rollq.trajectory import Trajectory


class Span(NamedTuple):
    """One part of an episode."""

    kind: str
    """`engine` (its queue included), `user`, `environment`, or `agent`: time between two turns of a
    trace in which only the agent program ran.
    """
    start: float
    """Unix time."""
    seconds: float
    turn: int


def episode_times(trajectory: Trajectory) -> list[Span]:
    """Each of the engine's replies, each answer to a turn, and the agent program's own time, in
    order.
    """
    times: list[Span] = []
    agent_times: list[Span] = []
    turn = 0
    for event in trajectory.events:
        if isinstance(event, Observed) and event.trace is not None:
            agent_times.append(Span("agent", event.at, event.seconds, event.turn))
            continue
        if isinstance(event, Sampled | Observed):
            turn = event.turn
        if isinstance(event, Sampled | Observed | Acted):
            times.append(Span(_kind(event), event.at, event.seconds, turn))
    if agent_times:
        times += _without_overlap(agent_times, times)
        times.sort(key=attrgetter("start"))
    return [
        span._replace(start=round(span.start, 3), seconds=round(span.seconds, 4)) for span in times
    ]


def _kind(event: Sampled | Observed | Acted) -> str:
    if isinstance(event, Sampled):
        return "engine"
    actions = [event.action] if isinstance(event, Acted) else event.actions
    return "user" if any(map(_user_answered, actions)) else "environment"


def _user_answered(action: Mapping[str, Json]) -> bool:
    """True if the user spoke during this action. `user` is recorded only where its messages are not
    the observation itself; the opening of an episode has no name.
    """
    speaks = action["name"] in ("", RESPOND)
    return bool(action.get("user", speaks))


def _without_overlap(agent_times: Sequence[Span], other_times: Sequence[Span]) -> Iterator[Span]:
    """The parts of the agent's times in which nothing else went on. Overlapping agent times count
    once.
    """
    busy = deque(sorted((other.start, other.start + other.seconds) for other in other_times))
    free_from = 0.0
    for span in sorted(agent_times, key=attrgetter("start")):
        begin = max(span.start, free_from)
        end = span.start + span.seconds
        while busy and busy[0][0] < end:
            other_begin, other_end = busy.popleft()
            if begin < other_begin:
                yield Span("agent", begin, other_begin - begin, span.turn)
            begin = max(begin, other_end)
        if begin < end:
            yield Span("agent", begin, end - begin, span.turn)
        free_from = max(begin, end)
